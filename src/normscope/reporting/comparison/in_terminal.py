"""How a sweep ends in the terminal: its verdict, and the measures in which its runs differ most."""

import pandas as pd

from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import is_extreme
from normscope.reporting.comparison.verdict import as_written, significant, title, verdict
from normscope.reporting.terminal import show_sentence, show_table

_MEASURES, _RUNS = 8, 6
"""Rows and columns of the table at most. More runs are its rows, beside fewer measures."""
_BESIDE = 3


def show(comparison: RunComparison) -> None:
    """Print the verdict in a sentence and one table; nothing for a single run, or if the run is quiet."""
    for sentence in verdict(comparison)[:1]:
        show_sentence(f"{comparison.title}: {sentence}")
        show_table("Measures that differ most", most_different(comparison), 3)


def most_different(comparison: RunComparison) -> pd.DataFrame:
    """The measures that differ most, as they are written: a row for each, or for each run if there are many.

    Those that differ beyond noise come first, the largest differences beside their intervals on top; then those that have a
    name in words; then the others. Ties are ordered by the relative difference between any two runs. Minima and maxima are left
    out.
    """
    values = comparison.metrics.set_index("metric")
    values = values[[not is_extreme(str(metric)) for metric in values.index]]
    tests = pd.concat([comparison.tests, comparison.sequence_tests])
    clear = (tests["difference"].abs() / (tests["high"] - tests["low"])).groupby(tests["metric"]).max()
    clear = clear.reindex(values.index).where(values.index.isin(significant(comparison)), 0.0)
    size = values.abs().max(axis=1)
    relative = ((values.max(axis=1) - values.min(axis=1)) / size.where(size > 0)).fillna(0.0)
    named = pd.Series([title(str(metric)) != metric for metric in values.index], index=values.index)
    order = pd.DataFrame({"clear": clear, "named": named, "relative": relative})
    order = order.sort_values(list(order.columns), ascending=False)
    many = values.shape[1] > _RUNS
    first = values.loc[order.index[: _BESIDE if many else _MEASURES]]
    names = [title(str(metric)) for metric in first.index]
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
