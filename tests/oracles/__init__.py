"""Independent computations of everything that the analyses return.

Each `*_oracle.py` computes the complete results of one analysis (tables, metrics, curves, figures, sentences, summary, notes)
from a model's weights by brute force: every vector of every query-key pair, one sequence at a time, in float64, with NumPy,
SciPy and pandas. Its tests compare this with what the analysis returns, names included, so a table, column or metric that no
oracle knows fails as surely as a wrong number. Other tests find by name:

- `everything()`: all that the analysis can return, on a tiny model;
- `CASES`: metrics, arguments of `sentences_of` if it takes any, and the sentences, for both sides of every boundary;
- `EFFECTS`: metrics, arguments of `sentences_of`, and the effect of the first sentence, which answers the analysis's question;
- `CLAIMS`: what sentences claim of the numbers that they print, by a pattern that finds both, if they compare any;
- `INSIDE`: names within the analysis that it does not return, if there are any.
"""

import pytest

pytest.register_assert_rewrite("tests.oracles.comparison")
