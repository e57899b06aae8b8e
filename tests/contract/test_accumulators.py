"""One suite for every accumulator: the contract of `statistics.accumulator`."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings

from normscope import statistics
from normscope.statistics import held_pairs, keyed_means
from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError
from normscope.statistics.counts import Counts
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean
from normscope.statistics.pair_histogram import Axis, PairsPart
from normscope.statistics.rank_correlation import RankCorrelation
from normscope.statistics.uniform_sample import UniformSample


@dataclasses.dataclass(frozen=True)
class Case:
    """How to make an accumulator and feed it sequences of a batch."""

    empty: Callable[[], Accumulator]
    feed: Callable[[Accumulator, torch.Tensor], None]
    """Adds sequences given as (row, sequence, token) values; what is below −1 counts as padding."""


def _feed_grouped(accumulator: GroupedMoments, values: torch.Tensor) -> None:
    token_mask = values[0] > -1
    members = torch.stack([token_mask, token_mask & (values[0] > 0)])
    for layer in (0, 1):
        accumulator.update(layer, values + layer, members)


AXES = (Axis(-20, 4, 5), Axis(-4, 4, 6))


def _feed_pairs(accumulator: RankCorrelation, values: torch.Tensor) -> None:
    group = (values[1] > 0).long() - (values[0] <= -1).long() * 2
    for layer in (0, 1):
        second = values.exp().transpose(0, 1)
        # Unlike the second, and on a grid of its own: a state that mixes up the two is another state.
        first = second[:, :, :, None] / second[:, :, None]
        accumulator.update(layer, second, group.clamp(min=-1), [PairsPart(first)])


def _feed_sample(accumulator: UniformSample, values: torch.Tensor) -> None:
    for sequence in values[0]:
        rows = torch.stack([torch.zeros_like(sequence), sequence * 2, sequence], dim=-1)
        name = int(sequence[0].abs() * 2**30)
        accumulator.update([((name,), len(rows))], lambda _, positions, rows=rows: rows[positions])


def _feed_pooled(accumulator: Mean, values: torch.Tensor) -> None:
    groups = torch.stack([values[0] > -1, values[0] > 0])
    for layer in (0, 1):
        sums = torch.einsum("rbt,gbt->gr", values + layer, groups.double())
        accumulator.update(layer, sums, groups.sum(dim=(1, 2)))


def _feed_tally(accumulator: Counts, values: torch.Tensor) -> None:
    for layer in (0, 1):
        accumulator.update(layer, (values > 0).sum(dim=(1, 2)))


def _feed_kept(accumulator: KeptTensors, values: torch.Tensor) -> None:
    lengths = (values[0] > -1).sum(dim=-1)
    tensors = [values[:, row, :length] for row, length in enumerate(lengths.tolist())]
    accumulator.update(values[0, :, 0].abs().tolist(), tensors)


def _feed_keyed(accumulator: KeyedMeans, values: torch.Tensor) -> None:
    token_mask = values[0] > -1
    numbers = values[:, token_mask].T
    accumulator.update((numbers * 2).long(), numbers, 1 + (numbers[:, 0] > 0).long())
    accumulator.settle()


CASES = {
    "GroupedMoments": Case(lambda: GroupedMoments(2, 2, 2), _feed_grouped),
    "RankCorrelation": Case(lambda: RankCorrelation(2, 2, *AXES), _feed_pairs),
    "RankCorrelation of many pairs": Case(lambda: RankCorrelation(2, 2, *AXES, exact=90), _feed_pairs),
    "KeyedMeans": Case(lambda: KeyedMeans(2, 2), _feed_keyed),
    "KeyedMeans of the smallest keys": Case(lambda: KeyedMeans(2, 2, size=3), _feed_keyed),
    "Mean": Case(lambda: Mean(2, 2, 2), _feed_pooled),
    "KeptTensors": Case(lambda: KeptTensors(torch.float64), _feed_kept),
    "KeptTensors of the smallest numbers": Case(lambda: KeptTensors(torch.float64, size=3), _feed_kept),
    "Counts": Case(lambda: Counts(2, 2), _feed_tally),
    "UniformSample": Case(lambda: UniformSample(6, 3, seed=5), _feed_sample),
}


def test_every_accumulator_is_tested():
    for module in pkgutil.walk_packages(statistics.__path__, f"{statistics.__name__}."):
        importlib.import_module(module.name)
    kinds = {type(case.empty()) for case in CASES.values()}
    assert kinds == set(_without_subclasses(Accumulator))


def _without_subclasses(kind: type) -> list[type]:
    own = [subclass for subclass in kind.__subclasses__() if subclass.__module__.startswith("normscope.")]
    return [leaf for subclass in own for leaf in _without_subclasses(subclass)] or [kind]


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
    left, right = first.state_dict(), second.state_dict()
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
    before = a.state_dict(), b.state_dict()
    merged = a.merge(b)
    case.feed(merged, values(2))
    for accumulator, state in zip((a, b), before, strict=True):
        for name, tensor in accumulator.state_dict().items():
            assert torch.equal(tensor, state[name])


@given(seed=st.integers(0, 100), cut=st.integers(1, 3))
@settings(max_examples=5)
def test_batches_equal_the_whole(seed, cut):
    for case in CASES.values():
        whole = values(seed)
        assert_same(fed(case, whole), fed(case, whole[:, :cut], whole[:, cut:]))
        sides = fed(case, whole[:, :cut]), fed(case, whole[:, cut:])
        assert_same(fed(case, whole), sides[0].merge(sides[1]))
        assert_same(fed(case, whole), sides[1].merge(sides[0]))


def test_what_a_forward_pass_has_filled_is_merged_after_it(case):
    """Tensors that are made under inference mode cannot be updated in place outside it."""
    with torch.inference_mode():
        filled, other = fed(case, values(0)), fed(case, values(1))
    expected = fed(case, values(0)).merge(fed(case, values(1)))
    filled.merge_state_dict(other.state_dict())
    assert_same(filled, expected)


def test_state_survives_save_and_load(case, tmp_path):
    accumulator = fed(case, values(0))
    torch.save(accumulator.state_dict(), tmp_path / "state.pt")
    restored = case.empty()
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    case.feed(accumulator, values(1))
    case.feed(restored, values(1))
    assert_same(accumulator, restored)


def test_state_is_a_copy(case):
    accumulator = fed(case, values(0))
    state = accumulator.state_dict()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    case.feed(accumulator, values(1))
    assert all(torch.equal(state[name], kept[name]) for name in state)


def test_nothing_cannot_be_computed(case):
    with pytest.raises(EmptyAccumulatorError):
        case.empty().compute()


def test_grouped_moments_equal_numpy():
    data = values(3)
    summary = fed(CASES["GroupedMoments"], data).compute()
    token_mask = data[0].numpy() > -1
    for layer in (0, 1):
        for row in (0, 1):
            numbers = data[row].numpy() + layer
            np.testing.assert_allclose(summary.mean[layer, row, 0], numbers[token_mask].mean())
            np.testing.assert_allclose(summary.deviation[layer, row, 0], numbers[token_mask].std())
            np.testing.assert_allclose(summary.maximum[layer, row, 0], numbers[token_mask].max())
            np.testing.assert_allclose(summary.minimum[layer, row, 0], numbers[token_mask].min())
            per_sequence = [line[mask].mean() for line, mask in zip(numbers, token_mask, strict=True) if mask.any()]
            np.testing.assert_allclose(summary.sequence_mean[layer, row, 0], np.mean(per_sequence))
    assert summary.count[0, 0] == token_mask.sum()


def test_keyed_means_equal_numpy():
    data = values(3).flatten(1).T
    keys, counts = (data * 2).long(), torch.arange(1, 1 + len(data))
    means = KeyedMeans(2, 2)
    means.update(keys, data, counts)
    found = means.compute()
    assert found.keys.tolist() == np.unique(keys.numpy(), axis=0).tolist()
    for key, mean, count in zip(found.keys, found.mean, found.count, strict=True):
        own = (keys == key).all(dim=1)
        assert count == counts[own].sum()
        np.testing.assert_allclose(mean, data[own].sum(dim=0) / counts[own].sum())


@pytest.mark.parametrize("held_back", [0, 7, 1000])
def test_only_the_smallest_keys_are_kept(monkeypatch, held_back):
    monkeypatch.setattr(keyed_means, "_FEWEST_ADDED", held_back)
    means = KeyedMeans(1, 1, size=3)
    for keys in ([50, 10, 40], [20, 10], [30, 50, 10, 20]):
        numbers = torch.tensor(keys)[:, None]
        means.update(numbers, numbers / 2, torch.ones(len(keys), dtype=torch.long))
        means.settle()
    found = means.compute()
    assert (found.keys[:, 0].tolist(), found.mean[:, 0].tolist()) == ([10, 20, 30], [5, 10, 15])
    assert found.count.tolist() == [3, 2, 1]


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


def _sampled(values: torch.Tensor, size: int = 6) -> UniformSample:
    sample = UniformSample(size, 3, seed=5)
    _feed_sample(sample, values)
    return sample


def test_a_sample_does_not_depend_on_order():
    data = values(4, sequences=9)
    rows = {tuple(row) for row in _sampled(data).compute().tolist()}
    assert rows == {tuple(row) for row in _sampled(data.flip(1)).compute().tolist()}
    assert len(rows) == 6


def test_a_sample_of_everything_is_everything():
    data = values(4)
    rows = _sampled(data, size=1000).compute()
    assert sorted(rows[:, 2].tolist()) == sorted(data[0].flatten().tolist())


def test_a_sample_is_uniform():
    """Each of 40 rows in populations of unequal size is drawn about as often: chi-square of 800 samples of 4."""
    drawn = np.zeros(40)
    for seed in range(800):
        sample = UniformSample(4, 1, seed)
        for name, (start, stop) in enumerate([(0, 3), (3, 20), (20, 40)]):
            numbers = torch.arange(start, stop, dtype=torch.float64)
            sample.update([((name,), stop - start)], lambda _, positions, numbers=numbers: numbers[positions][:, None])
        drawn[sample.compute().long().flatten().numpy()] += 1
    assert drawn.sum() == 3200
    assert ((drawn - 80) ** 2 / 80).sum() < 72.1  # 99.9th percentile at 39 degrees of freedom


pairs = st.integers(0, 10_000).map(lambda seed: torch.Generator().manual_seed(seed))


def test_pairs_that_pass_take_bounded_memory(monkeypatch):
    """Long texts come in many parts: pairs of groups that have too many are dropped between two of them."""
    monkeypatch.setattr(held_pairs, "MOST_PASSED", 100)
    held, numbers = held_pairs.HeldPairs(1, most=30), torch.rand(1, 1, 8, 8)
    parts = (PairsPart(numbers) for _ in range(50))
    passed = [held.passed for _ in held.holding(numbers[:, :, 0], torch.zeros(1, 8, dtype=torch.long), parts)]
    assert max(passed) == 64
    assert held.total([0]) is None
    assert not len(held.pairs([0]).first)


@given(
    generator=pairs,
    ties=st.booleans(),
    dependence=st.floats(-2, 2),
    count=st.integers(3, 400),
    exact=st.sampled_from([0, 1000]),
)
def test_a_rank_correlation_keeps_its_bound(generator, ties, dependence, count, exact):
    second = torch.randn(1, 1, count, generator=generator).mul(0.4).exp()
    first = (torch.randn(1, 1, 1, count, generator=generator) + dependence * second).exp()
    if ties:
        first, second = first.round(decimals=0), second.round(decimals=1) + 0.1
    correlation = RankCorrelation(1, 1, *AXES, exact)
    correlation.update(0, second, torch.zeros(1, count, dtype=torch.long), [PairsPart(first)])
    (pooled,), (alone,) = correlation.compute()
    assert pooled == alone
    assert pooled.count == count
    if len(first.unique()) == 1 or len(second.unique()) == 1:
        assert pooled.spearman is None
        assert "constant" in pooled.reason
        return
    expected = scipy.stats.spearmanr(first.flatten(), second.flatten()).statistic
    if pooled.spearman is not None:
        assert abs(pooled.spearman - expected) <= (1e-9 if exact else pooled.error_bound)


def test_too_few_pairs_have_a_reason():
    correlation = RankCorrelation(1, 2, *AXES)
    correlation.update(0, torch.ones(1, 1, 2), torch.zeros(1, 2, dtype=torch.long), [PairsPart(torch.ones(1, 1, 1, 2))])
    few, none = correlation.compute()[0]
    assert (few.spearman, few.count, few.reason) == (None, 2, "fewer than three pairs")
    assert (none.spearman, none.count, none.reason) == (None, 0, "no pairs")


def test_rank_correlations_are_exact_up_to_a_number_of_pairs():
    """Coarse cells would give another ρ. Whether a group is exact depends on its pairs alone, not on how they come."""
    coarse, numbers = Axis(-2, 4, 0), torch.Generator().manual_seed(0)
    second = torch.rand(3, 2, 10, generator=numbers) + 0.5
    first = torch.rand(3, 2, 4, 10, generator=numbers) + second[:, :, None]
    group = torch.zeros(3, 10, dtype=torch.long)
    group[:, 7:] = 1
    part = PairsPart(first)
    exact = [
        scipy.stats.spearmanr(first[..., some].flatten(), second[:, :, None, some].expand(-1, -1, 4, -1).flatten())[0]
        for some in (slice(7), slice(7, 10), slice(10))
    ]
    for most, which in ((240, (0, 1, 2)), (239, (0, 1)), (168, (0, 1)), (167, (1,)), (72, (1,)), (71, ())):
        whole, other = (RankCorrelation(1, 2, coarse, coarse, most) for _ in range(2))
        whole.update(0, second, group, [part])
        for row in (2, 0, 1):
            some = slice(row, row + 1)
            other.update(0, second[some], group[some], [PairsPart(first[some])])
            other.settle()
        found = whole.compute([[0], [1], [0, 1]])
        assert found == other.compute([[0], [1], [0, 1]])
        of_all, of_layer = found
        assert of_all == of_layer
        assert [each.count for each in of_all] == [168, 72, 240]
        for number, each in enumerate(of_all):
            assert (each.spearman == pytest.approx(exact[number], abs=1e-12)) == (number in which), (most, number)
            assert (each.error_bound < 1e-9) == (number in which)
            assert abs(each.spearman - exact[number]) <= each.error_bound


def test_pairs_of_the_two_hundredth_group_stay_in_it():
    coarse = Axis(-2, 4, 1)
    correlation, again = (RankCorrelation(1, 200, coarse, coarse) for _ in range(2))
    numbers = torch.arange(1.0, 6.0)
    group = torch.full((1, 5), 199)
    correlation.update(0, numbers.view(1, 1, 5), group, [PairsPart(numbers.view(1, 1, 1, 5))])
    again.load_state_dict(correlation.state_dict())
    assert again.compute()[0][199].count == 5
