"""The HTML page of a comparison of runs."""

import math
import os
import urllib.parse
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from normscope.reporting.comparison.curve_families import Panel, families, is_percentage
from normscope.reporting.comparison.map_pairs import heatmap_data
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, is_extreme
from normscope.reporting.comparison.swept import short_keys
from normscope.reporting.comparison.verdict import significant, verdict
from normscope.reporting.page.elements import asset, environment, script, script_data, table, table_data, vega
from normscope.rounding import duration
from normscope.statistics.intervals import RESAMPLES, smallest_p

_ROWS = 2_000
"""Rows of a table that the page holds at most."""

_SCRIPTS = (
    "rounding.js",
    "dom.js",
    "inflate.js",
    "charts.js",
    "tables.js",
    "comparison_maps.js",
    "comparison_training.js",
    "comparison.js",
)

_EXTREMES = "-extremes"
"""What the names of tables of minima and maxima end in."""


def comparison_page(comparison: RunComparison, folder: Path) -> str:
    """The page as self-contained HTML.

    Args:
        comparison: The runs, compared.
        folder: Where the page will be, from which it links to the runs' reports.
    """
    training = _training(comparison)
    # Curves of checkpoints are shown over training.
    curves = {} if training and comparison.values["step"].notna().all() else _curves(comparison)
    groups = [name for name in comparison.heatmaps["group"].unique() if name != comparison.baseline_group]
    maps = heatmap_data(comparison.heatmaps, comparison.baseline_group) if groups else {}
    tables = _tables(comparison)
    return (
        environment()
        .get_template("comparison.html")
        .render(
            css=asset("page.css"),
            libraries=vega() if curves or maps or training else "",
            script=script(*_SCRIPTS),
            title=comparison.title,
            verdict=verdict(comparison),
            failures=comparison.failures,
            runs=table(_runs(comparison, folder), "Runs"),
            names=list(tables),
            tables=script_data(tables),
            baseline=comparison.baseline,
            baseline_group=comparison.baseline_group,
            has_means=len(comparison.seed_curves) > 0,
            families=curves,
            curves=script_data(curves) if curves else None,
            training=training,
            training_data=script_data({name: training[name] for name in ("families", "whole")}) if training else None,
            from_zero=bool((comparison.training["step"] == 0).any()),
            maps=script_data(maps) if maps else None,
            map_figures={name: figure["title"] for name, figure in maps.items()},
            map_groups=groups,
            maps_by_depth=any(figure["byDepth"] for figure in maps.values()),
            resamples=RESAMPLES,
            fewest_pairs=FEWEST_PAIRS,
            fewest_unpaired=FEWEST_UNPAIRED,
        )
    )


def _runs(comparison: RunComparison, folder: Path) -> pd.DataFrame:
    """One row per run: a link to its report, what was swept, and the size of the run."""
    facts = comparison.runs
    titles = short_keys(comparison.swept, parts=1) | {"model.name": "model", "dataset.name": "dataset"}
    columns: dict[str, Any] = {"run": pd.Series([_link(run, folder) for run in comparison.folders], dtype=object)}
    columns |= {titles[key]: facts[key] for key in comparison.swept}
    if (facts["status"] != "completed").any():
        columns["status"] = facts["status"]
    columns |= {name: facts[name] for name in ("sequences", "tokens")}
    seconds = pd.to_numeric(facts["seconds"], errors="coerce")
    columns["time"] = ["" if not math.isfinite(number) else duration(number) for number in seconds]
    return pd.DataFrame(columns)


def _link(run: Path, folder: Path) -> Markup:
    """A run's name, as a link if it has a report."""
    report = run / "report.html"
    name = run.resolve().name
    if not report.is_file():
        return escape(name)
    address = urllib.parse.quote(Path(os.path.relpath(report.resolve(), folder.resolve())).as_posix())
    return Markup('<a href="{}">{}</a>').format(address, name)


def _tables(comparison: RunComparison) -> dict[str, Any]:
    """The tables for the page's script, each without minima and maxima, which have tables of their own."""
    whole = {"metrics-table": (comparison.metrics, "Metrics of the runs")}
    if len(comparison.metrics.columns) > 2:
        whole["differences-table"] = (_differences(comparison), f"Metrics minus those of {comparison.baseline}")
    if len(comparison.seeds):
        whole["seeds-table"] = (comparison.seeds, "Means over seeds")
    tables = {}
    for name, (rows, caption) in whole.items():
        extreme = rows["metric"].map(is_extreme).astype(bool)
        tables[name] = table_data(rows[~extreme], caption, limit=_ROWS, digits=9)
        if extreme.any():
            tables[name + _EXTREMES] = table_data(rows[extreme], f"{caption}: minima and maxima", limit=_ROWS, digits=9)
    if len(comparison.crossings):
        tables["crossings-table"] = table_data(
            _shown_crossings(comparison.crossings), "First step beyond the threshold", limit=_ROWS, digits=9
        )
    if len(comparison.tests):
        caption = f"Mean differences from {comparison.baseline_group}"
        tables["tests-table"] = table_data(
            comparison.tests.sort_values("adjusted", kind="stable"), caption, limit=_ROWS, digits=9
        )
    if len(comparison.sequence_tests):
        rows = comparison.sequence_tests.assign(paired=comparison.sequence_tests["paired"].astype(bool))
        rows = rows.sort_values("adjusted", kind="stable")
        caption = f"Differences from {comparison.baseline_group} over sequences"
        at_floor = (rows["p"] <= smallest_p()).tolist()
        tables["sequences-table"] = table_data(
            rows, caption, limit=_ROWS, digits=9, upper_bounds={"p": at_floor, "adjusted": at_floor}
        )
    return tables


def _curves(comparison: RunComparison) -> dict[str, Any]:
    """Curves by family: its title and meaning, and its panels with the lines of every run and of means over seeds."""
    layers = comparison.values[comparison.values["layer"] > 0]
    runs = dict(iter(layers.groupby("metric", sort=False)))
    means = dict(iter(comparison.seed_curves.groupby("metric", sort=False)))
    differing = significant(comparison)
    return {
        key: {
            "title": family.title,
            "meaning": family.meaning,
            "panels": [
                {
                    "title": panel.title,
                    "label": panel.label,
                    "runs": _lines(runs[name], "label", panel.factor),
                    "means": _lines(means[name], "group", panel.factor) if name in means else [],
                    "differs": name in differing,
                }
                for name, panel in family.panels.items()
            ],
        }
        for key, family in families(str(name) for name in layers["metric"].unique()).items()
    }


def _training(comparison: RunComparison) -> dict[str, Any]:
    """Measures over training: metrics of whole models, and curves by family; empty without several steps of a training."""
    rows = comparison.training
    if rows.empty:
        return {}
    layers = rows[rows["layer"] > 0]
    whole = rows[(rows["layer"] == 0) & ~rows["metric"].map(is_extreme).astype(bool)]
    named = families(str(name) for name in rows["metric"].unique())
    panels = {name: panel for family in named.values() for name, panel in family.panels.items()}
    columns = {
        (name, by_layer): _by_training(own, panels[str(name)].factor)
        for (name, by_layer), own in rows.groupby(["metric", rows["layer"] > 0], sort=False)
    }
    titles = {
        name: ": ".join(filter(None, (family.title, panel.title or panel.label))) + _unit_beyond(panel)
        for family in named.values()
        for name, panel in family.panels.items()
    }
    by_layer = families(str(name) for name in layers["metric"].unique())
    return {
        "groups": list(dict.fromkeys(rows["group"])),
        "seeds": bool((rows["runs"] > 1).any()),
        "labels": {name: titles.get(name, name) for name in whole["metric"].unique()},
        "whole": {name: columns[name, False] for name in whole["metric"].unique()},
        "families": {
            key: {
                "title": family.title,
                "meaning": family.meaning,
                "panels": [
                    {"title": panel.title, "label": panel.label, "groups": columns[name, True]}
                    for name, panel in family.panels.items()
                ],
            }
            for key, family in by_layer.items()
        },
    }


def _shown_crossings(crossings: pd.DataFrame) -> pd.DataFrame:
    """Whole steps as such, and only the columns that say something."""
    steps = crossings["step"].dropna()
    shown = crossings.astype({"step": "Int64"}) if (steps == steps.round()).all() else crossings
    return shown.dropna(axis="columns", how="all")


def _unit_beyond(panel: Panel) -> str:
    """The unit of a panel whose title says it, where a label has no room."""
    return " (%)" if panel.title and is_percentage(panel.label) else ""


def _by_training(rows: pd.DataFrame, factor: float) -> dict[str, Any]:
    return {
        str(group): {
            **{name: own[name].astype(int).tolist() for name in ("layer", "step")},
            **{name: _short(factor * own[name]) for name in ("mean", "low", "high")},
        }
        for group, own in rows.groupby("group", sort=False)
    }


def _short(values: "pd.Series[float]") -> list[float | None]:
    return [None if pd.isna(number) else float(f"{number:.6g}") for number in values]


def _lines(rows: pd.DataFrame, label: str, factor: float) -> list[dict[str, Any]]:
    columns = [name for name in ("value", "mean", "low", "high") if name in rows]
    return [
        {
            "label": str(name),
            "layer": line["layer"].astype(int).tolist(),
            "depth": _short(line["depth"]),
            **{"value" if column == "mean" else column: _short(factor * line[column]) for column in columns},
        }
        for name, line in rows.groupby(label, sort=False)
    ]


def _differences(comparison: RunComparison) -> pd.DataFrame:
    numbers = comparison.metrics.drop(columns="metric")
    return pd.concat([comparison.metrics["metric"], numbers.sub(numbers[comparison.baseline], axis=0)], axis=1)
