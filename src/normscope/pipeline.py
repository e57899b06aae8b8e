"""The one loop: batch → blocks → analyses → results."""

import contextlib
import dataclasses
import errno
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch

from normscope.accounts import Progress, account, say_absent, say_counts
from normscope.analyses import ANALYSES
from normscope.analyses.analysis import Analysis, Subject
from normscope.analyses.findings import Findings
from normscope.analysis_options import FrequencyOptions
from normscope.checkpoints import Checkpoint, Position
from normscope.checks import check, chosen_categories, chosen_layers
from normscope.data import frequency
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts
from normscope.data.files import TextFile
from normscope.data.frequency import TokenFrequencies
from normscope.data.gold import SEGMENTERS, NumberedCorpus, reference
from normscope.data.sources import open_corpus
from normscope.earlier_runs import FREE
from normscope.errors import InputError, one_line
from normscope.exploration import ExplorerText, chosen_sequences, explored
from normscope.laboratory import ModelLaboratory
from normscope.models.loaded import LoadedModel
from normscope.models.loading import load
from normscope.models.observer import Observer
from normscope.models.verification import verify
from normscope.observation import memory_told, observe
from normscope.processes import World, world
from normscope.reporting.comparison import Comparison, compare, published
from normscope.reporting.explorer import pairs_table
from normscope.reporting.page.report import Report, page
from normscope.reporting.run_folder import RunFolder, Status
from normscope.reporting.terminal import say, show_comparison, show_table
from normscope.reporting.tracking import Tracker, track
from normscope.schema import ModelOptions, ModelStack, RunOptions, enabled_analyses, flat, plain
from normscope.tracking_environment import with_environment

log = logging.getLogger("normscope")

# What a disk says that is full, or may not be written to.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def run(options: RunOptions, folder: Path, command: str = "") -> dict[str, float]:
    """Run the chosen analyses over the corpus and leave everything that was found in a folder.

    Args:
        options: The whole config.
        folder: The run folder; made if it is not there.
        command: What the user typed, to be told where the results are.

    Returns:
        The metrics; empty in all processes but the first, where there are several.

    Raises:
        InputError: If the input is bad. Before the first batch has been read nothing is written.
    """
    with world() as processes:
        return _run(options, folder, command, processes)


def _run(options: RunOptions, folder: Path, command: str, processes: World) -> dict[str, float]:
    check(options)
    started = time.monotonic()
    if options.resume is not None and processes.size > 1:
        raise InputError(
            f"resume={options.resume}: several processes cannot go on with a run; start it without torchrun"
        )
    results = RunFolder(folder, resumed=options.resume is not None)
    if options.recipe.paper is not None:
        published(options.recipe.paper)  # that it is not there must not be found out after the run
    torch.manual_seed(options.seed)
    chosen = [ANALYSES[name] for name in enabled_analyses(options.analysis)]
    aligning = any(kind.crossing_only for kind in chosen)
    if aligning:
        options.model.stack = ModelStack.cross
    device = processes.own_device(options.device)
    model = dataclasses.replace(load(_trained(options.model), device), name=options.model.name)
    verification = verify(model.model, model.layout, model.name)
    layers = chosen_layers(options.layers, model.layers)
    encoder = Encoder(model, options.dataset, SEGMENTERS[options.analysis.alignment.words] if aligning else None)
    categories = chosen_categories(options.categories, [*encoder.categories.names, ALL])
    corpus = NumberedCorpus(open_corpus(options.dataset))
    for kind in chosen:
        if model.layout.crosses and not kind.crossing:
            raise InputError(
                f"analysis={kind.name} does not look at cross-attention; set model.stack=encoder or decoder, or choose of "
                f"{', '.join(name for name, other in ANALYSES.items() if other.crossing)}"
            )
    hidden = range(model.layers + 1) if any(kind.hidden for kind in chosen) else ()
    observer = Observer(model.model, model.layout, layers, hidden)
    subject = Subject(
        layers=layers,
        categories=categories,
        parameters=observer.parameters,
        hidden_norms=observer.hidden_norms,
        methods=model.layout.methods,
        content_only=not model.layout.registry,
        depth=model.layers,
        outliers=options.analysis.outliers,
        names=encoder.categories.names,
        special_tokens=encoder.categories.special,
        token=lambda token: str(model.tokenizer.convert_ids_to_tokens(token)),
        reference=lambda wanted: reference(open_corpus(dataclasses.replace(options.dataset, limit=None)), wanted),
        frequencies=lambda wanted: _frequencies(wanted, options, encoder, model.vocabulary),
    )

    def new() -> list[Analysis]:
        return [kind(getattr(options.analysis, kind.name), subject) for kind in chosen]

    analyses = new()
    laboratory = ModelLaboratory(model, encoder, layers, options.device.batch_tokens)
    explorer = _chosen(options, encoder, len(layers))
    counts = CorpusCounts()
    stream = processes.batches(corpus.examples(), encoder, options.device.batch_tokens, counts)
    if processes.size == 1:
        stream = _not_empty(stream, options, counts)
    total = corpus.total if processes.size == 1 else None  # a share's is not known
    progress = Progress(started, counts, model, verification, command)
    if processes.first:
        say(
            f"{model.name}: {model.layers} layers on {model.device}, {model.dtype}".replace("torch.", ""),
            f"verified to {verification.error:.1e}",
        )
    if not processes.first:
        with memory_told(options.device.batch_tokens, model.device):
            observe(observer, model.device, analyses, stream, total, counts)
        processes.gather(analyses, counts, [])
        return {}
    options.tracking = with_environment(options.tracking)
    results.create(options)
    try:
        checkpoint = None
        if processes.size == 1:
            checkpoint = Checkpoint(folder, _identity(options, model), options.checkpoint.every_seconds)
        with memory_told(options.device.batch_tokens, model.device), track(options, folder) as tracker:
            position = Position() if checkpoint is None else checkpoint.resume(analyses, stream)
            if position.batches:
                say(f"going on after {position.batches:,} batches")
            observe(observer, model.device, analyses, stream, total, counts, checkpoint, position)
            processes.gather(analyses, counts, [new() for _ in range(processes.size - 1)])
            if not counts.used:
                raise _nothing(options, counts)
            say_counts(counts, encoder)
            if not aligning or len(chosen) > 1:
                say_absent(categories, counts)
            for analysis in analyses:
                analysis.experiment(laboratory)
            findings = {analysis.name: analysis.findings() for analysis in analyses}
            metrics = _write(findings, results, tracker, depth=model.layers)
            comparison = _compare(options, metrics, findings, results, tracker)
            sentences, not_shown = explored(model, encoder, explorer, layers)
            if not_shown:
                say(f"explorer: {'; '.join(not_shown)}")
            if sentences:
                table = pairs_table(sentences)
                tracker.table("explorer_pairs", table, results.write_table("explorer_pairs", table))
            facts = account(progress, options)
            if options.report.enabled:
                report = Report(options, findings, facts, comparison, sentences, not_shown)
                tracker.page("report", results.write_page("report.html", page(report, folder)))
            tracker.summary(metrics, facts)
    except BaseException as error:
        status = Status.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Status.FAILED
        refused = isinstance(error, OSError) and error.errno in _REFUSED
        with contextlib.suppress(*([OSError] if refused else [])):
            results.finish(status, {}, account(progress, options), error=error)
        results.release()
        if refused:
            raise InputError(
                f"output_dir={folder}: cannot be written to: {one_line(error)}; make room, and go on with resume={folder}"
            ) from error
        raise
    results.finish(Status.COMPLETED, metrics, facts)
    if checkpoint is not None:
        checkpoint.remove()
    results.release()
    for name, found in findings.items():
        show_table(name, found.summary, found.summary_digits)
    # Analyses may have the same to say.
    for note in dict.fromkeys(note for found in findings.values() for note in found.notes):
        say(note)
    if comparison is not None:
        show_comparison(comparison)
    say(f"results in {folder}" + (f"; open {folder / 'report.html'}" if options.report.enabled else ""))
    return metrics


def _trained(options: ModelOptions) -> ModelOptions:
    """Where the model is, once it is there."""
    if not options.toy:
        return options
    from normscope.translation.toy import toy_model  # the trainer takes seconds to import

    return dataclasses.replace(options, name=str(toy_model(options.seed, say)))


def _frequencies(wanted: FrequencyOptions, options: RunOptions, encoder: Encoder, vocabulary: int) -> TokenFrequencies:
    if wanted.path is not None:
        found = frequency.read(Path(wanted.path).expanduser(), vocabulary)
    elif wanted.source == "corpus":
        found = frequency.counted(open_corpus(options.dataset).examples(), encoder, vocabulary)
    else:
        text = TextFile(
            Path(wanted.source).expanduser(),
            options.dataset.text_column,
            options.dataset.pair_column,
            options.dataset.header,
            key="analysis.frequency.source",
        )
        found = frequency.counted(text.examples(), encoder, vocabulary)
    return frequency.conventional(found, encoder) if wanted.conventional else found


def _identity(options: RunOptions, model: LoadedModel) -> dict[str, object]:
    """What must not have changed when a run goes on."""
    config = {key: value for key, value in flat(plain(options)).items() if key.split(".")[0] not in FREE}
    return config | {"the model's weights": model.weights_sha256, "torch": torch.__version__}


def _chosen(options: RunOptions, encoder: Encoder, layers: int) -> list[ExplorerText]:
    if not options.report.enabled or not (options.report.examples or options.report.text):
        return []
    return chosen_sequences(open_corpus(options.dataset), encoder, options.report, layers)


def _not_empty(
    stream: Iterator[tuple[Batch, bool]], options: RunOptions, counts: CorpusCounts
) -> Iterator[tuple[Batch, bool]]:
    """The stream, once its first batch has shown that there is one."""
    first = next(stream, None)
    if first is None:
        raise _nothing(options, counts)

    def whole() -> Iterator[tuple[Batch, bool]]:
        yield first
        yield from stream

    return whole()


def _nothing(options: RunOptions, counts: CorpusCounts) -> InputError:
    where = options.dataset.path or options.dataset.kind
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in counts.skipped.items()) or "it has no rows"
    return InputError(f"dataset {where}: no usable example ({reasons}); check dataset.path and dataset.text_column")


def _write(findings: dict[str, Findings], results: RunFolder, tracker: Tracker, depth: int) -> dict[str, float]:
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


def _compare(
    options: RunOptions,
    metrics: dict[str, float],
    findings: dict[str, Findings],
    results: RunFolder,
    tracker: Tracker,
) -> Comparison | None:
    if options.recipe.paper is None:
        return None
    tables = {f"{name}_{table}": rows for name, found in findings.items() for table, rows in found.tables.items()}
    comparison = compare(options.recipe.paper, metrics, tables, plain(options))
    if len(comparison.table):
        path = results.write_table("comparison", comparison.table)
        tracker.table("comparison", comparison.table, path)
    return comparison
