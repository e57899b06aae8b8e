"""A run in progress: its position in the corpus, its counts and its checkpoints."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from normscope.analyses.base import state_of
from normscope.config.sections import plain
from normscope.data.batching import Batch
from normscope.data.corpora import text_keys
from normscope.data.examples import CorpusCounts
from normscope.data.options import DatasetKind
from normscope.errors import InputError
from normscope.models.layout import ModelLayout
from normscope.models.stored_weights import number_format, offloaded_to
from normscope.reporting.run_folder import PeerFolder, RunFolder
from normscope.reporting.terminal import say
from normscope.reporting.tracking import with_environment
from normscope.rounding import counted, numbered
from normscope.running.batch_stream import BatchStream
from normscope.running.checkpoint import Checkpoint, Position, Reduction, SavedShare, State, received
from normscope.running.distributed import ProcessGroup
from normscope.running.inputs import ConfiguredInputs, InputsInMemory
from normscope.running.options import RunOptions
from normscope.running.phases import Phases
from normscope.running.plan import Plan
from normscope.running.provenance import Origin, Provenance
from normscope.running.shares import Share, Shares
from normscope.running.views import counts_of


@dataclasses.dataclass
class Run:
    """A run in progress."""

    plan: Plan
    group: ProcessGroup
    results: RunFolder | None
    """The run folder, in the main process."""
    folder: Path
    """Its path, in all processes."""
    provenance: Provenance
    warnings: Sequence[str] = ()
    """Warnings about the environment, printed when the run begins."""
    stream: BatchStream = dataclasses.field(init=False)
    """The batches of the share that are still to come."""
    saves: bool = False
    """Whether checkpoints are saved: only if all processes see the run folder."""
    checkpoint: Checkpoint | None = None
    """The checkpoint of the share; None if none is saved."""
    position: Position = dataclasses.field(default_factory=Position)
    """How far the share had been read when the run was stopped, if it is resumed."""
    finished: bool = False
    """Whether the whole share had been analysed by then."""

    @classmethod
    def prepare(
        cls,
        options: RunOptions,
        results: RunFolder | None,
        group: ProcessGroup,
        origin: Origin,
        phases: Phases,
    ) -> "Run":
        """Load the model, prove that it can be observed, open the corpus, and build the analyses.

        Args:
            phases: The phases of the run, which is in its first.

        Raises:
            InputError: If the input is invalid, in this process or in another one of the run.
        """
        warnings: list[str] = []
        options = dataclasses.replace(options, tracking=with_environment(options.tracking, warnings.append))
        folder = Path(group.shared("" if results is None else str(results.path)))
        with group.agreeing():
            shares = Shares.of(folder, group, resumed=options.resume is not None)
            plan = Plan.of(options, ConfiguredInputs(options.model, options.device, group), shares, group, phases)
        run = cls(plan, group, results, folder, Provenance.of(plan, origin, phases), warnings)
        run.saves = all(group.gathered(PeerFolder(folder).visible))
        with group.agreeing():
            for share in shares.own[:1]:
                run.begin(share)
            if group.is_main:
                run._announce()
        run._announce_resumed()
        return run

    @classmethod
    def in_memory(cls, options: RunOptions, inputs: InputsInMemory, phases: Phases) -> "Run":
        """A run on a model and texts in memory, in this process and without a run folder."""
        group, whole = ProcessGroup(), Shares(1, [Share(0, 1)])
        plan = Plan.of(options, inputs, whole, group, phases)
        run = cls(plan, group, None, Path(), Provenance.of(plan, Origin(time.monotonic(), ""), phases))
        run.begin(whole.own[0])
        return run

    @property
    def phases(self) -> Phases:
        """What the run is doing, and how long that takes."""
        return self.provenance.phases

    @property
    def counts(self) -> CorpusCounts:
        """The counts of the share of the corpus that is being analysed."""
        return self.provenance.counts

    def start(self) -> None:
        """Begin the run in its folder, which from now on records how the run ends.

        Raises:
            InputError: If the folder cannot be written to.
        """
        with self.group.agreeing():  # nothing is saved before the main process has begun the run
            if self.results is not None:
                for warning in self.warnings:
                    say(warning)
                self.results.begin(plain(self.plan.options), self._first_checkpoint())

    def begin(self, share: Share) -> None:
        """Turn to one of the shares, and continue where it was stopped if the run is resumed.

        Raises:
            InputError: If there is no usable example in the corpus, or the checkpoint does not fit the run.
        """
        for analysis in self.plan.analyses:
            for accumulator in analysis.accumulators.values():
                accumulator.reset()
        self.counts.clear()
        self.checkpoint = self._checkpoint(share) if self.saves else None
        before = self.checkpoint if self.plan.options.resume is not None else None
        saved = None if before is None else before.finished(self.plan.analyses)
        self.finished, self.position = saved is not None, Position()
        if saved is not None:
            self.counts.add(saved)
            self.stream = BatchStream(lambda _counts: iter(()), self.counts)
            return
        self.stream = BatchStream(functools.partial(self.plan.batches, share), self.counts)
        if share.of == 1:
            self._require_first_batches()
        if before is not None:
            self.position = before.resume(self.plan.analyses, self.stream)

    def _require_first_batches(self) -> None:
        """Stop now if the corpus ends without a usable example for some of the analyses."""
        missing = {view.encoder.separate: view for view in self.plan.views}

        def all_found(batch: Batch) -> bool:
            missing.pop(batch.paired, None)
            return not missing

        counts = self.stream.read_until(all_found)
        if counts is not None:
            require_examples(self, counts)

    def finish_share(self, position: Position) -> None:
        """Save the state of a finished share, if it is not the only one."""
        alone = self.plan.shares.number == self.group.size == 1
        if self.checkpoint is not None and not self.finished and not alone:
            self.checkpoint.save(self.plan.analyses, position, self.counts)

    def reduce(self) -> None:
        """Merge the shares: the main process then has the state and counts of the whole corpus.

        Raises:
            InputError: If another process has failed, or a checkpoint is missing or damaged.
        """
        if self.plan.shares.number == self.group.size == 1:
            return
        reduction = Reduction(self.plan.analyses)
        for state, counts in self._states():
            reduction.add(state, counts)
        if self.group.is_main:
            self.counts.become(reduction.finish())

    def _states(self) -> Iterator[tuple[State, CorpusCounts]]:
        """The states of all shares and the counts of their examples, in the main process; nothing in the others."""
        if self.plan.shares.number != self.group.size:
            self.group.gathered(True)  # once every process is here, all shares are saved
            for share in self.plan.shares.all if self.group.is_main else []:
                yield self._checkpoint(share).kept()
            return
        own = self._checkpoint(self.plan.shares.own[0]).whole(self.counts, state_of(self.plan.analyses))
        for content in self.group.collected(own):
            header, state = received(content)
            yield state, SavedShare.of(header).whole

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of a completed run."""
        for share in self.plan.shares.all if self.saves else []:
            self._checkpoint(share).remove()

    def _first_checkpoint(self) -> dict[str, bytes]:
        """The first checkpoint of a new run, by file name. It records the number of shares, so that a run killed before its
        first batch is continued with the same shares and gives the same bytes.
        """
        checkpoint = self._checkpoint(self.plan.shares.all[0])
        begun = self.plan.options.resume is not None and checkpoint.path.exists()
        return {checkpoint.path.name: checkpoint.of_nothing()} if self.saves and not begun else {}

    def _checkpoint(self, share: Share) -> Checkpoint:
        """The checkpoint of one of the shares."""
        options = self.plan.options
        folder = PeerFolder(self.folder) if self.results is None else self.results
        return Checkpoint(folder, share.file, share, self.plan.identity, options.checkpoint.every_seconds)

    def _announce(self) -> None:
        model = self.plan.model
        elsewhere = offloaded_to(model.model)
        say(
            f"{model.name}: {_layers_of(model.layout)} on {model.device}, {number_format(model.model)}",
            *([f"weights offloaded to {' and '.join(elsewhere)}"] if elsewhere else []),
            f"matches the untouched model to {self.plan.verification.error:.1e}",
        )

    def _announce_resumed(self) -> None:
        batches = sum(self.group.gathered(self.position.batches))
        finished = sum(self.group.gathered(self.finished))
        if not self.group.is_main:
            return
        if batches or finished:
            say(
                f"resuming after {counted(batches, 'batch', 'batches')}"
                + (
                    f"; {finished:,} of {counted(self.group.size, 'process', 'processes')} "
                    f"{'begins' if finished == 1 else 'begin'} with a part that is finished"
                    if finished
                    else ""
                )
            )
        if not self.saves:
            say(
                f"{self.folder} is not on a file system that all {self.group.size} processes share: this run cannot be resumed"
            )


def require_examples(run: Run, counts: CorpusCounts) -> None:
    """Check that every analysis had an example.

    Args:
        counts: The counts of the whole corpus.

    Raises:
        InputError: If one had none; the message gives the reasons.
    """
    options = run.plan.options
    for view, own in zip(run.plan.views, counts_of(run.plan.views, counts), strict=True):
        if own.used:
            continue
        what = "" if len(run.plan.views) == 1 else f" for analysis={view.names}"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in own.skipped.items()) or "it has no rows"
        if options.dataset.kind is DatasetKind.text and options.dataset.path is None:  # texts in memory
            raise InputError(f"texts: no usable text{what} ({reasons})")
        where = options.dataset.path or options.dataset.kind
        # Some reasons name the key that they depend on; the others depend on what was read.
        unexplained = not own.skipped or any("dataset." not in reason for reason in own.skipped)
        keys = " and ".join(text_keys(options.dataset)) if unexplained else ""
        raise InputError(f"dataset {where}: no usable example{what} ({reasons}){keys and f'; check {keys}'}")


def _layers_of(layout: ModelLayout) -> str:
    """Number of layers, and which of them have a block, if not all do."""
    layers = counted(len(layout.stream.layers), "layer")
    return f"{layers} (softmax attention in {numbered(layout.attends)})" if layout.without_attention else layers
