"""The folder of one run: config, tables, figures, and results.json written last."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from normscope.errors import InputError, one_line
from normscope.reporting.claim import LOCK, Claim, TakenError
from normscope.results.result import Result
from normscope.results.run_files import CONFIG, MAPS, RESULTS, Status, read_results
from normscope.untrusted.writing import UNFINISHED, refuse_links, write_file

REPORT = "report.html"

_PARTS = ("tables", "figures")
"""Folders of a run."""

_OF_LIBRARIES = ("wandb",)
"""Folders of a run that libraries fill."""

LONGEST_NAME = 128
"""Bytes of the longest name of a table's or figure's file."""


class PeerFolder:
    """The run folder, in a process that has not claimed it: another process of the same run has."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def visible(self) -> bool:
        """Whether it is the folder that the main process has claimed, on a file system that both see."""
        return (self.path / LOCK).exists()

    def write(self, name: str, content: bytes) -> Path:
        """Write a file atomically; return its path.

        Raises:
            InputError: If the folder cannot be written to.
        """
        try:
            return write_file(self.path, name, content)
        except OSError as error:
            raise _not_written(self.path, error) from error


def _not_written(path: Path, error: OSError) -> InputError:
    return InputError(
        f"output_dir={path}: cannot be written to: {one_line(error)}; free some space, then continue with resume={path}"
    )


class RunFolder:
    """The folder that one run has claimed, and everything that is written to it.

    Before `begin`, only the lock exists, and `abandon` removes every trace of the claim. After `begin`, the folder holds a
    run, which ends with `finish` and `release`.

    Args:
        path: The folder, created if missing.
        resumed: Whether it holds a run to resume.
        fresh: Whether the folder must be new; see `Claim`.

    Raises:
        InputError: If it holds another run, another run is writing to it, or it is not writable.
    """

    def __init__(self, path: Path, *, resumed: bool = False, fresh: bool = False) -> None:
        self._resumed = resumed
        self.begun = False
        """Whether the folder holds this run; nothing is removed from then on."""
        self.ended = False
        """Whether results.json has been written."""
        key = "resume" if resumed else "output_dir"
        try:
            self._claim = Claim(path, fresh=fresh)
        except TakenError as error:
            advice = "wait until it has finished" if resumed else "choose another folder"
            raise InputError(f"{key}={path}: another run is using this folder; {advice}") from error
        except OSError as error:
            advice = "make it writable" if resumed else "set output_dir to another folder"
            raise InputError(f"{key}={path}: cannot be written to ({error.strerror or error}); {advice}") from error
        self.path = self._claim.path
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
            refuse_links(self.path, (*_PARTS, CONFIG, MAPS, RESULTS, REPORT))
            # W&B makes a new folder for each run, and leaves a link to its own log in those of earlier ones.
            refuse_links(self.path, _OF_LIBRARIES, within=False)
            for part in _PARTS:
                self._claim.make(self.path / part)
                self._try_longest_name(part)
            for place in (self.path, *(self.path / part for part in _PARTS)):
                for file in place.glob(f"{UNFINISHED}*"):
                    file.unlink(missing_ok=True)
            if not self._resumed:
                self._claim.note(self.path / CONFIG)
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
        """Remove everything that this run created, before `begin`."""
        self._claim.undo()

    def release(self) -> None:
        """Release the folder to other runs."""
        self._claim.release()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Context for reading and writing in the folder.

        Raises:
            InputError: If a read or write fails, or the folder was moved or deleted.
        """
        try:
            if not self._claim.held:
                raise self._gone()
            yield
        except OSError as error:
            if not self._claim.held:
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
            result.save(self.path)
        self.ended = True

    def save_facts(self, result: Result) -> None:
        """Write how the run ended.

        Raises:
            InputError: If the folder cannot be written to.
        """
        with self.writing():
            result.save_facts(self.path)
        self.ended = True


def published_files(folder: Path) -> dict[str, Path]:
    """The files of a run by their names in its folder; nothing else that may lie in it."""
    paths = [folder / name for name in (CONFIG, RESULTS, MAPS, REPORT)]
    for part in _PARTS:
        paths += sorted((folder / part).iterdir())
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {path.relative_to(folder).as_posix(): path for path in files}
