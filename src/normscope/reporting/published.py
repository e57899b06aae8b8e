"""Comparison of a run's results with a paper's published numbers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd
import yaml

from normscope.config.schema import flat
from normscope.distribution import folder
from normscope.errors import InputError
from normscope.results.result import Result

PAPERS = folder("experiments")
"""Holds a folder with a `published.yaml` per paper."""

COLUMNS = ("metric", "value", "published", "difference", "tolerance", "within", "source")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Measured and published numbers, or the reason they cannot be compared."""

    table: pd.DataFrame
    """One row per number that was both measured and published; columns as in COLUMNS."""
    refusal: str
    """How the config differs from the paper's, if nothing can be compared; otherwise empty."""


def against_paper(result: Result) -> Comparison | None:
    """Results beside the published numbers of the paper whose preset was run; None if no preset was.

    Raises:
        InputError: If there is no file of published numbers.
    """
    paper = result.config.get("recipe", {}).get("paper")
    return None if paper is None else compare(paper, result.metrics, result.tables, result.config)


def compare(
    paper: str, metrics: Mapping[str, float], tables: Mapping[str, pd.DataFrame], config: Mapping[str, Any]
) -> Comparison:
    """Compare results with every group of published numbers whose conditions the config meets.

    A group lists `values` by metric, or rows of a `column` of a `table`, with values `along` one of its axes.

    Args:
        paper: Folder below `experiments/`.
        metrics: Metrics by flat name, as in results.json.
        tables: Tables by file name, without the suffix.
        config: The resolved config.

    Raises:
        InputError: If there is no file of published numbers.
    """
    settings = flat(config)
    rows, refused = [], []
    for group in published(paper):
        # No published number is about whole words, unless it says so.
        conditions = {"level": "token"} | group["when"]
        differences = {key: wanted for key, wanted in conditions.items() if settings.get(key) != wanted}
        pairs = _pairs(group, metrics, tables)
        if not pairs and group.get("table") not in tables:
            continue
        if differences:
            refused.append((group["when"], differences))
            continue
        for name, (measured, printed) in pairs.items():
            tolerance = group["tolerance"] + group.get("relative_tolerance", 0.0) * abs(printed)
            difference = measured - printed
            rows.append((name, measured, printed, difference, tolerance, abs(difference) <= tolerance, group["source"]))
    refusal = ""
    if not rows:
        # Report the group with the most conditions; of several, the one that the run comes closest to.
        _, nearest = min(refused, key=lambda pair: (-len(pair[0]), len(pair[1])), default=({}, {}))
        conditions = ", ".join(f"{key}={value} (this run: {settings.get(key)})" for key, value in nearest.items())
        refusal = f"the comparison with {paper} does not apply: the paper has {conditions or 'none of these metrics'}"
    return Comparison(pd.DataFrame(rows, columns=list(COLUMNS)), refusal)


def _pairs(
    group: Mapping[str, Any], metrics: Mapping[str, float], tables: Mapping[str, pd.DataFrame]
) -> dict[str, tuple[float, float]]:
    """Measured and published numbers of a group, for what the run measured."""
    if "table" not in group:
        return {name: (metrics[name], printed) for name, printed in group["values"].items() if name in metrics}
    table, along = tables.get(group["table"]), group["along"]
    if table is None:
        return {}
    pairs = {}
    for row in group["rows"]:
        selected = table
        for column, wanted in row["at"].items():
            selected = selected[selected[column] == wanted]
        measured = selected.set_index(along)[group["column"]]
        name = " ".join(f"{column}={wanted}" for column, wanted in row["at"].items())
        for number, printed in enumerate(row["values"], start=1):
            if number in measured.index:
                pairs[f"{group['table']} {name} {along}={number}"] = (float(measured[number]), printed)
    return pairs


def published(paper: str) -> list[dict[str, Any]]:
    """A paper's groups of published numbers.

    Raises:
        InputError: If the paper has no such file.
    """
    known = sorted(place.name for place in PAPERS.iterdir() if (place / "published.yaml").is_file())
    if paper not in known:
        raise InputError(f"recipe.paper={paper}: it has no published numbers; expected one of {', '.join(known)}")
    groups: list[dict[str, Any]] = yaml.safe_load((PAPERS / paper / "published.yaml").read_text(encoding="utf-8"))
    return groups
