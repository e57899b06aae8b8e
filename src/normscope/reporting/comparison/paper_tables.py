"""The papers' tables over several runs, as LaTeX: one row per run, or mean and standard deviation over seeds."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from normscope.analyses.info import AnalysisInfo
from normscope.analyses.paper_tables import Cell, Column, PaperTable, paper_tables
from normscope.analyses.registry import analyses
from normscope.errors import InputError, one_line
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.latex import document
from normscope.results.declare import Table
from normscope.untrusted.tables import Columns, table


@dataclasses.dataclass(frozen=True)
class ComparedTable:
    """A paper's table of every run that has it."""

    name: str
    """As its file is called: `mixing_ratios`."""
    labels: Sequence[str]
    """The runs."""
    groups: Sequence[str]
    """The runs without their seeds."""
    tables: Sequence[PaperTable]


def compared_paper_tables(comparison: RunComparison) -> Iterator[tuple[str, str]]:
    """The papers' tables that the completed runs have, as names and LaTeX.

    Raises:
        InputError: If a table of a run cannot be read.
    """
    whole = comparison.values[comparison.values["layer"] == 0]
    labels = list(dict.fromkeys(whole["label"]))
    groups = whole.drop_duplicates("label")["group"].tolist()
    of_runs = []
    for label in labels:
        # Runs of different analyses of the same model and data share a label.
        rows = whole[whole["label"] == label]
        folders = [
            folder for folder, own in zip(comparison.folders, comparison.runs["label"], strict=True) if own == label
        ]
        of_runs.append(_tables_of(folders, dict(zip(rows["metric"], rows["value"], strict=True))))
    for name in dict.fromkeys(name for tables in of_runs for name in tables):
        having = [number for number, tables in enumerate(of_runs) if name in tables]
        compared = ComparedTable(
            name,
            [labels[number] for number in having],
            [str(groups[number]) for number in having],
            [of_runs[number][name] for number in having],
        )
        yield name, _latex(compared, comparison.title)


def _latex(compared: ComparedTable, title: str) -> str:
    if all(table.headline for table in compared.tables):
        tables = [(compared.name, headlines(compared))]
    else:  # Nothing stands for the whole table: the runs' tables follow each other.
        tables = [
            (f"{compared.name}-{number}", dataclasses.replace(table, caption=f"{label}: {table.caption}"))
            for number, (label, table) in enumerate(zip(compared.labels, compared.tables, strict=True), start=1)
        ]
    return document(tables, f"Comparison of runs by normscope: {title}")


def headlines(compared: ComparedTable) -> PaperTable:
    """One row per run; where runs differ only in their seeds, one row for all of them, with the deviation over seeds."""
    headers = list(dict.fromkeys(header for table in compared.tables for header in table.headline))
    digits = compared.tables[0].headline_digits
    groups = list(dict.fromkeys(compared.groups))
    several = len(groups) < len(compared.groups)
    members = {
        group: [table for table, other in zip(compared.tables, compared.groups, strict=True) if other == group]
        for group in groups
    }
    rows: list[list[Cell]] = []
    for group, tables in members.items():
        values = {
            header: [table.headline[header] for table in tables if header in table.headline] for header in headers
        }
        runs: list[Cell] = [len(tables)] if several else []
        rows.append([group, *runs, *(_mean(values[header], digits) for header in headers)])
    caption = compared.tables[0].headline_caption
    return PaperTable(
        caption=f"{caption} Mean ± standard deviation over seeds." if several else caption,
        columns=[
            Column("Run", text=True),
            *([Column("Seeds")] if several else []),
            *(Column(header, digits) for header in headers),
        ],
        rows=rows,
        wide=len(headers) > 5,
    )


def _mean(values: Sequence[float], digits: int) -> Cell:
    values = [value for value in values if math.isfinite(value)]  # a correlation of constants has no value
    if len(values) < 2:
        return values[0] if values else None
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    return f"{mean:,.{digits}f}±{deviation:.{digits}f}".replace("-", "−")


@dataclasses.dataclass(frozen=True)
class _Stored:
    """Tables and metrics of one analysis in a run folder."""

    tables: Mapping[str, pd.DataFrame]
    metrics: Mapping[str, float]


class _Tables(Mapping[str, pd.DataFrame]):
    """The tables of an analysis, each read when it is used: some have millions of rows."""

    def __init__(self, folders: Sequence[Path], info: AnalysisInfo) -> None:
        prefix = f"{info.name}_"
        self._info = info
        self._paths = {
            path.stem.removeprefix(prefix): path
            for folder in folders
            for path in sorted((folder / "tables").glob(f"{prefix}*.parquet"))
        }

    def __getitem__(self, name: str) -> pd.DataFrame:
        described = self._info.published.tables.get(name)
        return table(self._paths[name], _columns(described) if described else None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _columns(described: Table) -> Columns:
    """What a table must have that its analysis describes; a name such as `head_<head>` stands for several columns."""
    single = [name for name in described.columns if "<" not in name]
    return Columns(
        {name: described.kinds[name] for name in single},
        others=None if len(single) == len(described.columns) else "number",
        key=described.key,
    )


def _tables_of(folders: Sequence[Path], metrics: Mapping[str, float]) -> dict[str, PaperTable]:
    """The papers' tables of a run, by the names of their files.

    Args:
        folders: The run's folder; several if its analyses ran separately.
        metrics: All of its metrics.
    """
    tables: dict[str, PaperTable] = {}
    for name, info in analyses().items():
        own = {key.removeprefix(f"{name}/"): value for key, value in metrics.items() if key.startswith(f"{name}/")}
        if own:
            stored = _Stored(_Tables(folders, info), own)
            try:
                tables |= {f"{name}_{kind}": content for kind, content in paper_tables(info, stored).items()}
            except (LookupError, ValueError, TypeError, ArithmeticError) as error:
                # The same numbers made these tables when the run ended.
                raise InputError(
                    f"{', '.join(map(str, folders))}: the metrics or tables of analysis={name} are damaged: {one_line(error)}"
                ) from error
    return tables
