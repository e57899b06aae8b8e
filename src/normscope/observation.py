"""The one loop: batch → blocks → analyses."""

from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.analyses.analysis import Analysis
from normscope.checkpoints import Checkpoint, Position
from normscope.data.batching import Batch
from normscope.data.examples import CorpusCounts
from normscope.models.block import AttentionBlock
from normscope.models.observer import Observer
from normscope.reporting.terminal import progress_bar
from normscope.signals import stopping


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
    with observer, progress_bar(total) as bar, stopping() as stop:
        for cpu_batch, mine in stream:
            if mine:
                _show(observer, cpu_batch.to(device), analyses)
            position = position.after(cpu_batch)
            bar.update(counts.used + counts.skipped.total() - bar.n)
            if stop.error is not None:
                if checkpoint is not None:
                    checkpoint.save(analyses, position)
                raise stop.error
            if checkpoint is not None:
                checkpoint.save_if_due(analyses, position)


def _show(observer: Observer, batch: Batch, analyses: list[Analysis]) -> None:
    def visit(block: AttentionBlock) -> None:
        for analysis in analyses:
            analysis.observe(block, batch)

    def visit_hidden(layer: int, vectors: Tensor) -> None:
        for analysis in analyses:
            analysis.observe_hidden(layer, vectors, batch)

    observer.run(batch.model_inputs(), visit, visit_hidden)
