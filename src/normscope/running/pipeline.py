"""A run, from config to results."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from normscope.reporting.published import published
from normscope.reporting.run_folder import RunFolder
from normscope.reporting.terminal import set_verbosity
from normscope.results.result import Result
from normscope.running.conclusions import conclude
from normscope.running.distributed import ProcessGroup, process_group
from normscope.running.inputs import InputsInMemory
from normscope.running.loop import accumulate
from normscope.running.memory import explain_out_of_memory
from normscope.running.options import RunOptions, check, settled
from normscope.running.phases import Phase, Phases
from normscope.running.provenance import Origin
from normscope.running.publish import finish, publish, save
from normscope.running.run import Run
from normscope.running.status import tracked
from normscope.running.views import ViewRunner


def run(
    options: RunOptions,
    folder: Path,
    command: str = "",
    *,
    fresh: bool = False,
    claimed: Callable[[Path], None] = lambda _: None,
    begun: float | None = None,
) -> Result | None:
    """Run the enabled analyses over the corpus, and publish their results in a folder.

    Args:
        folder: The run folder; created if it does not exist.
        command: What the user typed, for the record.
        fresh: Whether the folder must be new; if it exists, the next free name next to it is used.
        claimed: Receives the run folder as soon as the main process has claimed it.
        begun: When the first phase began, by `time.monotonic`, if that was before this call.

    Returns:
        The results, in the main process; None in others.

    Raises:
        InputError: If the input is invalid, or the folder cannot be used.
    """
    origin = Origin(time.monotonic(), command)
    set_verbosity(options.verbosity)
    options = settled(options)
    with (
        process_group() as group,
        _claimed(options, folder, group, fresh=fresh) as results,
        _phases(options, origin.started if begun is None else begun, group) as phases,
    ):
        if results is not None:
            claimed(results.path)
        run = Run.prepare(options, results, group, origin, phases)  # everything that can fail before the first batch
        with tracked(run) as tracker:
            accumulate(run, tracker)
            run.reduce()
            result = None if results is None else save(run, results)
            if result is not None and results is not None:
                publish(run, result, results, tracker)
        if result is not None and results is not None:
            finish(run, result, results)
        return result


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
        runner = ViewRunner(run.plan.observer, run.plan.model.device, run.plan.views)
        with explain_out_of_memory(options.device.batch_tokens, run.plan.model.device):
            with run.plan.observer, run.stream.ahead_of(run.plan.model.device):
                phases.begin(Phase.PASS)
                for batch, _ in run.stream:
                    runner.run(batch)
                runner.finish()
            result = conclude(run)
    finally:
        phases.end()
    return dataclasses.replace(result, facts=run.provenance.facts())
