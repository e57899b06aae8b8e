"""A uniform sample of a corpus's sequences, independent of their order and batches."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError


class SequenceSample(Accumulator):
    """Keeps the sequences with the smallest priorities, which depend on the seed and the sequence's fingerprint.

    Args:
        size: Number of sequences to keep.
        seed: Seed of the priorities.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        # Priority, tokens (one row per kind of token number: ids, segments), sorted by both.
        self._kept: list[tuple[float, tuple[tuple[int, ...], ...]]] = []

    def update(
        self,
        fingerprints: tuple[int, ...],
        tokens: Int[Tensor, "kind batch token"],
        token_mask: Bool[Tensor, "batch token"],
    ) -> None:
        """Offer the sequences of a batch.

        Args:
            fingerprints: A number per sequence that identifies it by its tokens.
            tokens: The model's input, one row per kind (ids, segments).
            token_mask: Which tokens are not padding.
        """
        # On the host, where sequences need no operation of the device each.
        ids, present = tokens.cpu().numpy(), token_mask.cpu().numpy()
        limit = self._kept[-1][0] if len(self._kept) == self._size else 1.0
        for row, fingerprint in enumerate(fingerprints):
            priority = float(np.random.default_rng([self._seed, fingerprint]).random())
            if priority <= limit:
                sequence = ids[:, row, present[row]].tolist()
                self._kept.append((priority, tuple(tuple(kind) for kind in sequence)))
        self._cut()

    def compute(self) -> list[Int[Tensor, "kind token"]]:
        """The sequences of the sample, in random order.

        Raises:
            EmptyAccumulatorError: If none has been offered.
        """
        if not self._kept:
            raise EmptyAccumulatorError("no sequence has been offered")
        return [torch.tensor(sequence) for _, sequence in self._kept]

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, with the sequences concatenated."""
        kinds = len(self._kept[0][1]) if self._kept else 1
        return {
            "priorities": torch.tensor([priority for priority, _ in self._kept], dtype=torch.float64),
            "lengths": torch.tensor([len(sequence[0]) for _, sequence in self._kept], dtype=torch.int64),
            "tokens": torch.cat(
                [torch.zeros(kinds, 0, dtype=torch.int64), *(torch.tensor(s) for _, s in self._kept)], dim=1
            ),
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the sequences of another sample of the same size and seed."""
        sequences = state["tokens"].split(state["lengths"].tolist(), dim=1) if len(state["lengths"]) else ()
        self._kept += [
            (priority, tuple(tuple(kind) for kind in sequence.tolist()))
            for priority, sequence in zip(state["priorities"].tolist(), sequences, strict=True)
        ]
        self._cut()

    def _cut(self) -> None:
        self._kept.sort()
        del self._kept[self._size :]
