"""A run, from config to results."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from normscope.config.sections import plain
from normscope.errors import InputError
from normscope.reporting.published import published
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import say, set_verbosity
from normscope.reporting.tracking import with_environment
from normscope.reporting.weights_and_biases import Tracker, no_tracker, track
from normscope.results.result import Result
from normscope.results.run_files import Status
from normscope.running.conclusions import conclude
from normscope.running.facts import describe
from normscope.running.loop import Run, accumulate, runners
from normscope.running.memory import explain_out_of_memory
from normscope.running.options import RunOptions, check, settled
from normscope.running.plan import InputsInMemory
from normscope.running.progress import Phase, Phases
from normscope.running.publish import finish, publish, save
from normscope.running.ranks import ProcessGroup, process_group
from normscope.running.shutdown import Terminated, deferred_signals


def run(
    options: RunOptions,
    folder: Path,
    command: str = "",
    *,
    fresh: bool = False,
    claimed: Callable[[Path], None] = lambda _: None,
    begun: float | None = None,
    brief: bool = False,
) -> Result | None:
    """Run the enabled analyses over the corpus, and publish their results in a folder.

    Args:
        folder: The run folder; created if it does not exist.
        command: What the user typed, for the record.
        fresh: Whether the folder must be new; if it exists, the next free name next to it is used.
        claimed: Receives the run folder as soon as the main process has claimed it.
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
        _claimed(options, folder, group, fresh=fresh) as results,
        _phases(options, started if begun is None else begun, group) as phases,
    ):
        if results is not None:
            claimed(results.path)
        warnings: list[str] = []
        options = dataclasses.replace(options, tracking=with_environment(options.tracking, warnings.append))
        run = Run.prepare(
            options, results, group, phases, started, command
        )  # everything that can fail before the first batch
        with group.agreeing():  # nothing is saved before the main process has begun the run
            if results is not None:
                results.begin(plain(options))
                for warning in warnings:
                    say(warning)
        with _tracked(run, results) as tracker:
            accumulate(run, tracker)
            run.merge()
            result = None if results is None else save(run, results)
            if result is not None and results is not None:
                publish(run, result, results, tracker)
        if result is not None and results is not None:
            finish(run, result, results)
        return result


@contextlib.contextmanager
def _tracked(run: Run, results: RunFolder | None) -> Iterator[Tracker]:
    """A tracker of the run. If the run fails, its status is recorded before the tracker ends, which may take long.

    Only the main process tracks and records.
    """
    if results is None:
        yield no_tracker()
        return
    options = run.plan.options
    description = describe(options, run.facts.command, run.plan.model.layout.family)
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
    return Result(facts=run.facts.so_far(), status=status, error=text)


@contextlib.contextmanager
def _phases(options: RunOptions, begun: float, group: ProcessGroup) -> Iterator[Phases]:
    """The phases of the run, which the main process shows while this context is open."""
    phases = Phases.of(options, begun, shown=group.is_main)
    try:
        yield phases
    finally:
        phases.end()


@contextlib.contextmanager
def _claimed(options: RunOptions, folder: Path, group: ProcessGroup, *, fresh: bool) -> Iterator[RunFolder | None]:
    """The run folder, claimed by the main process alone.

    If the input proves invalid before the first batch, everything that the claim created is removed. After that the folder
    records how the run ended.
    """
    with group.agreeing():
        check(options)
        if options.recipe.paper is not None:
            published(options.recipe.paper)  # fail before the run if it is missing
        results = RunFolder(folder, resumed=options.resume is not None, fresh=fresh) if group.is_main else None
    try:
        yield results
    finally:
        if results is not None:
            results.release() if results.begun else results.abandon()


def analyse(options: RunOptions, inputs: InputsInMemory, *, progress: bool) -> Result:
    """Run the enabled analyses over texts in memory, in this process.

    Args:
        options: The whole config; nothing in it says where model and texts come from.
        inputs: The model and the texts.
        progress: Whether a terminal shows what the run is doing.
    """
    options = settled(options)
    check(options)
    phases = Phases.of(options, shown=progress)
    try:
        run = Run.in_memory(options, inputs, phases)
        by_view = runners(run.plan)
        with explain_out_of_memory(options.device.batch_tokens, run.plan.model.device):
            with run.plan.observer, run.stream.ahead_of(run.plan.model.device):
                phases.begin(Phase.PASS)
                for batch, _ in run.stream:
                    by_view[batch.paired].run(batch)
                for runner in by_view.values():
                    runner.finish()
            result = conclude(run)
    finally:
        phases.end()
    return dataclasses.replace(result, facts=run.facts.so_far())
