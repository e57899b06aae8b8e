"""The state of a share of a corpus, in a file of its own: saved while the share is read, and kept once it is finished.

A share continues from its file, whichever process began it: a resumed run makes the same batches again, skips those already
done, and continues from the saved sums. The file is written atomically, so the result is bit for bit that of an uninterrupted
run, as long as every batch fits into memory. Finished shares are merged in the order of their numbers (`Reduction`).

The format is safetensors with a checksum: reading executes nothing from a file. The checksum detects damage, not forgery.
"""

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from normscope.analyses.base import Analysis, load_state, merge_state, state_of
from normscope.data.batching import Batch
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError, one_line
from normscope.reporting.run_folder import PeerFolder, RunFolder
from normscope.running.shares import Share
from normscope.untrusted.plain_data import parsed_json

# Saving takes at most a twentieth of the time, however large the state is.
State = Mapping[str, Tensor]

_PAUSE_PER_SAVE = 20


@dataclasses.dataclass(frozen=True)
class Position:
    """How far a share has been read: the number of batches and a digest of their tokens and gold scores."""

    batches: int = 0
    digest: str = ""

    def after(self, batch: Batch) -> "Position":
        """The position after this batch."""
        pairing = "" if batch.pairing is None else f"{batch.pairing.scores}{batch.pairing.ranked}"
        content = f"{self.digest} {batch.fingerprints}{pairing}".encode()
        return Position(self.batches + 1, hashlib.sha256(content).hexdigest())


@dataclasses.dataclass(frozen=True)
class SavedShare:
    """What the file of a share says about its state: its header."""

    share: Share
    identity: Mapping[str, Any]
    """What all runs that continue or merge the state have in common: config, model and relevant software."""
    position: Position
    counts: CorpusCounts | None
    """The counts of the examples of the share; None until all of it has been analysed."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "SavedShare":
        """Parse and check the header of a file.

        Raises:
            DAMAGE: If it is not the header of a share.
        """
        share, position = Share(content["shard"], content["shards"]), Position(content["batches"], content["digest"])
        numbers = (share.number, share.of, position.batches)
        whole = all(type(number) is int and number >= 0 for number in numbers) and share.number < share.of
        if not whole or not isinstance(content["identity"], dict):
            raise ValueError("its header is not that of a share of a corpus")
        counts = content["counts"]
        return cls(share, content["identity"], position, None if counts is None else CorpusCounts.unpacked(counts))

    @property
    def whole(self) -> CorpusCounts:
        """The counts of the examples of a finished share.

        Raises:
            ValueError: If the share is not finished.
        """
        if self.counts is None:
            raise ValueError("expected the state of a whole share")
        return self.counts

    @classmethod
    def read(cls, path: Path) -> "SavedShare":
        """Read the header of a file, without the state.

        Raises:
            DAMAGE: If it cannot be read.
        """
        return cls.of(header(path))

    def packed(self, state: State) -> bytes:
        """The content of the file."""
        counts = None if self.counts is None else self.counts.packed()
        content = {"shard": self.share.number, "shards": self.share.of, "identity": self.identity, "counts": counts}
        return packed(content | dataclasses.asdict(self.position), state)

    def difference(self, identity: Mapping[str, Any]) -> tuple[str, Any, Any, int] | None:
        """What differs in another identity: a key, its values here and there, and how many more keys; None if nothing does."""
        other = json.loads(json.dumps(identity))
        different = [key for key in {**self.identity, **other} if self.identity.get(key) != other.get(key)]
        if not different:
            return None
        key = different[0]
        return key, self.identity.get(key), other.get(key), len(different) - 1


class Checkpoint:
    """The file of a share in a run folder.

    Args:
        name: Name of the file.
        identity: What a resumed run must have in common with this one, as plain values.
        every_seconds: Minimum number of seconds between two saves; 0 saves after every batch.
    """

    def __init__(
        self,
        folder: RunFolder | PeerFolder,
        name: str,
        share: Share,
        identity: Mapping[str, Any],
        every_seconds: float,
    ) -> None:
        self._folder, self._name, self.path = folder, name, folder.path / name
        self._new = SavedShare(share, identity, Position(), None)
        self._every, self._due = every_seconds, time.monotonic() + every_seconds

    def of_nothing(self) -> bytes:
        """The file's content before the first batch: the header, and no state."""
        return self._new.packed({})

    def whole(self, counts: CorpusCounts, state: State) -> bytes:
        """The file's content with the state of the finished share, to send to another process."""
        return dataclasses.replace(self._new, counts=counts).packed(state)

    def kept(self) -> tuple[State, CorpusCounts]:
        """The state of the finished share and the counts of its examples.

        Raises:
            InputError: If the file is missing or damaged, or the share is not finished.
        """
        saved, state = self._read() if self.path.is_file() else (self._new, {})
        if saved.counts is None:
            raise InputError(f"{self.path}: expected the state of this part; continue with resume={self.path.parent}")
        return state, saved.counts

    def finished(self, analyses: Sequence[Analysis]) -> CorpusCounts | None:
        """Load the saved state if the share is finished, and return the counts of its examples; else None.

        Raises:
            InputError: If the checkpoint is unreadable or damaged, or the config or model has changed.
        """
        if not self.path.is_file():
            return None
        try:
            if SavedShare.read(self.path).counts is None:
                return None
        except DAMAGE as error:
            raise self._unreadable(error) from error
        saved, state = self._read()
        self._load(analyses, state)
        return saved.counts

    def resume(self, analyses: Sequence[Analysis], stream: Iterator[tuple[Batch, bool]]) -> Position:
        """Load the saved state and skip the batches that it covers.

        Raises:
            InputError: If the checkpoint is unreadable or damaged, or the config, model or corpus has changed; the message
                says which.
        """
        if not self.path.is_file():
            return Position()
        saved, state = self._read()
        position = Position()
        if saved.position == position and not state:  # `of_nothing`
            return position
        while position.batches < saved.position.batches:
            passed = next(stream, None)
            if passed is None:
                break
            position = position.after(passed[0])
        if position != saved.position:
            raise InputError(
                f"resume: the corpus has changed: its first {saved.position.batches} batches have other tokens than when the "
                "run was stopped; start a new run"
            )
        self._load(analyses, state)
        return position

    def save(self, analyses: Sequence[Analysis], position: Position, counts: CorpusCounts | None = None) -> None:
        """Save the state of the analyses.

        Args:
            position: How far the share has been read.
            counts: The counts of its examples, if the share is finished.

        Raises:
            InputError: If the run folder is not writable.
        """
        start = time.monotonic()
        saved = dataclasses.replace(self._new, position=position, counts=counts)
        self._folder.write(self._name, saved.packed(state_of(analyses)))
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

    def _read(self) -> tuple[SavedShare, dict[str, Tensor]]:
        """The file's header and state, verified by the checksum and checked to be those of this share of this run."""
        try:
            content, state = unpacked(self.path)
            saved = SavedShare.of(content)
        except DAMAGE as error:
            raise self._unreadable(error) from error
        different = saved.difference(self._new.identity)
        if different is None and saved.share != self._new.share:
            old, new = (f"{share.number} of {share.of}" for share in (saved.share, self._new.share))
            different = ("the part of the corpus", old, new, 0)
        if different is not None:
            key, before, now, more = different
            raise InputError(
                f"resume: {key} was {before!r} when the run was stopped and is {now!r} now"
                + (f", and {more} more differ" if more else "")
                + "; start a new run, or change it back"
            )
        return saved, state

    def _unreadable(self, error: Exception) -> InputError:
        return InputError(f"{self.path}: the checkpoint cannot be read: {one_line(error)}; remove it to start over")

    def _load(self, analyses: Sequence[Analysis], state: State) -> None:
        problem = loading_problem(analyses, state)
        if problem:
            raise InputError(f"{self.path}: the checkpoint cannot be used: {problem}; remove it to start over")


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


def packed(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A header and tensors, as the content of a safetensors file with a checksum."""
    text = json.dumps(content)
    return safetensors.torch.save(dict(tensors), metadata={"normscope": text, "sha256": checksum(text, tensors)})


DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, safetensors.SafetensorError)
"""The errors of reading a file that `packed` did not write, or that has changed since."""


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and tensors that `packed` was given.

    Raises:
        DAMAGE: If the file cannot be read or the checksum does not match.
    """
    with _opened(path) as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if checksum(metadata["normscope"], tensors) != metadata["sha256"]:
        raise ValueError("the checksum does not match, so the file is damaged")
    return _content(metadata), tensors


def received(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and tensors from bytes that another process of the same run has packed."""
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    return _content(metadata), safetensors.torch.load(content)


def header(path: Path) -> dict[str, Any]:
    """The header that `packed` was given; the tensors are not read.

    Raises:
        DAMAGE: If the file cannot be read.
    """
    with _opened(path) as file:
        return _content(file.metadata())


def _opened(path: Path) -> Any:
    """Open a file of tensors, but not a pipe, which could block forever, or a file larger than the free memory."""
    if not path.is_file():
        raise ValueError("it is not a file")
    size, memory = path.stat().st_size, psutil.virtual_memory().available
    if size > memory:
        raise ValueError(f"it has {size:,} bytes, but only {memory:,} bytes of memory are free")
    return safetensors.safe_open(path, framework="pt")


def _content(metadata: Mapping[str, str]) -> dict[str, Any]:
    return parsed_json(metadata["normscope"], finite=False)


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over a header and the names, types, shapes and bytes of tensors, as hexadecimal digits."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():  # without values, an array of NumPy has strides of 0, and no view of its bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Reduction:
    """Merges states, added one after another, as a tree would: ((0 + 1) + (2 + 3)) + …, with about log₂ N of them in memory.

    The result has the same bytes whether the states come from processes, checkpoints or other runs.

    Args:
        analyses: The analyses whose states are merged.
    """

    def __init__(self, analyses: Sequence[Analysis]) -> None:
        self._analyses = analyses
        self._added = 0
        self._left: list[State] = []
        """The merged states of 2^k shares each, the largest first."""
        self._counts = CorpusCounts()

    def add(self, state: State, counts: CorpusCounts) -> None:
        """Add the state of the next share, and the counts of its examples."""
        number = self._added
        while number % 2:
            state = self._merged(self._left.pop(), state)
            number //= 2
        self._left.append(state)
        self._added += 1
        self._counts.add(counts)

    def finish(self) -> CorpusCounts:
        """Load the merged state of all shares (at least one) into the analyses; return the sum of the counts."""
        state = self._left.pop()
        while self._left:
            state = self._merged(self._left.pop(), state)
        load_state(self._analyses, state)
        return self._counts

    def _merged(self, left: State, right: State) -> State:
        load_state(self._analyses, left)
        merge_state(self._analyses, right)
        return state_of(self._analyses)
