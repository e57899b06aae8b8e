"""A folder that one process has to itself, and a record of what it made there."""

import contextlib
import fcntl
import itertools
import os
from pathlib import Path

LOCK = ".lock"

# How often a lock may vanish between opening and locking it: other runs remove theirs when they end.
_ATTEMPTS = 100


class TakenError(Exception):
    """Another process holds the folder."""


class Claim:
    """An exclusive hold on a folder. It ends with the process at the latest, however the process ends.

    Args:
        path: The folder. It is made, with its parents, if it is missing.
        fresh: Whether it must be new: if the path exists, the claim takes the same name with `_2`, `_3`, … behind it.

    Raises:
        TakenError: If another process holds the folder.
        OSError: If the folder cannot be made or locked.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._made: list[Path] = []
        try:
            self.path = self._make_new(path) if fresh else path
            self._descriptor: int | None = self._lock()
        except BaseException:
            self._remove_made()
            raise

    @property
    def held(self) -> bool:
        """Whether the folder is still where it was claimed, with our lock in it."""
        return self._descriptor is not None and self._is_our_lock(self._descriptor)

    def make(self, folder: Path) -> None:
        """Make a folder and its parents, and remember those that were missing."""
        for place in reversed((folder.absolute(), *folder.absolute().parents)):
            if place.is_dir():
                continue
            try:
                place.mkdir()
            except FileExistsError:
                if not place.is_dir():
                    raise
            else:
                self._made.append(place)

    def note(self, file: Path) -> None:
        """Remember a file as made by this claim."""
        self._made.append(file.absolute())

    def undo(self) -> None:
        """Remove what was made, as far as nothing else is in it, and give up the hold."""
        self.release()
        self._remove_made()

    def release(self) -> None:
        """Give up the hold."""
        if self._descriptor is None:
            return
        if self.held:
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
        os.close(self._descriptor)
        self._descriptor = None

    def _make_new(self, path: Path) -> Path:
        self.make(path.parent)
        for number in itertools.count(1):
            place = path if number == 1 else path.with_name(f"{path.name}_{number}")
            try:
                place.mkdir()
            except FileExistsError:
                continue
            self.note(place)
            return place
        raise AssertionError

    def _lock(self) -> int:
        for _ in range(_ATTEMPTS):
            self.make(self.path)
            try:
                descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # another process has just undone its claim
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise TakenError(f"{self.path}: another process holds it") from error
            except OSError:
                os.close(descriptor)
                raise
            if self._is_our_lock(descriptor):
                return descriptor
            os.close(descriptor)  # its owner removed the file before we locked it
        raise OSError(f"{self.path / LOCK} cannot be locked")

    def _is_our_lock(self, descriptor: int) -> bool:
        try:
            there = (self.path / LOCK).stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))

    def _remove_made(self) -> None:
        while self._made:
            path = self._made.pop()
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
