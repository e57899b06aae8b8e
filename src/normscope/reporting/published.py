"""A run's metrics beside a paper's published numbers."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from normscope.config.schema import flat
from normscope.errors import InputError

PAPERS = Path(__file__).resolve().parents[3] / "experiments"

COLUMNS = ("metric", "value", "published", "difference", "tolerance", "within", "source")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Measured and published numbers side by side, or why there are none."""

    table: pd.DataFrame
    """One row per number that was both measured and published; columns as in COLUMNS."""
    refusal: str
    """What of the config differs from the paper's, where nothing can be compared."""


def compare(
    paper: str, metrics: Mapping[str, float], tables: Mapping[str, pd.DataFrame], config: Mapping[str, Any]
) -> Comparison:
    """Compare metrics with every group of published numbers whose conditions hold of the config.

    A group has `values`, by metric; or a `table`, of which it gives a `column`, each row of it `along` an axis.

    Args:
        paper: Folder below `experiments/`.
        metrics: Flat names, as in results.json.
        tables: By the names of their files.
        config: The resolved config.

    Raises:
        InputError: If the paper's numbers are not there.
    """
    settings = flat(config)
    rows, refused = [], []
    for group in published(paper):
        differences = {key: wanted for key, wanted in group["when"].items() if settings.get(key) != wanted}
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
        # The strictest group that the run comes nearest to says most of what would have to change.
        _, nearest = min(refused, key=lambda pair: (-len(pair[0]), len(pair[1])), default=({}, {}))
        wanted = ", ".join(f"{key}={value} (here {settings.get(key)})" for key, value in nearest.items())
        refusal = f"the comparison with {paper} does not apply: the paper has {wanted or 'none of these metrics'}"
    return Comparison(pd.DataFrame(rows, columns=list(COLUMNS)), refusal)


def _pairs(
    group: Mapping[str, Any], metrics: Mapping[str, float], tables: Mapping[str, pd.DataFrame]
) -> dict[str, tuple[float, float]]:
    """Measured and published numbers of a group, as far as they were measured."""
    if "table" not in group:
        return {name: (metrics[name], printed) for name, printed in group["values"].items() if name in metrics}
    table, along = tables.get(group["table"]), group["along"]
    if table is None:
        return {}
    pairs = {}
    for row in group["rows"]:
        chosen = table
        for column, wanted in row["at"].items():
            chosen = chosen[chosen[column] == wanted]
        measured = chosen.set_index(along)[group["column"]]
        name = " ".join(f"{column}={wanted}" for column, wanted in row["at"].items())
        for number, printed in enumerate(row["values"], start=1):
            if number in measured.index:
                pairs[f"{group['table']} {name} {along}={number}"] = (float(measured[number]), printed)
    return pairs


def published(paper: str) -> list[dict[str, Any]]:
    """The groups of published numbers of a paper.

    Raises:
        InputError: If they are not there.
    """
    path = PAPERS / paper / "published.yaml"
    if not path.is_file():
        raise InputError(f"recipe.paper={paper}: {path} is not there; run from a clone of the repository")
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    return groups
