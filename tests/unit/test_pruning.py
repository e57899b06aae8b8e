"""Attention outputs without the keys that score lowest, by hand."""

import torch

from normscope.maths.pruning import FRACTIONS, kept_keys, pruning_errors


def test_the_lowest_keys_are_dropped_and_ties_go_to_the_later():
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0, 5.0], [1.0, 1.0, 1.0, 1.0, -2.0]])
    assert kept_keys(scores, 0.5).tolist() == [[True, False, True, False, True], [False, True, True, True, False]]
    assert kept_keys(scores, 0.8).int().sum(dim=1).tolist() == [1, 1]
    assert kept_keys(scores[:, :1], 0.8).all()


def test_errors_of_two_heads_by_hand():
    """One query, four keys; head 1 has its value at key 0, head 2 at key 3."""
    weights = torch.tensor([[[0.5, 0.25, 0.25, 0.0]], [[0.0, 0.0, 0.5, 0.5]]], dtype=torch.float64)
    value = torch.tensor([[[4.0], [0.0], [0.0], [0.0]], [[0.0], [0.0], [0.0], [2.0]]], dtype=torch.float64)
    output_weight = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    outputs = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    backwards = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    own = torch.zeros(1, 4, dtype=torch.bool)
    errors = pruning_errors(weights, value, output_weight, outputs, {"worst": backwards, "best": -backwards}, own)
    assert errors.shape == (2, len(FRACTIONS), 2, 3)
    size = 5**0.5
    # Both heads lose all that they give.
    torch.testing.assert_close(errors[0, 0, 0], torch.tensor([1.0, 2 / size, 1 / size], dtype=torch.float64))
    # Both keep it: unchanged weights give the output, renormalised ones make 4 · 0.5 / 0.75 of 2, and 1 of 1.
    torch.testing.assert_close(errors[1, 0, 0], torch.zeros(3, dtype=torch.float64))
    more = (4 * 0.5 / 0.75 - 2) / size
    torch.testing.assert_close(errors[1, 0, 1], torch.tensor([more, more, 0.0], dtype=torch.float64))
    kept = pruning_errors(weights, value, output_weight, outputs, {"worst": backwards}, torch.ones_like(own))
    torch.testing.assert_close(kept, torch.zeros_like(kept))
