"""Joins the results of a run's analyses."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from normscope.results.declare import Declared
from normscope.results.figures import Figure
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up

CURVES = "curves"
"""The shared table with what is measured by layer."""
SEQUENCES = "sequences"
"""The shared table with the means of single sequences, which comparisons of runs resample."""

_SEQUENCES = ["metric", "sequence", "count", "value"]


def rolled_up(name: str, declared: Declared, part: Result) -> Result:
    """The part of an analysis, with the declared numbers and curves if it has not rolled up any itself.

    If the part has no summary of its own, these numbers are the summary.
    """
    if part.metrics or part.curves:
        return part
    rolled = roll_up(declared, part.tables)
    words = {metric: declared.panel(metric).words for metric in rolled.metrics}
    numbers = pd.DataFrame({"value": rolled.metrics}).rename(index=words).rename_axis("measure")
    summaries = part.summaries or ({name: Summary(numbers)} if rolled.metrics else {})
    return dataclasses.replace(part, metrics=rolled.metrics, curves=rolled.curves, summaries=summaries)


def joined(parts: Mapping[str, Result], depth: int) -> Result:
    """The parts of several analyses as one result, in which every name starts with the name of its analysis.

    The tables that all analyses share come last: `curves`, then `sequences` unless empty.

    Args:
        parts: What each analysis has returned, by its name.
        depth: Number of layers of the model.
    """
    curves = {f"{name}/{curve}": values for name, part in parts.items() for curve, values in part.curves.items()}
    figures = {f"{name}_{figure}": each for name, part in parts.items() for figure, each in part.figures.items()}
    sequences = _sequences(parts)
    return Result(
        tables={
            **{
                f"{name}_{table}": rows
                for name, part in parts.items()
                for table, rows in part.tables.items()
                if table != SEQUENCES
            },
            CURVES: tidy_curves(curves, depth),
            **({SEQUENCES: sequences} if len(sequences) else {}),
        },
        metrics={f"{name}/{metric}": value for name, part in parts.items() for metric, value in part.metrics.items()},
        curves=curves,
        figures=figures,
        sentences=[_named(name, sentence) for name, part in parts.items() for sentence in part.sentences],
        notes=list(dict.fromkeys(note for part in parts.values() for note in part.notes)),
        summaries={name: summary for part in parts.values() for name, summary in part.summaries.items()},
    )


def _named(name: str, text: str) -> Sentence:
    """A sentence with the full names of what shows it."""
    sentence = Sentence.of(text)
    figure, table = (link and f"{name}_{link}" for link in (sentence.figure, sentence.table))
    return sentence.but(analysis=name, figure=figure, table=table)


def tidy_curves(curves: Mapping[str, "pd.Series[float]"], depth: int) -> pd.DataFrame:
    """Values by layer and by relative depth, so that models of different depth can be compared."""
    rows = [
        (name, int(layer), int(layer) / depth, float(value))
        for name, values in curves.items()
        for layer, value in zip(values.index.tolist(), values.tolist(), strict=True)
    ]
    return pd.DataFrame(rows, columns=["curve", "layer", "depth", "value"])


def tidy_sequences(means: pd.DataFrame) -> pd.DataFrame:
    """Means of single sequences as the table `sequences` of an analysis: one row per metric and sequence.

    Args:
        means: The columns `sequence` (a number that depends only on the tokens), `count` (number of terms) and one per metric,
            which is the mean of its column weighted by the counts.
    """
    metrics = [str(name) for name in means if name not in ("sequence", "count")]
    tables = [means[["sequence", "count"]].assign(metric=name, value=means[name]) for name in metrics]
    return pd.concat(tables, ignore_index=True)[_SEQUENCES] if tables else pd.DataFrame(columns=_SEQUENCES)


def _sequences(parts: Mapping[str, Result]) -> pd.DataFrame:
    """The means of single sequences, of all analyses."""
    tables = [
        part.tables[SEQUENCES].assign(metric=f"{name}/" + part.tables[SEQUENCES]["metric"])
        for name, part in parts.items()
        if SEQUENCES in part.tables
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=_SEQUENCES)


# Special tokens and punctuation marks are words of their own, and still called tokens.
_TOKEN = re.compile(r"(?<![Ss]pecial )(?<!mask )(?<!punctuation )(?<!\])(?<!\] )\b(T|t)oken")

_TEXTS = ("caption", "value_label", "x_label", "y_label")
"""The fields of figures that readers see. Titles of panels stay: comparisons of runs know panels by them."""


def about_words(part: Result) -> Result:
    """The part of an analysis that has measured words: sentences, captions and labels say `word` where they say `token`."""
    return dataclasses.replace(
        part,
        sentences=[Sentence.of(text).but(_of_words(text)) for text in part.sentences],
        notes=[_of_words(note) for note in part.notes],
        summaries={name: _summary_of_words(summary) for name, summary in part.summaries.items()},
        figures={name: _figure_of_words(figure) for name, figure in part.figures.items()},
    )


def _summary_of_words(summary: Summary) -> Summary:
    table = summary.table.rename(columns=lambda name: _of_words(str(name)))
    return dataclasses.replace(summary, table=table, caption=_of_words(summary.caption))


def _figure_of_words(figure: Figure) -> Figure:
    texts: dict[str, Any] = {
        name: _of_words(text) for name in _TEXTS if (text := getattr(figure, name, None)) is not None
    }
    return dataclasses.replace(figure, **texts)


def _of_words(text: str) -> str:
    return _TOKEN.sub(lambda found: "Word" if found[1] == "T" else "word", text)
