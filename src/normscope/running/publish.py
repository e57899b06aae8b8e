"""Results into the run folder, the tracker and the terminal."""

from pathlib import Path

import pandas as pd

from normscope.analyses.findings import Findings
from normscope.config.schema import RunOptions, plain
from normscope.reporting.explorer import pairs_table
from normscope.reporting.page.report import Report, page
from normscope.reporting.published import Comparison, compare
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say, show_comparison, show_table
from normscope.reporting.tracking import Tracker
from normscope.running.provenance import account
from normscope.running.session import Job
from normscope.running.token_maps import token_maps


def publish_findings(
    findings: dict[str, Findings], results: RunFolder, tracker: Tracker, depth: int
) -> dict[str, float]:
    """Write tables, figures and curves of all analyses; returns their metrics, with the analysis's name in front."""
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
    results.write_table("curves", _tidy(curves, depth))
    return metrics


def _tidy(curves: dict[str, "pd.Series[float]"], depth: int) -> pd.DataFrame:
    """Values by layer, and by how deep in the model the layer is, so that models of different depth can be compared."""
    return pd.DataFrame(
        {"curve": name, "layer": int(layer), "depth": int(layer) / depth, "value": float(value)}
        for name, values in curves.items()
        for layer, value in zip(values.index.tolist(), values.tolist(), strict=True)
    )


def publish_comparison(
    options: RunOptions,
    metrics: dict[str, float],
    findings: dict[str, Findings],
    results: RunFolder,
    tracker: Tracker,
) -> Comparison | None:
    """Write how the metrics compare with a paper's, where a recipe names one."""
    if options.recipe.paper is None:
        return None
    tables = {f"{name}_{table}": rows for name, found in findings.items() for table, rows in found.tables.items()}
    comparison = compare(options.recipe.paper, metrics, tables, plain(options))
    if len(comparison.table):
        path = results.write_table("comparison", comparison.table)
        tracker.table("comparison", comparison.table, path)
    return comparison


def publish_pages(
    job: Job,
    findings: dict[str, Findings],
    comparison: Comparison | None,
    results: RunFolder,
    tracker: Tracker,
) -> dict[str, object]:
    """Write the explorer's table and the report; returns what the run says of itself."""
    sentences, not_shown = token_maps(job.model, job.encoder, job.explorer, job.layers)
    if not_shown:
        say(f"explorer: {'; '.join(not_shown)}")
    if sentences:
        table = pairs_table(sentences)
        tracker.table("explorer_pairs", table, results.write_table("explorer_pairs", table))
    facts = account(job.progress, job.options)
    if job.options.report.enabled:
        report = Report(job.options, findings, facts, comparison, sentences, not_shown)
        with results.writing():  # the page shows the figures, which it reads from the folder
            content = page(report, results.path)
        tracker.page("report", results.write_page("report.html", content))
    return facts


def say_results(
    options: RunOptions, findings: dict[str, Findings], comparison: Comparison | None, folder: Path
) -> None:
    """Print what was found, and where the rest of it is."""
    for name, found in findings.items():
        show_table(name, found.summary, found.summary_digits)
    # Analyses may have the same to say.
    for note in dict.fromkeys(note for found in findings.values() for note in found.notes):
        say(note)
    if comparison is not None:
        show_comparison(comparison)
    say(f"results in {folder}" + (f"; open {folder / 'report.html'}" if options.report.enabled else ""))
