"""Finished runs, read from their folders."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normscope.config.schema import flat
from normscope.config.training_step import step_in, without_step
from normscope.errors import InputError, one_line, printable
from normscope.results.figures import Heatmaps
from normscope.results.result import Result
from normscope.results.run_files import CONFIG, RESULTS, read_results
from normscope.results.run_tables import RUN_TABLES
from normscope.untrusted.plain_data import MIB, require, shown, text
from normscope.untrusted.writing import append_line

FAILURES = "failures.jsonl"
"""File in a sweep's folder that records its failed jobs."""

_MOST_FAILURES = 64 * MIB

_MOST_LAYERS = 1_000_000

_NEW_FOLDER = "remove the file or set output_dir to another folder"


def read(folders: Sequence[Path]) -> tuple[dict[Path, Result], list[str]]:
    """Runs in the given folders or their direct subfolders, by their folders, and the failures that sweeps recorded there.

    Raises:
        InputError: If there is no run.
    """
    runs: dict[Path, Result] = {}
    failures: list[str] = []
    for folder in folders:
        runs |= {path: _checked(path, Result.read(path)) for path in _folders(folder)}
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


def _checked(folder: Path, result: Result) -> Result:
    """Results in which what a comparison takes for granted has the right type and size."""
    path = folder / CONFIG
    for section in ("model", "dataset", "analysis"):
        require(path, result.config, section, "a mapping")
    for key in ("name", "revision"):
        require(path, result.config["model"], key, "a text", optional=True)
    require(path, result.config["model"], "step", "a whole number", optional=True)
    curves = table_of(result, "curves")
    in_layers = curves[curves["layer"] > 0]
    if not (in_layers["depth"].between(0, 1) & (in_layers["layer"] / in_layers["depth"] < _MOST_LAYERS)).all():
        raise InputError(f"{folder}: expected depths above 0 and up to 1 for the layers of its curves")
    both = set(curves.loc[curves["layer"] == 0, "curve"]) & set(result.metrics)
    if both:
        raise InputError(
            f"{folder}: expected metrics and curves of layer 0 with different names, got {shown(min(both))} twice"
        )
    table_of(result, "sequences")
    try:
        cells_of(result)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder}: expected figures of a run: {one_line(error)}") from error
    return dataclasses.replace(result, error=printable(result.error, 2000))


def table_of(result: Result, name: str) -> pd.DataFrame:
    """One of the tables of all analyses; empty if the run has not written it."""
    return result.tables[name] if name in result.tables else pd.DataFrame(columns=list(RUN_TABLES[name].columns))


_CELLS = ["figure", "panel", "row", "column", "value", "row_title", "column_title", "value_title"]


def cells_of(result: Result) -> pd.DataFrame:
    """The cells of a run's heat maps: one row per figure (`mixing/heatmap`), panel and cell."""
    found = [
        pd.DataFrame(
            {
                "figure": f"{analysis}/{name.removeprefix(f'{analysis}_')}",
                "panel": title,
                "row": rows[figure.row].astype(str),
                "column": rows[figure.column].astype(str),
                "value": rows[value].astype(float),
                "row_title": figure.row,
                "column_title": figure.column,
                "value_title": figure.value_label or figure.values[value],
            }
        )
        for analysis in result.analyses
        for name in result.owned_by(analysis, result.figures)
        if isinstance(figure := result.figures[name], Heatmaps)
        for title, rows, value in figure.maps()
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=_CELLS)


def settings(result: Result) -> dict[str, Any]:
    """The config of a run, with keys as on the command line.

    `model.step` is the training step, wherever it is from, and `model.name` and `model.revision` are without it. The digests
    `weights` and `texts` stand for what no key says: the content of a model or of texts.
    """
    facts = result.facts
    config = _without_step(flat(result.config), facts.get("training_step"))
    if "weights_from" in facts:
        config |= {"model.random_init": facts["weights_from"] == "seed", "model.seed": facts.get("weights_seed")}
        config |= {"model.name": facts["training"]} if facts.get("training") else {}
        config |= {"weights": facts.get("model_sha256"), "texts": facts.get("texts_digest")}
    return config | {"analysis": ",".join(result.analyses)}


def depth(result: Result) -> int | None:
    """Number of the model's layers, which relative depth shows; None without curves."""
    curves = table_of(result, "curves")
    layers = curves[curves["layer"] > 0]
    return None if layers.empty else round((layers["layer"] / layers["depth"]).median())


def _without_step(config: Mapping[str, Any], step: object) -> dict[str, Any]:
    """A config whose model has the same name and revision at every step of its training."""
    if not isinstance(step, int):
        return dict(config)
    name, revision = (str(config.get(f"model.{key}") or "") for key in ("name", "revision"))
    if step_in(revision) == step:
        revision = without_step(revision)
    elif step_in(name) == step:
        name = without_step(name)
    # A folder that does not say its step is one of several in another.
    elif name.count("/") > 1 or Path(name).is_absolute():
        name = str(Path(name).parent)
    else:
        revision = ""
    return {**config, "model.name": name, "model.revision": revision or None, "model.step": step}


def _numbered(path: Path) -> tuple[int, str]:
    name = path.parent.name
    return (int(name) if name.isdecimal() else 0, name)
