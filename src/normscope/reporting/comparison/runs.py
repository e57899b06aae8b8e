"""Finished runs, read from their folders."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normscope.config.sections import flat
from normscope.config.training_step import step_in, without_step
from normscope.errors import InputError, one_line, printable
from normscope.reporting.earlier_runs import CONFIG, RESULTS, read_config, read_results
from normscope.reporting.run_tables import RUN_TABLES
from normscope.untrusted.files import MIB, text
from normscope.untrusted.plain_data import require, shown
from normscope.untrusted.tables import Columns, table
from normscope.untrusted.writing import append_line

FAILURES = "failures.jsonl"
"""File in a sweep's folder that records its failed jobs."""

_MOST_FAILURES = 64 * MIB

_MOST_LAYERS = 1_000_000

_NEW_FOLDER = "remove the file or set output_dir to another folder"


_LEAST = {"curves": {"layer": 0, "depth": 0}, "sequences": {"count": 1}, "heatmaps": {}}
_TABLES = {
    name: Columns(RUN_TABLES[name].kinds, key=RUN_TABLES[name].key, least=least) for name, least in _LEAST.items()
}
"""The tables of a run that a comparison reads."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    status: str
    config: Mapping[str, Any]
    """The resolved config, with keys as on the command line. `model.step` is the training step, wherever it is from, and
    `model.name` and `model.revision` are without it."""
    metrics: Mapping[str, float]
    provenance: Mapping[str, Any]
    curves: pd.DataFrame
    """Columns curve, layer, depth (layer as a share of the model's layers), value."""
    error: str = ""
    sequences: pd.DataFrame = dataclasses.field(
        default_factory=lambda: pd.DataFrame(columns=list(_TABLES["sequences"].cells))
    )
    """Columns metric, sequence, count, value: means of single sequences, for some metrics."""
    heatmaps: pd.DataFrame = dataclasses.field(
        default_factory=lambda: pd.DataFrame(columns=list(_TABLES["heatmaps"].cells))
    )
    """Columns figure, panel, row, column, value, row_title, column_title, value_title: the cells of heat maps."""

    @property
    def depth(self) -> int | None:
        """Number of the model's layers, which relative depth shows; None without curves."""
        layers = self.curves[self.curves["layer"] > 0]
        return None if layers.empty else round((layers["layer"] / layers["depth"]).median())

    @property
    def is_random(self) -> bool:
        """Whether the model's weights are those that a seed gave it, before any training."""
        return bool(self.config.get("model.random_init")) or self.config.get("model.step") == 0


def read(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Runs in the given folders or their direct subfolders, and the failures that sweeps recorded there.

    Raises:
        InputError: If there is no run.
    """
    runs: list[Run] = []
    failures: list[str] = []
    for folder in folders:
        runs += map(_run, _folders(folder))
        failures += recorded_failures(folder)
    if not runs and not failures:
        raise InputError(f"{', '.join(map(str, folders))}: no run found; expected folders that contain a {RESULTS}")
    return runs, failures


def _folders(folder: Path) -> list[Path]:
    """The folder of a run, or those of the runs in it."""
    try:
        if (folder / RESULTS).is_file():
            return [folder]
        return [path.parent for path in sorted(folder.glob(f"*/{RESULTS}"), key=_numbered)]
    except (OSError, ValueError) as error:  # a path that cannot be one
        raise InputError(f"{printable(str(folder), 300)}: cannot be read: {one_line(error)}") from error


def record_failure(sweep: Path, overrides: Iterable[str], error: str) -> None:
    """Append a failed job to the sweep's record, in one write, so that several processes may do so at once."""
    sweep.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"job": " ".join(overrides), "error": error}, ensure_ascii=False)
    append_line(sweep, FAILURES, line)


def recorded_failures(sweep: Path) -> list[str]:
    """The failed jobs of a sweep, one line per job.

    Raises:
        InputError: If the sweep's record is damaged.
    """
    path = sweep / FAILURES
    if not os.path.lexists(path):
        return []
    try:
        lines = text(path, _MOST_FAILURES).split("\n")
    except InputError as error:
        raise InputError(f"{error}; {_NEW_FOLDER}") from error
    return [_failure(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _failure(path: Path, number: int, line: str) -> str:
    """A line of a sweep's record of failures, for people."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("job", "error")):
        raise InputError(
            f"{path}, line {number}: expected the job and error of a failed job, got {printable(line, 60)}; {_NEW_FOLDER}"
        )
    return printable(f"{record['job']}: {record['error']}", 2000)


def completed(sweep: Path) -> int:
    """How many jobs of a sweep have completed. A job whose results cannot be read has not."""
    count = 0
    for path in sweep.glob(f"*/{RESULTS}"):
        with contextlib.suppress(InputError):
            count += read_results(path.parent)["status"] == "completed"
    return count


def _run(folder: Path) -> Run:
    results, config, curves = read_results(folder), _config(folder), _table(folder, "curves")
    in_layers = curves[curves["layer"] > 0]
    if not (in_layers["depth"].between(0, 1) & (in_layers["layer"] / in_layers["depth"] < _MOST_LAYERS)).all():
        raise InputError(f"{folder}: expected depths above 0 and up to 1 for the layers of its curves")
    both = set(curves.loc[curves["layer"] == 0, "curve"]) & set(results["metrics"])
    if both:
        raise InputError(
            f"{folder}: expected metrics and curves of layer 0 with different names, got {shown(min(both))} twice"
        )
    step = results["provenance"].get("training_step")
    return Run(
        folder=folder,
        status=results["status"],
        config=_without_step(flat(config), step) | {"analysis": _analyses(config)},
        metrics=results["metrics"],
        provenance=results["provenance"],
        curves=curves,
        error=printable(str(results.get("error", "")), 2000),
        sequences=_table(folder, "sequences"),
        heatmaps=_table(folder, "heatmaps"),
    )


def _without_step(config: Mapping[str, Any], step: object) -> dict[str, Any]:
    """A config whose model has the same name and revision at every step of its training."""
    if not isinstance(step, int):
        return dict(config)
    name, revision = (str(config.get(f"model.{key}") or "") for key in ("name", "revision"))
    if step_in(revision) == step:
        revision = without_step(revision)
    elif step_in(name) == step:
        name = without_step(name)
    elif (
        name.count("/") > 1 or Path(name).is_absolute()
    ):  # a folder that does not say its step: one of several in another
        name = str(Path(name).parent)
    else:
        revision = ""
    return {**config, "model.name": name, "model.revision": revision or None, "model.step": step}


def _config(folder: Path) -> dict[str, Any]:
    """The config of a run; what a comparison takes for granted has the right type."""
    config, path = read_config(folder), folder / CONFIG
    for section in ("model", "dataset", "analysis"):
        require(path, config, section, "a mapping")
    for key in ("name", "revision"):
        require(path, config["model"], key, "a text", optional=True)
    require(path, config["model"], "step", "a whole number", optional=True)
    return config


def _table(folder: Path, name: str) -> pd.DataFrame:
    """A table of a run; empty if the run has not written it."""
    path, columns = folder / "tables" / f"{name}.parquet", _TABLES[name]
    return table(path, columns) if os.path.lexists(path) else pd.DataFrame(columns=list(columns.cells))


def _analyses(config: Mapping[str, Any]) -> str:
    analyses = config["analysis"].items()
    return ",".join(name for name, options in analyses if isinstance(options, dict) and options.get("enabled"))


def _numbered(path: Path) -> tuple[int, str]:
    name = path.parent.name
    return (int(name) if name.isdecimal() else 0, name)
