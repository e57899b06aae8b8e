"""A run, from config to results: on disk with all its views, or in memory."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from normscope.analyses.base import Analysis
from normscope.config.schema import plain
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.data.corpora import left_out
from normscope.data.examples import Corpus
from normscope.data.options import DatasetKind, Level
from normscope.errors import InputError, Terminated
from normscope.models.load.interventions import InterventionRunner
from normscope.models.load.loaded import LoadedModel
from normscope.reporting.published import file_of, with_published
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say, say_detail, set_verbosity
from normscope.reporting.tracker import Tracker, no_tracker, track
from normscope.reporting.tracking import with_environment
from normscope.reporting.views import make_views, print_results
from normscope.results.codes import category_name
from normscope.results.maps import TokenMap
from normscope.results.parts import about_words, joined, rolled_up
from normscope.results.result import Result
from normscope.results.run_files import Status, lost
from normscope.rounding import counted
from normscope.running.checkpoint import remove_checkpoints
from normscope.running.facts import describe, facts_of
from normscope.running.loop import Run, accumulate, deferred_signals, require_examples
from normscope.running.memory import explain_out_of_memory
from normscope.running.options import RunOptions, check, settled
from normscope.running.plan import Plan, in_memory
from normscope.running.progress import Phase, Phases, coming
from normscope.running.ranks import ProcessGroup, process_group
from normscope.running.token_maps import token_maps
from normscope.streams import Progress, no_bar


def run(
    options: RunOptions,
    folder: Path,
    command: str = "",
    *,
    fresh: bool = False,
    opened: Callable[[Path], None] = lambda _: None,
    begun: float | None = None,
    brief: bool = False,
) -> Result | None:
    """Run the enabled analyses over the corpus, and make the views of their results in a folder.

    Args:
        folder: The run folder; created if it does not exist.
        command: What the user typed, for the record.
        fresh: Whether the folder must be new; if it exists, the next free name next to it is used.
        opened: Receives the run folder as soon as the main process has locked it.
        begun: When the first phase began, by `time.monotonic`, if that was before this call.
        brief: Whether the run is one of several, whose results are printed when all have ended.

    Returns:
        The results, in the main process; None in others.

    Raises:
        InputError: If the input is invalid, or the folder cannot be used.
    """
    started = time.monotonic()
    set_verbosity(options.verbosity, brief=brief)
    options = settled(options)
    with (
        process_group() as group,
        _locked(options, folder, group, fresh=fresh) as results,
        Phases(coming(options), started if begun is None else begun, shown=group.is_main) as phases,
    ):
        if results is not None:
            opened(results.path)
        warnings: list[str] = []
        options = dataclasses.replace(options, tracking=with_environment(options.tracking, warnings.append))
        # Everything that can fail before the first batch.
        run = Run.prepare(options, results, group, phases, started, command)
        with group.agreeing():  # nothing is saved before the main process has begun the run
            if results is not None:
                results.begin(plain(options))
                for warning in warnings:
                    say(warning)
        with _tracked(run, results) as tracker:
            accumulate(run, tracker)
            run.merge()
            if results is None:
                return None
            result = _save(run, results)
            make_views(result, results, tracker, run.plan.look, report=options.report.enabled, progress=phases.steps)
        phases.end()
        results.save_facts(dataclasses.replace(result, facts={**result.facts, **facts_of(run)}))
        print_results(result, results.path, report=options.report.enabled)
        return result


def analyse(options: RunOptions, model: LoadedModel, corpus: Corpus, *, progress: bool) -> Result:
    """Run the enabled analyses over texts in memory, in this process.

    Args:
        options: The whole config; nothing in it says where model and texts come from.
        model: The model, which must not have changed since it was wrapped.
        corpus: The texts.
        progress: Whether a terminal shows what the run is doing.
    """
    options = settled(options)
    check(options)
    with Phases(coming(options), shown=progress) as phases:
        run = Run.of(Plan.of(options, lambda: in_memory(model, corpus), ProcessGroup(), phases), phases)
        accumulate(run)
        with _memory_explained(run):
            result = conclude(run)
        return dataclasses.replace(result, facts=facts_of(run))


@contextlib.contextmanager
def _tracked(run: Run, results: RunFolder | None) -> Iterator[Tracker]:
    """A tracker of the run. If the run fails, its status is recorded before the tracker ends, which may take long.

    Only the main process tracks and records.
    """
    if results is None:
        yield no_tracker()
        return
    options = run.plan.options
    description = describe(options, run.command, run.plan.model.facts.family)
    with track(options.tracking, description, results.path) as tracker:
        try:
            yield tracker
        except BaseException as error:
            # Another signal must not lose the status. If the folder is not writable, the original error says so already.
            with deferred_signals(), contextlib.suppress(InputError):
                if not results.ended:
                    results.save_facts(_unfinished(run, error))
            raise


def _unfinished(run: Run, error: BaseException) -> Result:
    """How a run has failed, or that it was interrupted."""
    status, text, processes = Status.FAILED, str(error), run.plan.group.size
    if isinstance(error, KeyboardInterrupt):
        # torchrun sends SIGTERM to all processes when one of them dies.
        if processes > 1 and isinstance(error, Terminated):
            text = f"ended by SIGTERM: another of the {processes} processes died, or torchrun was stopped"
        else:
            status = Status.INTERRUPTED
    return Result(facts=facts_of(run), status=status, error=text)


@contextlib.contextmanager
def _locked(options: RunOptions, folder: Path, group: ProcessGroup, *, fresh: bool) -> Iterator[RunFolder | None]:
    """The run folder, locked by the main process alone.

    If the input proves invalid before the first batch, everything that the run created is removed. After that the folder
    records how the run ended.
    """
    with group.agreeing():
        check(options)
        if options.recipe.paper is not None:
            file_of(options.recipe.paper)  # fail before the run if it is missing
            if group.is_main and (other := _on_other_data(options)):
                say(other)
        results = RunFolder(folder, resumed=options.resume is not None, fresh=fresh) if group.is_main else None
    try:
        yield results
    finally:
        if results is not None:
            results.release() if results.begun else results.abandon()


def _on_other_data(options: RunOptions) -> str:
    """That a paper's preset is run on other data than the paper's; empty if not."""
    recipe, name = options.recipe, options.dataset.name or options.dataset.path or options.dataset.kind
    if name in recipe.data or not (recipe.data or options.dataset.kind is DatasetKind.sample):
        return ""
    own = f" ({' or '.join(recipe.data)})" if recipe.data else ""
    where = f"experiments/{recipe.paper}/README.md"
    return f"{recipe.name}: {name} is not the paper's data{own}, so no number need be the paper's; see {where}"


def _save(run: Run, folder: RunFolder) -> Result:
    """Turn the state of the analyses into results, and write them to the run folder, which completes the run.

    Raises:
        InputError: If there was nothing to analyse, a number is not finite, or the run folder is not writable.
    """
    with _memory_explained(run):
        if run.counts.used:
            _show_counts(run)
        result = conclude(run)
        maps, not_shown = _maps(run)
    run.phases.begin(Phase.VIEWS)
    result = dataclasses.replace(result, maps=maps, facts=facts_of(run) | {"not_shown": list(not_shown)})
    folder.save(result)
    if run.checkpoint is not None:
        remove_checkpoints(folder.path)
    return result


def _memory_explained(run: Run) -> contextlib.AbstractContextManager[None]:
    return explain_out_of_memory(run.plan.options.device.batch_tokens, run.plan.model.device)


def conclude(run: Run) -> Result:
    """Run the interventions of the analyses, and return the results of all.

    Raises:
        InputError: If there was nothing to analyse, or a number is not finite.
    """
    require_examples(run.plan, run.counts)
    _missing_categories(run)
    run.phases.begin(Phase.INTERVENTIONS)
    runner = _runner(run, run.phases.steps)
    intervening = [each for each in run.plan.analyses if type(each).intervene is not Analysis.intervene]
    done = {analysis.info.name: _after_interventions(run, analysis, runner) for analysis in intervening}
    run.phases.begin(Phase.RESULTS)
    parts = {each.info.name: done.get(each.info.name) or _part(each) for each in run.plan.analyses}
    if run.plan.options.level is Level.word:
        parts = {name: about_words(part) for name, part in parts.items()}
    result = joined(parts, run.plan.model.layers)
    # Images come without padding.
    batching = run.plan.model.batching.note if run.plan.model.reader is None else ""
    of_model = filter(None, [batching, run.plan.model.segments_note, run.plan.model.facts.note])
    notes = list(dict.fromkeys([*_lost(run), *result.notes, *of_model]))
    result = dataclasses.replace(result, notes=notes, config={**plain(run.plan.options), "resume": None})
    return with_published(result, run.plan.model.files_sha256)


def _after_interventions(run: Run, analysis: Analysis, runner: InterventionRunner) -> Result:
    """What an analysis finds, if need be after its interventions; a run that is stopped later does not repeat them."""
    name, checkpoint = analysis.info.name, run.checkpoint
    part = None if checkpoint is None else checkpoint.part(name)
    if part is None:
        analysis.intervene(runner)
        part = _part(analysis)
        if checkpoint is not None:
            checkpoint.save_part(name, part, run.plan.model.layers)
    return part


def _part(analysis: Analysis) -> Result:
    return rolled_up(analysis.info.name, analysis.info.declared, analysis.result())


def _lost(run: Run) -> list[str]:
    """What was lost of the corpus, also as the analyses read it that compare the texts of pairs."""
    dataset = run.plan.options.dataset
    key = "max_length" if dataset.kind is DatasetKind.text and dataset.path is None else "dataset.max_length"
    said = []
    for reading, counts in run.plan.by_reading(run.counts):
        first = reading is run.plan.readings[0]
        facts = counts.facts() | ({"left_out": left_out(dataset)} if first else {})
        sentences = lost(facts, f"{reading.encoder.max_length} tokens ({key})")
        said += sentences if first else [f"{reading.names}: {sentence}" for sentence in sentences]
    return said


def _runner(run: Run, progress: Progress = no_bar) -> InterventionRunner:
    """What runs the model again for the analyses of a run."""
    batch_tokens = run.plan.options.device.batch_tokens
    return InterventionRunner(run.plan.model, run.plan.encoder, run.plan.layers, batch_tokens, progress)


def _missing_categories(run: Run) -> list[str]:
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


def _show_counts(run: Run) -> None:
    """Report how much was read, and which categories are missing."""
    for reading, counts in run.plan.by_reading(run.counts):
        who = "" if reading is run.plan.readings[0] else f"{reading.names}: "
        tokens = ", ".join(
            f"{number:,} {category_name(category)}" for category, number in counts.categories.items() if number
        )
        say_detail(f"{who}{counted(counts.sequences, 'sequence')}, {counted(counts.tokens, 'token')}: {tokens}")
    options = run.plan.options
    expected = set(run.plan.categories)
    if options.categories == "all":  # nobody has asked for a category that the vocabulary does not have
        expected -= run.plan.encoder.categories.impossible
        expected -= set() if run.plan.model.reader is None else {"other"}
        expected -= set() if options.dataset.mask_fraction > 0 else {"mask"}
    missing = [category for category in _missing_categories(run) if category in expected]
    if missing:
        say(f"no token of category {', '.join(missing)} occurs in the corpus: the tables have no rows for it")


def _maps(run: Run) -> tuple[Sequence[TokenMap], Sequence[str]]:
    """The token maps of the report, and what is left out of them."""
    plan = run.plan
    if not plan.texts:
        return [], []
    run.phases.begin(Phase.MAPS)
    runner = _runner(run)

    def of_analyses(batch: Batch) -> dict[str, np.ndarray]:
        return {
            name: values for analysis in plan.analyses for name, values in analysis.token_maps(runner, batch).items()
        }

    found, not_shown = token_maps(
        plan.model,
        plan.encoder,
        plan.texts,
        plan.layers,
        feed_forward=plan.maps_of_networks,
        added_maps=plan.added_maps,
        add=of_analyses,
        progress=run.phases.steps,
    )
    if not_shown:
        say(f"token maps: {'; '.join(not_shown)}")
    return found, not_shown
