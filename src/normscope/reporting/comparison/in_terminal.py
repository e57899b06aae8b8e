"""A sweep in the terminal: a line for each run, and at the end its verdict and the measures in which its runs differ most."""

import pandas as pd

from normscope.reporting.comparison.along import stories
from normscope.reporting.comparison.effects import effect, of_shares
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import is_extreme
from normscope.reporting.comparison.verdict import as_written, significant, verdict
from normscope.reporting.terminal import show_sentence, show_table
from normscope.results.findings import Summary
from normscope.results.measures import has_curve, leading, metric_title, short_metric_title
from normscope.results.result import Result
from normscope.streams import WIDTH

_MEASURES, _RUNS = 8, 6
"""Rows and columns of the table at most. More runs, or runs with long labels, are its rows, beside fewer measures."""
_BESIDE = 3
_ACROSS = 56
"""Characters of the columns of runs at most."""


def show(comparison: RunComparison) -> None:
    """Print the verdict in a sentence and one table; nothing for a single run, or if the run is quiet."""
    for sentence in verdict(comparison)[:1]:
        show_sentence(f"{comparison.title}: {sentence}")
        heading = "Measures that differ most"
        if _is_of_seeds(comparison):
            heading = "Means over seeds, with their 95% intervals"
        table = most_different(comparison)
        note = of_shares([sentence, *map(str, [*table.index, *table.columns])])
        show_table(f"{heading}. {note}" if note else heading, Summary(table, digits=3))


def line(result: Result) -> str:
    """The headline of one run of several: its leading measure."""
    metric = leading(result.metrics)
    return f"{short_metric_title(metric)} {as_written(metric, result.metrics[metric])}" if metric else "completed"


def most_different(comparison: RunComparison) -> pd.DataFrame:
    """The measures that differ most, as they are written: a row for each, or for each run if there are many.

    Runs that differ in their seeds are one column, with their mean. Where names in words are too long for a line,
    the names of methods are abbreviated.

    Measures with a story in the verdict come first, then those that differ beyond noise, then those that have a curve,
    then the others; within each group, the measure with the largest difference between two runs comes first. Minima and
    maxima are left out.
    """
    values = comparison.metrics.set_index("metric")
    values = values[[not is_extreme(str(metric)) for metric in values.index]]
    told = [story.metric for story in stories(comparison)]
    clear = {*significant(comparison)}
    order = pd.DataFrame(
        [
            (
                -told.index(name) if name in told else -len(told),
                name in clear,
                has_curve(name),
                effect(name, high, low),
            )
            for name, high, low in zip(map(str, values.index), values.max(axis=1), values.min(axis=1), strict=True)
        ],
        index=values.index,
    )
    order = order.sort_values(list(order.columns), ascending=False, kind="stable")
    shown = _over_seeds(comparison) if _all_have_seeds(comparison) else values
    many = shown.shape[1] > _RUNS or sum(len(str(name)) + 2 for name in shown.columns) > _ACROSS
    first = shown.loc[order.index[: _BESIDE if many else _MEASURES]]
    beside = sum(len(str(name)) + 2 for name in shown.columns)
    too_long = not many and any(len(metric_title(str(metric))) + beside > WIDTH for metric in first.index)
    names = [(short_metric_title if too_long else metric_title)(str(metric)) for metric in first.index]
    table = pd.DataFrame(
        [
            ["" if pd.isna(value) else as_written(str(metric), float(value)) for value in row]
            for metric, row in zip(first.index, first.to_numpy(), strict=True)
        ],
        index=[
            name if names.count(name) == 1 else str(metric) for name, metric in zip(names, first.index, strict=True)
        ],
        columns=first.columns,
    )
    return table.T if many else table


def _all_have_seeds(comparison: RunComparison) -> bool:
    """Whether every group of runs has several seeds."""
    return len(comparison.seeds) > 0 and {*comparison.seeds["group"]} == {*comparison.values["group"]}


def _is_of_seeds(comparison: RunComparison) -> bool:
    """Whether the runs differ in nothing but their seeds."""
    return _all_have_seeds(comparison) and comparison.seeds["group"].nunique() == 1


def _over_seeds(comparison: RunComparison) -> pd.DataFrame:
    """Means over seeds: a column for each group of runs, or for the ends of the interval if there is but one."""
    means = comparison.seeds.set_index("metric")
    if not _is_of_seeds(comparison):
        return means.pivot(columns="group", values="mean")[[*means["group"].unique()]]
    return means[["mean", "low", "high"]].rename(columns={"low": "low (95%)", "high": "high (95%)"})
