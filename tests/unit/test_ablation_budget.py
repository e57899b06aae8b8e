"""Ablations of the residual stream stay within a budget, and say what they left out."""

import pytest
import torch

from normscope.analyses.ablations import StreamAblations, _reduced, _within

LAYERS = 30
SAMPLE = [torch.zeros(5, 100, dtype=torch.long) for _ in range(16)]
STREAM = StreamAblations(torch.zeros(LAYERS + 1, 4), list(range(1, LAYERS + 1)))
ABLATIONS = 28


def operations_from(start: int) -> float:
    return 2.7e8 * (LAYERS - start + 1) / LAYERS


def cost(sample, starts) -> float:
    return 100.0 * len(sample) * ABLATIONS * sum(map(operations_from, starts))


@pytest.mark.parametrize("budget", [1e12, 1e13, 5e13])
def test_sequences_and_then_layers_are_left_out(budget):
    assert cost(SAMPLE, STREAM.starts) > 1.5e14, "an hour on two cores"
    sample, stream = _within(budget, operations_from, SAMPLE, STREAM, ABLATIONS)
    assert cost(sample, stream.starts) <= budget or (len(sample), len(stream.starts)) == (5, 1)
    assert stream.starts[0] == 1
    assert len(sample) >= 5
    steps = [after - before for before, after in zip(stream.starts, stream.starts[1:], strict=False)]
    assert max(steps, default=0) - min(steps, default=0) <= 1
    said = _reduced((16, 30), len(sample), sample, stream)
    assert said.startswith(
        f"ablations of the residual stream use {len(sample)} of 16 sequences and start from layers 1"
    )


@pytest.mark.parametrize("budget", [None, 1e15])
def test_nothing_is_left_out_without_need(budget):
    sample, stream = _within(budget, operations_from, SAMPLE, STREAM, ABLATIONS)
    assert (sample, stream) == (SAMPLE, STREAM)
    assert _reduced((16, 30), 16, sample, stream) is None
