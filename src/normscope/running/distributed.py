"""Several processes, on one machine or more, that share a corpus: `torchrun run.py …`, or `torchrun -m normscope …`.

Every process analyses its share of the batches. The main process merges the states in the order of the processes; it alone
writes results and tracks the run.
"""

import contextlib
import dataclasses
import datetime
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from normscope.analyses.base import Analysis, merge_state, state_of
from normscope.data.batching import Batch, ReadWindow, windows
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.errors import InputError, PeerError, one_line
from normscope.models.offloading import device_share
from normscope.models.options import DeviceOptions
from normscope.running.rendezvous import launcher_store, new_store

T = TypeVar("T")

# How long a process that has finished its batches waits for the others.
_TIMEOUT = datetime.timedelta(hours=2)
_MOST_PROCESSES = 10**6
# Windows at the start of a stream that all processes tokenise.
_SHARED_WINDOWS = 16


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several shares of a corpus."""

    number: int
    """From 0."""
    of: int

    def batches(self, corpus: Corpus, read: ReadWindow, counts: CorpusCounts) -> Iterator[tuple[Batch, bool]]:
        """Batches of a corpus, and whether each belongs to this share.

        The batches of all shares together are those of the only share of one.

        Args:
            corpus: The corpus.
            read: Returns the batches of one of its windows.
            counts: Updated with what became of the examples.
        """
        for part, share in self._streams(corpus):
            yield from share._of_stream(part.examples(), read, counts)

    def windows(self, corpus: Corpus) -> Iterator[list[Example | str]]:
        """The windows of a corpus, each of which belongs to one share."""
        for part, share in self._streams(corpus):
            yield from itertools.islice(windows(part.examples()), share.number, None, share.of)

    def _streams(self, corpus: Corpus) -> Iterator[tuple[Corpus, "Share"]]:
        """What this share reads of a corpus, and what it has of each part."""
        if corpus.parts is None:
            yield corpus, self
        else:
            for index, share in self.portions(corpus.parts):
                yield corpus.part(index), share

    def portions(self, parts: int) -> Iterator[tuple[int, "Share"]]:
        """The parts of a corpus that this share reads, and what it has of each.

        All shares have equally many whole parts. If fewer parts than shares are left, each of them is shared by as many as
        possible, so that nobody reads more than one of these.
        """
        left = parts % self.of
        for index in range(self.number, parts - left, self.of):
            yield index, Share(0, 1)
        if left:
            place = self.number * left // self.of
            first, end = (-(-number * self.of // left) for number in (place, place + 1))
            yield parts - left + place, Share(self.number - first, end - first)

    def _of_stream(
        self, examples: Iterable[Example | str], read: ReadWindow, counts: CorpusCounts
    ) -> Iterator[tuple[Batch, bool]]:
        """The same for examples that every share must read.

        The first windows are batched for all shares and their batches distributed, so that even a small corpus keeps many
        processes busy. Of the later windows each share has every N-th; the others are skipped without being tokenised.
        """
        serial = 0
        for number, window in enumerate(windows(examples)):
            is_shared = number < min(self.of, _SHARED_WINDOWS)
            if not is_shared and number % self.of != self.number:
                continue
            # Windows that are batched for all shares are counted in the first.
            counted = counts if self.number == 0 or not is_shared else CorpusCounts()
            for batch in read(window, counted):
                yield batch, not is_shared or serial % self.of == self.number
                serial += 1


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run."""

    rank: int = 0
    size: int = 1
    store: Store | None = None
    """torchrun's store, which outlives the processes."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def local_device(self, options: DeviceOptions) -> DeviceOptions:
        """The options with a device of this process: one accelerator for each process on a machine."""
        if self.size == 1 or options.name not in ("auto", "cuda") or not torch.cuda.is_available():
            return options
        devices = self.local_devices(options)
        local = devices[0] if devices else self.local_rank % torch.cuda.device_count()
        return dataclasses.replace(options, name=f"cuda:{local}")

    def local_devices(self, options: DeviceOptions) -> range:
        """The accelerators of this process with `device.map=auto`: an equal share of those of its machine.

        Raises:
            InputError: If they cannot be divided among the processes.
        """
        if options.map is None or options.name not in ("auto", "cuda") or not torch.cuda.is_available():
            return range(0)
        return device_share(self.local_rank, self.local_size, torch.cuda.device_count())

    @property
    def local_rank(self) -> int:
        """The number of this process among those on its machine, from 0."""
        return 0 if self.size == 1 else int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def local_size(self) -> int:
        """How many processes of the run are on this machine."""
        return 1 if self.size == 1 else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """A step that succeeds in all processes or fails in all of them.

        Raises:
            InputError: If this process has the lowest rank of those with invalid input; it prints the message.
            PeerError: If another process prints it.
        """
        error: InputError | None = None
        try:
            yield
        except InputError as raised:
            error = raised
        # After a PeerError another process has the message.
        has_failed = self.gathered(error is not None and not isinstance(error, PeerError))
        if not any(has_failed):
            if error is not None:
                raise error
            return
        printing = has_failed.index(True)
        if printing == self.rank:
            assert error is not None
            raise error
        raise PeerError(f"process {printing} of {self.size} found invalid input") from error

    def shared(self, value: str) -> str:
        """The main process's value, in all processes."""
        values = [value]
        if self.size > 1:
            with self._communication():
                dist.broadcast_object_list(values, src=0)
        return values[0]

    def gathered(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        values = [value] * self.size
        if self.size > 1:
            with self._communication():
                dist.all_gather_object(values, value)
        return values

    def reduce(self, analyses: Sequence[Analysis], counts: CorpusCounts) -> None:
        """Merge the states of all processes in the main process, pairwise: in log₂ N steps, with two states in memory.

        The order is that of `reduction.Reduction`.

        Args:
            analyses: This process's analyses; those of the main process end up with the state of all.
            counts: The counts of this process's examples; those of the main process end up with the sum.

        Raises:
            InputError: If another process has failed.
        """
        step = 1
        while step < self.size:
            if self.rank % (2 * step):
                parts = counts.packed().encode(), safetensors.torch.save(state_of(analyses))
                with self._communication():
                    for part in parts:
                        _send(part, self.rank - step)
                return
            other = self.rank + step
            if other < self.size:
                with self._communication():
                    packed, content = _received(other), _received(other)
                counts.add(CorpusCounts.unpacked(packed.numpy().tobytes().decode()))
                merge_state(analyses, safetensors.torch.load(content.numpy().tobytes()))
            step *= 2

    @contextlib.contextmanager
    def _communication(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise InputError(
                f"one of the {self.size} processes ended before it sent its results; its message says why. Continue with "
                f"resume=FOLDER ({one_line(error)})"
            ) from error


def _send(part: bytes, rank: int) -> None:
    content = torch.frombuffer(bytearray(part), dtype=torch.uint8)
    dist.send(torch.tensor([len(content)]), rank)
    dist.send(content, rank)


def _received(rank: int) -> Tensor:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, rank)
    content = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(content, rank)
    return content


def _from_environment(name: str, default: str, meaning: str, allowed: range) -> int:
    """A number that torchrun sets."""
    given = os.environ.get(name, default)
    if not re.fullmatch("[0-9]{1,9}", given) or int(given) not in allowed:  # int() refuses thousands of digits
        raise InputError(
            f"{name}={given}: expected {meaning}, from {allowed.start}; start with torchrun, or unset WORLD_SIZE and {name}"
        )
    return int(given)


@contextlib.contextmanager
def _reaching(size: int) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"WORLD_SIZE={size}: the other processes cannot be reached: {one_line(error)}; start with torchrun, or unset it"
        ) from error


@contextlib.contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """The processes started by torchrun, or this one alone.

    Raises:
        InputError: If the others cannot be reached.
    """
    size = _from_environment("WORLD_SIZE", "1", "the number of processes", range(1, _MOST_PROCESSES))
    if size == 1:
        with _reaching(size):
            store = launcher_store(_TIMEOUT)
        yield ProcessGroup(store=store)
        return
    rank = _from_environment("RANK", "0", f"the rank of this process among {size}", range(size))
    _from_environment("LOCAL_RANK", "0", "the rank of this process on its machine", range(size))
    with _reaching(size):
        store = launcher_store(_TIMEOUT)
        own = None if store is None else new_store(store, rank, size, _TIMEOUT)
        # States are small, so they are sent from CPU memory: gloo is available everywhere.
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=_TIMEOUT)
    try:
        yield ProcessGroup(rank, size, store)
    finally:
        dist.destroy_process_group()
