"""Batches that a thread makes ahead of the model."""

import contextlib
import itertools
import threading
from functools import partial

import pytest
import torch

from normscope.data import batch_stream, batching
from normscope.data.batch_stream import BatchStream, read_ahead
from normscope.data.batching import Batch
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.running.ranks import ProcessGroup
from tests.unit.test_data import Reader

CPU = torch.device("cpu")


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in ("read-ahead", "normscope-batches")]


def doubled(number: int) -> int:
    return 2 * number


def test_items_come_in_order_and_are_made_by_another_thread():
    made_by = set()

    def double(number):
        made_by.add(threading.current_thread())
        return 2 * number

    with read_ahead(iter(range(50)), 3, double) as items:
        assert list(items) == [2 * number for number in range(50)]
        assert next(items, None) is None
    assert threading.current_thread() not in made_by
    assert not workers()


def test_no_more_than_the_given_number_are_ahead():
    """A worker that could go on has done so by the time that it has been idle for a while: here it waits for a place."""
    made = []

    def numbers():
        for number in itertools.count():
            made.append(number)
            yield number

    with read_ahead(numbers(), 2, doubled) as items:
        assert next(items) == 0
        (worker,) = workers()
        worker.join(0.05)
        assert len(made) <= 4  # one is used, two wait, and the worker holds one
        assert worker.is_alive()
    worker.join(5)
    assert not worker.is_alive()


def test_an_error_is_raised_after_the_items_before_it():
    def numbers():
        yield from range(3)
        raise OSError("line 4")

    with read_ahead(numbers(), 8, doubled) as items:
        assert [next(items) for _ in range(3)] == [0, 2, 4]
        with pytest.raises(OSError, match="line 4") as raised:
            next(items)
    assert raised.traceback[-1].name == "numbers"
    assert not workers()


@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_whoever_leaves_early_leaves_nothing_running(taken, error):
    with contextlib.suppress(KeyboardInterrupt), read_ahead(itertools.count(), 2, doubled) as items:
        for _ in range(taken):
            next(items)
        if error is not None:
            raise error
    assert not workers()


def test_reading_until_something_is_found_takes_nothing_from_the_stream(opened):
    plain, looked = CorpusCounts(), CorpusCounts()
    expected, stream = seen(opened(Rows(9), plain), plain), opened(Rows(9), looked)
    asked: list[Batch] = []
    assert stream.read_until(lambda batch: bool(asked.append(batch))) is None  # never true, and the corpus goes on
    assert looked == CorpusCounts()
    first_window = {name for names, _ in expected[: len(asked) - 1] for name in names}
    assert len(first_window) == 3  # of four rows, one is empty
    assert stream.read_until(lambda batch: batch.fingerprints == expected[1][0]) is None
    assert seen(stream, looked) == expected
    counts = opened(Rows(3), CorpusCounts()).read_until(lambda _: False)
    assert counts is not None
    assert counts.used == 2
    assert opened(Rows(3), CorpusCounts()).read_until(lambda _: True) is None


class Rows(Corpus):
    """A corpus whose row `broken` cannot be read."""

    def __init__(self, size: int, broken: int | None = None) -> None:
        self.size, self.broken = size, broken

    @property
    def total(self):
        return self.size

    def examples(self):
        for row in range(self.size):
            if row == self.broken:
                raise OSError(f"row {row}")
            yield Example("word " * (row % 7 + 1)) if row % 5 else "empty"


@pytest.fixture
def opened(tokenizer, monkeypatch, tmp_path):
    """Opens the batches of a corpus in windows of four examples, with at most three batches ahead."""
    monkeypatch.setattr(batching, "LOOKAHEAD", 4)
    monkeypatch.setattr(batch_stream, "READ_AHEAD", 3)
    encoder = Encoder(
        Reader(tokenizer, max_length=8), DatasetOptions(kind=DatasetKind.text, path=str(tmp_path), seed=0)
    )

    def opened(rows: Rows, counts: CorpusCounts) -> BatchStream:
        window = partial(batching.batches_of_window, encoder=encoder, batch_tokens=12)
        return BatchStream(lambda read: ProcessGroup(0, 1).batches(rows, window, read), counts)

    return opened


def seen(stream: BatchStream, counts: CorpusCounts) -> list[tuple[tuple[int, ...], CorpusCounts]]:
    return [(batch.fingerprints, counts.copy()) for batch, _ in stream]


@pytest.mark.parametrize("size", [0, 1, 22])
def test_counts_are_those_of_the_batches_taken(opened, size):
    plain, ahead = CorpusCounts(), CorpusCounts()
    stream = opened(Rows(size), ahead)
    with stream.ahead_of(CPU):
        assert seen(stream, ahead) == seen(opened(Rows(size), plain), plain)
        assert ahead == plain
        assert ahead.read == size
        with pytest.raises(StopIteration):
            next(stream)


def test_a_stream_read_ahead_continues_where_it_was(opened):
    """A resumed run skips batches first; a part may begin after another one."""
    whole, counts = CorpusCounts(), CorpusCounts()
    expected = seen(opened(Rows(22), whole), whole)
    stream = opened(Rows(22), counts)
    first = [(next(stream)[0].fingerprints, counts.copy()) for _ in range(5)]
    with stream.ahead_of(CPU):
        assert first + seen(stream, counts) == expected


def test_a_broken_row_ends_a_run_after_the_batches_before_it(opened):
    counts, taken = CorpusCounts(), []
    stream = opened(Rows(22, broken=13), counts)
    with stream.ahead_of(CPU), pytest.raises(OSError, match="row 13"):
        taken.extend(batch.examples for batch, _ in stream)
    assert sum(taken) == counts.used == 9
    assert counts.read == 12


def test_copies_to_an_accelerator_are_waited_for(opened, monkeypatch):
    """The calls of CUDA's streams in their order, by doubles that record them."""
    calls: list[str] = []

    class Stream:
        def __init__(self, _device):
            calls.append("a stream of its own")

        def record_event(self):
            return f"event {calls.count('copied')}"

        def wait_event(self, event):
            calls.append(f"wait for {event}")

    def no_memory_at_first(batch, _device):
        calls.append("copied")
        if len(calls) == 2:
            raise torch.OutOfMemoryError
        return batch

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(Batch, "to", no_memory_at_first)
    monkeypatch.setattr(Batch, "record_stream", lambda _batch, _stream: calls.append("kept"))
    counts = CorpusCounts()
    stream = opened(Rows(3), counts)
    with stream.ahead_of(torch.device("cuda")):
        taken = list(stream)
    assert len(taken) == 1
    assert calls == ["a stream of its own", "copied"]
    stream = opened(Rows(8), counts)
    with stream.ahead_of(torch.device("cuda")):
        taken = list(stream)
    waits = [call for call in calls if call.startswith("wait")]
    assert waits == [f"wait for event {number}" for number in range(2, 2 + len(taken))]
    assert calls.count("kept") == len(taken)
