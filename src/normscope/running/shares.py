"""The shares of a corpus: one for each process of a run.

A process that is killed loses what it has added to its share since the last checkpoint. Shares do not depend on each other
until they are merged, so any number of processes can continue them, one after another if there are fewer processes than shares:
the result has the same bytes.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from normscope.data.batching import Batch, ReadWindow, windows
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.errors import InputError
from normscope.reporting.run_folder import PeerFolder
from normscope.reporting.terminal import say
from normscope.rounding import counted
from normscope.running.distributed import ProcessGroup

CHECKPOINT = "checkpoint.safetensors"
_CHECKPOINT_OF_SHARE = re.compile(r"checkpoint\.([0-9]{1,6})-of-([0-9]{1,6})\.safetensors")

# Number of windows at the start of a stream that all processes tokenise.
_SHARED_WINDOWS = 16


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several shares of a corpus."""

    number: int
    """From 0."""
    of: int

    def batches(self, corpus: Corpus, read: ReadWindow, counts: CorpusCounts) -> Iterator[tuple[Batch, bool]]:
        """Batches of a corpus, and whether each belongs to this share.

        All shares together have the same batches as a single share of the whole corpus.

        Args:
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
        """The parts of a corpus, or the whole, that this share reads, and its share of each."""
        if corpus.parts is None:
            yield corpus, self
        else:
            for index, share in self.portions(corpus.parts):
                yield corpus.part(index), share

    def portions(self, parts: int) -> Iterator[tuple[int, "Share"]]:
        """The parts of a corpus that this share reads, and its share of each.

        All shares have equally many whole parts. The parts that are left, fewer than there are shares, are divided among all
        shares, so that no share reads more than one of them.
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
        """The same for a stream of examples that every share must read.

        Every share batches the first windows, and their batches are distributed, so that even a small corpus keeps many
        processes busy. Of the later windows, each share has every N-th; the others are skipped without being tokenised.
        """
        serial = 0
        for number, window in enumerate(windows(examples)):
            is_shared = number < min(self.of, _SHARED_WINDOWS)
            if not is_shared and number % self.of != self.number:
                continue
            # Windows that every share batches are counted only in the first share.
            counted = counts if self.number == 0 or not is_shared else CorpusCounts()
            for batch in read(window, counted):
                yield batch, not is_shared or serial % self.of == self.number
                serial += 1

    @property
    def file(self) -> str:
        """The name of the file with the state of this share of a run's corpus."""
        return CHECKPOINT if self.of == 1 else f"checkpoint.{self.number}-of-{self.of}.safetensors"


@dataclasses.dataclass(frozen=True)
class Shares:
    """The shares of a run, and those of this process."""

    number: int
    """The number of shares of the run."""
    own: Sequence[Share]
    """The shares of the corpus that this process analyses, one after another."""

    @property
    def all(self) -> Sequence[Share]:
        """The shares of all processes."""
        return [Share(number, self.number) for number in range(self.number)]

    @classmethod
    def of(cls, folder: Path, group: ProcessGroup, *, resumed: bool) -> "Shares":
        """The shares of a new run, one per process, or those of a run that is resumed.

        Raises:
            InputError: If this process does not see the folder of a resumed run, or the folder has checkpoints of several runs.
        """
        number = group.size
        if resumed:
            if not PeerFolder(folder).visible:
                raise InputError(
                    f"resume={folder}: process {group.rank} of {group.size} does not see this folder; resume the run where "
                    "all processes share a file system"
                )
            number = _saved_number(folder) or group.size
            if group.is_main and number != group.size:
                _announce(number, group.size)
        return cls(number, [Share(share, number) for share in range(group.rank, number, group.size)])


def _saved_number(folder: Path) -> int | None:
    """The number of shares that the corpus of a stopped run is divided into; None if it has no checkpoint.

    A run has a checkpoint before its first batch, unless its processes do not share a file system.

    Raises:
        InputError: If there are checkpoints for different numbers of shares.
    """
    names = [path.name for path in folder.glob("checkpoint*.safetensors")]
    numbers = {int(match[2]) for match in map(_CHECKPOINT_OF_SHARE.fullmatch, names) if match is not None}
    numbers |= {1} if CHECKPOINT in names else set()
    if len(numbers) > 1:
        raise InputError(
            f"resume={folder}: it has checkpoints of runs with {' and '.join(map(str, sorted(numbers)))} processes; remove "
            "those of one"
        )
    return next(iter(numbers), None)


def _announce(shares: int, processes: int) -> None:
    begun = f"{counted(shares, 'process', 'processes')} began this run"
    if shares > processes:
        continuing = counted(processes, "continues with its", "continue with their")
        say(f"{begun}: {continuing} parts, one after another")
    else:
        say(
            f"{begun}: {processes - shares} of {processes} {'has' if processes - shares == 1 else 'have'} nothing to do"
        )
