"""The files of a run folder that are no tables: `results.json` and `config.yaml`.

A folder may come from someone else, or be damaged: everything is read with size limits and validated.
"""

import enum
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError, printable
from normscope.results.run_facts import FACTS, Type
from normscope.untrusted.files import MIB
from normscope.untrusted.plain_data import Kind, json_mapping, require, shown, yaml_mapping

RESULTS = "results.json"
CONFIG = "config.yaml"
MAPS = "maps.parquet"

_MOST_RESULTS, _MOST_CONFIG = 64 * MIB, MIB


class Status(enum.StrEnum):
    """How a run ended. A folder without results.json belongs to a run that was killed or is still running."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


_KINDS: dict[Type, Kind] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "array": "a list",
}


def results_content(
    status: str,
    metrics: Mapping[str, float],
    facts: Mapping[str, object],
    error: str = "",
    words: Mapping[str, Sequence[object]] | None = None,
) -> bytes:
    """The content of results.json.

    Args:
        status: How the run ended.
        metrics: Finite numbers.
        facts: Where they come from.
        error: Why the run failed, if it did.
        words: Names of tables and figures in their order, sentences, notes and summaries.
    """
    not_finite = [name for name, value in metrics.items() if not math.isfinite(value)]
    if not_finite:
        raise ValueError(f"metrics must be finite: {not_finite}")
    content: dict[str, object] = {"schema": RUN_SCHEMA, "status": str(status), "metrics": dict(metrics)}
    content |= {"facts": dict(facts), **(words or {})}
    if status == Status.FAILED:
        content["error"] = " ".join(error.split())
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def read_results(folder: Path) -> dict[str, Any]:
    """The content of results.json.

    Raises:
        InputError: If results.json is missing, was not written by a run, or has a schema that this version does not know.
    """
    path = folder / RESULTS
    results = json_mapping(path, _MOST_RESULTS)
    require(path, results, "schema", "a whole number")
    if results["schema"] != RUN_SCHEMA:
        raise InputError(
            f"{path}: expected schema {RUN_SCHEMA}, got {results['schema']}: another version of normscope has written this run"
        )
    require(path, results, "status", "a text")
    for key in ("metrics", "facts"):
        require(path, results, key, "a mapping")
    if results["status"] not in list(Status):
        raise InputError(f"{path}: expected a status of {', '.join(Status)}, got {shown(results['status'])}")
    for name in results["metrics"]:
        require(path, results["metrics"], name, "a number")
    for name, fact in FACTS.items():
        require(path, results["facts"], name, _KINDS[fact.type], optional=True)
    for name in ("tables", "figures", "sentences", "notes", "summaries"):
        require(path, results, name, "a list", optional=True)
    return results | {"metrics": {name: float(value) for name, value in results["metrics"].items()}}


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a run that has nothing left to do."""
    try:
        return bool(read_results(folder)["status"] == Status.COMPLETED)
    except InputError:
        return False


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a run, nested as in the schema, which it need not match.

    Raises:
        InputError: If config.yaml is missing, or is not a mapping of plain data.
    """
    return yaml_mapping(folder / CONFIG, _MOST_CONFIG)


def require_run(folder: Path) -> None:
    """Check that a folder holds a finished run; otherwise, the message says what it holds.

    Raises:
        InputError: If it does not.
    """
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
