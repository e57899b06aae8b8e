"""Findings to files, tracker, page and terminal."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from normscope.analyses.findings import Findings
from normscope.config.sections import plain
from normscope.data.batching import Batch
from normscope.reporting.appearance import Appearance
from normscope.reporting.drawing import drawn
from normscope.reporting.earlier_runs import Status
from normscope.reporting.explorer import TokenMaps, pairs_table
from normscope.reporting.figure_text import caption_of
from normscope.reporting.page.report import Report, page
from normscope.reporting.published import Comparison, compare
from normscope.reporting.run_description import dataset_label
from normscope.reporting.run_facts import lost
from normscope.reporting.run_folder import REPORT, RunFolder, results_content
from normscope.reporting.terminal import say, show_comparison, show_findings
from normscope.reporting.weights_and_biases import Tracker
from normscope.rounding import counted
from normscope.running.conclusions import (
    conclude,
    curves_of,
    metrics_of,
    missing_categories,
    runner_of,
    tables_of,
    tables_of_all,
)
from normscope.running.memory import explain_out_of_memory
from normscope.running.phases import Phase
from normscope.running.run import Run
from normscope.running.token_maps import token_maps
from normscope.running.views import counts_of
from normscope.untrusted.writing import write_file


def publish(run: Run, results: RunFolder, tracker: Tracker) -> "Publication":
    """Turn the state of the analyses into findings, and write them to the run folder and the tracker.

    Raises:
        InputError: If there was nothing to analyse, a number is not finite, or the run folder is not writable.
    """
    with explain_out_of_memory(run.plan.options.device.batch_tokens, run.plan.model.device):
        findings = _findings(run)
        maps = _maps(run)
        run.phases.begin(Phase.PUBLISHING)
        results.identity = run.provenance.identity() | {"dataset": dataset_label(run.plan.options.dataset)}
        metrics = _write_findings(findings, results, tracker, run.plan.model.layers)
        with _write_figures(findings, results, tracker, run.plan.look):
            comparison = _compare(run, metrics, findings, results, tracker)
            facts = _write_page(run, findings, comparison, maps, results, tracker)
            tracker.summary(metrics, facts)
    with results.writing():
        files = results.published_files()
    tracker.run_folder(files, results_content(Status.COMPLETED, metrics, facts))
    return Publication(run, results, findings, comparison, metrics, facts)


@dataclasses.dataclass(frozen=True)
class Publication:
    """The published results of a run, which is complete once the tracker has finished."""

    run: Run
    results: RunFolder
    findings: Mapping[str, Findings]
    comparison: Comparison | None
    metrics: dict[str, float]
    facts: Mapping[str, object]

    def complete(self) -> dict[str, float]:
        """Record that the run has completed and print the summary; returns the metrics."""
        self.run.phases.end()
        # With the time that the tracker took to finish.
        self.results.finish(Status.COMPLETED, self.metrics, {**self.facts, **self.run.provenance.times()})
        self.run.remove_checkpoints()
        for name, findings in self.findings.items():
            show_findings(name, findings)
        # Several analyses may have the same note.
        for note in dict.fromkeys(note for findings in self.findings.values() for note in findings.notes):
            say(note)
        if self.comparison is not None:
            show_comparison(self.comparison)
        page_hint = f"; open {self.results.path / REPORT}" if self.run.plan.options.report.enabled else ""
        say(f"results in {self.results.path}{page_hint}")
        return self.metrics


def _findings(run: Run) -> dict[str, Findings]:
    if run.counts.used:
        _show_counts(run)
    return conclude(run)


def _show_counts(run: Run) -> None:
    """Report how much was read, what was skipped, and which categories are missing."""
    for view, counts in zip(run.plan.views, counts_of(run.plan.views, run.counts), strict=True):
        who = "" if view is run.plan.views[0] else f"{view.names}: "
        tokens = ", ".join(f"{number:,} {category}" for category, number in counts.categories.items() if number)
        say(f"{who}{counted(counts.sequences, 'sequence')}, {counted(counts.tokens, 'token')}: {tokens}")
        facts = counts.facts() | ({} if who else {"left_out": run.provenance.left_out})
        for sentence in lost(facts, f"{view.encoder.max_length} tokens (dataset.max_length)"):
            say(f"{who}{sentence}")
    options = run.plan.options
    expects_masks = options.dataset.mask_fraction > 0 or options.categories != "all"
    missing = [category for category in missing_categories(run) if category != "mask" or expects_masks]
    if missing:
        say(f"no token of category {', '.join(missing)} occurs in the corpus: the tables have no rows for it")


def _write_findings(
    findings: Mapping[str, Findings], results: RunFolder, tracker: Tracker, depth: int
) -> dict[str, float]:
    """Write tables and curves; returns the metrics, prefixed with the name of their analysis."""
    for name, result in findings.items():
        for table_name, table in result.tables.items():
            results.write_table(f"{name}_{table_name}", table)
            tracker.table(f"{name}_{table_name}", table)
    tracker.curves(curves_of(findings))
    tracker.findings({name: result.sentences for name, result in findings.items()})
    for table_name, table in tables_of_all(findings, depth).items():
        results.write_table(table_name, table)
    return metrics_of(findings)


@contextlib.contextmanager
def _write_figures(
    findings: Mapping[str, Findings], results: RunFolder, tracker: Tracker, look: Appearance
) -> Iterator[None]:
    """Write figures. The tracker gets PNGs, which are temporary if the config asks for other formats alone."""
    with tempfile.TemporaryDirectory(prefix="normscope-") as temporary:
        for name, result in findings.items():
            for figure_name, figure in result.figures.items():
                full_name = f"{name}_{figure_name}"
                formats = list(dict.fromkeys([*look.formats, *(["png"] if tracker.logs else [])]))
                contents = dict(zip(formats, drawn(figure, formats, look), strict=True))
                files = {
                    extension: results.write(f"figures/{full_name}.{extension}", contents[extension])
                    for extension in look.formats
                }
                if not look.caption:
                    results.write(f"figures/{full_name}.txt", f"{caption_of(figure)}\n".encode())
                if tracker.logs and "png" not in files:
                    with results.writing():
                        files["png"] = write_file(Path(temporary), f"{full_name}.png", contents["png"])
                if tracker.logs:
                    tracker.figure(full_name, files["png"], caption_of(figure))
        yield


def _compare(
    run: Run,
    metrics: Mapping[str, float],
    findings: Mapping[str, Findings],
    results: RunFolder,
    tracker: Tracker,
) -> Comparison | None:
    """Compare with the published numbers of the preset's paper, if there is one."""
    paper = run.plan.options.recipe.paper
    if paper is None:
        return None
    comparison = compare(paper, metrics, tables_of(findings), plain(run.plan.options))
    if len(comparison.table):
        results.write_table("comparison", comparison.table)
        tracker.table("comparison", comparison.table)
    return comparison


def _maps(run: Run) -> tuple[list[TokenMaps], list[str]]:
    """The token maps of the report, and what is left out of them."""
    maps = run.plan.maps
    if not maps.texts:
        return [], []
    run.phases.begin(Phase.MAPS)
    return token_maps(
        run.plan.model,
        run.plan.encoder,
        maps.texts,
        run.plan.layers,
        feed_forward=maps.feed_forward,
        added_maps=maps.added,
        add=_maps_of_analyses(run),
    )


def _maps_of_analyses(run: Run) -> Callable[[Batch], dict[str, np.ndarray]]:
    """Returns the token maps that the analyses have of a batch of one text."""
    runner = runner_of(run)
    return lambda batch: {
        name: values for analysis in run.plan.analyses for name, values in analysis.token_maps(runner, batch).items()
    }


def _write_page(
    run: Run,
    findings: Mapping[str, Findings],
    comparison: Comparison | None,
    maps: tuple[Sequence[TokenMaps], Sequence[str]],
    results: RunFolder,
    tracker: Tracker,
) -> dict[str, object]:
    """Write the token maps and the report; returns the facts of the run."""
    sentences, left_out = maps
    if left_out:
        say(f"token maps: {'; '.join(left_out)}")
    if sentences:
        table = pairs_table(sentences)
        results.write_table("explorer_pairs", table)
        tracker.table("explorer_pairs", table)
    facts = run.provenance.facts()
    if run.plan.options.report.enabled:
        report = Report(plain(run.plan.options), findings, facts, comparison, sentences, left_out)
        tracker.page("report", results.write_page(REPORT, page(report)))
    return facts
