"""Shares of a corpus that are analysed by separate runs (`shard=i shards=N`), and the run that merges them.

Each run leaves the file of its share, and shards are merged in the order of their numbers: the result has the same bytes
whichever finished first.
"""

import collections
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from normscope.errors import InputError, one_line
from normscope.reporting.earlier_runs import CONFIG, Status, is_complete, read_config
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say
from normscope.reporting.weights_and_biases import Tracker
from normscope.running.checkpoint import SavedShare, loading_problem
from normscope.running.phases import Phase
from normscope.running.reduction import Reduction
from normscope.running.run import Run
from normscope.running.shares import SHARD
from normscope.running.state_file import DAMAGE, unpacked

T = TypeVar("T")

_SHOWN = 10
"""How many missing shards a message lists."""


@dataclasses.dataclass(frozen=True)
class KeptShard:
    """A run of one shard whose state has been saved."""

    run: Run
    results: RunFolder

    def complete(self) -> dict[str, float]:
        """Record that the shard is complete; it has no metrics of its own."""
        run, options = self.run, self.run.plan.options
        self.results.finish(Status.SHARD, {}, run.provenance.facts())
        say(f"shard {options.shard} of {options.shards} is complete: {self.results.path}")
        say("when every shard is complete, normscope merge RUN… combines them into one run")
        return {}


def keep(run: Run, results: RunFolder, _tracker: Tracker) -> KeptShard:
    """Leave the file of the share, which the loop has saved, in the run folder."""
    run.phases.begin(Phase.PUBLISHING)
    return KeptShard(run, results)


def complete_set(folders: Sequence[str | Path]) -> list[Path]:
    """The folders of all shards of a run, in the order of the shards. Reads nothing but the headers of their files.

    Raises:
        InputError: If a shard is missing, given twice, damaged or not complete, or shards have different configs.
    """
    headers = [(folder, _saved(folder)) for folder in map(Path, folders)]
    first, expected = headers[0]
    numbered: dict[int, Path] = {}
    for folder, saved in headers:
        number, shards = saved.share.number, saved.share.of
        if shards != expected.share.of:
            raise InputError(f"merge: {first} is one of {expected.share.of} shards and {folder} one of {shards}")
        if number in numbered:
            raise InputError(
                f"merge: {numbered[number]} and {folder} are both shard {number} of {shards}; leave one out"
            )
        numbered[number] = folder
    missing = _missing(numbered, expected.share.of)
    if missing:
        raise InputError(f"merge: expected all {expected.share.of} shards; missing: {missing}")
    for folder, saved in headers:
        _refuse_others(folder, saved, expected.identity, str(first))
    return [numbered[number] for number in sorted(numbered)]


def merge(run: Run, folders: Sequence[str]) -> None:
    """Load the merged state of all shards into the analyses of a run.

    Args:
        run: The run that merges.
        folders: The run folders of all shards, in any order.

    Raises:
        InputError: If the folders are not a complete set, or a shard's state, model or software does not fit this run.
    """
    run.phases.begin(Phase.MERGING)
    reduction = Reduction(run.plan.analyses)
    for folder in complete_set(folders):
        content, state = _read(folder, unpacked)
        saved = SavedShare.of(content)
        _refuse_others(folder, saved, run.plan.identity, "the run that merges")
        problem = loading_problem(run.plan.analyses, state)
        if problem:
            raise InputError(f"merge={folder}: its {SHARD} cannot be used: {problem}; run the shard again")
        reduction.add(state, saved.whole)
    run.counts.become(reduction.finish())


def merging_folders(sweep: Path) -> Iterator[list[Path]]:
    """The folders of each complete set of shards among the runs of a sweep. Incomplete sets are reported."""
    sets: dict[str, dict[int, Path]] = collections.defaultdict(dict)
    shards: dict[str, int] = {}
    for path in sorted(sweep.glob(f"*/{SHARD}")):
        saved = _read(path.parent, SavedShare.read)
        key = json.dumps(saved.identity, sort_keys=True)
        shards[key] = saved.share.of
        if saved.counts is not None:
            sets[key][saved.share.number] = path.parent
    for key, number in shards.items():
        missing = _missing(sets[key], number)
        if missing:
            say(f"shards {missing} of {number} are missing; run them again, then normscope merge RUN…")
        else:
            yield [sets[key][share] for share in range(number)]


def _saved(folder: Path) -> SavedShare:
    """The header of a complete shard's file."""
    saved = _read(folder, SavedShare.read)
    if saved.counts is None:
        raise InputError(f"merge={folder}: {_why_no_state(folder)}")
    return saved


def _read(folder: Path, read: Callable[[Path], T]) -> T:
    path = folder / SHARD
    if not os.path.lexists(path):
        raise InputError(f"merge={folder}: {_why_no_state(folder)}")
    try:
        return read(path)
    except DAMAGE as error:
        raise InputError(f"{path}: cannot be read: {one_line(error)}; run the shard again") from error


def _why_no_state(folder: Path) -> str:
    """Why a folder holds no state of a complete shard, and what to do about it."""
    expected = "expected the folder of a run with shard=… shards=…"
    if not (folder / CONFIG).is_file():
        return expected
    if read_config(folder).get("shard") is None:
        return f"{expected}, got a run of the whole corpus"
    if is_complete(folder):
        return f"its {SHARD} is missing; run the shard again"
    return f"expected a complete shard; if it was stopped, continue it with resume={folder}"


def _refuse_others(folder: Path, saved: SavedShare, identity: Mapping[str, Any], where: str) -> None:
    different = saved.difference(identity)
    if different is not None:
        key, here, there, _ = different
        raise InputError(
            f"merge={folder}: {key} is {here!r} in this shard, but {there!r} in {where}; run the shard again"
        )


def _missing(numbers: Collection[int], shards: int) -> str:
    """The first shards without a folder (all may be too many to list in memory); empty if there are none."""
    first = itertools.islice((number for number in range(shards) if number not in numbers), _SHOWN)
    more = shards - len(numbers) - _SHOWN
    return ", ".join(map(str, first)) + (f" and {more:,} more" if more > 0 else "")
