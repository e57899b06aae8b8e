"""The jobs of a sweep in this process: what they share, how they failed, and what is made of them all at the end."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from normscope.errors import InputError

_HYDRA_RECORD = "multirun.yaml"
"""File in a sweep's folder that Hydra writes before the first job."""

_FAILED_JOBS = 1
"""Exit status of a sweep with failed jobs."""


@dataclasses.dataclass
class Sweep:
    """The jobs of this process so far. A run that is not part of a sweep is the only job of one without a folder."""

    jobs: int = 0
    folder: Path | None = None
    """Folder of the sweep."""
    agrees: bool = True
    """Whether a reproduced run has the same numbers."""
    error: Exception | None = None
    """The exception of a single job, kept from Hydra, which would print a line about it."""
    new: Sequence[Path] = ()
    """Paths that did not exist when the sweep chose its folder, innermost first."""
    earlier: int = 0
    """How many failures an earlier sweep had recorded there."""
    quiet: bool = False
    """Whether to print nothing at the end but the folder."""
    run: Path | None = None
    """Folder of the last run of this process."""
    own: Sequence[str] = ()
    """What the user typed that a resumed run does not take from its folder."""
    completed: int | None = None
    """How many jobs have completed, in any process; None until somebody asks, after the last job."""

    def begin(self) -> None:
        """Forget an earlier command of the same process."""
        self.__init__()  # type: ignore[misc]

    def choose(self, folder: Path) -> None:
        """Set the folder, and note what it already holds.

        Raises:
            InputError: If its record of failed jobs is damaged.
        """
        if self.folder is None:
            self.earlier = len(_recorded_failures(folder))
            paths = (folder / _HYDRA_RECORD, folder, *folder.parents)
            self.new = [path for path in paths if not os.path.lexists(path)]
        self.folder = folder

    def note_run(self, folder: Path) -> None:
        """Keep the folder that a run has locked."""
        self.run = folder

    def has_failures(self) -> bool:
        """Whether any job has failed."""
        try:
            return bool(self._failures())
        except InputError:  # the record was intact before the first job; the end of the sweep explains
            return True

    def record_failure(self, overrides: Sequence[str], reason: str) -> None:
        """Record that a job has failed, and why, on one line."""
        from normscope.reporting.comparison.runs import record_failure

        assert self.folder is not None
        record_failure(self.folder, overrides, reason)

    def compare(self) -> int:
        """Compare the completed runs; returns 0.

        Raises:
            InputError: If the record or the results of a run are damaged.
        """
        if self.folder is not None and self._completed():
            from normscope.reporting.options import Verbosity
            from normscope.reporting.terminal import say, set_verbosity
            from normscope.reporting.viewing import compare_folders

            if self.quiet:  # jobs in other processes have not set it in this one
                set_verbosity(Verbosity.quiet)
            written = compare_folders([self.folder], self.folder)
            say("")
            say(f"comparison in {written}")
        return 0

    def report_failures(self) -> int:
        """List the failed jobs; returns the exit status.

        Raises:
            InputError: If their record is damaged.
        """
        failures = self._failures()
        if not failures:
            return 0
        jobs = len(failures) + self._completed()
        print(f"\n{len(failures)} of {jobs} jobs failed:", *failures, sep="\n  ", file=sys.stderr)
        return _FAILED_JOBS

    def show_folder(self) -> int:
        """Print the folder of the sweep, if a job has completed, as the last line on stdout; returns 0."""
        if self._completed():
            print(self.folder, flush=True)
        return 0

    def remove_empty(self) -> None:
        """Remove the folder if this sweep made it and no job has written to it."""
        if self.folder is None or not self.folder.is_dir() or set(os.listdir(self.folder)) - {_HYDRA_RECORD}:
            return
        for path in self.new:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def _completed(self) -> int:
        """How many jobs have completed. The results of all are read once, when the last job has ended."""
        if self.completed is None and self.folder is not None:
            from normscope.reporting.comparison.runs import completed

            self.completed = completed(self.folder)
        return self.completed or 0

    def _failures(self) -> list[str]:
        """The failed jobs, in any process."""
        return [] if self.folder is None else _recorded_failures(self.folder)[self.earlier :]


def _recorded_failures(folder: Path) -> list[str]:
    from normscope.reporting.comparison.runs import recorded_failures

    return recorded_failures(folder)
