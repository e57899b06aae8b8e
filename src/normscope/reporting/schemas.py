"""What programs can know of a run's files: a JSON Schema of results.json, and a description of all tables.

Both follow from the declarations. `python -m normscope.reporting.schemas FOLDER` writes them as files.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from normscope.analyses.info import AnalysisInfo
from normscope.analyses.registry import analyses, plug_ins
from normscope.distribution import RUN_SCHEMA
from normscope.reporting.earlier_runs import Status
from normscope.reporting.run_facts import FACTS
from normscope.reporting.run_tables import COMPARISON, CROSSINGS, RUN_TABLES, TRAINING
from normscope.results.declare import Rollup, Table

FOLDER = Path(__file__).parents[1] / "schemas"
"""Where a wheel has the files."""

_OF_SWEEPS = {"comparison.parquet": COMPARISON, "training.parquet": TRAINING, "crossings.csv": CROSSINGS}
"""The tables that a sweep writes beside its runs, by the names of their files."""

_COLUMN = re.compile(r"<\w+>")


def results_schema() -> dict[str, Any]:
    """The JSON Schema of results.json."""
    facts = {name: _nullable(fact.type, fact.of) | {"description": fact.meaning} for name, fact in FACTS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"results.json of normscope, schema {RUN_SCHEMA}",
        "type": "object",
        "required": ["schema", "status", "metrics", "provenance"],
        "properties": {
            "schema": {"const": RUN_SCHEMA, "description": "Version of the layout of the run directory."},
            "status": {"enum": [str(status) for status in Status], "description": "How the run ended."},
            "metrics": {
                "type": "object",
                "description": "Single numbers by name, `<analysis>/<metric>`; plug-ins add their own.",
                "patternProperties": {
                    f"^{_pattern(f'{info.name}/{metric.name}')}$": {"type": "number", "description": metric.meaning}
                    for info in _built_in()
                    for metric in info.published.metrics
                },
                "additionalProperties": {"type": "number"},
            },
            "provenance": {
                "type": "object",
                "description": "Where the numbers come from.",
                "properties": facts,
            },
            "error": {"type": "string", "description": "Why the run failed, on one line."},
        },
        "additionalProperties": False,
        "if": {"properties": {"status": {"const": str(Status.FAILED)}}},
        "then": {"required": ["error"]},
        "else": {"properties": {"error": False}},
    }


def tables_description() -> dict[str, Any]:
    """Every table with its columns, and every metric and curve, with types, units and meanings.

    In a name, a part such as `<category>` stands for several names.
    """
    return {
        "schema": RUN_SCHEMA,
        "tables": {name: _described(table) for name, table in tables_of(_built_in()).items()},
        "tables_of_sweeps": {name: _described(table) for name, table in _OF_SWEEPS.items()},
        "metrics": _meanings((info.name, info.published.metrics) for info in _built_in()),
        "curves": _meanings((info.name, info.published.curves) for info in _built_in()),
    }


def tables_of(infos: Iterable[AnalysisInfo]) -> dict[str, Table]:
    """The tables in the folder `tables/` of a run, by the names of their files."""
    own = {f"{info.name}_{name}": table for info in infos for name, table in info.published.tables.items()}
    return own | RUN_TABLES


def metadata(name: str, columns: Iterable[str], identity: Mapping[str, object]) -> dict[str, str]:
    """What a Parquet file says about itself, as keys and values.

    Args:
        name: Its table, as in `tables_of`, or the name of a file of a sweep.
        columns: The columns that it has.
        identity: What distinguishes its run from others.
    """
    table = (tables_of(analyses().values()) | _OF_SWEEPS).get(name)
    described = {} if table is None else {column: _column(table, column) for column in columns}
    values: dict[str, object] = {"schema": RUN_SCHEMA, "table": name, "columns": described, "run": dict(identity)}
    return {f"normscope.{key}": value if isinstance(value, str) else _json(value) for key, value in values.items()}


def _built_in() -> list[AnalysisInfo]:
    others = plug_ins()
    return [info for info in analyses().values() if info not in others]


def _described(table: Table) -> dict[str, Any]:
    columns = {column: _column(table, column) for column in table.columns}
    return {"row": table.row, "key": list(table.key), "columns": columns}


def _column(table: Table, name: str) -> dict[str, str]:
    """Type, unit and meaning of a column; empty if it is not declared."""
    declared = next((one for one in table.columns if re.fullmatch(_pattern(one), name)), None)
    if declared is None:
        return {}
    unit = {"unit": table.units[declared]} if declared in table.units else {}
    return {"type": table.kinds[declared], **unit, "meaning": table.columns[declared]}


def _pattern(name: str) -> str:
    """The regular expression of a name, for Python and JSON Schema."""
    return "[^/]+".join(map(re.escape, _COLUMN.split(name)))


def _meanings(rollups: Iterable[tuple[str, Iterable[Rollup]]]) -> dict[str, str]:
    return {f"{analysis}/{one.name}": one.meaning for analysis, several in rollups for one in several}


def _nullable(kind: str, of: str | None) -> dict[str, Any]:
    inside = {"object": "additionalProperties", "array": "items"}
    return {"type": [kind, "null"]} | ({inside[kind]: {"type": of}} if of else {})


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def files() -> dict[str, str]:
    """The content of both files, by name."""
    described = {"results.schema.json": results_schema(), "tables.json": tables_description()}
    return {name: f"{_json(content, indent=1)}\n" for name, content in described.items()}


if __name__ == "__main__":
    for name, content in files().items():
        Path(sys.argv[1], name).write_text(content, encoding="utf-8")
