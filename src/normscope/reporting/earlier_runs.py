"""What a run has left in its folder, for commands that continue, repeat or compare it.

A folder may come from someone else, or be damaged: everything is read with size limits and validated.
"""

import enum
from pathlib import Path
from typing import Any

from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.reporting.run_facts import FACTS, Type
from normscope.untrusted.files import MIB
from normscope.untrusted.plain_data import Kind, json_mapping, require, shown, yaml_mapping

RESULTS = "results.json"
CONFIG = "config.yaml"

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


def read_results(folder: Path) -> dict[str, Any]:
    """The results of a run: schema, status, metrics and provenance.

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
    for key in ("metrics", "provenance"):
        require(path, results, key, "a mapping")
    if results["status"] not in list(Status):
        raise InputError(f"{path}: expected a status of {', '.join(Status)}, got {shown(results['status'])}")
    for name in results["metrics"]:
        require(path, results["metrics"], name, "a number")
    for name, fact in FACTS.items():
        require(path, results["provenance"], name, _KINDS[fact.type], optional=True)
    return results | {"metrics": {name: float(value) for name, value in results["metrics"].items()}}


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a run that has nothing left to do."""
    try:
        return read_results(folder)["status"] == Status.COMPLETED
    except InputError:
        return False


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a run, nested as in the schema, which it need not match.

    Raises:
        InputError: If config.yaml is missing, or is not a mapping of plain data.
    """
    return yaml_mapping(folder / CONFIG, _MOST_CONFIG)
