"""What accumulators compute, number by number; that batches and merging change nothing is the contract's own suite."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats
import torch

from normscope.analyses.norms import NORM_AXIS, WEIGHT_AXIS
from normscope.data.batching import Batch
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.pair_histogram import Axis, PairHistogram, PairsPart
from normscope.statistics.rank_correlation import Correlation, RankCorrelation, rounded
from normscope.statistics.uniform_sample import UniformSample

F64 = torch.float64


def tensor(*values):
    return torch.tensor(values, dtype=F64)


def test_tensors_are_kept_by_number_whatever_their_shapes():
    first, second, third = tensor([1.0, 2.0], [3.0, 4.0]), tensor([5.0]), torch.zeros(2, 0, dtype=F64)
    kept = KeptTensors(F64)
    kept.update((7, 2), (first, second))
    kept.update((4,), (third,))
    again = KeptTensors(F64)
    again.load_state_dict(kept.state_dict())
    for each in (kept, again, KeptTensors(F64).merge(kept), kept.merge(KeptTensors(F64))):
        found = each.compute()
        assert found.numbers == [2, 4, 7]
        assert [one.tolist() for one in found.tensors] == [second.tolist(), third.tolist(), first.tolist()]
        assert list(found.by_number()) == [2, 4, 7]


def test_a_kept_tensor_does_not_change_with_the_one_it_was_copied_from():
    kept, values = KeptTensors(F64), tensor(1.0, 2.0)
    kept.update([0], [values])
    values += 1
    assert kept.compute().tensors[0].tolist() == [1, 2]


def test_tensors_with_equal_numbers_are_all_kept_in_the_order_of_the_stream():
    kept = KeptTensors(F64, size=3)
    kept.update([1, 0, 1], [tensor(1.0), tensor(2.0), tensor(3.0)])
    kept.update([1, 0], [tensor(4.0), tensor(5.0)])
    assert [one.item() for one in kept.compute().tensors] == [2, 5, 1]


@pytest.mark.parametrize("tokens", [None, 1, 2])
@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_sample_of_sequences_is_those_of_the_smallest_random_numbers(cut, tokens):
    """Of sequences with more than `tokens`, only as many as there are too few others."""
    input_ids, names = torch.arange(10 * 3).view(10, 3), tuple(range(20, 30))
    lengths = [1 + name % 3 for name in names]
    token_mask = torch.arange(3) < torch.tensor(lengths)[:, None]
    batch = Batch(input_ids, None, token_mask, torch.zeros_like(input_ids), names)
    sample = KeptTensors(torch.int64, size=4)
    for part in (batch.part(0, cut), batch.part(cut, 10)):
        sample.update(*part.for_samples(3, tokens))
    numbers = {
        n: np.random.default_rng([3, name]).random() + (tokens is not None and lengths[n] > tokens)
        for n, name in enumerate(names)
    }
    expected = sorted(numbers, key=numbers.__getitem__)[:4]
    again = KeptTensors(torch.int64)
    again.load_state_dict(sample.state_dict())
    for kept in (sample, again, KeptTensors(torch.int64, size=4).merge(sample)):
        found = kept.compute()
        assert found.numbers == [numbers[n] for n in expected]
        assert [sequence[0].tolist() for sequence in found.tensors] == [
            input_ids[n, : lengths[n]].tolist() for n in expected
        ]


def test_a_seed_draws_the_same_rows_for_ever():
    """A later version must not draw another sample from the same corpus."""
    sample = UniformSample(5, 1, seed=3)
    for number in (2, 3):
        sample.update([((1, number), 1000)], lambda _, rows, at=1000 * number: torch.from_numpy(rows + at)[:, None])
    assert sample.compute()[:, 0].tolist() == [3361, 3213, 3264, 2893, 2536]


def test_populations_of_one_row_and_of_none_are_offered_too():
    sample = UniformSample(9, 1, seed=0)
    populations = [((number,), population) for number, population in enumerate([1, 0, 1, 2])]
    sample.update(populations, lambda which, rows: torch.from_numpy(10 * which + rows)[:, None])
    assert sorted(sample.compute()[:, 0].tolist()) == [0, 20, 30, 31]


AXES = (Axis(-3, 3, 2), Axis(-2, 5, 1))


def cell(axis: Axis, value: float) -> int:
    """Counted up from the lowest edge: 2^bits cells of equal width in every factor of two."""
    shift = axis.shift / 2**23
    edges = [2.0**power * (1 + step / 2**axis.bits - (shift if step else shift / 2)) for power, step in grid(axis)]
    return min(sum(value >= edge for edge in edges[1:]), axis.cells - 1)


def grid(axis: Axis):
    powers = range(axis.lowest_exponent, axis.highest_exponent)
    return [*itertools.product(powers, range(2**axis.bits)), (axis.highest_exponent, 0)]


def in_parts(pairs: PairsPart) -> Iterator[PairsPart]:
    """The same pairs by sequence, and by the first two keys and the others."""
    for row, keys in itertools.product(range(len(pairs.first)), (slice(0, 2), slice(2, None))):
        some = slice(row, row + 1)
        seen = None if pairs.seen is None else pairs.seen[some, :, :, keys]
        unseen = None if pairs.unseen is None else pairs.unseen[some, :, keys]
        yield PairsPart(pairs.first[some, :, :, keys], some, keys, seen if row else (lambda seen=seen: seen), unseen)


@pytest.mark.parametrize(("piece", "stored"), [(1, 0), (2**19, 0), (2**19, 2**24)])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("masked", [False, True, "with zeros"])
def test_a_histogram_counts_every_pair_in_its_cell(monkeypatch, piece, stored, masked, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("normscope.statistics.pair_histogram._WHOLE", stored)
    monkeypatch.setattr("normscope.statistics.pair_histogram._PIECE", piece)
    monkeypatch.setattr("normscope.statistics.pair_histogram._INT32_MAX", 40)  # the counts outgrow int32 on the way
    generator = torch.Generator().manual_seed(0)
    whole = [PairHistogram(*AXES, 3) for _ in range(2)]
    expected = np.zeros((AXES[0].cells, AXES[1].cells, 3), dtype=np.int64)
    for scale in (4.0, 0.3, 40.0):  # the second numbers lie elsewhere each time
        first = torch.rand(3, 2, 4, 5, generator=generator) * 10
        second = torch.rand(3, 2, 5, generator=generator) * scale
        group = torch.randint(-1, 3, (3, 5), generator=generator)
        seen = torch.rand(3, 1, 4, 5, generator=generator) > 0.4 if masked else None
        part = PairHistogram(*AXES, 3)
        zeros = masked == "with zeros"
        pairs = PairsPart(first * seen, unseen=(~seen).sum(dim=2)) if zeros else PairsPart(first, seen=seen)
        part.add(second, group, [pairs])
        whole[0].add(second, group, in_parts(pairs))
        whole[1].merge_state_dict(part.state_dict())
        for b, h, q, k in np.ndindex(*first.shape):
            if group[b, k] >= 0 and (seen is None or seen[b, 0, q, k]):
                expected[
                    cell(AXES[0], float(first[b, h, q, k])), cell(AXES[1], float(second[b, h, k])), group[b, k]
                ] += 1
    for histogram, group in itertools.product(whole, range(3)):
        low, table = histogram.table([group])
        found = np.zeros_like(expected[:, :, group])
        found[:, low : low + table.shape[1]] = table
        np.testing.assert_array_equal(found, expected[:, :, group])


def test_merged_counts_outgrow_32_bits():
    grids = Axis(0, 1, 0), Axis(0, 1, 0)
    histogram, state = PairHistogram(*grids, 1), PairHistogram(*grids, 1).state_dict()
    state |= {"low": torch.tensor(0), "counts": torch.tensor([[[2**31 - 1]], [[0]]], dtype=torch.int32)}
    for times in (1, 2, 3):
        histogram.merge_state_dict(state)
        assert histogram.table([0])[1].tolist() == [[times * (2**31 - 1)], [0]]


def test_a_histogram_counts_a_single_pair_and_takes_none():
    histogram = PairHistogram(*AXES, 2)
    histogram.add(
        torch.full((1, 1, 1), 3.0), torch.ones(1, 1, dtype=torch.long), [PairsPart(torch.full((1, 1, 1, 1), 0.5))]
    )
    for shape in ((1, 1, 0, 3), (0, 1, 2, 3), (1, 1, 2, 0)):  # no query, no sequence, no key
        batch, heads, _, keys = shape
        group = torch.zeros(batch, keys, dtype=torch.long)
        histogram.add(torch.full((batch, heads, keys), 30.0), group, [PairsPart(torch.ones(shape))])
    assert (histogram.low, histogram.counts.shape[1]) == (cell(AXES[1], 3.0), 1), (
        "nothing is held for what is not there"
    )
    assert histogram.counts.nonzero().tolist() == [[cell(AXES[0], 0.5), 0, 1]]
    assert histogram.counts.sum() == 1


@pytest.mark.parametrize(("stored", "stays"), [(0, [True, False, True, True, False]), (2**24, [True] * 5)])
def test_a_histogram_is_copied_only_when_it_grows(monkeypatch, stored, stays):
    monkeypatch.setattr("normscope.statistics.pair_histogram._WHOLE", stored)
    histogram = PairHistogram(*AXES, 1)
    group = torch.zeros(1, 1, dtype=torch.long)

    def add(second: float) -> int:
        histogram.add(torch.full((1, 1, 1), second), group, [PairsPart(torch.ones(1, 1, 1, 1))])
        return histogram._flat.data_ptr()

    held = [add(second) for second in (2.0, 2.0, 8.0, 4.0, 2.0, 1.0)]
    assert [before == after for before, after in itertools.pairwise(held)] == stays


def test_equal_numbers_in_a_cell_of_their_own_are_no_error():
    """Of the second numbers, cells know whether they are equal; half of the numbers share each cell of the first."""
    generator = torch.Generator().manual_seed(0)
    second = torch.randint(1, 5, (1, 1, 200), generator=generator).float()
    first = (second + torch.rand(1, 1, 200, generator=generator)).round()
    bounds = []
    for numbers in (second, second + 0.01 * torch.rand(1, 1, 200, generator=generator)):
        correlation = RankCorrelation(1, 1, Axis(0, 4, 6), Axis(0, 4, 3), exact=0)
        # The first of this test are distinct cells of one value each, which the histogram does not know.
        correlation.update(0, numbers, torch.zeros(1, 200, dtype=torch.long), [PairsPart(first[:, :, None])])
        found = correlation.compute()[0][0]
        expected = scipy.stats.spearmanr(first.flatten(), numbers.flatten()).statistic
        assert abs(found.spearman - expected) <= found.error_bound
        bounds.append(found.error_bound)
    assert bounds[0] < 0.75 * bounds[1]


def _pairs_with_rounding(seed: int, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, torch.Tensor, torch.Tensor]:
    """Numbers with many ties, some on edges of cells, and the same with the rounding of a type."""
    numbers = np.random.default_rng(seed)
    shift = Axis(0, 1, 5).shift
    edges = np.array([1 - shift / 2**24, 1 + 3 / 32 - shift / 2**23], dtype=np.float32) / 4
    # Halfway between the last number below the edge and the edge: where a float64 becomes one or the other.
    edges = (edges.astype(float) + np.nextafter(edges, np.float32(0)).astype(float)) / 2
    values = np.concatenate([edges, numbers.uniform(0.05, 0.5, 7)])
    chosen = [numbers.choice(values, 400, p=[0.15, 0.15, *[0.1] * 7]) for _ in range(2)]
    chosen[0][:100] = chosen[1][:100]
    chosen[1][:30] = numbers.uniform(0.05, 0.5, 30)
    first, second = (
        torch.from_numpy(each * (1 + numbers.uniform(-1, 1, 400) * 8 * torch.finfo(dtype).eps)).to(dtype)
        for each in chosen
    )
    return *chosen, first, second


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("exact", [0, 400])
def test_the_bound_holds_where_rounding_breaks_ties(seed, dtype, exact):
    x, y, first, second = _pairs_with_rounding(seed, dtype)
    axis = rounded(Axis(-4, 1, 5), dtype)
    correlation = RankCorrelation(1, 1, axis, axis, exact)
    group = torch.zeros(1, 400, dtype=torch.long)
    correlation.update(0, second[None, None], group, [PairsPart(first[None, None, None])])
    found = correlation.compute()[0][0]
    exact = scipy.stats.spearmanr(x, y).statistic
    assert abs(found.spearman - exact) <= found.error_bound
    ordered = scipy.stats.spearmanr(first, second).statistic
    assert abs(ordered - exact) > 1e-3, "rounding matters"
    without = RankCorrelation(1, 1, *[dataclasses.replace(axis, tolerance=0.0)] * 2, exact)
    without.update(0, second[None, None], group, [PairsPart(first[None, None, None])])
    assert without.compute()[0][0].error_bound < found.error_bound


@pytest.mark.parametrize("tolerance", [0.0, 1e-6, 1e-3, 1.0])
def test_numbers_near_an_edge_are_those_that_rounding_may_move(tolerance):
    axis = Axis(-3, 3, 4, tolerance)
    values = torch.rand(5000, generator=torch.Generator().manual_seed(0)) * 7 + 0.2
    moved = torch.stack([axis.cell(values * (1 + sign * tolerance / 2)) for sign in (-1, 0, 1)])
    crosses = (moved[0] != moved[2]) if tolerance < 0.1 else torch.ones(5000, dtype=torch.bool)
    near = axis.near_edge(values).bool()
    assert not (crosses & ~near).any()
    assert near.float().mean() <= max(8 * tolerance * 2**axis.bits, 0.001 if tolerance else 0.0)


def test_common_numbers_are_far_from_edges():
    """Rows of equal weights, 1/n, and whole numbers: rounding must not tear them apart."""
    counts = torch.arange(1.0, 2049.0)
    for axis in (rounded(WEIGHT_AXIS, torch.float32), rounded(NORM_AXIS, torch.float32)):
        assert not axis.near_edge(1 / counts).any()
        assert not axis.near_edge(counts).any()


@pytest.mark.parametrize("same", [True, False])
def test_the_bound_reaches_no_further_than_a_correlation_can(same):
    """With cells this coarse, the bounds of ρ are −1 and 1, and go no further; and no ρ is stated."""
    correlation = RankCorrelation(1, 1, Axis(0, 1, 0), Axis(0, 1, 0), exact=0)
    first = torch.tensor([0.5, 2.0]).repeat_interleave(5)
    order = [0, 1, 2, 5, 6, 3, 4, 7, 8, 9]
    second = (first[order] if same else first.flip(0)[order]) * torch.linspace(1, 1.1, 10)
    correlation.update(
        0, second[None, None], torch.zeros(1, 10, dtype=torch.long), [PairsPart(first[None, None, None])]
    )
    found = correlation.compute()[0][0]
    assert found.spearman == pytest.approx(0.2 if same else -0.2)
    assert found.error_bound == pytest.approx(1.2)
    assert found.stated == Correlation(None, 10, found.error_bound, "its error may be as large as itself")


@pytest.mark.parametrize(
    ("spearman", "bound", "stated"),
    [(-0.3, 0.29, -0.3), (-0.3, 0.3, None), (0.001, 0.0049, 0.001), (0.001, 0.005, None), (0.0051, 0.005, 0.0051)],
)
def test_a_rank_correlation_is_stated_if_its_error_is_smaller_or_does_not_show(spearman, bound, stated):
    assert Correlation(spearman, 9, bound).stated.spearman == stated


@pytest.mark.parametrize("pairs", range(3, 40))
def test_pairs_with_cells_of_their_own_are_ranked_exactly(pairs):
    """The spread of ranks within cells is then zero, but rounding may make it negative."""
    correlation = RankCorrelation(1, 1, Axis(0, 8, 3), Axis(0, 8, 3), exact=0)
    numbers = torch.tensor([2.0**power * (1 + step / 8) for power, step in grid(Axis(0, 8, 3))][:pairs])
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(pairs))
    parts = [PairsPart(numbers[None, None, None])]
    correlation.update(0, numbers[order][None, None], torch.zeros(1, pairs, dtype=torch.long), parts)
    found = correlation.compute()[0][0]
    assert found.spearman == pytest.approx(scipy.stats.spearmanr(range(pairs), order).statistic)
    assert found.error_bound == pytest.approx(0, abs=1e-9)
