"""From the accumulated state of the analyses to their findings."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from normscope.analyses.findings import Figure, Findings, HeatmapGrid, HeatmapPanels, Sentence
from normscope.data.categories import ALL
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.models.interventions import InterventionRunner
from normscope.results.declare import Published
from normscope.results.rollups import roll_up
from normscope.running.phases import Phase
from normscope.running.run import Run, require_examples

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Wraps an iterable in a progress bar, given its length and a title."""


def conclude(run: Run) -> dict[str, Findings]:
    """Run the interventions of the analyses, and return their findings by name.

    Raises:
        InputError: If there was nothing to analyse, or a number is not finite.
    """
    require_examples(run, run.counts)
    missing_categories(run)
    run.phases.begin(Phase.INTERVENTIONS)
    runner = runner_of(run, run.phases.steps)
    for analysis in run.plan.analyses:
        analysis.intervene(runner)
    run.phases.begin(Phase.RESULTS)
    findings = {
        analysis.info.name: with_rollups(analysis.info.published, analysis.result()) for analysis in run.plan.analyses
    }
    if note := run.plan.encoder.batching.note:
        findings = {name: dataclasses.replace(each, notes=[*each.notes, note]) for name, each in findings.items()}
    if run.plan.options.level is Level.word:
        return {name: about_words(of_analysis) for name, of_analysis in findings.items()}
    return findings


def with_rollups(published: Published, findings: Findings) -> Findings:
    """Findings, completed by the declared numbers and curves that the analysis has not rolled up itself.

    If the analysis has neither numbers nor a summary of its own, the rolled-up numbers are the summary.
    """
    rolled = roll_up(published, {**findings.tables, **findings.rolled_up_from})
    own = len(findings.summary) or findings.metrics
    return dataclasses.replace(
        findings,
        metrics=rolled.metrics | dict(findings.metrics),
        curves=rolled.curves | dict(findings.curves),
        summary=findings.summary if own else pd.DataFrame({"value": rolled.metrics}).rename_axis("metric"),
    )


def runner_of(run: Run, progress: Progress = lambda steps, _total, _title: steps) -> InterventionRunner:
    """What runs the model again for the analyses of a run."""
    batch_tokens = run.plan.options.device.batch_tokens
    return InterventionRunner(run.plan.model, run.plan.encoder, run.plan.layers, batch_tokens, progress)


def missing_categories(run: Run) -> list[str]:
    """The reported categories that do not occur in the corpus; tables have no rows for them.

    Raises:
        InputError: If none of them occurs.
    """
    if all(analysis.info.requires_cross_attention for analysis in run.plan.analyses):
        return []
    categories = run.plan.categories
    missing = [category for category in categories if category != ALL and not run.counts.categories[category]]
    if len(missing) == len(categories):
        raise InputError(f"categories=[{','.join(categories)}]: no token of these categories occurs in the corpus")
    return missing


def tables_of(findings: Mapping[str, Findings]) -> dict[str, pd.DataFrame]:
    """The tables of all analyses, each prefixed with the name of its analysis."""
    return {f"{name}_{table}": rows for name, result in findings.items() for table, rows in result.tables.items()}


def metrics_of(findings: Mapping[str, Findings]) -> dict[str, float]:
    """The metrics of all analyses, each prefixed with the name of its analysis."""
    return {f"{name}/{metric}": value for name, result in findings.items() for metric, value in result.metrics.items()}


def curves_of(findings: Mapping[str, Findings]) -> "dict[str, pd.Series[float]]":
    """The curves of all analyses, each prefixed with the name of its analysis."""
    return {f"{name}/{curve}": values for name, result in findings.items() for curve, values in result.curves.items()}


def tidy_curves(curves: Mapping[str, "pd.Series[float]"], depth: int) -> pd.DataFrame:
    """Values by layer and by relative depth, so that models of different depth can be compared."""
    rows = [
        (name, int(layer), int(layer) / depth, float(value))
        for name, values in curves.items()
        for layer, value in zip(values.index.tolist(), values.tolist(), strict=True)
    ]
    return pd.DataFrame(rows, columns=["curve", "layer", "depth", "value"])


def tables_of_all(findings: Mapping[str, Findings], depth: int) -> dict[str, pd.DataFrame]:
    """The tables that all analyses share: `curves`, and `sequences` and `heatmaps` unless they are empty."""
    others = {"sequences": tidy_sequences(findings), "heatmaps": tidy_heatmaps(findings)}
    return {"curves": tidy_curves(curves_of(findings), depth)} | {
        name: table for name, table in others.items() if len(table)
    }


def tidy_sequences(findings: Mapping[str, Findings]) -> pd.DataFrame:
    """The means of single sequences: one row per metric and sequence."""
    tables = [
        result.by_sequence[["sequence", "count"]].assign(metric=f"{name}/{metric}", value=result.by_sequence[metric])
        for name, result in findings.items()
        for metric in result.by_sequence.columns.difference(["sequence", "count"], sort=False)
    ]
    return pd.concat(tables, ignore_index=True)[_SEQUENCES] if tables else pd.DataFrame(columns=_SEQUENCES)


def tidy_heatmaps(findings: Mapping[str, Findings]) -> pd.DataFrame:
    """The cells of all heat maps, so that comparisons of runs can subtract them: one row per figure, panel and cell."""
    tables = [
        panel.assign(figure=f"{name}/{figure_name}")
        for name, result in findings.items()
        for figure_name, figure in result.figures.items()
        for panel in _panels(figure)
    ]
    return pd.concat(tables, ignore_index=True)[_HEATMAPS] if tables else pd.DataFrame(columns=_HEATMAPS)


_SEQUENCES = ["metric", "sequence", "count", "value"]
_HEATMAPS = ["figure", "panel", "row", "column", "value", "row_title", "column_title", "value_title"]


def _panels(figure: Figure) -> Iterator[pd.DataFrame]:
    match figure:
        case HeatmapPanels():
            for key, title in figure.panel_titles.items():
                rows = figure.table[figure.table[figure.panel].astype(str) == str(key)]
                yield _cells(rows, figure, figure.value, title, figure.value_label)
        case HeatmapGrid():
            for name, rows in figure.rows_of_panels():
                for value, title in figure.values.items():
                    panel = f"{title}, {name}" if name else title
                    yield _cells(rows, figure, value, panel, figure.value_label or title)


def _cells(rows: pd.DataFrame, figure: HeatmapPanels | HeatmapGrid, value: str, panel: str, title: str) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "panel": panel,
            "row": rows[figure.row].astype(str),
            "column": rows[figure.column].astype(str),
            "value": rows[value].astype(float),
            "row_title": figure.row,
            "column_title": figure.column,
            "value_title": title,
        }
    )


# Special tokens and punctuation marks are words of their own, and still called tokens.
_TOKEN = re.compile(r"(?<![Ss]pecial )(?<!mask )(?<!punctuation )(?<!\])(?<!\] )\b(T|t)oken")


_TEXTS = ("caption", "value_label", "x_label", "y_label")
"""The fields of figures that readers see. Titles of panels stay: comparisons of runs know panels by them."""


def about_words(findings: Findings) -> Findings:
    """The findings of an analysis that has measured words: sentences, captions and labels say `word` where they say `token`."""
    sentences = [
        Sentence(
            _of_words(text),
            figure=text.figure,
            table=text.table,
            measure=text.measure,
            surprising=text.surprising,
        )
        if isinstance(text, Sentence)
        else _of_words(text)
        for text in findings.sentences
    ]
    return dataclasses.replace(
        findings,
        sentences=sentences,
        notes=[_of_words(note) for note in findings.notes],
        summary=findings.summary.rename(columns=lambda name: _of_words(str(name))),
        summary_caption=_of_words(findings.summary_caption),
        figures={name: _figure_of_words(figure) for name, figure in findings.figures.items()},
    )


def _figure_of_words(figure: Figure) -> Figure:
    texts: dict[str, Any] = {
        name: _of_words(text) for name in _TEXTS if (text := getattr(figure, name, None)) is not None
    }
    return dataclasses.replace(figure, **texts)


def _of_words(text: str) -> str:
    return _TOKEN.sub(lambda found: "Word" if found[1] == "T" else "word", text)
