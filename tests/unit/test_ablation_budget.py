"""Ablations of massive activations stay within a budget."""

import pytest
import torch

from normscope.analyses.massive_activations import _within

SAMPLE = [torch.zeros(5, 100, dtype=torch.long) for _ in range(16)]
OPERATIONS = 1e9
"""For a token: 1e11 for a sequence."""


@pytest.mark.parametrize(
    ("budget", "sequences"), [(None, 16), (1.6e12, 16), (1.59e12, 15), (8e11, 8), (5e11, 5), (1e11, 5)]
)
def test_sequences_are_left_out_as_far_as_an_interval_allows(budget, sequences):
    assert _within(budget, OPERATIONS, SAMPLE) == SAMPLE[:sequences]
