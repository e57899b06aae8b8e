"""Which keys a query sees, and which are padding. Masks are materialised in strips of queries, never as a whole."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

STRIP = 256
"""Queries per strip, where the scores of all queries would take too much memory."""

_SMALL = 2**20  # pragma: no mutate
"""Most entries of a term that is kept for the other layers, which need it again: 4 MiB in float32."""

Allowed = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a query sees a key, from broadcastable indices of sequence, head, query and key."""


def additive_mask(visible: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """A boolean mask (True = visible) as the term to add to the scores: 0 where visible, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def ranked(visible: Bool[Tensor, "pair key"], ranks: Int[Tensor, " pair"]) -> Int[Tensor, " pair"]:
    """The index of the visible key at each rank, from 0.

    It is the number of keys whose running count of visible keys does not exceed the rank.
    """
    return (visible.cumsum(dim=-1, dtype=torch.int32) <= ranks[:, None]).sum(dim=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Mask:
    """The term added to the scores: 0 or a positional bias where a query sees a key, −∞ elsewhere.

    A query sees a key if `keys`, `causal` and `allowed` all permit it.
    """

    keys: Bool[Tensor, "batch key"] | None = None
    """Keys that are not padding; None if none is padding."""
    causal: bool = False
    """Whether a query sees no later keys."""
    allowed: Allowed | None = None
    """A further rule, such as a window. Never combined with `causal`: the rule then covers that too."""
    reach: int | None = None
    """Largest distance at which a query sees a key; None if unbounded."""
    queries: Bool[Tensor, "batch query"] | None = None
    """Queries that are not padding, if padding queries might see no key. Padding then sees everything, since a softmax
    over nothing is NaN. None if every query sees a key."""
    bias: Float[Tensor, "#batch head query key"] | None = None
    """Positional bias, added to the scores."""
    shift: Float[Tensor, "batch head key"] | None = None
    """Added to all scores of a key."""
    arbitrary: bool = False
    """Whether `allowed` is a model's own, by which a query may see no interval around itself."""
    _terms: dict[object, Tensor | None] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _biased: list["Mask"] = dataclasses.field(default_factory=list, init=False, repr=False)

    @property
    def everything_visible(self) -> bool:
        """Whether every token sees every token, padding aside."""
        return not self.causal and self.allowed is None

    @property
    def of_positions(self) -> "Mask":
        """The mask without padding. It depends on positions alone, so that it can be evaluated on any device."""
        return dataclasses.replace(self, keys=None, queries=None)

    def of_text(self, text: int, copies: int) -> "Mask":
        """The mask of a batch that consists of copies of one text."""

        def chosen(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor[min(text, len(tensor) - 1)].expand(copies, *tensor.shape[1:])

        def allowed(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            assert self.allowed is not None
            return self.allowed(torch.full_like(sequence, text), head, query, key)

        return dataclasses.replace(
            self,
            keys=chosen(self.keys),
            allowed=None if self.allowed is None else allowed,
            queries=chosen(self.queries),
            bias=chosen(self.bias),
            shift=chosen(self.shift),
        )

    def with_bias(self, bias: Float[Tensor, "#batch head query key"]) -> "Mask":
        """The mask with a positional bias added. Layers that share a bias get the same object."""
        if not self._biased or self._biased[0].bias is not bias:
            self._biased[:] = [dataclasses.replace(self, bias=bias)]
        return self._biased[0]

    def sees(
        self, sequence: Int[Tensor, "..."], query: Int[Tensor, "..."], key: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."] | None:
        """Whether queries see keys, from broadcastable indices; None if every query sees every key."""
        rules = [] if self.keys is None else [self.keys[sequence, key]]
        if self.causal:
            rules.append(key <= query)
        if self.allowed is not None:
            rules.append(self.allowed(sequence, torch.zeros_like(sequence), query, key))
        if not rules:
            return None
        seen = functools.reduce(torch.logical_and, rules)
        return seen if self.queries is None else seen | ~self.queries[sequence, query]

    def visible(
        self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"], sequences: Int[Tensor, " batch"]
    ) -> Bool[Tensor, "#batch #head #query #key"] | None:
        """Which of the given keys each of the given queries sees; None if they see all."""
        return self.sees(sequences[:, None, None, None], queries[None, None, :, None], keys[None, None, None])

    def visible_counts(self, key_mask: Bool[Tensor, "batch key"], queries: int) -> Int[Tensor, "batch query"]:
        """How many keys each query sees. `allowed`, if set, is evaluated in strips of queries.

        Args:
            key_mask: Keys that are not padding. Padding is not counted.
            queries: Number of queries.
        """
        batch, keys = key_mask.shape
        if self.allowed is None:
            seen = key_mask.long()
            return seen.cumsum(dim=-1) if self.causal else seen.sum(dim=-1, keepdim=True).expand(-1, queries)
        sequences, indices = (torch.arange(n, device=key_mask.device) for n in (batch, max(queries, keys)))
        counts = torch.zeros(batch, queries, dtype=torch.int64, device=key_mask.device)
        # `key_mask` replaces the masks of tokens, and may be on another device.
        rule = self.of_positions
        for rows, columns in self.strips(queries, keys):
            visible = rule.visible(indices[rows], indices[columns], sequences)
            assert visible is not None  # because `allowed` is set
            counts[:, rows] = (visible & key_mask[:, None, None, columns])[:, 0].sum(dim=-1)
        return counts

    def visible_keys(
        self,
        sequences: Int[Tensor, " pair"],
        queries: Int[Tensor, " pair"],
        ranks: Int[Tensor, " pair"],
        key_mask: Bool[Tensor, "batch key"],
    ) -> Int[Tensor, " pair"]:
        """For each pair, the key at the given rank among those that the query sees.

        Args:
            sequences: The sequence of each pair.
            queries: The query of each pair.
            ranks: The rank of each key, from 0 to below the query's number of visible keys.
            key_mask: Keys that are not padding.
        """
        if self.allowed is None:  # all keys that are not padding, or the first of them
            return key_mask.byte().argsort(dim=-1, descending=True, stable=True)[sequences, ranks]
        keys = torch.arange(key_mask.shape[1], device=key_mask.device)
        chosen = torch.zeros_like(queries)
        for part in torch.arange(len(queries), device=queries.device).split(STRIP):
            sequence = sequences[part]
            visible = self.sees(sequence[:, None], queries[part][:, None], keys)
            assert visible is not None
            chosen[part] = ranked(visible & key_mask[sequence], ranks[part])
        return chosen

    def term(
        self, queries: slice, keys: slice, lengths: tuple[int, int, int], like: Tensor
    ) -> Float[Tensor, "#batch #head #query #key"] | None:
        """The term added to the scores of some queries and keys; None if nothing is added.

        Every layer needs it again, so it is cached where that takes no more memory than is used anyway.

        Args:
            lengths: Total numbers of sequences, queries and keys.
            like: A tensor with the dtype and device of the result.
        """
        place = (queries.start, queries.stop, keys.start, keys.stop, like.dtype)
        if place not in self._terms:
            term = self.chosen_term(slice(None), queries, keys, lengths, like)
            linear = self.reach is not None or term is None or term.shape[2] == 1
            known = self.bias is not None and self.shift is None
            if not (linear or lengths[1] <= STRIP or self.is_small(lengths) or known):
                return term
            self._terms[place] = term
        return self._terms[place]

    def is_small(self, lengths: tuple[int, int, int]) -> bool:
        """Whether the term of all queries and keys is small enough to be kept.

        Args:
            lengths: Total numbers of sequences, queries and keys.
        """
        alike = self.keys is None and self.allowed is None and self.bias is None and self.shift is None
        return (1 if alike else lengths[0]) * lengths[1] * lengths[2] <= _SMALL

    def chosen_term(
        self,
        sequences: slice,
        queries: slice | Int[Tensor, " query"],
        keys: slice,
        lengths: tuple[int, int, int],
        like: Tensor,
    ) -> Float[Tensor, "#batch #head #query #key"] | None:
        """The same for individually chosen queries, in some of the sequences."""
        indices = [torch.arange(n, device=like.device) for n in lengths]
        visible = self.visible(indices[1][queries], indices[2][keys], indices[0][sequences])
        term = None if visible is None else additive_mask(visible, like.dtype)
        if self.bias is not None:
            bias = self.bias if len(self.bias) == 1 else self.bias[sequences]
            term = _sum(term, bias[:, :, queries, keys].to(like.dtype))
        if self.shift is not None:
            term = _sum(term, self.shift[sequences, :, None, keys].to(like.dtype))
        return term

    def own_term(self, like: Float[Tensor, "batch head token head_dim"]) -> Float[Tensor, "#batch #head token"] | None:
        """The term added to the score of each token with itself, in the queries' dtype; None if nothing is added."""
        term = None if self.bias is None else self.bias.diagonal(dim1=-2, dim2=-1).to(like.dtype)
        if self.allowed is None:
            return term
        sequence, token = (torch.arange(like.shape[axis], device=like.device) for axis in (0, 2))
        seen = self.allowed(sequence[:, None], torch.zeros_like(sequence)[:, None], token, token)
        hidden = additive_mask(seen.expand(len(sequence), -1).unsqueeze(1), like.dtype)
        return _sum(term, hidden)

    def strips(self, queries: int, keys: int, size: int | None = None) -> Iterator[tuple[slice, slice]]:
        """Strips of consecutive queries, each with a range of keys that includes all the keys they see.

        Args:
            queries: Number of queries.
            keys: Number of keys.
            size: Most queries in a strip, if fewer than `STRIP`.
        """
        size = STRIP if size is None else min(size, STRIP)
        for start in range(0, queries, size):
            stop = min(queries, start + size)
            first, last = 0, keys
            if self.causal:
                last = stop
            elif self.reach is not None:
                first, last = max(0, start - self.reach), min(keys, stop + self.reach)
            yield slice(start, stop), slice(first, last)

    def transposed(self, shift: Float[Tensor, "batch head query"]) -> "Mask":
        """The mask with queries and keys exchanged: each key attends to the queries that see it.

        Args:
            shift: Added to all scores of a query.
        """
        allowed = _no_later_key if self.causal else self.allowed
        return Mask(
            allowed=None if allowed is None else lambda b, h, key, query: allowed(b, h, query, key),
            reach=self.reach,
            queries=self.keys,
            bias=None if self.bias is None else self.bias.transpose(-1, -2),
            shift=shift,
        )


def mask_of(mask: Shaped[Tensor, "#batch #head #query #key"], lengths: tuple[int, int]) -> Mask:
    """A mask that a model's code has made as a tensor.

    Args:
        mask: True where visible, or a term added to the scores.
        lengths: Numbers of queries and keys.
    """
    of_scores, bias = mask.is_floating_point(), None
    hidden = mask <= torch.finfo(mask.dtype).min / 2 if of_scores else ~mask
    hidden_to_all = hidden.all(dim=1, keepdim=True)
    if of_scores or mask.shape[1] > 1:  # what some heads do not see has a bias of −∞
        term = mask if of_scores else additive_mask(mask, torch.float32)
        bias = term.masked_fill(hidden_to_all, 0.0).expand(-1, -1, *lengths)
    visible = (~hidden_to_all).expand(-1, -1, *lengths)

    def allowed(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = sequence.clamp(max=len(visible) - 1)  # one mask may be that of all texts
        return visible.to(key.device)[row, head, query, key]

    return Mask(
        allowed=allowed,
        bias=bias,
        arbitrary=True,
    )


def _no_later_key(_sequence: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


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
        self,
        rows: Int[Tensor, " pair"],
        queries: Int[Tensor, " pair"],
        ranks: Int[Tensor, " pair"],
        chosen: Bool[Tensor, "batch key"],
    ) -> Int[Tensor, " pair"]:
        """The n-th of some keys that each query sees.

        Args:
            rows: The sequence of each pair.
            queries: The query of each pair.
            ranks: n for each pair: at least 0 and less than the number of these keys that the query sees.
            chosen: The keys, none of which is padding.
        """
        return self._rule.visible_keys(rows, queries, ranks, chosen)

    @cached_property
    def only_itself(self) -> Bool[Tensor, "batch query"]:
        """Tokens that see only themselves: neither neighbour, if the mask is one in which queries see intervals."""
        batch, tokens = self.keys.shape
        sequence = torch.arange(batch, device=self.keys.device)[:, None]
        if self._rule.arbitrary:
            place = torch.arange(tokens, device=self.keys.device)
            own = self._rule.sees(sequence, place, place)
            return (self.counts == 1) if own is None else (self.counts == 1) & own
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
