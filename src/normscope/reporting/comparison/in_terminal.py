"""How a sweep ends in the terminal: its verdict, and the measures in which its runs differ most."""

import pandas as pd

from normscope.reporting.comparison.effects import effect, title
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import is_extreme
from normscope.reporting.comparison.story import stories
from normscope.reporting.comparison.verdict import as_written, significant, verdict
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

    Those of which the verdict tells a story come first, then those that differ beyond noise, then those that have a name in
    words, then the others; each by the size of the largest difference between two runs. Minima and maxima are left out.
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
                title(name) != name,
                effect(name, high, low),
            )
            for name, high, low in zip(map(str, values.index), values.max(axis=1), values.min(axis=1), strict=True)
        ],
        index=values.index,
    )
    order = order.sort_values(list(order.columns), ascending=False, kind="stable")
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
