"""The folder of one run: config, tables, figures, and results.json written last."""

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from normscope.errors import InputError, one_line
from normscope.results.result import Result
from normscope.results.run_files import CONFIG, MAPS, RESULTS, Status, read_results
from normscope.untrusted.writing import UNFINISHED, refuse_links, write_file

REPORT = "report.html"
LOCK = ".lock"
PARTS_DONE = "checkpoint"
"""Folder of a run that is not complete: what each analysis has found whose interventions are done."""

_PARTS = ("tables", "figures")
"""Folders of a run."""

_OF_LIBRARIES = ("wandb",)
"""Folders of a run that libraries fill."""

_PATIENCE = 0.2
"""Seconds in which a run that is just ending may release its folder."""

LONGEST_NAME = 128
"""Bytes of the longest name of a table's or figure's file."""


def write_beside(folder: Path, name: str, content: bytes) -> Path:
    """Write a file atomically from a process that has not locked the folder: another one of the same run has. Return its path.

    Raises:
        InputError: If the folder cannot be written to.
    """
    try:
        return write_file(folder, name, content)
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(path: Path, error: OSError) -> InputError:
    return InputError(
        f"output_dir={path}: cannot be written to: {one_line(error)}; free some space, then continue with resume={path}"
    )


class RunFolder:
    """The folder that one run has locked, and everything that is written to it.

    Before `begin`, only the lock exists, and `abandon` removes whatever was created. After `begin`, the folder holds a run,
    which ends with `save` or `save_facts`, and `release`. The system releases the lock of a process that is killed.

    Args:
        path: The folder. It and its parents are created if missing.
        resumed: Whether it holds a run to resume.
        fresh: Create a new folder: if the path exists, append `_2`, `_3`, … to its name.

    Raises:
        InputError: If it holds another run, another run is writing to it, or it is not writable.
    """

    def __init__(self, path: Path, *, resumed: bool = False, fresh: bool = False) -> None:
        self._resumed = resumed
        self.begun = False
        """Whether the folder holds this run; nothing is removed from then on."""
        self.ended = False
        """Whether results.json has been written."""
        self._created: list[Path] = []
        key = "resume" if resumed else "output_dir"
        try:
            self._take(path, fresh=fresh)
        except Timeout as error:
            advice = "wait until it has finished" if resumed else "choose another folder"
            raise InputError(f"{key}={path}: another run is using this folder; {advice}") from error
        except OSError as error:
            advice = "make it writable" if resumed else "set output_dir to another folder"
            raise InputError(f"{key}={path}: cannot be written to ({error.strerror or error}); {advice}") from error
        try:
            self._refuse_finished() if resumed else self._refuse_used()
        except BaseException:
            self.abandon()
            raise

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write the resolved config; from now on the folder holds a run.

        Args:
            config: The config, as `config.schema.plain` gives it.

        Raises:
            InputError: If the folder cannot be written to, or holds links where the run will write.
        """
        with self.writing():
            refuse_links(self.path, (*_PARTS, PARTS_DONE, CONFIG, MAPS, RESULTS, REPORT))
            # W&B makes a new folder for each run, and leaves a link to its own log in those of earlier ones.
            refuse_links(self.path, _OF_LIBRARIES, within=False)
            for part in _PARTS:
                self._make(self.path / part)
                self._try_longest_name(part)
            for place in (self.path, *(self.path / part for part in _PARTS)):
                for file in place.glob(f"{UNFINISHED}*"):
                    file.unlink(missing_ok=True)
            if not self._resumed:
                self._created.append((self.path / CONFIG).absolute())
            content = yaml.safe_dump({**config, "resume": None}, sort_keys=False, allow_unicode=True)
            write_file(self.path, CONFIG, content.encode())
            if self._resumed:
                (self.path / RESULTS).unlink(missing_ok=True)
        self.begun = True

    def _try_longest_name(self, part: str) -> None:
        """Write a file with the longest name, and remove it: a file system may not have it, or the path be too long."""
        file = self.path / part / f"{UNFINISHED}".ljust(LONGEST_NAME, "x")
        write_file(self.path, f"{part}/{file.name}", b"")
        file.unlink()

    def abandon(self) -> None:
        """Release the folder and remove everything that this run created, before `begin`; folders that are not empty stay."""
        self.release()
        self._remove_created()

    def release(self) -> None:
        """Release the folder to other runs."""
        if self._is_ours():
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
        self._lock.release()

    def _is_ours(self) -> bool:
        """Whether the folder still exists at its path and contains our lock."""
        try:
            return self._lock.is_locked and os.path.samestat((self.path / LOCK).stat(), self._locked)
        except OSError:
            return False

    def _take(self, path: Path, *, fresh: bool) -> None:
        try:
            self.path = self._make_new(path) if fresh else path
            self._make(self.path)
            self._refuse_other_lock()
            self._lock = FileLock(self.path / LOCK, timeout=_PATIENCE, poll_interval=_PATIENCE / 10, thread_local=False)
            self._lock.acquire()
            self._locked = (self.path / LOCK).stat()
        except BaseException:
            self._remove_created()
            raise

    def _refuse_other_lock(self) -> None:
        """A link would be created or locked elsewhere."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG((self.path / LOCK).lstat().st_mode):
                raise OSError(errno.EINVAL, f"expected a file {LOCK} in it, got something else; remove that")

    def _make_new(self, path: Path) -> Path:
        """Create a folder of this name or the next free one."""
        self._make(path.parent)
        for number in itertools.count(1):
            place = path if number == 1 else path.with_name(f"{path.name}_{number}")
            with contextlib.suppress(FileExistsError):
                place.mkdir()
                self._created.append(place.absolute())
                return place
        raise AssertionError

    def _make(self, folder: Path) -> None:
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

    def _remove_created(self) -> None:
        while self._created:
            path = self._created.pop()
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Context for reading and writing in the folder.

        Raises:
            InputError: If a read or write fails, or the folder was moved or deleted.
        """
        try:
            if not self._is_ours():
                raise self._gone()
            yield
        except OSError as error:
            if not self._is_ours():
                raise self._gone() from error
            raise _not_written(self.path, error) from error

    def _gone(self) -> InputError:
        return InputError(
            f"output_dir={self.path}: the folder was moved or deleted, or became unreadable, during the run; "
            "continue with resume=FOLDER if it still exists, or start again"
        )

    def _refuse_used(self) -> None:
        if (self.path / RESULTS).exists():
            raise InputError(f"output_dir={self.path}: it holds the results of another run; choose a new folder")
        if (self.path / CONFIG).exists():
            raise InputError(
                f"output_dir={self.path}: it holds an unfinished run; continue it with resume={self.path}, or choose a new "
                "folder"
            )

    def _refuse_finished(self) -> None:
        if not (self.path / CONFIG).exists():
            raise InputError(f"resume={self.path}: expected a run directory with a {CONFIG}")
        if not (self.path / RESULTS).exists():
            return
        try:
            status = read_results(self.path)["status"]
        except InputError as error:
            raise InputError(
                f"resume={self.path}: {RESULTS} does not say how the run ended ({error}); delete it to resume the run"
            ) from error
        if status == Status.COMPLETED:
            raise InputError(
                f"resume={self.path}: the run is already complete; to remake its figures and report, run "
                f"`normscope page {self.path}`"
            )

    def write(self, name: str, content: bytes) -> Path:
        """Write a file atomically; return its path."""
        with self.writing():
            return write_file(self.path, name, content)

    def save(self, result: Result) -> None:
        """Write the results of the run, which has completed.

        Raises:
            InputError: If the folder cannot be written to.
        """
        with self.writing():
            result.write(self.path)
        self.ended = True

    def save_facts(self, result: Result) -> None:
        """Write how the run ended.

        Raises:
            InputError: If the folder cannot be written to.
        """
        with self.writing():
            result.save_facts(self.path)
        self.ended = True


def own_files(folder: Path) -> dict[str, Path]:
    """The files of a run by their names in its folder; nothing else that may lie in it."""
    paths = [folder / name for name in (CONFIG, RESULTS, MAPS, REPORT)]
    for part in _PARTS:
        paths += sorted((folder / part).iterdir())
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {path.relative_to(folder).as_posix(): path for path in files}
