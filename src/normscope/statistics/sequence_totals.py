"""Totals by sequence, for a uniform sample of a corpus's sequences."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError

_BITS = 62
"""Bits of a fingerprint that tell sequences apart; they fit into an integer of 64 bits."""


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceMeansByName:
    """The result of `SequenceTotals`."""

    sequences: Int[Tensor, " sequence"]
    """Numbers that depend on the sequences' tokens alone, increasing."""
    means: Float[Tensor, "sequence value"]
    counts: Int[Tensor, " sequence"]
    """Number of terms of each mean."""


class SequenceTotals(Accumulator):
    """Sums and numbers of terms of the sequences with the smallest fingerprints.

    A fingerprint is a hash of the tokens, so this is a uniform sample of the distinct sequences, and the same one in every run
    over a corpus, whatever the order, the batches, the processes or the model. Equal sequences count as one with more terms.

    Args:
        size: Number of sequences to keep.
        values: Number of sums per sequence.
    """

    def __init__(self, size: int, values: int) -> None:
        self._size, self._values = size, values
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._names = torch.zeros(0, dtype=torch.int64)
        # The last column is the number of terms, exact up to 2^53.
        self._totals = torch.zeros(0, self._values + 1, dtype=torch.float64)
        # What has been added since the sample was last cut; it stays on its device until then.
        self._entered: list[tuple[Tensor, Tensor]] = []

    def update(
        self, fingerprints: Sequence[int], sums: Float[Tensor, "value batch"], counts: Int[Tensor, " batch"]
    ) -> None:
        """Add the sums of a batch's sequences. A sequence may be added several times: once per layer, for example.

        Args:
            fingerprints: A number per sequence that identifies it by its tokens.
            sums: Σ over the terms.
            counts: Number of terms in each sum.
        """
        names = torch.tensor([fingerprint % 2**_BITS for fingerprint in fingerprints], dtype=torch.int64)
        self._entered.append((names, torch.cat([sums.double(), counts.double()[None]]).T))

    def settle(self) -> None:
        """Cut the sample to size once enough sequences have entered."""
        if sum(len(names) for names, _ in self._entered) > max(self._size, 1000):
            self._cut()

    def compute(self) -> SequenceMeansByName:
        """The means of the kept sequences.

        Raises:
            EmptyAccumulatorError: If nothing has been added.
        """
        self._cut()
        if not len(self._names):
            raise EmptyAccumulatorError("no sequence has been added")
        counts = self._totals[:, -1]
        return SequenceMeansByName(self._names.clone(), self._totals[:, :-1] / counts[:, None], counts.long())

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state."""
        self._cut()
        return {"names": self._names.clone(), "totals": self._totals.clone()}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the sequences of another accumulator of the same size."""
        self._entered.append((state["names"].clone(), state["totals"].clone()))
        self._cut()

    def _cut(self) -> None:
        if not self._entered:
            return
        names = torch.cat([self._names, *(names for names, _ in self._entered)])
        totals = torch.cat([self._totals, *(totals.cpu() for _, totals in self._entered)])
        self._entered = []
        self._names, places = names.unique(return_inverse=True)  # sorted
        self._totals = torch.zeros(len(self._names), self._values + 1, dtype=torch.float64).index_add_(
            0, places, totals
        )
        self._names, self._totals = self._names[: self._size].clone(), self._totals[: self._size].clone()
