"""Several processes, on one machine or many, that share a corpus: started by `torchrun run.py …`.

Every process looks at its share of the batches; what they have added up is merged by the first process, in the order of the
processes. It alone writes and tracks.
"""

import contextlib
import dataclasses
import datetime
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from normscope.analyses.base import Analysis, merge_state, state_of
from normscope.config.schema import DeviceOptions
from normscope.data.batching import Batch, batches_of_window, windows
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.errors import InputError, PeerError, one_line

# A process that has no more batches waits for the others this long.
_PATIENCE = datetime.timedelta(hours=2)
_MOST_PROCESSES = 10**6


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def own_device(self, options: DeviceOptions) -> DeviceOptions:
        """One accelerator per process of a machine."""
        if self.size == 1 or options.name not in ("auto", "cuda") or not torch.cuda.is_available():
            return options
        local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return dataclasses.replace(options, name=f"cuda:{local}")

    def batches(
        self, examples: Iterable[Example | str], encoder: Encoder, batch_tokens: int, counts: CorpusCounts
    ) -> Iterator[tuple[Batch, bool]]:
        """Batches of a corpus, and which of them are this process's; arguments are those of `batching.batches`.

        The corpus' first parts, as many as there are processes, are made into batches by all, and these shared out: so a small
        corpus keeps all of them busy. Of what comes after, every process takes every N-th part and passes over the others,
        whose texts it only reads.
        """
        serial = 0
        for number, window in enumerate(windows(examples)):
            together = number < self.size
            if not together and number % self.size != self.rank:
                continue
            # What all of them read is counted by the first.
            counted = counts if self.is_main or not together else CorpusCounts()
            for batch in batches_of_window(window, encoder, batch_tokens, counted):
                yield batch, not together or serial % self.size == self.rank
                serial += 1

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """A step of all processes that ends well for all of them or for none.

        Raises:
            InputError: If the step found bad input in this process.
            PeerError: If it did in one of a lower rank, or in another one alone: that process prints it.
        """
        error: InputError | None = None
        try:
            yield
        except InputError as raised:
            error = raised
        refused = [error is not None] * self.size
        if self.size > 1:
            with self._talking():
                dist.all_gather_object(refused, error is not None)
        if not any(refused):
            return
        printing = refused.index(True)
        if printing == self.rank:
            assert error is not None
            raise error
        raise PeerError(f"process {printing} of {self.size} found bad input") from error

    def shared(self, word: str) -> str:
        """A word of the first process, in all of them."""
        words = [word]
        if self.size > 1:
            with self._talking():
                dist.broadcast_object_list(words, src=0)
        return words[0]

    def reduce(self, analyses: Sequence[Analysis], counts: CorpusCounts) -> None:
        """Add up in the first process what all have added up.

        Args:
            analyses: This process's; in the first they go on with the sums of all.
            counts: What became of the examples that this process has read; in the first, of all.

        Raises:
            InputError: If another process has died.
        """
        if self.size == 1:
            return
        if self.is_main:
            for rank in range(1, self.size):
                with self._talking():
                    words, content = _received(rank), _received(rank)
                counts.add(CorpusCounts.unpacked(words.numpy().tobytes().decode()))
                merge_state(analyses, safetensors.torch.load(content.numpy().tobytes()))
            return
        parts = counts.packed().encode(), safetensors.torch.save(state_of(analyses))
        with self._talking():
            for part in parts:
                content = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                dist.send(torch.tensor([len(content)]), 0)
                dist.send(content, 0)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise InputError(
                f"one of the {self.size} processes ended before it had handed over its share, its own message says why; "
                f"nothing of this run is kept, begin it again ({one_line(error)})"
            ) from error


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
def process_group() -> Iterator[ProcessGroup]:
    """The processes that torchrun has started, or this one alone.

    Raises:
        InputError: If the others cannot be reached.
    """
    size = _from_environment("WORLD_SIZE", "1", "the number of processes", range(1, _MOST_PROCESSES))
    if size == 1:
        yield ProcessGroup()
        return
    _from_environment("RANK", "0", f"the rank of this process among {size}", range(size))
    _from_environment("LOCAL_RANK", "0", "the rank of this process on its machine", range(size))
    try:
        # States travel through the CPU's memory, whatever the device: they are small, and gloo is everywhere.
        dist.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"WORLD_SIZE={size}: the other processes cannot be reached: {one_line(error)}; start with torchrun, or unset it"
        ) from error
    try:
        yield ProcessGroup(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
