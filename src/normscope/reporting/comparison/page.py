"""The page of several runs: their verdict, figures and tables."""

import dataclasses
import math
import os
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from normscope.reporting.comparison.along import by_layer, maps_over_steps, over_steps, stories
from normscope.reporting.comparison.changes import (
    changed_maps,
    in_one_line,
    maps_in_one_line,
    unchanged_curves,
    unchanged_over_steps,
)
from normscope.reporting.comparison.effects import of_shares
from normscope.reporting.comparison.map_figures import as_numbers, maps_of_groups, merged_maps
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, is_extreme
from normscope.reporting.comparison.swept import short_keys
from normscope.reporting.comparison.verdict import in_a_line, named_first, verdict
from normscope.reporting.page.elements import table, table_data
from normscope.reporting.page.sections import LONGEST_COMPARED, Folded, Measure, Section, render
from normscope.reporting.run_folder import REPORT
from normscope.results.findings import Sentence
from normscope.results.measures import has_curve, metric_title
from normscope.rounding import counted, duration
from normscope.statistics.intervals import RESAMPLES, smallest_p

_MEANS = "Lines are means over seeds, bands their 95% intervals."
_CROSSINGS = (
    "The first measured step at which a value has crossed the threshold, compared with the first step. The threshold is "
    "half-way between the values at the first and the last step, unless the comparison's command line sets one: "
    "--threshold METRIC=VALUE, with a metric's name from comparison.csv. Layer 0 is the whole model."
)
_SEEDS = "Mean over runs that differ only in their seeds, with its 95% confidence interval (Student’s t)."
_TESTS = (
    "Welch’s t-test of the means over seeds. The adjusted p-values (Benjamini and Hochberg) allow for the number of tests in "
    "this table: of the rows below 0.05, no more than 5% are expected to be false discoveries. Minima and maxima are not "
    "tested."
)
_SEQUENCES = (
    "Means over tokens, with whole sequences as the sample, paired where both groups have the same sequences. Intervals (95%) "
    f"and p-values are those of a studentised bootstrap ({RESAMPLES:,} samples) or of Student’s t, whichever are more "
    "conservative; “≤” marks a p-value that more samples could only lower. p-values are adjusted within this table by the "
    "method of Benjamini and Hochberg. They hold for these weights and allow only for the choice of texts: whether another "
    "training run would show the same difference is a question for several seeds. Groups of several seeds, models with random "
    f"weights and comparisons of fewer than {FEWEST_PAIRS} pairs ({FEWEST_UNPAIRED} sequences each, if they are not paired) "
    "are left out."
)


def comparison_page(comparison: RunComparison, addresses: Mapping[Path, str] = MappingProxyType({})) -> str:
    """The page as self-contained HTML.

    Args:
        comparison: The runs, compared.
        addresses: Where the page finds the reports of runs, by the folders of these.
    """
    sections = [
        *_told(comparison),
        *(section for section in _drawn(comparison) if section.measures or section.remarks),
        Section("tables", "Tables", tables=_tables(comparison)),
        Section("runs", "Runs", content=table(_runs(comparison, addresses), "Runs")),
    ]
    return render(comparison.title, sections)


def _told(comparison: RunComparison) -> list[Section]:
    """The verdict, and the runs that failed."""
    told = []
    if sentences := list(map(Sentence, verdict(comparison))):
        curves = [Measure([story.figure()], id="story") for story in stories(comparison)[:1]] or _named(
            "story", _told_curve(comparison)
        )
        note = of_shares(sentences)
        told.append(Section("verdict", "Verdict", findings=sentences, ordered=True, note=note, measures=curves))
    if comparison.failures:
        told.append(Section("failed", "Failed runs", remarks=comparison.failures))
    return told


def _told_curve(comparison: RunComparison) -> list[Measure]:
    """The curve by layer of the measure that the verdict names first, if it names one that has a curve."""
    values = comparison.values
    curves = by_layer(values[values["metric"] == named_first(comparison)])
    return [dataclasses.replace(measure, title="", values=None) for measure in curves]


def _drawn(comparison: RunComparison) -> list[Section]:
    """The sections with figures; curves of checkpoints are shown over training alone."""
    training = comparison.training
    only_checkpoints = len(training) > 0 and comparison.values["step"].notna().all()
    merged = comparison.sweeps_layers
    values, cells = comparison.values, comparison.heatmaps
    if merged:  # every layer is one of the same model, whichever run has measured it, and counts once for each seed
        values = values.assign(group=comparison.model).drop_duplicates(["metric", "layer", "value"])
    still = [] if merged else unchanged_curves(values)
    layers = [] if only_checkpoints else by_layer(_without(values, still))
    changed = cells if merged else changed_maps(cells)
    maps = merged_maps(cells) if merged else maps_of_groups(changed, comparison.baseline_group)
    typical = training[~training["metric"].map(is_extreme).astype(bool)]
    at_rest = unchanged_over_steps(typical)
    moving = _without(typical, at_rest)
    return [
        Section(
            "training",
            "Over training",
            note=_about_steps(training),
            measures=_named("training", [*over_steps(moving), *maps_over_steps(moving)]),
            remarks=in_one_line(at_rest, every=filter(has_curve, map(str, typical["metric"]))),
            tables=_crossings(comparison.crossings),
        ),
        Section(
            "layers",
            "By layer",
            note=_MEANS if len(comparison.seeds) else "",
            measures=_named("layers", layers),
            shown=2,
            remarks=[] if only_checkpoints else in_one_line(still, every=_curves(values)),
        ),
        Section(
            "maps",
            "Maps",
            note=_about_maps(comparison) if maps and not merged else "",
            measures=_named("maps", maps),
            remarks=[] if merged else maps_in_one_line(cells, changed),
        ),
    ]


def _without(rows: pd.DataFrame, metrics: Collection[str]) -> pd.DataFrame:
    return rows[~rows["metric"].isin(list(metrics))]


def _curves(values: pd.DataFrame) -> list[str]:
    """The measures that have a curve by layer."""
    return list(dict.fromkeys(map(str, values.loc[values["layer"] > 0, "metric"])))


def _named(section: str, measures: Sequence[Measure]) -> list[Measure]:
    """The measures of a section, with names for their elements."""
    return [dataclasses.replace(measure, id=f"{section}_{place}") for place, measure in enumerate(measures)]


def _about_steps(training: pd.DataFrame) -> str:
    start = "step 0" if (training["step"] == 0).any() else "the first checkpoint"
    means = f" {_MEANS}" if (training["runs"] > 1).any() else ""
    return f"Steps are on a logarithmic axis that begins at {start}.{means}"


def _about_maps(comparison: RunComparison) -> str:
    means = "Groups are means over seeds. " if len(comparison.seeds) else ""
    deepest = " Rows are the layers of the deepest model, beside those of the others at the same relative depth."
    return (
        f"{means}All groups of runs on one scale, then how much higher (orange) or lower (purple) the others are than "
        f"{comparison.baseline_group}.{deepest if comparison.heatmaps['depth'].nunique() > 1 else ''}"
    )


def addresses(comparison: RunComparison, folder: Path) -> dict[Path, str]:
    """The reports of the runs, as a page in a folder links to them."""
    return {
        run: urllib.parse.quote(Path(os.path.relpath(report.resolve(), folder.resolve())).as_posix())
        for run in comparison.folders
        if (report := run / REPORT).is_file()
    }


def _runs(comparison: RunComparison, addresses: Mapping[Path, str]) -> pd.DataFrame:
    """One row per run: its name as a link to its report, its leading measure, what was swept, and the size of the run.

    What was swept has no columns of its own if it is the run's name.
    """
    facts = comparison.runs
    titles = short_keys(comparison.swept, parts=1) | {"model.name": "model", "dataset.name": "dataset"}
    link = Markup('<a href="{}">{}</a>')
    # A run that has failed is known by its folder.
    called = [name or run.resolve().name for name, run in zip(facts["label"], comparison.folders, strict=True)]
    names = [
        link.format(addresses[run], name) if run in addresses else escape(name)
        for name, run in zip(called, comparison.folders, strict=True)
    ]
    columns: dict[str, Any] = {"run": pd.Series(names, dtype=object)}
    columns |= {titles[key]: as_numbers(facts[key]) for key in comparison.swept if list(facts[key]) != called}
    columns |= {
        title: [by_label.get(label, "") for label in facts["label"]]
        for title, by_label in in_a_line(comparison).items()
    }
    if (facts["status"] != "completed").any():
        columns["status"] = facts["status"]
    # Results of single texts know neither their number of tokens nor how long they took.
    columns |= {name: facts[name] for name in ("sequences", "tokens") if facts[name].notna().any()}
    seconds = pd.to_numeric(facts["seconds"], errors="coerce")
    if seconds.notna().any():
        columns["time"] = ["" if not math.isfinite(number) else duration(number) for number in seconds]
    return pd.DataFrame(columns)


def _tables(comparison: RunComparison) -> list[Folded]:
    """The tables of all measures, each without minima and maxima, which have tables of their own."""
    whole = {"metrics": (comparison.metrics, "Metrics", "")}
    if len(comparison.metrics.columns) > 2:
        whole["differences"] = (_differences(comparison), f"Metrics minus those of {comparison.baseline}", "")
    if len(comparison.seeds):
        whole["seeds"] = (comparison.seeds, "Means over seeds", _SEEDS)
    folded = []
    for name, (rows, caption, note) in whole.items():
        extreme = rows["metric"].map(is_extreme).astype(bool)
        folded.append(_folded(name, rows[~extreme], caption, note))
        if extreme.any():
            folded.append(_folded(f"{name}_extremes", rows[extreme], f"{caption}: minima and maxima", ""))
    if len(comparison.tests):
        caption = f"Mean differences from {comparison.baseline_group}"
        rows = comparison.tests.sort_values("adjusted", kind="stable")
        folded.append(_folded("tests", rows, caption, _TESTS))
    if len(comparison.sequence_tests):
        rows = comparison.sequence_tests.assign(paired=comparison.sequence_tests["paired"].astype(bool))
        rows = rows.sort_values("adjusted", kind="stable")
        caption = f"Differences from {comparison.baseline_group} over sequences"
        at_floor = (rows["p"] <= smallest_p()).tolist()
        bounds = {"p": at_floor, "adjusted": at_floor}
        folded.append(_folded("sequences", rows, caption, _SEQUENCES, bounds))
    return folded


def _folded(
    name: str,
    rows: pd.DataFrame,
    caption: str,
    note: str,
    upper_bounds: Mapping[str, Sequence[bool]] = MappingProxyType({}),
) -> Folded:
    """A table of measures that is built when it is opened."""
    rows = rows.assign(metric=rows["metric"].map(metric_title)).rename(columns={"metric": "measure"})
    data = table_data(rows, caption, limit=LONGEST_COMPARED, digits=9, upper_bounds=upper_bounds, titled=False)
    return Folded(f"table_{name}", caption, data, counted(len(rows), "row"), note)


def _crossings(crossings: pd.DataFrame) -> list[Folded]:
    """When measures change: whole steps as such, and only the columns that say something."""
    if crossings.empty:
        return []
    steps = crossings["step"].dropna()
    shown = crossings.astype({"step": "Int64"}) if (steps == steps.round()).all() else crossings
    rows = shown.dropna(axis="columns", how="all")
    return [_folded("crossings", rows, "First step beyond the threshold", _CROSSINGS)]


def _differences(comparison: RunComparison) -> pd.DataFrame:
    numbers = comparison.metrics.drop(columns="metric")
    return pd.concat([comparison.metrics["metric"], numbers.sub(numbers[comparison.baseline], axis=0)], axis=1)
