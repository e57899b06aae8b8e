"""A corpus analysed in parts by runs that never meet (`shard=i shards=N`), and the run that merges them.

Each part's run saves the state of its analyses and what it counted. Parts are merged in the order of their numbers, so the
result has the same bytes whichever finished first.
"""

import collections
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from normscope.analyses.base import state_of
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError, one_line
from normscope.reporting.earlier_runs import CONFIG, Status, is_complete, read_config
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say
from normscope.reporting.tracker import Tracker
from normscope.running.checkpoint import DAMAGE, header, loading_problem, packed, unpacked
from normscope.running.reduction import Reduction
from normscope.running.run import Run

T = TypeVar("T")

FILE = "shard.safetensors"

_SHOWN = 10
"""Missing shards that a message lists."""


@dataclasses.dataclass(frozen=True)
class KeptShard:
    """A run of one shard whose state has been saved."""

    run: Run
    results: RunFolder

    def complete(self) -> dict[str, float]:
        """Record that the shard is complete; it has no metrics of its own."""
        run, options = self.run, self.run.plan.options
        self.results.finish(Status.SHARD, {}, run.provenance.facts())
        run.remove_checkpoints()
        say(f"shard {options.shard} of {options.shards} is complete: {self.results.path}")
        say("when every shard is complete, normscope merge RUN… combines them into one run")
        return {}


def keep(run: Run, results: RunFolder, _tracker: Tracker) -> KeptShard:
    """Save the state of a shard's analyses in its run folder.

    Raises:
        InputError: If the run folder is not writable.
    """
    content = {
        "shard": run.plan.options.shard,
        "shards": run.plan.options.shards,
        "identity": _common(run),
        "counts": run.counts.packed(),
    }
    results.write(FILE, packed(content, state_of(run.plan.analyses)))
    return KeptShard(run, results)


def complete_set(folders: Sequence[str | Path]) -> list[Path]:
    """The folders of all shards of a run, in the order of the shards. Reads nothing but the headers of their files.

    Raises:
        InputError: If a shard is missing, given twice, damaged or not complete, or shards have different configs.
    """
    headers = [(folder, _header(folder)) for folder in map(Path, folders)]
    first, expected = headers[0]
    numbered: dict[int, Path] = {}
    for folder, content in headers:
        number, shards = content["shard"], content["shards"]
        if shards != expected["shards"]:
            raise InputError(f"merge: {first} is one of {expected['shards']} shards and {folder} one of {shards}")
        if number in numbered:
            raise InputError(
                f"merge: {numbered[number]} and {folder} are both shard {number} of {shards}; leave one out"
            )
        numbered[number] = folder
    missing = _missing(numbered, expected["shards"])
    if missing:
        raise InputError(f"merge: expected all {expected['shards']} shards; missing: {missing}")
    for folder, content in headers:
        _refuse_others(folder, content["identity"], expected["identity"], str(first))
    return [numbered[number] for number in sorted(numbered)]


def merge(run: Run, folders: Sequence[str]) -> None:
    """Give the analyses of a run the state of all shards.

    Args:
        run: The run that merges.
        folders: The run folders of all shards, in any order.

    Raises:
        InputError: If the folders are no complete set, or a shard's state, model or software does not fit this run.
    """
    current = json.loads(json.dumps(_common(run)))
    reduction = Reduction(run.plan.analyses)
    for folder in complete_set(folders):
        content, tensors = _content(folder)
        _refuse_others(folder, content["identity"], current, "the run that merges")
        problem = loading_problem(run.plan.analyses, tensors)
        if problem:
            raise InputError(f"merge={folder}: its {FILE} cannot be used: {problem}; run the shard again")
        reduction.add()
        run.counts.add(CorpusCounts.unpacked(content["counts"]))
    reduction.finish()


def merging_folders(sweep: Path) -> Iterator[list[Path]]:
    """The folders of each complete set of shards among the runs of a sweep. Incomplete sets are reported."""
    sets: dict[str, dict[int, Path]] = collections.defaultdict(dict)
    counts: dict[str, int] = {}
    for path in sorted(sweep.glob(f"*/{FILE}")):
        content = _header(path.parent)
        key = json.dumps(content["identity"], sort_keys=True)
        sets[key][content["shard"]] = path.parent
        counts[key] = content["shards"]
    for key, folders in sets.items():
        missing = _missing(folders, counts[key])
        if missing:
            say(f"shards {missing} of {counts[key]} are missing; run them again, then normscope merge RUN…")
        else:
            yield [folders[number] for number in sorted(folders)]


def _common(run: Run) -> dict[str, object]:
    """What the runs of all shards share."""
    return {key: value for key, value in run.plan.identity.items() if key not in ("shard", "shards")}


def _header(folder: Path) -> dict[str, Any]:
    """What the file of a shard says about itself."""
    return _read(folder, header)


def _content(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same, and the state of the analyses."""
    return _read(folder, unpacked)


def _read(folder: Path, read: Callable[[Path], T]) -> T:
    path = folder / FILE
    if not os.path.lexists(path):
        raise InputError(f"merge={folder}: {_why_no_state(folder)}")
    try:
        content = header(path)
        numbers = [content[name] for name in ("shard", "shards")]
        whole = all(type(number) is int for number in numbers)
        if not whole or not 0 <= numbers[0] < numbers[1] or not isinstance(content["identity"], dict):
            raise ValueError("its header is not that of a shard")
        CorpusCounts.unpacked(content["counts"])
        return read(path)
    except DAMAGE as error:
        raise InputError(f"{path}: cannot be read: {one_line(error)}; run the shard again") from error


def _why_no_state(folder: Path) -> str:
    """Why a folder holds no state of a shard, and what helps."""
    expected = "expected the folder of a run with shard=… shards=…"
    if not (folder / CONFIG).is_file():
        return expected
    if read_config(folder).get("shard") is None:
        return f"{expected}, got a run of the whole corpus"
    if is_complete(folder):
        return f"its {FILE} is missing; run the shard again"
    return f"expected a complete shard; if it was stopped, continue it with resume={folder}"


def _refuse_others(folder: Path, saved: Mapping[str, Any], current: Mapping[str, Any], where: str) -> None:
    different = [key for key in {**saved, **current} if saved.get(key) != current.get(key)]
    if different:
        key = different[0]
        raise InputError(
            f"merge={folder}: {key} is {saved.get(key)!r} in this shard, but {current.get(key)!r} in {where}; run the shard "
            "again"
        )


def _missing(numbers: Collection[int], shards: int) -> str:
    """The shards without a folder, of which there may be more than memory can list; empty if there are none."""
    first = itertools.islice((number for number in range(shards) if number not in numbers), _SHOWN)
    more = shards - len(numbers) - _SHOWN
    return ", ".join(map(str, first)) + (f" and {more:,} more" if more > 0 else "")
