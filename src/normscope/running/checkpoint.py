"""The state of the analyses, saved so that an interrupted run can be resumed.

The file is safetensors: tensors and a text header, nothing that is executed on reading. It is written atomically, and a
checksum detects damage. A resumed run makes the same batches again, skips those already done, and continues from
the saved sums. The result is bit for bit that of an uninterrupted run, as long as every batch fits into memory.

If several processes share a corpus, each saves its own part, and the parts need no agreement: none depends on another before
all are merged. As many processes as began the run, or any other number, continue with the parts (`Session.parts`).
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from normscope.analyses.base import Analysis, load_state, state_of
from normscope.data.batching import Batch
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError, one_line
from normscope.reporting.run_folder import PeerFolder, RunFolder
from normscope.untrusted.plain_data import parsed_json

FILE = "checkpoint.safetensors"
_FILE_OF_PART = re.compile(r"checkpoint\.([0-9]{1,6})-of-([0-9]{1,6})\.safetensors")

# Saving takes at most a twentieth of the time, however large the state is.
_PAUSE_PER_SAVE = 20


@dataclasses.dataclass
class Position:
    """How far a corpus has been read: the number of batches and a digest of their tokens and gold scores."""

    batches: int = 0
    digest: str = ""

    def after(self, batch: Batch) -> "Position":
        """The position after this batch."""
        content = f"{self.digest} {batch.fingerprints}{batch.scores or ''}".encode()
        return Position(self.batches + 1, hashlib.sha256(content).hexdigest())


def file_of(part: int, parts: int) -> str:
    """The name of the checkpoint of one of the parts that a run's corpus is divided into."""
    return FILE if parts == 1 else f"checkpoint.{part}-of-{parts}.safetensors"


def saved_parts(folder: Path) -> int | None:
    """The number of parts that the corpus of a stopped run is divided into; None if it has no checkpoint.

    A run has one before its first batch, unless its processes do not share a file system.

    Raises:
        InputError: If there are checkpoints of different numbers.
    """
    names = [path.name for path in folder.glob("checkpoint*.safetensors")]
    numbers = {int(match[2]) for match in map(_FILE_OF_PART.fullmatch, names) if match is not None}
    numbers |= {1} if FILE in names else set()
    if len(numbers) > 1:
        raise InputError(
            f"resume={folder}: it has checkpoints of runs with {' and '.join(map(str, sorted(numbers)))} processes; remove "
            "those of one"
        )
    return next(iter(numbers), None)


class Checkpoint:
    """A checkpoint in a run folder.

    Args:
        folder: The run folder.
        identity: What a resumed run must share: config, model and relevant software, as plain values.
        every_seconds: Minimum number of seconds between two saves; 0 saves after every batch.
        name: Name of the file.
    """

    def __init__(
        self, folder: RunFolder | PeerFolder, identity: Mapping[str, Any], every_seconds: float, name: str = FILE
    ) -> None:
        self._folder, self._identity, self._every = folder, dict(identity), every_seconds
        self._name, self.path = name, folder.path / name
        self._due = time.monotonic() + every_seconds

    def of_nothing(self) -> bytes:
        """The content of a checkpoint before the first batch: what the run is, and its part of how many."""
        return packed({"identity": self._identity} | dataclasses.asdict(Position()), {})

    def finished(self, analyses: Sequence[Analysis]) -> CorpusCounts | None:
        """Load the saved state if it is that of the whole part; return the counts of its examples.

        Raises:
            InputError: If the checkpoint is unreadable or damaged, or the config or model has changed.
        """
        if not self.path.is_file():
            return None
        try:
            counts = header(self.path).get("counts")
            counted = None if counts is None else CorpusCounts.unpacked(counts)
        except DAMAGE as error:
            raise self._unreadable(error) from error
        if counted is not None:
            identity, _, tensors = self._read()
            self._compare(identity)
            self._load(analyses, tensors)
        return counted

    def resume(self, analyses: Sequence[Analysis], stream: Iterator[tuple[Batch, bool]]) -> Position:
        """Load the saved state and skip the batches that it covers.

        Raises:
            InputError: If the checkpoint is unreadable or damaged, or the config, model or corpus has changed; the message
                says which.
        """
        if not self.path.is_file():
            return Position()
        identity, wanted, tensors = self._read()
        self._compare(identity)
        position = Position()
        if wanted == position and not tensors:  # `of_nothing`
            return position
        while position.batches < wanted.batches:
            passed = next(stream, None)
            if passed is None:
                break
            position = position.after(passed[0])
        if position != wanted:
            raise InputError(
                f"resume: the corpus has changed: its first {wanted.batches} batches have other tokens than when the run was "
                "stopped; start a new run"
            )
        self._load(analyses, tensors)
        return position

    def save(self, analyses: Sequence[Analysis], position: Position, counts: CorpusCounts | None = None) -> None:
        """Save the state of the analyses.

        Args:
            analyses: The analyses.
            position: How far the corpus has been read.
            counts: The counts of its examples, if the whole part has been analysed.

        Raises:
            InputError: If the run folder is not writable.
        """
        start = time.monotonic()
        content = {"identity": self._identity} | dataclasses.asdict(position)
        if counts is not None:
            content["counts"] = counts.packed()
        self._folder.write(self._name, packed(content, state_of(analyses)))
        now = time.monotonic()
        self._due = now + max(self._every, _PAUSE_PER_SAVE * (now - start) if self._every else 0.0)

    def save_if_due(self, analyses: Sequence[Analysis], position: Position, *, at_once: bool = False) -> None:
        """Save if the last checkpoint is old enough, or if `at_once` is set."""
        if at_once or time.monotonic() >= self._due:
            self.save(analyses, position)

    def remove(self) -> None:
        """Remove the checkpoint of a completed run. One that cannot be removed does no harm."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _read(self) -> tuple[dict[str, Any], Position, dict[str, Tensor]]:
        """Identity, position and state, verified by the checksum."""
        try:
            content, tensors = unpacked(self.path)
            identity, position = content["identity"], Position(content["batches"], content["digest"])
            if not isinstance(identity, dict) or type(position.batches) is not int or position.batches < 0:
                raise ValueError("its header is not that of a checkpoint")
        except DAMAGE as error:
            raise self._unreadable(error) from error
        return identity, position, tensors

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(f"{self.path}: the checkpoint cannot be read: {one_line(error)}; remove it to start over")

    def _load(self, analyses: Sequence[Analysis], tensors: Mapping[str, Tensor]) -> None:
        problem = loading_problem(analyses, tensors)
        if problem:
            raise InputError(f"{self.path}: the checkpoint cannot be used: {problem}; remove it to start over")

    def _compare(self, saved: Mapping[str, Any]) -> None:
        current = json.loads(json.dumps(self._identity))
        different = [key for key in {**saved, **current} if saved.get(key) != current.get(key)]
        if different:
            key = different[0]
            raise InputError(
                f"resume: {key} was {saved.get(key)!r} when the run was stopped and is {current.get(key)!r} now"
                + (f", and {len(different) - 1} more differ" if len(different) > 1 else "")
                + "; start a new run, or change it back"
            )


def packed(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """State and what is known about it, as a safetensors file with a checksum."""
    text = json.dumps(content)
    return safetensors.torch.save(dict(tensors), metadata={"normscope": text, "sha256": checksum(text, tensors)})


DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, safetensors.SafetensorError)
"""What reading a file raises that was not written by `packed`, or has changed since."""


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `packed` was given.

    Raises:
        DAMAGE: If the file cannot be read or the checksum does not match.
    """
    with _opened(path) as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if checksum(metadata["normscope"], tensors) != metadata["sha256"]:
        raise ValueError("the checksum does not match, so the file is damaged")
    return _content(metadata), tensors


def header(path: Path) -> dict[str, Any]:
    """What `packed` was given apart from the tensors, which are not read.

    Raises:
        DAMAGE: If the file cannot be read.
    """
    with _opened(path) as file:
        return _content(file.metadata())


def _opened(path: Path) -> Any:
    """A file of tensors. Reading a pipe could wait for ever, and a file may be larger than the memory."""
    if not path.is_file():
        raise ValueError("it is not a file")
    size, memory = path.stat().st_size, psutil.virtual_memory().available
    if size > memory:
        raise ValueError(f"it has {size:,} bytes, and {memory:,} bytes of memory are free")
    return safetensors.safe_open(path, framework="pt")


def _content(metadata: Mapping[str, str]) -> dict[str, Any]:
    return parsed_json(metadata["normscope"], finite=False)


def loading_problem(analyses: Sequence[Analysis], tensors: Mapping[str, Tensor]) -> str:
    """Give the analyses a saved state; returns what is wrong with it, or nothing.

    A checksum can be forged, and a tensor of another shape may be broadcast: what was loaded must be what was saved.
    """
    new = _shapes(state_of(analyses))
    try:
        load_state(analyses, tensors)
        loaded = _shapes(state_of(analyses))
    except (LookupError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        return one_line(error)
    # What is a single number stays one: any shape could be broadcast to it.
    expected = loaded | {name: kind for name, kind in new.items() if kind[1] == ()}
    saved = _shapes(tensors)
    different = sorted(name for name in {**saved, **expected} if saved.get(name) != expected.get(name))
    return f"it does not fit the analyses at {different[0]}" if different else ""


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a header and the names, types, shapes and bytes of tensors, as hexadecimal digits."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
