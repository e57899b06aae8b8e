"""Independent computations of everything that the analyses publish.

Each `*_oracle.py` computes the complete results of one analysis (tables, metrics, curves, figures, sentences, summary, notes)
from a model's weights by brute force: every vector of every query-key pair, one sequence at a time, in float64, with NumPy,
SciPy and pandas. `test_published.py` compares each with what the analysis publishes, names included, so a table, column or
metric that no oracle knows fails as surely as a wrong number.
"""

import pytest

pytest.register_assert_rewrite("tests.oracles.comparison")
