"""Which keys the queries of one attention block see."""

import dataclasses
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from normscope.maths.masks import Mask


@dataclasses.dataclass(frozen=True, eq=False)
class Visibility:
    """The mask of a block, and which of its queries and keys are padding."""

    mask: Mask | None
    """The keys visible to each query, and position biases on the scores; None if everything is visible."""
    queries: Bool[Tensor, "batch query"]
    """True at tokens, False at padding."""
    keys: Bool[Tensor, "batch key"]
    """Likewise."""
    is_cross_attention: bool
    """Whether keys and queries come from different sequences, so that no key is the token itself."""

    @property
    def lengths(self) -> tuple[int, int, int]:
        """The numbers of sequences, queries and keys."""
        return len(self.queries), self.queries.shape[1], self.keys.shape[1]

    @property
    def is_complete(self) -> bool:
        """Whether every query sees every key, padding aside."""
        return self._rule.everything_visible

    @property
    def _rule(self) -> Mask:
        return self.mask or Mask()

    def of(
        self,
        queries: slice | Int[Tensor, " chosen"] = slice(None),
        sequences: slice = slice(None),
        keys: slice = slice(None),
    ) -> Bool[Tensor, "some #head chosen _"]:
        """Which of the chosen keys the chosen queries of the chosen sequences see (by default all); padding sees none."""
        indices = [torch.arange(n, device=self.queries.device) for n in self.lengths]
        token_mask = self.queries[sequences][:, None, queries, None]
        columns = indices[2][keys]
        seen = None if self.mask is None else self.mask.visible(indices[1][queries], columns, indices[0][sequences])
        token_mask = token_mask.expand(-1, -1, -1, len(columns))
        return token_mask if seen is None else token_mask & seen

    @cached_property
    def counts(self) -> Int[Tensor, "batch query"]:
        """How many keys each query sees; 0 at padding."""
        return self._rule.visible_counts(self.keys, self.lengths[1]).masked_fill(~self.queries, 0)

    def key_at(
        self, rows: Int[Tensor, " pair"], queries: Int[Tensor, " pair"], ranks: Int[Tensor, " pair"]
    ) -> Int[Tensor, " pair"]:
        """The n-th visible key of each query.

        Args:
            rows: The sequence of each pair.
            queries: The query of each pair.
            ranks: n for each pair: at least 0 and less than the query's `counts`.
        """
        return self._rule.visible_keys(rows, queries, ranks, self.keys)

    @cached_property
    def only_itself(self) -> Bool[Tensor, "batch query"]:
        """Tokens that see neither neighbour, and so only themselves: in every mask, a query sees an interval around itself."""
        batch, tokens = self.keys.shape
        sequence = torch.arange(batch, device=self.keys.device)[:, None]
        earlier = torch.arange(tokens - 1, device=self.keys.device)
        pairs = self.keys[:, :-1] & self.keys[:, 1:]

        def seen(query: Tensor, key: Tensor) -> Tensor:
            visible = self._rule.sees(sequence, query, key)
            return pairs if visible is None else pairs & visible

        with_neighbour = torch.zeros_like(self.keys)
        with_neighbour[:, :-1] |= seen(earlier, earlier + 1)
        with_neighbour[:, 1:] |= seen(earlier + 1, earlier)
        return ~with_neighbour

    def pairs(
        self, row: Int[Tensor, " pair"], query: Int[Tensor, " pair"], key: Int[Tensor, " pair"]
    ) -> Bool[Tensor, " pair"]:
        """Whether the query of each pair sees its key."""
        seen = self._rule.sees(row, query, key)
        return torch.ones_like(row, dtype=torch.bool) if seen is None else seen
