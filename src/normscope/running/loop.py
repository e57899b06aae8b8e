"""A run in progress, and its loop over the corpus: batch → blocks and hidden vectors → analyses, with checkpoints."""

import contextlib
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from normscope.analyses.base import merge_state, state_of
from normscope.data.batch_stream import BatchStream
from normscope.data.batching import Batch
from normscope.data.corpora import text_keys
from normscope.data.examples import CorpusCounts
from normscope.data.options import DatasetKind
from normscope.errors import InputError, Terminated
from normscope.models.facts import ModelFacts
from normscope.models.stored.stored_weights import number_format, offloaded_to
from normscope.reporting.run_folder import LOCK, RunFolder
from normscope.reporting.terminal import say, say_detail
from normscope.reporting.tracker import Tracker, no_tracker
from normscope.rounding import counted, number
from normscope.running.checkpoint import Checkpoint, Position
from normscope.running.memory import BatchRunner, explain_out_of_memory
from normscope.running.options import RunOptions
from normscope.running.plan import Plan, configured
from normscope.running.progress import CorpusProgress, Phase, Phases
from normscope.running.ranks import ProcessGroup


@dataclasses.dataclass
class Run:
    """A run in progress."""

    plan: Plan
    phases: Phases
    """What the run is doing, and how long that takes."""
    counts: CorpusCounts
    """What has been read so far: by this process, and by all once they have been merged."""
    stream: BatchStream
    """The batches that are still to come."""
    started: float = dataclasses.field(default_factory=time.monotonic)
    """Start time, by `time.monotonic`."""
    command: str = ""
    """What the user typed."""
    speed: CorpusProgress | None = None
    """How fast the corpus was read, once it has been."""
    checkpoint: Checkpoint | None = None
    """None if nothing is saved: in memory, or if not all processes see the run folder."""
    position: Position = dataclasses.field(default_factory=Position)
    """How far the corpus had been read when the run was stopped, if it is resumed."""

    @classmethod
    def of(cls, plan: Plan, phases: Phases) -> "Run":
        """A run that begins with the first batch.

        Raises:
            InputError: If there is no usable example in the corpus.
        """
        counts = CorpusCounts()
        run = cls(plan, phases, counts, BatchStream(plan.batches, counts))
        if plan.group.size == 1:
            run._require_first_batches()
        return run

    @classmethod
    def prepare(
        cls,
        options: RunOptions,
        results: RunFolder | None,
        group: ProcessGroup,
        phases: Phases,
        started: float,
        command: str,
    ) -> "Run":
        """Load the model, prove that it can be observed, open the corpus, and build the analyses.

        Args:
            results: The run folder, in the main process.
            phases: The phases of the run, which is in its first.
            started: When it started, by `time.monotonic`.
            command: What the user typed.

        Raises:
            InputError: If the input is invalid, in this process or in another one of the run.
        """
        path = Path(group.shared("" if results is None else str(results.path)))
        visible = (path / LOCK).exists()
        saves = all(group.gathered(visible))
        with group.agreeing():
            if options.resume is not None and not visible:
                raise InputError(
                    f"resume={path}: process {group.rank} of {group.size} does not see this folder; resume the run where all "
                    "processes share a file system"
                )
            plan = Plan.of(options, functools.partial(configured, options, group), group, phases)
            run = cls.of(plan, phases)
            run.started, run.command = started, command
            if saves:
                every = options.checkpoint.every_seconds
                run.checkpoint = Checkpoint(results or path, group, plan.identity, every)
                if options.resume is not None:
                    run.position = run.checkpoint.resume(plan.analyses, run.stream)
            if group.is_main:
                _announce(plan)
        batches = sum(group.gathered(run.position.batches))
        if batches and group.is_main:
            say(f"resuming after {counted(batches, 'batch', 'batches')}")
        if group.is_main and not saves:
            say(f"{path} is not on a file system that all {group.size} processes share: this run cannot be resumed")
        return run

    def _require_first_batches(self) -> None:
        """Stop now if the corpus ends without a usable example for some of the analyses."""
        missing = {reading.encoder.separate for reading in self.plan.readings}

        def all_found(batch: Batch) -> bool:
            missing.discard(batch.paired)
            return not missing

        counts = self.stream.read_until(all_found)
        if counts is not None:
            require_examples(self.plan, counts)

    def merge(self) -> None:
        """Merge the states of all processes, by rank: the main process then has the state and counts of the whole corpus.

        Raises:
            InputError: If another process has failed.
        """
        for state, counts in self.plan.group.collected((state_of(self.plan.analyses), self.counts)):
            merge_state(self.plan.analyses, state)
            self.counts.add(counts)


class ShutdownRequest:
    """Whether a signal has been received."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Remember the first signal. A second one ends the run at once, with the error of the first."""
        if self.error is not None:
            raise self.error
        self._received = signal.Signals(number)

    @property
    def error(self) -> KeyboardInterrupt | None:
        """The error to raise at the next safe point; None without a signal."""
        if self._received is None:
            return None
        return Terminated() if self._received is signal.SIGTERM else KeyboardInterrupt()


@contextlib.contextmanager
def deferred_signals() -> Iterator[ShutdownRequest]:
    """Defer SIGINT and SIGTERM until a safe point."""
    request = ShutdownRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def accumulate(run: Run, tracker: Tracker | None = None) -> None:
    """Run this process's batches through every analysis, with regular checkpoints.

    Args:
        tracker: Receives throughput, memory and the time that is left; None in memory, where signals are left to the program.

    Raises:
        KeyboardInterrupt: If a signal requests shutdown; the current batch is finished and the state saved first.
        InputError: If a batch of one sequence does not fit into the device's memory.
    """
    run.phases.begin(Phase.PASS)
    plan, checkpoint, position, device = run.plan, run.checkpoint, run.position, run.plan.model.device
    by_reading = {
        reading.encoder.separate: BatchRunner(
            plan.observer, device, reading.analyses, token_entries=reading.token_entries
        )
        for reading in plan.readings
    }
    speed = CorpusProgress(run.counts, plan.total, device, tracker or no_tracker())
    with (
        explain_out_of_memory(plan.options.device.batch_tokens, device),
        plan.observer,
        contextlib.nullcontext(ShutdownRequest()) if tracker is None else deferred_signals() as request,
    ):
        with speed.shown(run.phases), run.stream.ahead_of(device):
            for batch, mine in run.stream:
                if mine:
                    with speed.model_runs():
                        by_reading[batch.paired].run(batch)
                position = position.after(batch)
                speed.update()
                if checkpoint is not None:
                    checkpoint.save_if_due(plan.analyses, position, at_once=request.error is not None)
                if request.error is not None:
                    raise request.error
        # What follows may take long, here or in other processes.
        if checkpoint is not None and position != run.position:
            checkpoint.save(plan.analyses, position)
        run.speed = speed


def require_examples(plan: Plan, counts: CorpusCounts) -> None:
    """Check that every analysis had an example.

    Args:
        counts: The counts of the whole corpus.

    Raises:
        InputError: If one had none; the message gives the reasons.
    """
    options = plan.options
    for reading, own in plan.by_reading(counts):
        if own.used:
            continue
        what = "" if len(plan.readings) == 1 else f" for analysis={reading.names}"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in own.skipped.items()) or "it has no rows"
        if options.dataset.kind is DatasetKind.text and options.dataset.path is None:  # texts in memory
            raise InputError(f"texts: no usable text{what} ({reasons})")
        where = options.dataset.path or options.dataset.kind
        # Some reasons name the key that they depend on; the others depend on what was read.
        unexplained = not own.skipped or any("dataset." not in reason for reason in own.skipped)
        keys = " and ".join(text_keys(options.dataset)) if unexplained else ""
        raise InputError(f"dataset {where}: no usable example{what} ({reasons}){keys and f'; check {keys}'}")


def _announce(plan: Plan) -> None:
    model = plan.model
    elsewhere, tower = offloaded_to(model.model), "" if model.tower is None else f"{model.tower} tower, "
    say_detail(
        f"{model.name}: {tower}{_layers_of(model.facts)} on {model.device}, {number_format(model.model)}",
        *(["random weights"] if plan.options.model.random_init else []),
        *([f"weights offloaded to {' and '.join(elsewhere)}"] if elsewhere else []),
        f"matches the untouched model to {number(plan.verification.error, digits=2)}",
    )


def _layers_of(facts: ModelFacts) -> str:
    """Number of layers, and which of them are not measured."""
    layers = counted(facts.layers, "layer")
    return f"{layers} ({facts.note})" if facts.note else layers
