"""What a run saves, and what happens if it is damaged."""

import random

import pytest
import safetensors.torch
import torch

from normscope.analyses.base import Analysis, merge_state, state_of
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.errors import InputError
from normscope.reporting.run_folder import RunFolder
from normscope.results.result import Result
from normscope.running.checkpoint import CHECKPOINT, Checkpoint, Position, remove_checkpoints
from normscope.running.ranks import ProcessGroup
from normscope.statistics.counts import Counts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.pair_histogram import Axis, PairsPart
from normscope.statistics.rank_correlation import RankCorrelation
from normscope.statistics.uniform_sample import UniformSample
from normscope.untrusted.tensor_files import checksum


class Counting(Analysis):
    """An analysis with state of every kind that is expensive to build."""

    info = AnalysisInfo("counting", "Counts", AnalysisConfig, "")
    built = 0

    def __init__(self) -> None:
        Counting.built += 1
        self.accumulators = {
            "tally": Counts(2, 3),
            "tokens": KeyedMeans(1, 2),
            "rows": KeptTensors(torch.float32),
            "sample": UniformSample(4, 1, 0),
            "sequences": KeptTensors(torch.int64, size=2),
            "ranks": RankCorrelation(1, 1, Axis(-4, 4, 2), Axis(-4, 4, 2)),
        }

    def result(self) -> Result:
        raise NotImplementedError

    def see(self, number: int) -> None:
        made = torch.Generator().manual_seed(number)
        values, rows = torch.rand(1, 1, 3, 3, generator=made), torch.rand(3, 1, generator=made)
        self.accumulators["tally"].update(number % 2, torch.tensor([number, 1, 2]))
        tokens = torch.tensor([[number % 11], [3]])
        self.accumulators["tokens"].update(tokens, torch.rand(2, 2, generator=made), torch.tensor([1, 1]))
        self.accumulators["rows"].update([number], [torch.rand(2, generator=made)])
        self.accumulators["sample"].update([((number,), 3)], lambda _, places: rows[places])
        self.accumulators["sequences"].update([number % 3 / 4], [torch.randint(9, (1, 4), generator=made)])
        groups = torch.zeros(1, 3, dtype=torch.int64)
        self.accumulators["ranks"].update(0, torch.rand(1, 1, 3, generator=made), groups, [PairsPart(values)])


IDENTITY = '{"the number of processes": 1, "model.name": "tiny", "seed": 0}'
HEADER = f'{{"identity": {IDENTITY}, "batches": 0, "digest": ""}}'


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
    checkpoint = Checkpoint(folder, ProcessGroup(), {"model.name": "tiny", "seed": 0}, 0.0)
    checkpoint.save([analysis], Position())
    yield checkpoint, analysis, tmp_path / CHECKPOINT
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
    places = [*draw.sample(range(8 * header), 60), *draw.sample(range(8 * header, 8 * len(whole)), 60)]
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


@pytest.mark.parametrize("header", ["[]", "{}", "null", HEADER.replace(IDENTITY, "[]"), "[" * 100_000])
def test_a_forged_header_is_refused(saved, header):
    checkpoint, analysis, path = saved
    tensors = state_of([analysis])
    metadata = {"normscope": header, "sha256": checksum(header, tensors)}
    path.write_bytes(safetensors.torch.save(tensors, metadata=metadata))
    with pytest.raises(InputError, match="the checkpoint cannot be read"):
        checkpoint.resume([Counting()], iter(()))


@pytest.mark.spread(2)
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
        metadata = {"normscope": HEADER, "sha256": checksum(HEADER, tensors)}
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
        assert same(ours, theirs), name


def test_the_main_process_collects_what_the_others_have(monkeypatch):
    sent: dict[int, object] = {}
    for rank in (2, 1):
        with monkeypatch.context() as patched:
            patched.setattr(
                torch.distributed, "send_object_list", lambda values, _, rank=rank: sent.update({rank: values})
            )
            assert not list(ProcessGroup(rank, 3).collected(f"of {rank}"))
    monkeypatch.setattr(
        torch.distributed, "recv_object_list", lambda values, rank: values.__setitem__(slice(None), sent.pop(rank))
    )
    assert list(ProcessGroup(0, 3).collected("of 0")) == ["of 1", "of 2"]
    assert not sent


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_is_resumed_with_as_many_processes(tmp_path, rank):
    """Each continues from its own file."""
    Checkpoint(tmp_path, ProcessGroup(rank, 2), {}, 0.0).save([Counting()], Position())
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(
        InputError, match="^resume: the number of processes was 2 when the run was stopped and is 3 now"
    ):
        Checkpoint(tmp_path, ProcessGroup(rank, 3), {}, 0.0).resume([Counting()], iter(()))
    remove_checkpoints(tmp_path)
    assert not list(tmp_path.iterdir())
