"""What a run logs besides its folder, and what trackers are told about the run."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """What identifies a run among others."""

    name: str
    """For people: `mixing · roberta-base · wikipedia · seed 3`."""
    slug: str
    """The same for file names, URLs and artifacts: letters, digits, `-`, `_` and `.` alone."""
    job_type: str
    tags: Sequence[str]
    notes: str
    config: Mapping[str, object]
    """The config, nested, so that trackers can filter and group by `model.name`, `dataset.name`, `layers` and `seed`."""


class Tracker(abc.ABC):
    """Where a run logs its results besides its folder."""

    @abc.abstractmethod
    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        """Log throughput, memory and remaining time, after so many examples."""

    @abc.abstractmethod
    def table(self, name: str, table: pd.DataFrame) -> None:
        """Log a table, unless it has no rows."""

    @abc.abstractmethod
    def figure(self, name: str, path: Path, caption: str) -> None:
        """Log a figure that has been drawn."""

    @abc.abstractmethod
    def page(self, name: str, path: Path) -> None:
        """Log a self-contained HTML page."""

    @abc.abstractmethod
    def findings(self, sentences: Mapping[str, Sequence[str]]) -> None:
        """Log the findings of each analysis in words."""

    @abc.abstractmethod
    def curves(self, curves: "Mapping[str, pd.Series[float]]") -> None:
        """Log values by layer."""

    @abc.abstractmethod
    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        """Log the final metrics of a completed run."""

    @abc.abstractmethod
    def run_folder(self, files: Mapping[str, Path], results: bytes) -> None:
        """Log the run folder as a whole, after everything else.

        Args:
            files: Its files, by their names in the folder.
            results: The content of results.json, which is written only after the tracker has finished.
        """


class NoTracker(Tracker):
    """Logs nothing."""

    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def table(self, name: str, table: pd.DataFrame) -> None:
        """Do nothing."""

    def figure(self, name: str, path: Path, caption: str) -> None:
        """Do nothing."""

    def page(self, name: str, path: Path) -> None:
        """Do nothing."""

    def findings(self, sentences: Mapping[str, Sequence[str]]) -> None:
        """Do nothing."""

    def curves(self, curves: "Mapping[str, pd.Series[float]]") -> None:
        """Do nothing."""

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        """Do nothing."""

    def run_folder(self, files: Mapping[str, Path], results: bytes) -> None:
        """Do nothing."""


def as_markdown(sentences: Mapping[str, Sequence[str]]) -> str:
    """Findings as lists under the names of their analyses."""
    return "\n\n".join(
        "\n".join([f"**{analysis}**\n", *(f"- {text}" for text in texts)]) for analysis, texts in sentences.items()
    )
