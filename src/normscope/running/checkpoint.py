"""The state of a process of a run, saved in a file while it reads its batches.

A resumed run makes the same batches again, skips those already done, and continues from the saved sums. The file is written
atomically, so the result is bit for bit that of an uninterrupted run, as long as every batch fits into memory.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from normscope.analyses.base import Analysis, load_state, state_of
from normscope.config.schema import difference
from normscope.data.batching import Batch
from normscope.errors import InputError, one_line
from normscope.reporting.run_folder import PARTS_DONE, RunFolder, write_beside
from normscope.results.parts import CURVES, tidy_curves
from normscope.results.result import Result
from normscope.results.run_files import is_complete
from normscope.running.ranks import ProcessGroup
from normscope.untrusted.tensor_files import DAMAGE, packed, unpacked

CHECKPOINT = "checkpoint.safetensors"
"""The file of the main process; the others have their rank in its name."""

# Saving takes at most a twentieth of the time, however large the state is.
_PAUSE_PER_SAVE = 20


@dataclasses.dataclass(frozen=True)
class Position:
    """How far a process has read: the number of batches and a digest of their tokens and gold scores."""

    batches: int = 0
    digest: str = ""

    def after(self, batch: Batch) -> "Position":
        """The position after this batch."""
        pairing = "" if batch.pairing is None else f"{batch.pairing.scores}{batch.pairing.ranked}"
        content = f"{self.digest} {batch.fingerprints}{pairing}".encode()
        return Position(self.batches + 1, hashlib.sha256(content).hexdigest())


class Checkpoint:
    """The file of a process in the run folder.

    Args:
        folder: The run folder; its path in a process that has not locked it.
        group: The processes of the run; a resumed run has as many, since each continues from its own file.
        identity: What else a resumed run must have in common with this one, as plain values.
        every_seconds: Minimum number of seconds between two saves; 0 saves after every batch.
    """

    def __init__(
        self,
        folder: RunFolder | Path,
        group: ProcessGroup,
        identity: Mapping[str, Any],
        every_seconds: float,
    ) -> None:
        place = folder if isinstance(folder, Path) else folder.path
        self._write = functools.partial(write_beside, folder) if isinstance(folder, Path) else folder.write
        self._path = place / (CHECKPOINT if group.is_main else f"checkpoint.{group.rank}.safetensors")
        self._folder, self._parts = folder, place / PARTS_DONE
        self._identity = {"the number of processes": group.size, **identity}
        self._every, self._due = every_seconds, time.monotonic() + every_seconds

    def resume(self, analyses: Sequence[Analysis], stream: Iterator[tuple[Batch, bool]]) -> Position:
        """Load the saved state, if there is one, and skip the batches that it covers.

        Raises:
            InputError: If the checkpoint is unreadable or damaged, or the config, model or corpus has changed; the message
                says which.
        """
        if not self._path.is_file():
            return Position()
        saved, state = self._read()
        position = Position()
        while position.batches < saved.batches:
            passed = next(stream, None)
            if passed is None:
                break
            position = position.after(passed[0])
        if position != saved:
            raise InputError(
                f"resume: the corpus has changed: its first {saved.batches} batches have other tokens than when the "
                "run was stopped; start a new run"
            )
        problem = loading_problem(analyses, state)
        if problem:
            raise InputError(f"{self._path}: the checkpoint cannot be used: {problem}; remove it to start over")
        return position

    def save(self, analyses: Sequence[Analysis], position: Position) -> None:
        """Save the state of the analyses after the batches up to a position, which ends what an earlier one led to.

        Raises:
            InputError: If the run folder is not writable.
        """
        start = time.monotonic()
        shutil.rmtree(self._parts, ignore_errors=True)
        content = {"identity": self._identity, **dataclasses.asdict(position)}
        self._write(self._path.name, packed(content, state_of(analyses)))
        now = time.monotonic()
        self._due = now + max(self._every, _PAUSE_PER_SAVE * (now - start) if self._every else 0.0)

    def save_if_due(self, analyses: Sequence[Analysis], position: Position, *, at_once: bool = False) -> None:
        """Save if the last checkpoint is old enough, or if `at_once` is set."""
        if at_once or time.monotonic() >= self._due:
            self.save(analyses, position)

    def save_part(self, name: str, part: Result, depth: int) -> None:
        """Save what an analysis has found, after its interventions. Only the main process does.

        Raises:
            InputError: If the run folder is not writable.
        """
        assert isinstance(self._folder, RunFolder)
        with self._folder.writing():
            curves = tidy_curves(part.curves, depth)
            dataclasses.replace(part, tables={**part.tables, CURVES: curves}).write(self._parts / name)

    def part(self, name: str) -> Result | None:
        """What an analysis had found when the run was stopped; None if its interventions were not done.

        Raises:
            InputError: If it is damaged.
        """
        if not is_complete(self._parts / name):
            return None
        part = Result.read(self._parts / name)
        # Those that have been read are whole; this keeps the types of their columns.
        files = {table: self._parts / name / "tables" / f"{table}.parquet" for table, _ in part.tables.items()}
        tables = {table: pd.read_parquet(file) for table, file in files.items() if table != CURVES}
        return dataclasses.replace(part, tables=tables, figures=dict(part.figures), config={}, facts={})

    def _read(self) -> tuple[Position, dict[str, Tensor]]:
        """The saved position and state, verified by the checksum and checked to be those of this run."""
        try:
            content, state = unpacked(self._path, finite=False)
            position = Position(content["batches"], content["digest"])
            identity = content["identity"]
            if type(position.batches) is not int or position.batches < 0 or not isinstance(identity, dict):
                raise ValueError("its header is not that of a checkpoint")
        except (InputError, *DAMAGE) as error:
            raise InputError(
                f"{self._path}: the checkpoint cannot be read: {one_line(error)}; remove it to start over"
            ) from error
        changed = difference(identity, json.loads(json.dumps(self._identity)), "when the run was stopped")
        if changed:
            raise InputError(f"resume: {changed}; start a new run, or change it back")
        return position, state


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a completed run. One that cannot be removed does no harm."""
    with contextlib.suppress(OSError):
        for path in folder.glob("checkpoint*.safetensors"):
            path.unlink(missing_ok=True)
    shutil.rmtree(folder / PARTS_DONE, ignore_errors=True)


def loading_problem(analyses: Sequence[Analysis], tensors: Mapping[str, Tensor]) -> str:
    """Load a saved state into the analyses; return what is wrong with it, or an empty text.

    A checksum can be forged, and a tensor of another shape may be broadcast: what was loaded must match what was saved.
    """
    new = _shapes(state_of(analyses))
    try:
        load_state(analyses, tensors)
        loaded = _shapes(state_of(analyses))
    except (LookupError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        return one_line(error)
    # A single number must stay one, because it could be broadcast to any shape.
    expected = loaded | {name: kind for name, kind in new.items() if kind[1] == ()}
    saved = _shapes(tensors)
    different = sorted(name for name in {**saved, **expected} if saved.get(name) != expected.get(name))
    return f"it does not fit the analyses at {different[0]}" if different else ""


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
