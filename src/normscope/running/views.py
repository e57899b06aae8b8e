"""What the analyses of a run see of the same corpus: a pair as one sequence, or its two texts side by side."""

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from normscope.analyses.base import Analysis
from normscope.data.batching import Batch, batches_of_window
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.models.observer import Observer
from normscope.running.memory import BatchRunner


@dataclasses.dataclass(frozen=True)
class View:
    """What some of the analyses see, as they would alone."""

    encoder: Encoder
    analyses: Sequence[Analysis]
    token_entries: int = 0
    """Numbers that these keep for each token of a batch."""

    @property
    def names(self) -> str:
        """The analyses, for messages."""
        return ", ".join(analysis.info.name for analysis in self.analyses)


def counts_of(views: Sequence[View], counts: CorpusCounts) -> list[CorpusCounts]:
    """The counts of each view: those of the first, and those that they have of pairs that are compared."""
    return [counts, *(counts.of_compared() for _ in views[1:])]


def batches_of_views(
    views: Sequence[View], batch_tokens: int, window: Sequence[Example | str], counts: CorpusCounts
) -> Iterator[Batch]:
    """The batches of one window of a corpus, of one view after the other."""
    for view, own in zip(views, counts_of(views, counts), strict=True):
        yield from batches_of_window(window, own, view.encoder, batch_tokens)


class ViewRunner:
    """Runs every batch through the analyses of its view.

    Args:
        device: The model's device.
        views: The views; at most one of them compares the texts of pairs.
    """

    def __init__(self, observer: Observer, device: torch.device, views: Sequence[View]) -> None:
        self._runners = {
            view.encoder.separate: BatchRunner(observer, device, view.analyses, token_entries=view.token_entries)
            for view in views
        }

    def run(self, batch: Batch) -> None:
        """Run a batch; see `BatchRunner.run`."""
        self._runners[batch.paired].run(batch)

    def finish(self) -> None:
        """Compare the texts of the corpus that stand out; see `ComparedTexts`."""
        for runner in self._runners.values():
            runner.finish()
