"""The folder of one run: config, tables, figures, and results.json written last."""

import enum
import fcntl
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import yaml

from normscope.analyses.findings import Figure
from normscope.errors import InputError
from normscope.reporting.figures import draw
from normscope.schema import RunOptions, plain

RESULTS = "results.json"
CONFIG = "config.yaml"
CSV_ROWS = 20_000


class Status(enum.StrEnum):
    """How a run ended. A folder without results.json holds a run that was killed or still goes."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class RunFolder:
    """Writes everything that a run found.

    Args:
        path: The folder. Nothing is written before `create`.
        resumed: Whether it holds a run that goes on.

    Raises:
        InputError: If it holds the results of another run, or cannot be written to.
    """

    def __init__(self, path: Path, *, resumed: bool = False) -> None:
        self.path, self._resumed = path, resumed
        self._lock: int | None = None
        if resumed and (path / RESULTS).exists():
            if json.loads((path / RESULTS).read_text())["status"] == Status.COMPLETED:
                raise InputError(f"resume={path}: that run has completed; its results are in the folder")
        elif not resumed and (path / RESULTS).exists():
            raise InputError(
                f"output_dir={path}: it holds the results of another run; choose a folder that is not there yet"
            )
        elif not resumed and (path / CONFIG).exists():
            raise InputError(
                f"output_dir={path}: it holds a run that has not finished; resume={path} goes on with it, or choose a folder "
                "that is not there yet"
            )
        nearest = next(parent for parent in (path, *path.resolve().parents) if parent.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise InputError(f"output_dir={path}: no permission to write there")

    def create(self, options: RunOptions) -> None:
        """Make the folder and write the resolved config.

        Raises:
            InputError: If that is not possible.
        """
        try:
            for part in ("tables", "figures"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
            self._claim()
            if self._resumed:
                (self.path / RESULTS).unlink(missing_ok=True)
                return
            config = yaml.safe_dump(plain(options), sort_keys=False, allow_unicode=True)
            write_atomically(self.path / CONFIG, config.encode())
        except OSError as error:
            raise InputError(f"output_dir={self.path}: cannot be written to: {error.strerror}") from error

    def _claim(self) -> None:
        """Keep other runs out of the folder for as long as this process lives."""
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise InputError(f"output_dir={self.path}: another run is writing there; choose another folder") from error

    def release(self) -> None:
        """Let other runs into the folder again."""
        if self._lock is not None:
            (self.path / ".lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def write_table(self, name: str, table: pd.DataFrame) -> Path:
        """A table as Parquet, and as CSV too if it is small enough to be opened by hand; returns the path of the former."""
        path = self.path / "tables" / name
        table.to_parquet(path.with_suffix(".parquet"), index=False)
        if len(table) <= CSV_ROWS:
            table.to_csv(path.with_suffix(".csv"), index=False)
        return path.with_suffix(".parquet")

    def write_figure(self, name: str, figure: Figure) -> Path:
        """A figure as PNG and SVG; returns the path of the PNG."""
        path = self.path / "figures" / name
        draw(figure, [path.with_suffix(".png"), path.with_suffix(".svg")])
        return path.with_suffix(".png")

    def write_page(self, name: str, content: str) -> Path:
        """A page; returns its path."""
        path = self.path / name
        write_atomically(path, content.encode())
        return path

    def finish(
        self,
        status: Status,
        metrics: Mapping[str, float],
        provenance: Mapping[str, object],
        error: BaseException | None = None,
    ) -> None:
        """Write results.json, once: a reader sees all of it or none."""
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if broken:
            raise ValueError(f"metrics must be finite: {broken}")
        content: dict[str, object] = {"status": str(status), "metrics": dict(metrics), "provenance": dict(provenance)}
        if status is Status.FAILED:
            content["error"] = " ".join(str(error).split())
        write_atomically(self.path / RESULTS, json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
