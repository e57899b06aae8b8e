"""Several processes, on one machine or more, that share a corpus: `torchrun run.py …`, or `torchrun -m normscope …`.

Every process analyses its own batches and sends its state to the main process, which merges the states in the order of the
ranks, and alone writes results and tracks the run.
"""

import contextlib
import dataclasses
import datetime
import itertools
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from normscope.data.batching import Batch, ReadWindow, windows
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.errors import InputError, PeerError, one_line
from normscope.models.options import DeviceOptions

T = TypeVar("T")

# How long a process that has finished its batches waits for the others.
_TIMEOUT = datetime.timedelta(hours=2)

# Number of windows at the start of a stream that all processes tokenise.
_SHARED_WINDOWS = 16


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def local_device(self, options: DeviceOptions) -> DeviceOptions:
        """The options with this process's device: one accelerator for each process on a machine."""
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
        # After a PeerError, another process prints the message.
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
        return self.gathered(value)[0]

    def gathered(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        values = [value] * self.size
        if self.size > 1:
            with self._communication():
                dist.all_gather_object(values, value)
        return values

    def collected(self, value: T) -> Iterator[T]:
        """In the main process, the values of the others, by rank. They send theirs and get nothing.

        Raises:
            InputError: If another process has failed.
        """
        if not self.is_main:
            with self._communication():
                dist.send_object_list([value], 0)
            return
        for rank in range(1, self.size):
            received: list[Any] = [None]
            with self._communication():
                dist.recv_object_list(received, rank)
            yield received[0]

    @contextlib.contextmanager
    def _communication(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise InputError(
                f"one of the {self.size} processes ended before it sent its results; its message says why. Continue with "
                f"resume=FOLDER ({one_line(error)})"
            ) from error

    def batches(self, corpus: Corpus, read: ReadWindow, counts: CorpusCounts) -> Iterator[tuple[Batch, bool]]:
        """Batches of a corpus, and whether each is for this process.

        All processes together have the same batches as one alone. Every process batches the first windows, and their batches
        are distributed, so that even a small corpus keeps many processes busy. Of the later windows, each has every N-th; the
        others are skipped without being tokenised.

        Args:
            read: Returns the batches of one of its windows.
            counts: Updated with what became of the examples.
        """
        serial = 0
        for number, window in enumerate(windows(corpus.examples())):
            is_shared = number < min(self.size, _SHARED_WINDOWS)
            if not is_shared and number % self.size != self.rank:
                continue
            # Windows that every process batches are counted only in the first.
            counted = counts if self.rank == 0 or not is_shared else CorpusCounts()
            for batch in read(window, counted):
                yield batch, not is_shared or serial % self.size == self.rank
                serial += 1

    def windows(self, corpus: Corpus) -> Iterator[list[Example | str]]:
        """The windows of a corpus that this process has: every N-th."""
        return itertools.islice(windows(corpus.examples()), self.rank, None, self.size)


def device_share(local_rank: int, processes: int, devices: int) -> range:
    """The accelerators of one of the processes on a machine; all have equally many.

    Args:
        local_rank: The number of the process, from 0.
        processes: How many there are.
        devices: How many accelerators of the machine are visible.

    Raises:
        InputError: If they cannot be divided evenly.
    """
    if devices % processes:
        raise InputError(
            f"device.map=auto: expected a number of GPUs that {processes} processes can share equally, got {devices}; change "
            "--nproc-per-node or CUDA_VISIBLE_DEVICES"
        )
    each = devices // processes
    return range(local_rank * each, (local_rank + 1) * each)


@contextlib.contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """The processes started by torchrun, or this one alone.

    Raises:
        InputError: If the others cannot be reached.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        yield ProcessGroup()
        return
    try:
        # States are small, so they are sent from CPU memory: gloo is available everywhere.
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"WORLD_SIZE={size}: the other processes cannot be reached: {one_line(error)}; start with torchrun, or unset it"
        ) from error
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
