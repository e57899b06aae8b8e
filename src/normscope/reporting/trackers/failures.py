"""Failures of a tracker, which must never end the run."""

from collections.abc import Callable
from typing import TypeVar

from normscope.errors import one_line
from normscope.reporting.terminal import say

_Result = TypeVar("_Result")


class Failures:
    """Failures of one tracker during one run. After the first, which is reported, nothing more is logged.

    Args:
        tracker: Its name, for the report.
    """

    def __init__(self, tracker: str) -> None:
        self._tracker = tracker
        self.lost = False
        """Whether the tracker has failed."""

    def note(self, error: Exception) -> None:
        """Handle an error that the tracker raised; only the first is reported."""
        if not self.lost:
            self.lost = True
            say(f"{self._tracker} failed ({reason(error)}); the run continues without tracking")

    def attempt(self, call: Callable[[], _Result]) -> _Result | None:
        """Call the tracker unless it has failed; None if it fails. The call must contain nothing but the tracker's own code."""
        if self.lost:
            return None
        try:
            return call()
        except Exception as error:  # trackers raise what their stores, files and dependencies raise
            self.note(error)
            return None


def reason(error: Exception) -> str:
    """An error of a library in one line, with its type."""
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__
