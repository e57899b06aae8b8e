"""Reads the folders of finished runs. It imports neither torch nor transformers."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.analyses.registry import analyses
from normscope.errors import InputError, printable
from normscope.reporting.earlier_runs import CONFIG, RESULTS, read_config, read_results
from normscope.reporting.run_tables import tables_of
from normscope.untrusted.tables import table

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SavedRun:
    """A run, as its folder describes it."""

    folder: Path
    schema: int
    """Version of the folder's layout."""
    status: str
    """How the run ended: `completed`, `interrupted` or `failed`."""
    metrics: Mapping[str, float]
    """Single numbers by name, `<analysis>/<metric>`; empty unless the run has completed."""
    provenance: Mapping[str, Any]
    """Where the numbers come from: software, command, model, counts of texts and tokens, verification error."""
    config: Mapping[str, Any]
    """The resolved config, nested by section."""
    tables: Mapping[str, "pd.DataFrame"]
    """Tidy tables by name, such as `mixing_by_layer`. Each is read when you first access it."""
    error: str = ""
    """Why the run failed; empty if it did not."""

    def __repr__(self) -> str:
        """The model, how the run ended, and the names of its tables."""
        facts = self.provenance
        counts = [f"{facts[name]:,} {name}" for name in ("sequences", "tokens") if facts.get(name) is not None]
        what = [f"model {facts['model']}"] if facts.get("model") else []
        lines = [
            f"{self.folder}: {self.status}{f' ({self.error})' if self.error else ''}, schema {self.schema}",
            ", ".join([*what, *counts]),
            f"metrics: {len(self.metrics)}",
            f"tables: {', '.join(self.tables) or 'none'}",
        ]
        return "\n".join(printable(line, 1000) for line in lines if line)


def read(run: str | Path) -> SavedRun:
    """Read the folder of a finished run: its tables, metrics, config and provenance.

    Nothing in a folder is executed, and damaged files are rejected.

    Args:
        run: The folder, such as `outputs/first`, or `DIR/0` for the first job of a sweep.

    Examples:
        >>> import normscope
        >>> run = normscope.read("outputs/first")  # normscope output_dir=outputs/first
        >>> run.status, list(run.tables)[0]
        ('completed', 'curves')

    Raises:
        InputError: If this is not the folder of a finished run, a file is damaged, or another version of normscope
            has written it. A damaged table is rejected when it is first read.
    """
    if not isinstance(run, str | Path):
        raise InputError(f"run: expected the folder of a run, got {type(run).__name__}")
    folder = Path(run).expanduser()
    _require_run(folder)
    results = read_results(folder)
    return SavedRun(
        folder=folder,
        schema=results["schema"],
        status=results["status"],
        metrics=results["metrics"],
        provenance=results["provenance"],
        config=read_config(folder),
        tables=_Tables(folder / "tables"),
        error=str(results.get("error", "")),
    )


def _require_run(folder: Path) -> None:
    """Check that a folder holds a finished run; otherwise, the message says what it holds."""
    name = printable(str(folder), 300)
    try:
        if (folder / RESULTS).exists():
            return
        if not os.path.lexists(folder):
            raise InputError(f"run={name}: expected the folder of a run, but it does not exist")
        if not folder.is_dir():
            raise InputError(f"run={name}: expected the folder of a run, got a file")
        jobs = sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
    except (OSError, ValueError) as error:
        raise InputError(f"run={name}: expected the folder of a run: {error}") from error
    if jobs:
        raise InputError(
            f"run={name}: expected the folder of one run, got the folder of several; read {jobs[0]}, for example"
        )
    if (folder / CONFIG).exists():
        raise InputError(f"run={name}: the run is unfinished; continue it with resume={name}, or wait until it ends")
    raise InputError(f"run={name}: expected the folder of a run, but it has no {RESULTS}")


class _Tables(Mapping[str, "pd.DataFrame"]):
    """The tables in a folder; each is read once, when it is first accessed."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
        self._read: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> "pd.DataFrame":
        if name not in self._read:
            self._read[name] = _with_missing_whole_numbers(name, table(self._paths[name]))
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"tables: {', '.join(self) or 'none'}"


def _with_missing_whole_numbers(name: str, rows: "pd.DataFrame") -> "pd.DataFrame":
    """A table whose whole numbers are not decimal numbers because some are missing."""
    declared = tables_of(analyses().values()).get(name)
    kinds = {} if declared is None else declared.kinds
    missing = [
        column
        for column in map(str, rows)
        if kinds.get(column) == "whole" and rows[column].dtype == float and (rows[column].dropna() % 1 == 0).all()
    ]
    return rows.astype(dict.fromkeys(missing, "Int64"))
