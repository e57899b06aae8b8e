"""The one loop: batch → blocks → analyses."""

import contextlib
import copy
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.analyses.base import Analysis
from normscope.data.batching import Batch
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError
from normscope.models.block import AttentionBlock
from normscope.models.observer import Observer
from normscope.reporting.terminal import progress_bar, say
from normscope.running.checkpoint import Checkpoint, Position
from normscope.running.shutdown import deferred_signals
from normscope.statistics.accumulator import Accumulator


def observe(
    observer: Observer,
    device: torch.device,
    analyses: list[Analysis],
    stream: Iterator[tuple[Batch, bool]],
    total: int | None,
    counts: CorpusCounts,
    checkpoint: Checkpoint | None = None,
    position: Position | None = None,
) -> None:
    """Show every batch that is this process's to every analysis, saving what they have added up every now and then.

    Args:
        observer: Runs the model.
        device: Where batches go.
        analyses: What looks at the blocks.
        stream: Batches, and whether they are this process's.
        total: Examples that will be read, where that is known.
        counts: How many have been.
        checkpoint: Where the state is saved.
        position: What has been done before.

    Raises:
        KeyboardInterrupt: If a signal asks to end; the batch that it met is finished, and the state saved.
    """
    position = position or Position()
    runner = BatchRunner(observer, device, analyses)
    with observer, progress_bar(total) as bar, deferred_signals() as stop:
        for batch, mine in stream:
            if mine:
                runner.show(batch)
            position = position.after(batch)
            bar.update(counts.used + counts.skipped.total() - bar.n)
            if stop.error is not None:
                if checkpoint is not None:
                    checkpoint.save(analyses, position)
                raise stop.error
            if checkpoint is not None:
                checkpoint.save_if_due(analyses, position)


class BatchRunner:
    """Shows batches to analyses: whole, or in parts once one has not fitted into the device's memory.

    What analyses had added up before such a batch is put back, so that nothing counts twice. A copy of it is made before
    batches that are larger than all before them, since these are the ones that may not fit.

    Args:
        observer: Runs the model.
        device: Where batches go.
        analyses: What looks at the blocks.
    """

    def __init__(self, observer: Observer, device: torch.device, analyses: list[Analysis]) -> None:
        self._observer, self._device, self._analyses = observer, device, analyses
        self._fits = Size(0, 0)
        self._tokens: int | None = None
        """Tokens, padding included, that parts of batches may have; None while all have fitted."""

    def show(self, batch: Batch) -> None:
        """Show a batch.

        Raises:
            RuntimeError: If a single sequence does not fit, or a batch no larger than others that did; the device's error.
        """
        rows = batch.sequences if self._tokens is None else max(1, self._tokens // batch.token_mask.shape[1])
        if rows < batch.sequences:
            for start in range(0, batch.sequences, rows):
                self.show(batch.part(start, min(batch.sequences, start + rows)))
            return
        size = Size.of(batch)
        if size <= self._fits:
            self._show(batch)
            return
        before = [copy.deepcopy(vars(accumulator)) for accumulator in self._accumulators()]
        try:
            self._show(batch)
        except RuntimeError as error:
            if batch.sequences == 1 or not out_of_memory(error):
                raise
        else:
            self._fits = self._fits.or_more(size)
            return
        # Out of the `except`: an error holds on to everything that was there when it was raised.
        for accumulator, content in zip(self._accumulators(), before, strict=True):
            vars(accumulator).update(content)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        half = -(-batch.sequences // 2)
        if self._tokens is None:
            say(
                f"a batch of {batch.sequences} × {batch.token_mask.shape[1]} tokens does not fit into the memory of {self._device}: "
                "batches are shown in parts from now on; a smaller device.batch_tokens would spare the attempts"
            )
        self._tokens = half * batch.token_mask.shape[1]
        self.show(batch)

    def _accumulators(self) -> Iterator[Accumulator]:
        return (accumulator for analysis in self._analyses for accumulator in analysis.accumulators.values())

    def _show(self, batch: Batch) -> None:
        show(self._observer, batch.to(self._device), self._analyses)


def show(observer: Observer, batch: Batch, analyses: Collection[Analysis]) -> None:
    """Show one batch to every analysis, layer by layer.

    Args:
        observer: Runs the model; it has been entered.
        batch: The batch, where the model is.
        analyses: What looks at the blocks.
    """

    def visit(block: AttentionBlock) -> None:
        for analysis in analyses:
            analysis.observe(block, batch)

    def visit_hidden(layer: int, vectors: Tensor) -> None:
        for analysis in analyses:
            analysis.observe_hidden(layer, vectors, batch)

    observer.run(batch.model_inputs(), visit, visit_hidden)


class Size(NamedTuple):
    """What the memory that a batch takes grows with."""

    tokens: int
    pairs: int

    @classmethod
    def of(cls, batch: Batch) -> "Size":
        """That of a batch."""
        rows, width = batch.token_mask.shape
        longest = max(width, batch.keys.token_mask.shape[1])
        return cls(rows * longest, rows * longest**2)

    def __le__(self, other: tuple[int, ...]) -> bool:
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))

    def or_more(self, other: "Size") -> "Size":
        """The larger of both, number by number."""
        return Size(max(self.tokens, other.tokens), max(self.pairs, other.pairs))


@contextlib.contextmanager
def explain_out_of_memory(batch_tokens: int, device: torch.device) -> Iterator[None]:
    """Say what to change where a device has too little memory.

    Raises:
        InputError: In the place of the device's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            f"device.batch_tokens={batch_tokens}: the memory of {device} is too small; set "
            f"device.batch_tokens={max(1, batch_tokens // 2)}, or a smaller dataset.max_length"
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Whether a device, the CPU among them, had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
