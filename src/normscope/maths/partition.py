"""Tokens in groups: words, sentences, messages, texts of a pair, any regions, or the tokens themselves.

Between groups, vectors are summed over the tokens of a source and averaged over those of a target. With I the tokens of the
target and J those of the source,

    V_IJ = 1/|I| Σ_{i∈I} Σ_{j∈J} V_ij

at every stage V of a block (`composition.py`) or layer (`layer_composition.py`). The vectors are merged and then measured: the
sum of their norms is only an upper bound on ‖V_IJ‖, because vectors may cancel.

Norms of single heads need no vectors: ‖Σ_{j∈J} a_j f(x_j)‖² = Σ_{j,j'∈J} a_j a_j' ⟨f(x_j), f(x_j')⟩.

Source: maps of weights between words are those of Clark et al. 2019, section 4.1 (arXiv:1906.04341).
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.tensors import to_device


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The tokens of sequences in groups. A token is in one group or in none.

    Shapes of tensors depend on how many tokens each group has. A partition on an accelerator therefore keeps a copy in CPU
    memory, which can be read without waiting.
    """

    of_token: Int[Tensor, "batch token"]
    """The group of each token, counted from 0; any other number if it is in none."""
    first: Int[Tensor, "batch group"]
    """The first token of each group; 0 for groups that a sequence does not have."""
    exists: Bool[Tensor, "batch group"]
    others: Int[Tensor, "batch other"]
    """The other tokens of groups, of which there are few between words; 0 where a sequence has fewer."""
    owners: Int[Tensor, "batch other"]
    """The group of each of these tokens; 0 where a sequence has fewer."""
    is_other: Bool[Tensor, "batch other"]
    places: slice | Int[Tensor, " group"] | None = None
    """Where the tokens are that are groups themselves; None if tokens are merged."""
    names: tuple[str, ...] = ()
    """What each group is called, in a batch of one; empty if groups have no names."""
    on_host: "Partition | None" = dataclasses.field(default=None, repr=False)
    """The partition in CPU memory from which this one was copied; see `host`."""

    @classmethod
    def of(cls, groups: Int[Tensor, "batch token"], count: int, names: Sequence[str] = ()) -> "Partition":
        """Tokens in groups. On an accelerator, the host would have to wait for the number of their tokens.

        Args:
            groups: The group of each token, counted from 0; −1 for none. Those from `count` on are left out.
            count: Number of groups in the sequence that has most.
            names: What each group is called, in a batch of one.
        """
        _, tokens = groups.shape
        known = (groups >= 0) & (groups < count)
        bins = groups.where(known, torch.full_like(groups, count))
        places = torch.arange(tokens, device=groups.device).expand_as(groups)
        first = groups.new_full((len(groups), count + 1), tokens).scatter_reduce(1, bins, places, "amin")
        is_other = known & (first.gather(1, bins) < places)
        first = first[:, :count]
        # The other tokens move to the left; columns that no sequence needs are cut off.
        order = is_other.logical_not().to(torch.int8).argsort(dim=1, stable=True)
        others = order[:, : int(is_other.sum(dim=1).amax()) if tokens else 0]
        is_other = is_other.gather(1, others)
        owners = bins.gather(1, others)
        return cls(
            of_token=groups,
            first=first.masked_fill(first == tokens, 0),
            exists=first < tokens,
            others=others.masked_fill(~is_other, 0),
            owners=owners.masked_fill(~is_other, 0),
            is_other=is_other,
            names=tuple(names),
        )

    @classmethod
    def tokens(
        cls,
        token_mask: Bool[Tensor, "batch token"],
        places: Int[Tensor, " chosen"] | None = None,
        names: Sequence[str] = (),
    ) -> "Partition":
        """The tokens themselves, which nothing merges.

        Args:
            token_mask: True at tokens, False at padding.
            places: Those of some tokens; all by default.
            names: See `of`.
        """
        chosen = slice(None) if places is None else places.to(token_mask.device)
        every = torch.arange(token_mask.shape[1], device=token_mask.device)
        first = every[chosen].expand(len(token_mask), -1)
        of_token = torch.full_like(every, -1)
        of_token[chosen] = torch.arange(first.shape[1], device=every.device)
        nothing = first[:, :0]
        return cls(
            of_token=of_token.expand_as(token_mask).masked_fill(~token_mask, -1),
            first=first,
            exists=token_mask[:, chosen],
            others=nothing,
            owners=nothing,
            is_other=nothing.bool(),
            places=chosen,
            names=tuple(names),
        )

    @property
    def count(self) -> int:
        """Number of groups."""
        return self.first.shape[1]

    @property
    def members(self) -> Bool[Tensor, "batch group token"]:
        """Which tokens are in which group."""
        return self.of_token.unsqueeze(1) == torch.arange(self.count, device=self.of_token.device)[:, None]

    @cached_property
    def host(self) -> "Partition":
        """The same partition in CPU memory."""
        if self.on_host is not None:
            return self.on_host
        return self if self.of_token.device.type == "cpu" else self.to(torch.device("cpu"))

    def to(self, device: torch.device) -> "Partition":
        """The partition on another device."""
        if device == self.of_token.device:
            return self
        if device.type == "cpu" and self.on_host is not None:
            return self.on_host
        moved = self._each(lambda tensor: to_device(tensor, device))
        return dataclasses.replace(moved, on_host=None if device.type == "cpu" else self.host)

    def part(self, sequences: slice) -> "Partition":
        """The groups of some sequences."""
        if sequences == slice(0, len(self.of_token)):
            return self
        some = self._each(lambda tensor: tensor[sequences])
        return dataclasses.replace(some, on_host=None if self.on_host is None else self.on_host.part(sequences))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Partition":
        return dataclasses.replace(
            self,
            of_token=change(self.of_token),
            first=change(self.first),
            exists=change(self.exists),
            others=change(self.others),
            owners=change(self.owners),
            is_other=change(self.is_other),
        )

    def rows(self, like: Tensor) -> Float[Tensor, "batch group token"] | None:
        """1/|I| at the tokens of each group, zero for groups that a sequence does not have; None if no tokens are merged.

        Args:
            like: A tensor with the dtype and device of the result.
        """
        if self.places is not None:
            return None
        known = self.to(like.device)._rows
        if like.dtype not in known:  # 1/3 rounded to float32 is not 1/3 in float64
            members = self.to(like.device).members.to(like.dtype)
            known[like.dtype] = members / members.sum(dim=-1, keepdim=True).clamp(min=1)
        return known[like.dtype]

    @cached_property
    def _rows(self) -> dict[torch.dtype, Tensor]:
        return {}

    @cached_property
    def siblings(self) -> Int[Tensor, "pair 3"]:
        """Pairs of different tokens of one group, each pair in one order only: sequence, one token, other token."""
        if self.host is not self:
            return to_device(self.host.siblings, self.of_token.device)
        groups = self.of_token
        known = (groups >= 0) & (groups < self.count)
        together = (groups.unsqueeze(1) == groups.unsqueeze(2)) & known.unsqueeze(1)
        return together.triu(1).nonzero()

    @cached_property
    def ordered_siblings(self) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"]]:
        """The same pairs in both orders: sequences, one token, the other."""
        sequence, one, other = self.siblings.unbind(-1)
        return torch.cat([sequence, sequence]), torch.cat([one, other]), torch.cat([other, one])

    @cached_property
    def groups_of_siblings(self) -> tuple[Int[Tensor, "group 2"], Int[Tensor, " pair"]]:
        """Groups of several tokens, as sequence and group, and for each pair the index of its group among them."""
        if self.host is not self:
            groups, numbers = self.host.groups_of_siblings
            return to_device(groups, self.of_token.device), to_device(numbers, self.of_token.device)
        sequence, one, _ = self.siblings.unbind(-1)
        owners = torch.stack([sequence, self.of_token[sequence, one]], dim=1)
        groups, numbers = owners.unique(dim=0, return_inverse=True)
        return groups, numbers

    def tokens_of(self, sequences: slice, groups: slice | Int[Tensor, " chosen"]) -> Int[Tensor, " token"]:
        """The tokens that some groups have in any of some sequences.

        Args:
            groups: Which groups; indices in CPU memory.
        """
        of_token = self.host.of_token[sequences]
        if isinstance(groups, slice):
            first, last, _ = groups.indices(self.count)
            held = (of_token >= first) & (of_token < last)
        else:
            held = torch.isin(of_token, groups)
        return to_device(held.any(dim=0).nonzero()[:, 0], self.of_token.device)

    def sums(self, values: Float[Tensor, "batch *axes token"]) -> Float[Tensor, "batch *axes group"]:
        """Sums over the tokens of each group."""
        if self.places is not None:
            return values[..., self.places]
        on = self.to(values.device)
        # Axes between sequence and token become one, so that one index serves them all.
        by_token = values.flatten(1, -2) if values.dim() > 2 else values.unsqueeze(1)
        first = by_token.gather(2, on.first.unsqueeze(1).expand(-1, by_token.shape[1], -1))
        sums = first * on.exists.unsqueeze(1)
        if on.others.shape[1]:
            shape = -1, by_token.shape[1], -1
            others = by_token.gather(2, on.others.unsqueeze(1).expand(*shape)) * on.is_other.unsqueeze(1)
            sums.scatter_add_(2, on.owners.unsqueeze(1).expand(*shape), others)
        return sums.view(*values.shape[:-1], self.count)

    def means(self, values: Float[Tensor, "batch *axes token size"]) -> Float[Tensor, "batch *axes group size"]:
        """Means over the tokens of each group; 0 for groups that a sequence does not have."""
        rows = self.rows(values)
        if rows is None:
            assert self.places is not None
            return values[..., self.places, :]
        return rows.view(len(rows), *(1 for _ in values.shape[1:-2]), *rows.shape[1:]) @ values


def merged_weights(
    weights: Float[Tensor, "batch *axes query key"], queries: Partition, keys: Partition
) -> Float[Tensor, "batch *axes target source"]:
    """α between groups: the total weight on a source's tokens, averaged over the target's tokens."""
    return keys.sums(queries.means(weights))


def merged_head_norms(
    means: Float[Tensor, "batch head target key"], vectors: Float[Tensor, "batch head key rank"], keys: Partition
) -> Float[Tensor, "batch head target source"]:
    """‖Σ_j m_j f(x_j)‖ over the tokens j of each source, for weights m_j ≥ 0.

    For a source of one token, this is m_j ‖f(x_j)‖. For the others, the square is
    Σ_j m_j² ‖f(x_j)‖² + 2 Σ_{j<j'} m_j m_j' ⟨f(x_j), f(x_j')⟩.

    Args:
        means: m: α, averaged over the tokens of each target.
        vectors: f(x_j), or any vectors with the same products.
        keys: The sources.
    """
    keys = keys.to(means.device)
    lengths = means * torch.linalg.vector_norm(vectors, dim=-1).unsqueeze(2)
    norms = keys.sums(lengths)
    pairs = keys.siblings
    if not len(pairs):
        return norms
    sequence, one, other = pairs.unbind(-1)
    groups, numbers = keys.groups_of_siblings
    # First axis: pairs, then groups of several tokens. The others: head and target.
    products = means[sequence, :, :, one] * means[sequence, :, :, other]
    grams = (vectors[sequence, :, one] * vectors[sequence, :, other]).sum(dim=-1)
    squares = products.new_zeros(len(groups), *products.shape[1:])
    squares.index_add_(0, numbers, products.mul_(2 * grams.unsqueeze(-1)))
    squares += keys.sums(lengths.square())[groups[:, 0], :, :, groups[:, 1]]
    # Rounding can make a zero square slightly negative.
    norms[groups[:, 0], :, :, groups[:, 1]] = squares.clamp(min=0).sqrt()
    return norms
