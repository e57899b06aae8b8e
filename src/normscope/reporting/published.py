"""Comparison of a run's results with a paper's published numbers."""

import dataclasses
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import pandas as pd
import yaml

from normscope.analyses.registry import analyses
from normscope.config.schema import flat
from normscope.distribution import folder
from normscope.errors import InputError
from normscope.results.measures import cell_title, metric_title
from normscope.results.result import Result

PAPERS = folder("experiments")
"""Holds a folder with a `published.yaml` per paper."""

COLUMNS = (
    *("metric", "measure", "value", "published", "difference"),
    *("tolerance", "within", "differs_in", "exhibit", "source"),
)

COMPARISON = "comparison"
"""The table of a result that has been compared with a paper."""


def with_published(result: Result, files_sha256: str | None) -> Result:
    """The result; if a paper's preset was run, with a table that compares its numbers with the published ones.

    Args:
        result: The results of a run.
        files_sha256: Digest of the model's weight files; None if it has none.

    Raises:
        InputError: If there is no file of published numbers.
    """
    paper = result.config.get("recipe", {}).get("paper")
    if paper is None:
        return result
    comparison = compare(paper, result.metrics, result.tables, result.config, files_sha256)
    notes = [
        f"not compared with {group['source']}: dimensions and heads are places in the paper's weights, and these are others"
        for group in published(paper)
        if not _has_weights(group, files_sha256) and _pairs(group, result.metrics, result.tables)
    ]
    tables = {**result.tables} if comparison.empty else {**result.tables, COMPARISON: comparison}
    return dataclasses.replace(result, tables=tables, notes=[*result.notes, *notes])


def compare(
    paper: str,
    metrics: Mapping[str, float],
    tables: Mapping[str, pd.DataFrame],
    config: Mapping[str, Any],
    files_sha256: str | None = None,
) -> pd.DataFrame:
    """Results beside a paper's published numbers.

    A group of published numbers lists `values` by metric, or rows of a `column` of a `table`, with values `along` one of its
    axes. A number that was measured stands beside those of every group whose conditions the config meets. If it meets none, it
    stands beside that of the group whose conditions it comes closest to, the first of several, with the keys that differ.
    Numbers of a place in a model, such as a dimension, mean nothing in another model: their group lists the digests of the
    `weights` that have the place, and nothing else is compared with them.

    Args:
        paper: Folder below `experiments/`.
        metrics: Metrics by flat name, as in results.json.
        tables: Tables by file name, without the suffix.
        config: The resolved config.
        files_sha256: Digest of the model's weight files; None if it has none.

    Returns:
        One row per number that was both measured and published; columns as in COLUMNS.

    Raises:
        InputError: If there is no file of published numbers.
    """
    settings = flat(config)
    rows: list[_Row] = []
    for group in published(paper):
        if not _has_weights(group, files_sha256):
            continue
        differs_in = tuple(unmet(group, settings))
        for name, (words, measured, printed) in _pairs(group, metrics, tables).items():
            tolerance = group["tolerance"] + group.get("relative_tolerance", 0.0) * abs(printed)
            of = (group["exhibit"], group["source"])
            rows.append(_Row(name, words, measured, printed, tolerance, differs_in, *of))
    fewest: dict[str, _Row] = {}
    for row in rows:
        if row.metric not in fewest or len(row.differs_in) < len(fewest[row.metric].differs_in):
            fewest[row.metric] = row
    kept = [row for row in rows if not row.differs_in or row is fewest[row.metric]]
    return pd.DataFrame([row.values() for row in kept], columns=list(COLUMNS))


class _Row(NamedTuple):
    """A measured and a published number."""

    metric: str
    measure: str
    """The metric in words."""
    value: float
    published: float
    tolerance: float
    differs_in: tuple[str, ...]
    """The keys whose values are not the paper's."""
    exhibit: str
    source: str

    def values(self) -> tuple[Any, ...]:
        """Those of COLUMNS."""
        difference = self.value - self.published
        agrees = abs(difference) <= self.tolerance
        differs_in = ", ".join(self.differs_in)
        numbers = (self.value, self.published, difference, self.tolerance)
        return (self.metric, self.measure, *numbers, agrees, differs_in, self.exhibit, self.source)


def _pairs(
    group: Mapping[str, Any], metrics: Mapping[str, float], tables: Mapping[str, pd.DataFrame]
) -> dict[str, tuple[str, float, float]]:
    """The names in words, and the measured and published numbers of a group, for what the run measured."""
    if "table" not in group:
        return {
            name: (metric_title(name), metrics[name], printed)
            for name, printed in group["values"].items()
            if name in metrics
        }
    table, along = tables.get(group["table"]), group["along"]
    if table is None:
        return {}
    pairs = {}
    for row in group["rows"]:
        selected = table
        for column, wanted in row["at"].items():
            selected = selected[selected[column] == wanted]
        measured = selected.set_index(along)[group["column"]]
        for number, printed in enumerate(row["values"], start=1):
            if number in measured.index:
                at = {**row["at"], along: number}
                words = cell_title(group["table"], group["column"], at)
                pairs[_cell(group, at)] = (words, float(measured[number]), printed)
    return pairs


def _cell(group: Mapping[str, Any], at: Mapping[str, object]) -> str:
    """What a cell of a group's table is called in comparisons."""
    return " ".join([group["table"], *(f"{column}={wanted}" for column, wanted in at.items())])


def printed(group: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a group as they were published, by what they are called in comparisons."""
    if "table" not in group:
        return {**group["values"]}
    return {
        _cell(group, {**row["at"], group["along"]: number}): value
        for row in group["rows"]
        for number, value in enumerate(row["values"], start=1)
    }


def grid(group: Mapping[str, Any]) -> pd.DataFrame:
    """What the numbers of a group of a table are called in comparisons: a row for each place, with columns along an axis."""
    title = analyses()[group["table"].partition("_")[0]].declared.title
    numbers = range(1, len(group["rows"][0]["values"]) + 1)
    names = pd.DataFrame(
        [[_cell(group, {**row["at"], group["along"]: number}) for number in numbers] for row in group["rows"]],
        columns=[title(group["along"], str(number)) for number in numbers],
    )
    places = [
        {axis: title(axis, str(value)).removeprefix(f"{axis} ") for axis, value in row["at"].items()}
        for row in group["rows"]
    ]
    return names.set_index(pd.MultiIndex.from_frame(pd.DataFrame(places)))


def unmet(group: Mapping[str, Any], settings: Mapping[str, object]) -> dict[str, object]:
    """The conditions of a group of published numbers that a config does not meet: the paper's values, by key.

    Args:
        group: The group.
        settings: The config, flat.
    """
    # No published number is about whole words or random weights, unless it says so.
    conditions = {"level": "token", "model.random_init": False} | group["when"]
    return {key: wanted for key, wanted in conditions.items() if settings.get(key) != wanted}


def _has_weights(group: Mapping[str, Any], files_sha256: str | None) -> bool:
    """Whether a model has the places that a group of published numbers is about."""
    return "weights" not in group or files_sha256 in group["weights"]


def published(paper: str) -> list[dict[str, Any]]:
    """A paper's groups of published numbers.

    Raises:
        InputError: If the paper has no such file.
    """
    groups: list[dict[str, Any]] = yaml.safe_load(file_of(paper).read_text(encoding="utf-8"))
    return groups


def file_of(paper: str, name: str = "published.yaml") -> Traversable:
    """A file of a paper, by default that of its published numbers.

    Raises:
        InputError: If the paper has no such file.
    """
    known = sorted(place.name for place in PAPERS.iterdir() if (place / "published.yaml").is_file())
    if paper not in known:
        raise InputError(f"recipe.paper={paper}: it has no published numbers; expected one of {', '.join(known)}")
    return PAPERS / paper / name
