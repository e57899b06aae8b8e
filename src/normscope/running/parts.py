"""The parts that a run divides its corpus into, one for each process that begins it.

A process that is killed loses what its part has gained since its last checkpoint. Parts do not depend on each other until all
are merged, so any number of processes can continue with them, one after another if there are fewer: the result has the same
bytes.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from normscope.analyses.base import Analysis
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError
from normscope.reporting.run_folder import PeerFolder
from normscope.reporting.terminal import say
from normscope.rounding import counted
from normscope.running.checkpoint import Checkpoint, saved_parts
from normscope.running.distributed import ProcessGroup, Share
from normscope.running.options import RunOptions
from normscope.running.reduction import Reduction


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a run, and those of this process."""

    number: int
    """The number of parts of the run; 1 for the run of a shard, which has that part of the corpus alone."""
    own: Sequence[Share]
    """The shares of the corpus that this process analyses, one after another."""

    @property
    def all(self) -> Sequence[Share]:
        """The shares of all processes."""
        return self.own if self.number == 1 else [Share(part, self.number) for part in range(self.number)]

    @classmethod
    def of(cls, options: RunOptions, folder: Path, group: ProcessGroup) -> "Parts":
        """The parts of a new run, as many as processes, or those of a run that is resumed.

        Raises:
            InputError: If the run is resumed and this process does not see its folder, or it has checkpoints of several runs.
        """
        if options.shard is not None:
            return cls(1, [Share(options.shard, options.shards)])
        number = group.size
        if options.resume is not None:
            if not PeerFolder(folder).visible:
                raise InputError(
                    f"resume={folder}: process {group.rank} of {group.size} does not see this folder; resume the run where "
                    "all processes share a file system"
                )
            number = saved_parts(folder) or group.size
            if group.is_main and number != group.size:
                _announce(number, group.size)
        return cls(number, [Share(part, number) for part in range(group.rank, number, group.size)])


def merge_saved(parts: Iterable[Checkpoint], analyses: Sequence[Analysis], counts: CorpusCounts) -> None:
    """Give the analyses the state of all parts, which have been saved.

    Args:
        parts: The checkpoints of the parts, in order.
        analyses: The analyses.
        counts: Set to the counts of all parts.

    Raises:
        InputError: If a checkpoint is missing or damaged.
    """
    counts.clear()
    reduction = Reduction(analyses)
    for part in parts:
        saved = part.finished(analyses)
        if saved is None:
            raise InputError(f"{part.path}: expected the state of this part; continue with resume={part.path.parent}")
        counts.add(saved)
        reduction.add()
    reduction.finish()


def _announce(parts: int, processes: int) -> None:
    begun = f"{counted(parts, 'process', 'processes')} began this run"
    if parts > processes:
        continuing = counted(processes, "continues with its", "continue with their")
        say(f"{begun}: {continuing} parts, one after another")
    else:
        say(f"{begun}: {processes - parts} of {processes} {'has' if processes - parts == 1 else 'have'} nothing to do")
