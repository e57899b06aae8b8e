"""Several processes, on one machine or many, that share a corpus: started by `torchrun run.py …`.

Every process makes the same batches and looks at every N-th of them; what they have added up is merged by the first process, in
the order of the processes. It alone writes and tracks.
"""

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from normscope import checkpoints
from normscope.analyses.analysis import Analysis
from normscope.data.batching import Batch
from normscope.errors import InputError, one_line
from normscope.schema import DeviceOptions

# A process that has no more batches waits for the others this long.
_PATIENCE = datetime.timedelta(hours=2)


@dataclasses.dataclass(frozen=True)
class World:
    """The processes of a run."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def own_device(self, options: DeviceOptions) -> DeviceOptions:
        """One accelerator per process of a machine."""
        if self.size == 1 or options.name not in ("auto", "cuda") or not torch.cuda.is_available():
            return options
        local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return dataclasses.replace(options, name=f"cuda:{local}")

    def share(self, stream: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
        """The batches, and which of them are this process's."""
        for number, batch in enumerate(stream):
            yield batch, number % self.size == self.rank

    def gather(self, analyses: Sequence[Analysis], new: "Sequence[Sequence[Analysis]]") -> None:
        """Add up in the first process what all have added up.

        Args:
            analyses: This process's.
            new: For every other process the same analyses, new; used by the first process alone.
        """
        if self.size == 1:
            return
        try:
            self._gather(analyses, new)
        except RuntimeError as error:
            raise InputError(
                f"one of the {self.size} processes ended before it had handed over its share, its own message says why; "
                f"nothing of this run is kept, begin it again ({one_line(error)})"
            ) from error

    def _gather(self, analyses: Sequence[Analysis], new: "Sequence[Sequence[Analysis]]") -> None:
        if not self.first:
            content = checkpoints.packed(analyses)
            dist.send(torch.tensor([len(content)]), 0)
            dist.send(content, 0)
            return
        for rank, others in enumerate(new, start=1):
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, rank)
            content = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(content, rank)
            checkpoints.merge(analyses, others, checkpoints.unpacked(content))


@contextlib.contextmanager
def world() -> Iterator[World]:
    """The processes that torchrun has started, or this one alone.

    Raises:
        InputError: If the others cannot be reached.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    try:
        # States travel through the CPU's memory, whatever the device: they are small, and gloo is everywhere.
        dist.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"WORLD_SIZE={size}: the other processes cannot be reached: {error}; start with torchrun"
        ) from error
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
