"""The page of all tables, columns and metrics, from the analyses' own descriptions."""

from collections.abc import Sequence

from docs.hooks.markdown import code, table
from normscope.analyses.registry import analyses
from normscope.results.checkup_tables import CHECKUP
from normscope.results.declare import Declared, Rollup, Table
from normscope.results.run_tables import COMPARISON, CROSSINGS, MAPS, RUN_TABLES, TRAINING


def page() -> str:
    """The page in Markdown."""
    parts = [
        "# Tables and metrics\n",
        "A run writes its tables to `tables/<analysis>_<table>.parquet`, with a `.csv` beside it for up to 20,000 rows. They "
        "are tidy: one row per observation. Metrics are single numbers in `results.json`, by the name "
        "`<analysis>/<metric>`; curves are values by layer. In a name, a part such as `<category>` stands for several names. "
        "Columns without a unit hold text, counts, ratios, shares or other numbers that have none.\n",
    ]
    for name, info in analyses().items():
        parts.append(f"## {info.title} {{#{name}}}\n")
        parts.append(_declared(name, info.declared))
    parts.append("## Every run {#run}\n")
    parts += [_table(name, info) for name, info in RUN_TABLES.items()]
    parts.append("## Checkups {#checkup}\n")
    parts += [_table(name, info) for name, info in CHECKUP.items()]
    parts.append("## Token maps {#maps}\n")
    parts.append(_table("maps.parquet", MAPS))
    parts.append("## Comparisons of runs {#comparison}\n")
    parts.append(_table("comparison.parquet", COMPARISON))
    parts.append(_table("training.parquet", TRAINING))
    parts.append(_table("crossings.csv", CROSSINGS))
    return "\n".join(parts)


def _declared(name: str, declared: Declared) -> str:
    parts = [_table(f"{name}_{table_name}", info) for table_name, info in declared.tables.items()]
    if declared.metrics:
        parts.append("**Metrics**\n")
        parts.append(_names(name, declared.metrics, "metric"))
    if declared.curves:
        parts.append("**Curves**\n")
        parts.append(_names(name, declared.curves, "curve"))
    return "\n".join(parts)


def _names(analysis: str, declared: Sequence[Rollup], header: str) -> str:
    return table((header, "meaning"), [(code(f"{analysis}/{one.name}"), one.meaning) for one in declared])


def _table(name: str, info: Table) -> str:
    columns = table(("column", "meaning"), [(code(column), _meaning(info, column)) for column in info.columns])
    return f"### {code(name)}\n\nOne row per {info.row}.\n\n{columns}"


def _meaning(info: Table, column: str) -> str:
    unit = info.units.get(column)
    return f"{info.columns[column]} Unit: {unit}." if unit else info.columns[column]
