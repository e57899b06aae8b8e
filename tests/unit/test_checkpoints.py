"""What a run saves, and what happens if it is damaged."""

import random

import pytest
import safetensors.torch
import torch

from normscope.analyses.base import Analysis, load_state, merge_state, state_of
from normscope.analyses.findings import Findings
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError
from normscope.reporting.run_folder import RunFolder
from normscope.running import checkpoint as checkpoints
from normscope.running import distributed
from normscope.running.checkpoint import Checkpoint, Position
from normscope.running.distributed import ProcessGroup
from normscope.running.reduction import Reduction
from normscope.statistics.counts import Counts
from normscope.statistics.pair_histogram import Axis, PairsPart
from normscope.statistics.per_example import PerExampleTensors
from normscope.statistics.rank_correlation import RankCorrelation
from normscope.statistics.sequence_sample import SequenceSample
from normscope.statistics.token_means import TokenMeans
from normscope.statistics.uniform_sample import UniformSample


class Counting(Analysis):
    """An analysis with state of every kind that is expensive to build."""

    info = AnalysisInfo("counting", "Counts", AnalysisConfig, "")
    built = 0

    def __init__(self) -> None:
        Counting.built += 1
        self.accumulators = {
            "tally": Counts(2, 3),
            "tokens": TokenMeans(11, 2),
            "rows": PerExampleTensors(2, torch.float32),
            "sample": UniformSample(4, 1, 0),
            "sequences": SequenceSample(2, 0),
            "ranks": RankCorrelation(1, 1, Axis(-4, 4, 2), Axis(-4, 4, 2), 50),
        }

    def result(self) -> Findings:
        raise NotImplementedError

    def see(self, number: int) -> None:
        made = torch.Generator().manual_seed(number)
        values, rows = torch.rand(1, 1, 3, 3, generator=made), torch.rand(3, 1, generator=made)
        self.accumulators["tally"].update(number % 2, torch.tensor([number, 1, 2]))
        self.accumulators["tokens"].update(torch.tensor([number % 11, 3]), torch.rand(2, 2, generator=made))
        self.accumulators["rows"].update(number % 2, number, torch.rand(2, generator=made))
        self.accumulators["sample"].update((number,), 3, lambda places: rows[places])
        tokens, token_mask = torch.randint(9, (1, 1, 4), generator=made), torch.ones(1, 4, dtype=torch.bool)
        self.accumulators["sequences"].update((number,), tokens, token_mask)
        groups = torch.zeros(1, 3, dtype=torch.int64)
        self.accumulators["ranks"].update(0, torch.rand(1, 1, 3, generator=made), groups, [PairsPart(values)])


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(value.double(), right[name].double(), rtol=1e-12) for name, value in left.items()
    )


@pytest.fixture
def saved(tmp_path):
    """A checkpoint in a folder, and the analysis that it is of."""
    folder = RunFolder(tmp_path)
    analysis = Counting()
    for number in range(3):
        analysis.see(number)
    checkpoint = Checkpoint(folder, {"model.name": "tiny", "seed": 0}, 0.0)
    checkpoint.save([analysis], Position())
    yield checkpoint, analysis, tmp_path / checkpoints.FILE
    folder.release()


def test_a_checkpoint_gives_back_what_was_saved(saved):
    checkpoint, analysis, _ = saved
    other = Counting()
    assert checkpoint.resume([other], iter(())) == Position()
    assert same(state_of([other]), state_of([analysis]))


def test_one_flipped_bit_anywhere_is_refused(saved):
    checkpoint, _, path = saved
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(0)
    places = [*draw.sample(range(8 * header), 150), *draw.sample(range(8 * header, 8 * len(whole)), 150)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        other = Counting()
        before = state_of([other])
        with pytest.raises(InputError, match="the checkpoint cannot be read"):
            checkpoint.resume([other], iter(()))
        assert same(state_of([other]), before), f"bit {place} was loaded"


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1])
def test_a_checkpoint_that_was_cut_is_refused(saved, length):
    checkpoint, _, path = saved
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match="the checkpoint cannot be read"):
        checkpoint.resume([Counting()], iter(()))


@pytest.mark.parametrize("header", ["[]", "{}", "null", '{"identity": [], "batches": 0, "digest": ""}', "[" * 100_000])
def test_a_forged_header_is_refused(saved, header):
    checkpoint, analysis, path = saved
    tensors = state_of([analysis])
    metadata = {"normscope": header, "sha256": checkpoints.checksum(header, tensors)}
    path.write_bytes(safetensors.torch.save(tensors, metadata=metadata))
    with pytest.raises(InputError, match="the checkpoint cannot be read"):
        checkpoint.resume([Counting()], iter(()))


@pytest.mark.parametrize("change", ["missing", "surplus", "empty", "one number", "square"])
def test_a_forged_state_is_refused(saved, change):
    """With a checksum that is right: a tensor of one number would be broadcast, and the sums would be wrong."""
    checkpoint, analysis, path = saved
    for name, tensor in state_of([analysis]).items():
        forged = {
            "empty": tensor.new_zeros(0),
            "one number": tensor.new_ones(1, 1, 1, 1),
            "square": tensor.new_ones(3, 3),
        }
        tensors = state_of([analysis])
        match change:
            case "missing":
                del tensors[name]
            case "surplus":
                tensors[f"{name}_x"] = tensor
            case _ if forged[change].shape == tensor.shape:
                continue
            case _:
                tensors[name] = forged[change]
        header = '{"identity": {"model.name": "tiny", "seed": 0}, "batches": 0, "digest": ""}'
        metadata = {"normscope": header, "sha256": checkpoints.checksum(header, tensors)}
        path.write_bytes(safetensors.torch.save(tensors, metadata=metadata))
        with pytest.raises(InputError, match="checkpoint.safetensors: the checkpoint cannot be used"):
            checkpoint.resume([Counting()], iter(()))


def test_states_are_merged_without_building_an_analysis():
    whole, first, second = Counting(), Counting(), Counting()
    for number in range(6):
        whole.see(number)
        (first if number < 3 else second).see(number)
    apart, built = state_of([second]), Counting.built
    merge_state([first], apart)
    assert Counting.built == built
    assert same(state_of([second]), apart), "the other's state must stay as it was"
    for name, accumulator in whole.accumulators.items():
        ours, theirs = first.accumulators[name].state_dict(), accumulator.state_dict()
        if name != "ranks":  # pairs are kept in the order in which they came
            assert same(ours, theirs), name
    ours, theirs = (analysis.accumulators["ranks"].compute() for analysis in (first, whole))
    assert ours[0][0].spearman == pytest.approx(theirs[0][0].spearman, rel=1e-12)


def test_a_new_accumulator_stays_new_while_it_is_merged():
    analysis, other = Counting(), Counting()
    other.see(1)
    merge_state([analysis], state_of([other]))
    merge_state([analysis], state_of([Counting()]))
    assert same(state_of([analysis]), state_of([other]))


def test_the_first_process_gathers_without_building_an_analysis(monkeypatch):
    """Three processes, the other two of which are what they have sent."""
    first, *others = analyses = [Counting() for _ in range(3)]
    counts = [CorpusCounts(read=1, used=1, tokens=5) for _ in range(3)]
    for number, analysis in enumerate(analyses):
        analysis.see(number)
    sent = {
        rank: [sent_bytes(counts[rank].packed().encode()), sent_bytes(safetensors.torch.save(state_of([analysis])))]
        for rank, analysis in enumerate(others, start=1)
    }
    monkeypatch.setattr(distributed, "_received", lambda rank: sent[rank].pop(0))
    built = Counting.built
    ProcessGroup(0, 3).reduce([first], counts[0])
    assert Counting.built == built
    assert counts[0].tokens == 15
    assert first.accumulators["tally"].compute()[:, 1].tolist() == [2, 1]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8])
def test_processes_merge_in_the_order_of_a_reduction(monkeypatch, size):
    """The same bytes, and as few messages to each process as a tree has levels."""
    states, sent = [], {}
    for number in range(size):
        analysis = Counting()
        analysis.see(number)
        analysis.see(number + 100)
        states.append(analysis)
    merged = Counting()
    reduction = Reduction([merged])
    for state in states:
        load_state([merged], state_of([state]))
        reduction.add()
    reduction.finish()
    for rank in reversed(range(size)):
        monkeypatch.setattr(
            distributed, "_send", lambda part, to, rank=rank: sent.setdefault((rank, to), []).append(part)
        )
        monkeypatch.setattr(distributed, "_received", lambda other, rank=rank: sent_bytes(sent[other, rank].pop(0)))
        ProcessGroup(rank, size).reduce([states[rank]], CorpusCounts(read=1))
    assert same(state_of([states[0]]), state_of([merged]))
    assert len(sent) == size - 1
    assert sum(to == 0 for _, to in sent) == (size - 1).bit_length()


def sent_bytes(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def test_a_state_that_was_sent_is_the_state():
    analysis, other = Counting(), Counting()
    analysis.see(4)
    load_state([other], safetensors.torch.load(safetensors.torch.save(state_of([analysis]))))
    assert same(state_of([other]), state_of([analysis]))
