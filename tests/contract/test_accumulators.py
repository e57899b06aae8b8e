"""One suite for every accumulator: the contract of `statistics.accumulator`."""

import dataclasses
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from normscope.statistics.accumulator import Accumulator, Nothing
from normscope.statistics.grouped import GroupedMoments


@dataclasses.dataclass(frozen=True)
class Case:
    """How to make an accumulator and feed it sequences of a batch."""

    empty: Callable[[], Accumulator]
    feed: Callable[[Accumulator, torch.Tensor], None]
    """Adds sequences given as (row, sequence, token) values; what is below −1 counts as padding."""


def _feed_grouped(accumulator: GroupedMoments, values: torch.Tensor) -> None:
    real = values[0] > -1
    members = torch.stack([real, real & (values[0] > 0)])
    for layer in (0, 1):
        accumulator.update(layer, values + layer, members)


CASES = {"GroupedMoments": Case(lambda: GroupedMoments(2, 2, 2), _feed_grouped)}


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def fed(case: Case, *batches: torch.Tensor) -> Accumulator:
    accumulator = case.empty()
    for batch in batches:
        case.feed(accumulator, batch)
    return accumulator


def values(seed: int, sequences: int = 4, tokens: int = 5) -> torch.Tensor:
    return torch.randn(2, sequences, tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(first: Accumulator, second: Accumulator) -> None:
    """States agree: integers exactly, sums to the last bits."""
    left, right = first.state(), second.state()
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-12, atol=1e-12, msg=name)


def test_empty_is_neutral(case):
    full = fed(case, values(0))
    assert_same(full.merge(case.empty()), full)
    assert_same(case.empty().merge(full), full)


def test_merge_is_associative(case):
    a, b, c = (fed(case, values(seed)) for seed in range(3))
    assert_same(a.merge(b).merge(c), a.merge(b.merge(c)))


def test_merge_leaves_both_sides_alone(case):
    a, b = fed(case, values(0)), fed(case, values(1))
    before = a.state(), b.state()
    merged = a.merge(b)
    case.feed(merged, values(2))
    for accumulator, state in zip((a, b), before, strict=True):
        for name, tensor in accumulator.state().items():
            assert torch.equal(tensor, state[name])


@given(seed=st.integers(0, 100), cut=st.integers(1, 3))
def test_batches_equal_the_whole(seed, cut):
    for case in CASES.values():
        whole = values(seed)
        assert_same(fed(case, whole), fed(case, whole[:, :cut], whole[:, cut:]))
        assert_same(fed(case, whole), fed(case, whole[:, :cut]).merge(fed(case, whole[:, cut:])))


def test_state_survives_save_and_load(case, tmp_path):
    accumulator = fed(case, values(0))
    torch.save(accumulator.state(), tmp_path / "state.pt")
    restored = case.empty()
    restored.load(torch.load(tmp_path / "state.pt", weights_only=True))
    case.feed(accumulator, values(1))
    case.feed(restored, values(1))
    assert_same(accumulator, restored)


def test_state_is_a_copy(case):
    accumulator = fed(case, values(0))
    state = accumulator.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    case.feed(accumulator, values(1))
    assert all(torch.equal(state[name], kept[name]) for name in state)


def test_nothing_cannot_be_computed(case):
    with pytest.raises(Nothing):
        case.empty().compute()


def test_grouped_moments_equal_numpy():
    data = values(3)
    summary = fed(CASES["GroupedMoments"], data).compute()
    real = data[0].numpy() > -1
    for layer in (0, 1):
        for row in (0, 1):
            numbers = data[row].numpy() + layer
            np.testing.assert_allclose(summary.mean[layer, row, 0], numbers[real].mean())
            np.testing.assert_allclose(summary.maximum[layer, row, 0], numbers[real].max())
            np.testing.assert_allclose(summary.minimum[layer, row, 0], numbers[real].min())
            per_sequence = [line[mask].mean() for line, mask in zip(numbers, real, strict=True) if mask.any()]
            np.testing.assert_allclose(summary.sequence_mean[layer, row, 0], np.mean(per_sequence))
    assert summary.count[0, 0] == real.sum()


def test_padding_may_hold_anything():
    data = values(3)
    moments = GroupedMoments(1, 2, 1)
    members = torch.ones(1, 4, 5, dtype=torch.bool)
    members[:, :, 3:] = False
    data[:, :, 3:] = torch.nan
    moments.update(0, data, members)
    assert torch.isfinite(moments.compute().mean).all()


def test_a_group_without_tokens_is_nan_and_counted_zero():
    moments = GroupedMoments(1, 1, 2)
    members = torch.tensor([[[True]], [[False]]])
    moments.update(0, torch.ones(1, 1, 1), members)
    summary = moments.compute()
    assert summary.count.tolist() == [[1, 0]]
    assert torch.isnan(summary.mean[0, 0, 1])
    assert torch.isnan(summary.maximum[0, 0, 1])
