"""Findings to files, tracker, page and terminal."""

import dataclasses
from collections.abc import Mapping

import pandas as pd

from normscope.analyses.findings import Findings
from normscope.config.schema import RunOptions, plain
from normscope.data.categories import ALL
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError
from normscope.models.interventions import InterventionRunner
from normscope.reporting.explorer import pairs_table
from normscope.reporting.page.report import Report, page
from normscope.reporting.published import Comparison, compare
from normscope.reporting.run_folder import RunFolder, Status
from normscope.reporting.terminal import say, show_comparison, show_table, steps_bar
from normscope.reporting.tracking import Tracker
from normscope.running.memory import explain_out_of_memory
from normscope.running.session import Session, no_usable_example
from normscope.running.token_maps import token_maps


def publish(session: Session, results: RunFolder, tracker: Tracker) -> "Publication":
    """Turn what analyses have accumulated into findings, and write them to the run folder and the tracker.

    Raises:
        InputError: If the corpus had nothing to analyse, its numbers cannot be right, or the folder cannot be written to.
    """
    with explain_out_of_memory(session.options.device.batch_tokens, session.model.device):
        findings = _findings(session)
        metrics = _write_findings(findings, results, tracker, session.model.layers)
        comparison = _compare(session.options, metrics, findings, results, tracker)
        facts = _write_page(session, findings, comparison, results, tracker)
    tracker.summary(metrics, facts)
    return Publication(session, results, findings, comparison, metrics, facts)


@dataclasses.dataclass(frozen=True)
class Publication:
    """What a run has published. Once the tracker has ended, the run is complete."""

    session: Session
    results: RunFolder
    findings: Mapping[str, Findings]
    comparison: Comparison | None
    metrics: dict[str, float]
    facts: Mapping[str, object]

    def complete(self) -> dict[str, float]:
        """Record that the run has completed, and print the closing tables; returns the metrics."""
        self.results.finish(Status.COMPLETED, self.metrics, self.facts)
        if self.session.checkpoint is not None:
            self.session.checkpoint.remove()
        for name, found in self.findings.items():
            show_table(name, found.summary, found.summary_digits)
        # Several analyses may have the same note.
        for note in dict.fromkeys(note for found in self.findings.values() for note in found.notes):
            say(note)
        if self.comparison is not None:
            show_comparison(self.comparison)
        page_hint = f"; open {self.results.path / 'report.html'}" if self.session.options.report.enabled else ""
        say(f"results in {self.results.path}{page_hint}")
        return self.metrics


def _findings(session: Session) -> dict[str, Findings]:
    if not session.counts.used:
        raise no_usable_example(session.options, session.counts)
    _show_counts(session)
    runner = InterventionRunner(
        session.model, session.encoder, session.layers, session.options.device.batch_tokens, steps_bar
    )
    for analysis in session.analyses:
        analysis.intervene(runner)
    return {analysis.info.name: analysis.result() for analysis in session.analyses}


def _show_counts(session: Session) -> None:
    """How much was read, what was skipped, and which categories are missing."""
    counts = session.counts
    tokens = ", ".join(f"{number:,} {category}" for category, number in counts.categories.items() if number)
    say(f"{counts.sequences:,} sequences, {counts.tokens:,} tokens: {tokens}")
    if counts.cut:
        longest = session.encoder.max_length
        say(f"{counts.cut:,} of them were longer than {longest} tokens and were cut (dataset.max_length)")
    for reason, number in counts.skipped.items():
        say(f"{number:,} examples were skipped: {reason}")
    if not all(analysis.info.requires_cross_attention for analysis in session.analyses):
        _show_missing_categories(session.categories, counts)


def _show_missing_categories(categories: list[str], counts: CorpusCounts) -> None:
    """Name the categories without a token: the tables have no rows of them.

    Raises:
        InputError: If that is all of them.
    """
    missing = [category for category in categories if category != ALL and not counts.categories[category]]
    if len(missing) == len(categories):
        raise InputError(f"categories=[{','.join(categories)}]: no token of these in the corpus")
    if missing:
        say(f"no token of category {', '.join(missing)} in the corpus: the tables have no rows of it")


def _write_findings(
    findings: Mapping[str, Findings], results: RunFolder, tracker: Tracker, depth: int
) -> dict[str, float]:
    """Write tables, figures and curves; returns the metrics, each with the name of its analysis in front."""
    metrics: dict[str, float] = {}
    curves: dict[str, pd.Series] = {}
    for name, found in findings.items():
        for table_name, table in found.tables.items():
            path = results.write_table(f"{name}_{table_name}", table)
            tracker.table(f"{name}_{table_name}", table, path)
        for figure_name, figure in found.figures.items():
            picture = results.write_figure(f"{name}_{figure_name}", figure)
            tracker.figure(f"{name}_{figure_name}", picture, figure.caption)
        metrics |= {f"{name}/{metric}": value for metric, value in found.metrics.items()}
        curves |= {f"{name}/{curve}": values for curve, values in found.curves.items()}
    tracker.curves(curves)
    results.write_table("curves", _tidy_curves(curves, depth))
    return metrics


def _tidy_curves(curves: Mapping[str, "pd.Series[float]"], depth: int) -> pd.DataFrame:
    """Values by layer, and by relative depth of the layer, so that models of different depth can be compared."""
    return pd.DataFrame(
        {"curve": name, "layer": int(layer), "depth": int(layer) / depth, "value": float(value)}
        for name, values in curves.items()
        for layer, value in zip(values.index.tolist(), values.tolist(), strict=True)
    )


def _compare(
    options: RunOptions,
    metrics: Mapping[str, float],
    findings: Mapping[str, Findings],
    results: RunFolder,
    tracker: Tracker,
) -> Comparison | None:
    """Compare with the published numbers of the preset's paper, if there is one."""
    if options.recipe.paper is None:
        return None
    tables = {f"{name}_{table}": rows for name, found in findings.items() for table, rows in found.tables.items()}
    comparison = compare(options.recipe.paper, metrics, tables, plain(options))
    if len(comparison.table):
        path = results.write_table("comparison", comparison.table)
        tracker.table("comparison", comparison.table, path)
    return comparison


def _write_page(
    session: Session,
    findings: Mapping[str, Findings],
    comparison: Comparison | None,
    results: RunFolder,
    tracker: Tracker,
) -> dict[str, object]:
    """Write the token maps and the report; returns the facts of the run."""
    sentences, left_out = token_maps(session.model, session.encoder, session.texts, session.layers)
    if left_out:
        say(f"explorer: {'; '.join(left_out)}")
    if sentences:
        table = pairs_table(sentences)
        tracker.table("explorer_pairs", table, results.write_table("explorer_pairs", table))
    facts = session.provenance.facts()
    if session.options.report.enabled:
        report = Report(session.options, findings, facts, comparison, sentences, left_out)
        with results.writing():  # the page contains the figures, which it reads from the folder
            content = page(report, results.path)
        tracker.page("report", results.write_page("report.html", content))
    return facts
