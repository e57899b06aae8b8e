"""A run in progress, and its loop over the corpus: batch → blocks and hidden vectors → analyses, with checkpoints."""

import dataclasses
import time
from pathlib import Path

from normscope.analyses.base import merge_state, state_of
from normscope.data.batching import Batch
from normscope.data.corpora import text_keys
from normscope.data.examples import CorpusCounts
from normscope.data.options import DatasetKind
from normscope.errors import InputError
from normscope.models.layout import ModelLayout
from normscope.models.stored_weights import number_format, offloaded_to
from normscope.reporting.run_folder import PeerFolder, RunFolder
from normscope.reporting.terminal import say, say_detail
from normscope.reporting.weights_and_biases import Tracker
from normscope.rounding import counted, numbered
from normscope.running.batch_stream import BatchStream
from normscope.running.checkpoint import Checkpoint, Position
from normscope.running.facts import Facts
from normscope.running.memory import BatchRunner, explain_out_of_memory
from normscope.running.options import RunOptions
from normscope.running.plan import ConfiguredInputs, InputsInMemory, Plan
from normscope.running.progress import Phase, Phases, ProgressMeter
from normscope.running.ranks import ProcessGroup
from normscope.running.shutdown import deferred_signals


@dataclasses.dataclass
class Run:
    """A run in progress."""

    plan: Plan
    facts: Facts
    stream: BatchStream
    """The batches that are still to come."""
    checkpoint: Checkpoint | None = None
    """None if nothing is saved: in memory, or if not all processes see the run folder."""
    position: Position = dataclasses.field(default_factory=Position)
    """How far the corpus had been read when the run was stopped, if it is resumed."""

    @classmethod
    def of(cls, plan: Plan, facts: Facts) -> "Run":
        """A run that begins with the first batch.

        Raises:
            InputError: If there is no usable example in the corpus.
        """
        run = cls(plan, facts, BatchStream(plan.batches, facts.counts))
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
        folder = PeerFolder(path)
        saves = all(group.gathered(folder.visible))
        with group.agreeing():
            if options.resume is not None and not folder.visible:
                raise InputError(
                    f"resume={path}: process {group.rank} of {group.size} does not see this folder; resume the run where all "
                    "processes share a file system"
                )
            plan = Plan.of(options, ConfiguredInputs(options.model, options.device, group), group, phases)
            run = cls.of(plan, Facts(plan, phases, started, command))
            if saves:
                every = options.checkpoint.every_seconds
                run.checkpoint = Checkpoint(results or folder, group, plan.identity, every)
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

    @classmethod
    def in_memory(cls, options: RunOptions, inputs: InputsInMemory, phases: Phases) -> "Run":
        """A run on a model and texts in memory, in this process and without a run folder."""
        plan = Plan.of(options, inputs, ProcessGroup(), phases)
        return cls.of(plan, Facts(plan, phases, time.monotonic()))

    def _require_first_batches(self) -> None:
        """Stop now if the corpus ends without a usable example for some of the analyses."""
        missing = {view.encoder.separate for view in self.plan.views}

        def all_found(batch: Batch) -> bool:
            missing.discard(batch.paired)
            return not missing

        counts = self.stream.read_until(all_found)
        if counts is not None:
            require_examples(self.plan, counts)

    @property
    def phases(self) -> Phases:
        """What the run is doing, and how long that takes."""
        return self.facts.phases

    @property
    def counts(self) -> CorpusCounts:
        """What has been read so far: by this process, and by all once they have been merged."""
        return self.facts.counts

    def merge(self) -> None:
        """Merge the states of all processes, by rank: the main process then has the state and counts of the whole corpus.

        Raises:
            InputError: If another process has failed.
        """
        for state, counts in self.plan.group.collected((state_of(self.plan.analyses), self.counts)):
            merge_state(self.plan.analyses, state)
            self.counts.add(counts)


def runners(plan: Plan) -> dict[bool, BatchRunner]:
    """What runs the batches of each view, by whether these compare the texts of pairs."""
    return {
        view.encoder.separate: BatchRunner(
            plan.observer, plan.model.device, view.analyses, token_entries=view.token_entries
        )
        for view in plan.views
    }


def accumulate(run: Run, tracker: Tracker) -> None:
    """Run this process's batches through every analysis, with regular checkpoints.

    Args:
        tracker: Receives throughput, memory and the time that is left.

    Raises:
        KeyboardInterrupt: If a signal requests shutdown; the current batch is finished and the state saved first.
        InputError: If a batch of one sequence does not fit into the device's memory.
    """
    run.phases.begin(Phase.PASS)
    plan, checkpoint, position, device = run.plan, run.checkpoint, run.position, run.plan.model.device
    by_view = runners(plan)
    with (
        explain_out_of_memory(plan.options.device.batch_tokens, device),
        plan.observer,
        deferred_signals() as request,
        run.phases.corpus_bar(plan.total) as bar,
    ):
        meter = ProgressMeter(run.counts, plan.total, device, tracker, bar)
        with run.stream.ahead_of(device):
            for batch, mine in run.stream:
                if mine:
                    with meter.model_runs():
                        by_view[batch.paired].run(batch)
                position = position.after(batch)
                meter.update()
                if checkpoint is not None:
                    checkpoint.save_if_due(plan.analyses, position, at_once=request.error is not None)
                if request.error is not None:
                    raise request.error
        if checkpoint is not None and plan.group.size > 1:  # the others may not be done for long
            checkpoint.save(plan.analyses, position)
        run.facts.speed = meter.finish()
        for runner in by_view.values():
            runner.finish()


def require_examples(plan: Plan, counts: CorpusCounts) -> None:
    """Check that every analysis had an example.

    Args:
        counts: The counts of the whole corpus.

    Raises:
        InputError: If one had none; the message gives the reasons.
    """
    options = plan.options
    for view, own in plan.by_view(counts):
        if own.used:
            continue
        what = "" if len(plan.views) == 1 else f" for analysis={view.names}"
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
    elsewhere = offloaded_to(model.model)
    say_detail(
        f"{model.name}: {_layers_of(model.layout)} on {model.device}, {number_format(model.model)}",
        *([f"weights offloaded to {' and '.join(elsewhere)}"] if elsewhere else []),
        f"matches the untouched model to {plan.verification.error:.1e}",
    )


def _layers_of(layout: ModelLayout) -> str:
    """Number of layers, and which of them have a block, if not all do."""
    layers = counted(len(layout.stream.layers), "layer")
    return f"{layers} (softmax attention in {numbered(layout.attends)})" if layout.without_attention else layers
