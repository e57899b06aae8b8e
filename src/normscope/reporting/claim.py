"""Exclusive use of a folder by one process, with a record of what the process created."""

import contextlib
import errno
import fcntl
import itertools
import os
import stat
from pathlib import Path

LOCK = ".lock"

# Attempts to take the lock: a run that ends may remove its lock file between our opening and locking it.
_ATTEMPTS = 100


class TakenError(Exception):
    """Another process holds the folder."""


class Claim:
    """An exclusive lock on a folder, released when the process ends at the latest.

    Args:
        path: The folder. It and its parents are created if missing.
        fresh: Create a new folder: if the path exists, append `_2`, `_3`, … to its name.

    Raises:
        TakenError: If another process holds the folder.
        OSError: If the folder cannot be created or locked.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._created: list[Path] = []
        try:
            self.path = self._make_new(path) if fresh else path
            self._descriptor: int | None = self._lock()
        except BaseException:
            self._remove_created()
            raise

    @property
    def held(self) -> bool:
        """Whether the folder still exists at its path and contains our lock."""
        return self._descriptor is not None and self._is_our_lock(self._descriptor)

    def make(self, folder: Path) -> None:
        """Create a folder and its missing parents, and record which ones."""
        for place in reversed((folder.absolute(), *folder.absolute().parents)):
            if place.is_dir():
                continue
            try:
                place.mkdir()
            except FileExistsError:
                if not place.is_dir():
                    raise
            else:
                self._created.append(place)

    def note(self, file: Path) -> None:
        """Record that this claim created a path."""
        self._created.append(file.absolute())

    def undo(self) -> None:
        """Release the lock and remove everything this claim created, except folders that are not empty."""
        self.release()
        self._remove_created()

    def release(self) -> None:
        """Release the lock."""
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
                descriptor = _opened(self.path / LOCK)
            except FileNotFoundError:  # another process has just removed the folder
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise TakenError(f"{self.path}: another process has locked it") from error
            except OSError:
                os.close(descriptor)
                raise
            if self._is_our_lock(descriptor):
                return descriptor
            os.close(descriptor)  # its owner removed the file before we locked it
        raise OSError(f"{self.path / LOCK} cannot be locked")

    def _is_our_lock(self, descriptor: int) -> bool:
        try:
            current = (self.path / LOCK).stat()
        except OSError:
            return False
        return os.path.samestat(current, os.fstat(descriptor))

    def _remove_created(self) -> None:
        while self._created:
            path = self._created.pop()
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


def _opened(lock: Path) -> int:
    """The descriptor of a lock file, created if missing. A link would be created or locked elsewhere.

    Raises:
        OSError: If it cannot be opened, or is no file.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(lock.lstat().st_mode):
            raise OSError(errno.EINVAL, f"expected a file {LOCK} in it, got something else; remove that")
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
