"""Texts of a corpus that are run by themselves, and compared with what the untouched model does."""

import math

import torch

from normscope.data.batching import Batch
from normscope.models.observe.observer import Observer
from normscope.models.observe.text_check import Check

ONE_OF = 1024
"""How many texts there are for each that is drawn: comparing one takes some four passes over it, less than 1% of all."""


class ComparedTexts:
    """Runs the longest and the shortest text, the most unusual one, and some that are drawn, by themselves.

    Batches come sorted by length, so the longest text is compared at once and the shortest when all have been read. The most
    unusual text is the one with the rarest tokens, by what the run has read before it.

    Args:
        observer: Runs the model; already entered.
        device: The model's device.
    """

    def __init__(self, observer: Observer, device: torch.device) -> None:
        self._observer, self._device = observer, device
        self._longest = 0
        self._shortest: tuple[float, Batch | None] = math.inf, None
        self._rarest: tuple[float, Batch | None] = -math.inf, None
        self._counts = torch.zeros(0, dtype=torch.long)
        """How often each token id has been read."""

    def after(self, batch: Batch) -> None:
        """Take note of a batch that has been run, and compare some of its texts.

        Args:
            batch: In CPU memory.

        Raises:
            InputError: If what is observed is not what the model does.
        """
        lengths = batch.token_mask.sum(dim=1)
        drawn = {row for row, fingerprint in enumerate(batch.fingerprints) if fingerprint % ONE_OF == 0}
        if int(lengths.max()) > self._longest:
            self._longest = int(lengths.max())
            drawn.add(int(lengths.argmax()))
        if int(lengths.min()) < self._shortest[0]:
            self._shortest = int(lengths.min()), _alone(batch, int(lengths.argmin()))
        rarity = self._rarity(batch)
        if float(rarity.max()) > self._rarest[0]:
            self._rarest = float(rarity.max()), _alone(batch, int(rarity.argmax()))
        for row in sorted(drawn):
            self._compare(_alone(batch, row))

    def _rarity(self, batch: Batch) -> torch.Tensor:
        """−log of the relative frequency of a text's tokens so far, on average."""
        ids, tokens = batch.input_ids, batch.token_mask
        if int(ids.max()) >= len(self._counts):
            self._counts = torch.cat([self._counts, torch.zeros(int(ids.max()) + 1 - len(self._counts)).long()])
        total = int(self._counts.sum()) + 1
        rarity = -((self._counts[ids] + 1) / total).log().masked_fill(~tokens, 0).sum(dim=1) / tokens.sum(dim=1)
        self._counts += torch.bincount(ids[tokens], minlength=len(self._counts))
        return rarity

    def finish(self) -> None:
        """Compare the shortest and the most unusual text of those that were read.

        Raises:
            InputError: If what is observed is not what the model does.
        """
        for _, text in (self._shortest, self._rarest):
            if text is not None:
                self._compare(text)

    def _compare(self, text: Batch) -> None:
        inputs = text.to(self._device).model_inputs()
        visit = None if not self._observer.networks else lambda _block: None
        self._observer.run(inputs, lambda _block: None, visit_feed_forward=visit, check=Check.TEXTS)


def _alone(batch: Batch, row: int) -> Batch:
    """One text of a batch, or the pair that it is part of."""
    start = row - row % batch.unit
    return batch.part(start, start + batch.unit)
