"""Batches through the model and the analyses. Those that do not fit into memory are rolled back exactly, split, and retried."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.analyses.base import Analysis, load_state, state_of
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.check import Check
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from normscope.reporting.terminal import say


def run_batch(observer: Observer, batch: Batch, analyses: Sequence[Analysis]) -> None:
    """Run one batch through every analysis, and through the model if any of them observes it.

    Args:
        observer: Runs the model; already entered.
        batch: The batch, on the model's device.
        analyses: Receive the blocks and hidden vectors of the layers in their context.
    """
    for analysis in analyses:
        analysis.start_batch(batch)
    if any(analysis.observes_the_pass() for analysis in analyses):
        _run_model(observer, batch, analyses)
    for analysis in analyses:
        analysis.end_batch(batch)
    for analysis in analyses:
        analysis.settle()
    _see_again(observer, batch, analyses)


def _run_model(observer: Observer, batch: Batch, analyses: Sequence[Analysis]) -> None:
    """Run one batch through the model, and show the analyses its blocks and hidden vectors, layer by layer."""

    def visit(block: AttentionBlock) -> None:
        for analysis in analyses:
            if block.layer in analysis.context.layers:
                analysis.update_attention(block, batch)

    def visit_feed_forward(block: FeedForwardBlock) -> None:
        for analysis in analyses:
            if block.layer in analysis.context.layers:
                analysis.update_feed_forward(block, batch)

    def visit_hidden(layer: int, vectors: Tensor) -> None:
        for analysis in analyses:
            if layer > observer.facts.layers:
                analysis.update_returned(vectors, batch)
            else:
                analysis.update_hidden(layer, vectors, batch)

    inputs = batch.host.model_inputs()
    observer.run(batch.model_inputs(), visit, visit_hidden, visit_feed_forward, on_host=inputs, check=Check.SOME)


def _see_again(observer: Observer, batch: Batch, analyses: Sequence[Analysis]) -> None:
    """Run the model once more for the hidden vectors that analyses have to see again, if there are any."""
    layers = {analysis: analysis.layers_to_see_again(batch) for analysis in analyses}

    def visit_hidden(layer: int, vectors: Tensor) -> None:
        for analysis in analyses:
            if layer in layers[analysis]:
                analysis.update_hidden_again(layer, vectors, batch)

    if any(layers.values()):
        inputs = batch.host.model_inputs()
        observer.run(batch.model_inputs(), lambda _block: None, visit_hidden, on_host=inputs, check=Check.NOTHING)


ENTRIES_AT_ONCE = {"cpu": 2**26}
"""Numbers that analyses may keep for the tokens of a batch, by device: 256 MiB in float32."""

ENTRIES_AT_ONCE_ON_ACCELERATORS = 2**31
"""The same on other devices: 8 GiB in float32."""


class BatchRunner:
    """Runs batches whole, or split after one did not fit into device memory.

    What analyses accumulated from a failed batch is rolled back, so nothing counts twice. To make this possible, their state is
    copied before every batch larger than all before it; only such a batch can fail.

    Args:
        device: The model's device.
        analyses: Receive the blocks and hidden vectors.
        token_entries: Numbers kept for each token of a batch. Batches are split so that these fit into memory; one that
            cannot be split is run as it is.
    """

    def __init__(
        self,
        observer: Observer,
        device: torch.device,
        analyses: Sequence[Analysis],
        *,
        token_entries: int = 0,
    ) -> None:
        self._observer, self._device, self._analyses = observer, device, analyses
        at_once = ENTRIES_AT_ONCE.get(device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)
        self._largest = Size(0, 0)
        self._tokens = at_once // token_entries if token_entries else None
        """Maximum number of tokens in a part of a batch, padding included; None without a limit."""
        self._split_before = False

    def run(self, batch: Batch) -> None:
        """Run a batch, in parts if it must be split.

        Raises:
            RuntimeError | MemoryError: If a single sequence, or a batch no larger than an earlier one, does not fit.
        """
        rows = self._rows(batch)
        if rows < batch.sequences:
            for start in range(0, batch.sequences, rows):
                self.run(batch.part(start, min(batch.sequences, start + rows)))
        elif Size.of(batch) <= self._largest:
            self._run(batch)
        elif not self._fits(batch):
            self._split(batch)
            self.run(batch)

    def _rows(self, batch: Batch) -> int:
        """The number of sequences of a batch that may be run at once."""
        width, rows = batch.token_mask.shape[1], batch.sequences
        if self._tokens is not None:
            rows = min(rows, self._tokens // width)
        return max(rows // batch.unit, 1) * batch.unit

    def _fits(self, batch: Batch) -> bool:
        """Run a batch that is larger than all before it; if it does not fit, roll it back and return False."""
        before = state_of(self._analyses)
        try:
            self._run(batch)
        except Exception as error:
            if batch.sequences == batch.unit or not is_out_of_memory(error):
                raise
        else:
            self._largest = self._largest.maximum(Size.of(batch))
            return True
        # Outside the `except` clause: the error keeps alive every tensor that existed when it was raised.
        load_state(self._analyses, before)
        return False

    def _split(self, batch: Batch) -> None:
        """Halve the size of batches from now on."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        width = batch.token_mask.shape[1]
        if not self._split_before:
            say(
                f"a batch of {batch.sequences} × {width} tokens does not fit into the memory of {self._device}: batches are "
                "split from now on; a smaller device.batch_tokens avoids the failed attempts"
            )
        self._tokens, self._split_before = -(-batch.sequences // 2) * width, True

    def _run(self, batch: Batch) -> None:
        run_batch(self._observer, batch.to(self._device), self._analyses)


class Size(NamedTuple):
    """The quantities that a batch's memory grows with."""

    tokens: int
    pairs: int

    @classmethod
    def of(cls, batch: Batch) -> "Size":
        """The size of a batch."""
        rows, width = batch.token_mask.shape
        longest = max(width, batch.keys.token_mask.shape[1])
        return cls(rows * longest, rows * longest**2)

    def __le__(self, other: tuple[int, ...]) -> bool:
        return all(left <= right for left, right in zip(self, other, strict=True))

    def maximum(self, other: "Size") -> "Size":
        """The element-wise maximum."""
        return Size(max(self.tokens, other.tokens), max(self.pairs, other.pairs))


@contextlib.contextmanager
def explain_out_of_memory(batch_tokens: int, device: torch.device) -> Iterator[None]:
    """Turn a device's out-of-memory error into advice.

    Raises:
        InputError: Instead of the device's error.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"device.batch_tokens={batch_tokens}: a batch does not fit into the memory of {device}; set "
            f"device.batch_tokens={max(1, batch_tokens // 2)} or a smaller dataset.max_length"
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device ran out of memory: an accelerator, or the CPU, where torch and NumPy raise different errors."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
