"""Maps of words: what a word takes from another, from what its tokens take from the other's tokens.

From a source word sum, of a target word mean. With I the tokens of a target word and J those of a source word,

    V_IJ = 1/|I| Σ_{i∈I} Σ_{j∈J} V_ij

at every stage V of a block (`composition.py`) or layer (`layer_composition.py`). The vectors are merged and then measured: the
sum of their norms is only an upper bound of ‖V_IJ‖, because vectors may cancel.

Norms of single heads need no vectors: ‖Σ_{j∈J} a_j f(x_j)‖² = Σ_{j,j'∈J} a_j a_j' ⟨f(x_j), f(x_j')⟩.

Source: word maps of weights are those of Clark et al. 2019, section 4.1 (arXiv:1906.04341).
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.transfers import to_device

# Entries of a tensor with axes unit × word × width to hold at once; a CPU's cache holds few more.
_AT_ONCE = 2**20
_AT_ONCE_ON_ACCELERATORS = 2**26


class Pieces(NamedTuple):
    """The tokens of words: the first of each, and the others. Most words have one token, so little has to be merged."""

    of_token: Int[Tensor, "batch token"]
    """The word of each token, counted from 0; other numbers for none of these words."""
    first: Int[Tensor, "batch word"]
    """0 for words that a sequence does not have."""
    exists: Bool[Tensor, "batch word"]
    others: Int[Tensor, "batch piece"]
    """0 where a sequence has fewer."""
    owners: Int[Tensor, "batch piece"]
    """The word of each; 0 where a sequence has fewer."""
    is_other: Bool[Tensor, "batch piece"]

    @classmethod
    def of(cls, words: Int[Tensor, "batch token"], count: int) -> "Pieces":
        """The pieces of words. On an accelerator the host would wait for their number.

        Args:
            words: The word of each token, counted from 0; −1 for none. Those from `count` on are left out.
            count: Number of words of the sequence that has most.
        """
        _, tokens = words.shape
        known = (words >= 0) & (words < count)
        bins = words.where(known, torch.full_like(words, count))
        places = torch.arange(tokens, device=words.device).expand_as(words)
        first = words.new_full((len(words), count + 1), tokens).scatter_reduce(1, bins, places, "amin")
        is_other = known & (first.gather(1, bins) < places)
        first = first[:, :count]
        # The other pieces move to the left; columns that no sequence needs are cut off.
        order = is_other.logical_not().to(torch.int8).argsort(dim=1, stable=True)
        others = order[:, : int(is_other.sum(dim=1).amax()) if tokens else 0]
        is_other = is_other.gather(1, others)
        owners = bins.gather(1, others)
        return cls(
            words,
            first.masked_fill(first == tokens, 0),
            first < tokens,
            others.masked_fill(~is_other, 0),
            owners.masked_fill(~is_other, 0),
            is_other,
        )

    def to(self, device: torch.device) -> "Pieces":
        """The pieces on another device."""
        return Pieces(*(to_device(field, device) for field in self))

    def part(self, sequences: slice) -> "Pieces":
        """The pieces of some sequences."""
        return Pieces(*(field[sequences] for field in self))


class Strip(NamedTuple):
    """Some target words of some sequences, and the queries that hold their tokens."""

    sequences: slice
    words: slice
    queries: slice


class KeyVectors(NamedTuple):
    """What each head gives with weight 1, for the tokens of source words of some sequences."""

    first: Float[Tensor, "batch unit head width"]
    others: Float[Tensor, "piece head width"]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Some sequences, their target words in strips, and their source words.

    Source words are numbered without those that no sequence of the part has; the first are the target words.
    """

    sequences: slice
    units: Int[Tensor, " unit"]
    """Numbers of the source words."""
    first: Int[Tensor, "batch unit"]
    """The first token of each source word; 0 for words that a sequence does not have."""
    exists: Bool[Tensor, "batch unit"]
    others: Int[Tensor, "piece 2"]
    """The other tokens: sequence and token."""
    owners: Int[Tensor, " piece"]
    """The source words of these, counted over all sequences."""
    strips: tuple[Strip, ...]

    def key_vectors(
        self, value: Float[Tensor, "batch head key head_dim"], transform: Float[Tensor, "head head_dim width"]
    ) -> KeyVectors:
        """v M of every head, for the tokens of the source words.

        Args:
            value: v of all sequences.
            transform: M: W_O, perhaps followed by other linear maps.
        """
        by_token = value[self.sequences].transpose(1, 2)  # batch, key, head, head_dim
        rows = torch.arange(len(by_token), device=by_token.device)[:, None]

        def of(chosen: Tensor) -> Tensor:
            return (chosen.transpose(0, 1) @ transform).transpose(0, 1)

        first = of(by_token[rows, self.first].flatten(0, 1)).unflatten(0, self.first.shape)
        return KeyVectors(first, of(by_token[self.others[:, 0], self.others[:, 1]]))

    def merged(
        self,
        rows: Float[Tensor, "batch word query"],
        weights: Float[Tensor, "batch head query key"],
        vectors: KeyVectors,
    ) -> Float[Tensor, "batch unit word width"]:
        """Σ_{i∈I} rows_Ii Σ_{j∈J} Σ_h weights^h_ij v^h_j M: linear, so queries are merged first.

        Args:
            rows: The share of each query in each target word.
            weights: α of the same queries.
            vectors: v M.
        """
        return self.over_keys(rows.unsqueeze(1) @ weights, vectors)

    def over_keys(
        self, weights: Float[Tensor, "batch head query key"], vectors: KeyVectors
    ) -> Float[Tensor, "batch unit query width"]:
        """Σ_{j∈J} Σ_h weights^h_ij v^h_j M of all source words J."""
        by_key = weights.permute(0, 3, 2, 1)  # batch, key, query, head
        rows = torch.arange(len(by_key), device=by_key.device)[:, None]
        first = by_key[rows, self.first] * self.exists[..., None, None]
        sums = torch.bmm(first.flatten(0, 1), vectors.first.flatten(0, 1))
        if len(self.owners):
            others = by_key[self.others[:, 0], self.others[:, 1]]
            sums.index_add_(0, self.owners, torch.bmm(others, vectors.others))
        return sums.unflatten(0, self.first.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class WordGroups:
    """Which tokens make up which words. In self-attention, the first units of the keys are the target words, in order.

    How many tokens a word has decides the shapes of what is computed. Groups on an accelerator therefore keep a copy in CPU
    memory, which is read without waiting.
    """

    rows: Float[Tensor, "batch word query"]
    """1/|I| at the tokens of a target word; zero for words that a sequence does not have."""
    targets: Pieces
    """The target words."""
    units: Pieces
    """The source words; keys that belong to none, as at padding, have −1."""
    is_self_attention: bool = True
    """Whether queries and keys are the same tokens, so that a token's own vector belongs to a pair."""
    on_host: "WordGroups | None" = dataclasses.field(default=None, repr=False)
    """The groups in CPU memory from which these were copied; see `host`."""

    @classmethod
    def of(cls, targets: Pieces, units: Pieces, dtype: torch.dtype, *, is_self_attention: bool = True) -> "WordGroups":
        """Groups from the tokens of words.

        Args:
            targets: The target words.
            units: The source words.
            dtype: Dtype of the maps.
            is_self_attention: Whether queries and keys are the same tokens.
        """
        return cls(_shares(targets, dtype), targets, units, is_self_attention)

    @property
    def count(self) -> int:
        """Number of source words."""
        return self.units.first.shape[1]

    @property
    def columns(self) -> Float[Tensor, "batch key unit"]:
        """1 at the source word of each key."""
        units = self.units.of_token
        return (units.unsqueeze(-1) == torch.arange(self.count, device=units.device)).to(self.rows.dtype)

    @cached_property
    def host(self) -> "WordGroups":
        """The same groups in CPU memory."""
        if self.on_host is not None:
            return self.on_host
        return self if self._device.type == "cpu" else self.to(torch.device("cpu"))

    @property
    def _device(self) -> torch.device:
        return self.rows.device

    @cached_property
    def siblings(self) -> Int[Tensor, "pair 3"]:
        """Pairs of different keys of one source word, each pair in one order only: sequence, one key, other key."""
        if self.host is not self:
            return to_device(self.host.siblings, self._device)
        units = self.units.of_token
        together = (units.unsqueeze(1) == units.unsqueeze(2)) & (units >= 0).unsqueeze(1)
        return together.triu(1).nonzero()

    @cached_property
    def ordered_siblings(self) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"]]:
        """The same pairs in both orders: sequences, queries, keys."""
        sequence, one, other = self.siblings.unbind(-1)
        return torch.cat([sequence, sequence]), torch.cat([one, other]), torch.cat([other, one])

    @cached_property
    def words_of_siblings(self) -> tuple[Int[Tensor, "word 2"], Int[Tensor, " pair"]]:
        """Source words of several tokens, as sequence and unit, and the index among them of each pair's."""
        if self.host is not self:
            words, numbers = self.host.words_of_siblings
            return to_device(words, self._device), to_device(numbers, self._device)
        sequence, one, _ = self.siblings.unbind(-1)
        owners = torch.stack([sequence, self.units.of_token[sequence, one]], dim=1)
        words, numbers = owners.unique(dim=0, return_inverse=True)
        return words, numbers

    def queries_of(self, sequences: slice, words: slice | Int[Tensor, " chosen"]) -> Int[Tensor, " query"]:
        """The queries that are tokens of some target words.

        Args:
            sequences: Which sequences.
            words: Which target words; indices in CPU memory.
        """
        held = self.host.rows[sequences, words].flatten(0, 1).any(dim=0)
        return to_device(held.nonzero()[:, 0], self._device)

    def sums(self, values: Float[Tensor, "batch *axes key"]) -> Float[Tensor, "batch *axes unit"]:
        """Sums over the keys of each source word."""
        pieces = self.units
        # Flat beyond the sequence, so that one index serves all axes.
        by_key = values.flatten(1, -2) if values.dim() > 2 else values.unsqueeze(1)
        first = by_key.gather(2, pieces.first.unsqueeze(1).expand(-1, by_key.shape[1], -1))
        sums = first * pieces.exists.unsqueeze(1)
        if pieces.others.shape[1]:
            shape = -1, by_key.shape[1], -1
            others = by_key.gather(2, pieces.others.unsqueeze(1).expand(*shape)) * pieces.is_other.unsqueeze(1)
            sums.scatter_add_(2, pieces.owners.unsqueeze(1).expand(*shape), others)
        return sums.view(*values.shape[:-1], self.count)

    def means(self, values: Float[Tensor, "batch *axes key"]) -> Float[Tensor, "batch *axes unit"]:
        """Means over the keys of each source word; 0 for words that a sequence does not have."""
        counts = self.sums(torch.ones_like(self.units.of_token, dtype=values.dtype)).clamp(min=1)
        return self.sums(values) / counts.view(len(counts), *(1 for _ in values.shape[1:-1]), -1)

    def parts(self, width: int) -> Iterator[Part]:
        """The sequences in parts for which tensors with axes unit × word × width are small, of one sequence at least."""
        at_once = (_AT_ONCE if self.rows.device.type == "cpu" else _AT_ONCE_ON_ACCELERATORS) // max(1, width)
        keys = self.host.units
        words, units = _lengths(self.host.targets.exists), keys.exists.sum(dim=1).tolist()
        start = 0
        while start < len(words):
            stop, most = start + 1, (words[start], units[start])
            while stop < len(words):
                longer = max(most[0], words[stop]), max(most[1], units[stop])
                if (stop + 1 - start) * longer[0] * longer[1] > at_once:
                    break
                stop, most = stop + 1, longer
            if most[0]:
                yield self._part(slice(start, stop), keys, most[0], max(1, at_once // max(1, most[1])))
            start = stop

    def _part(self, sequences: slice, keys: Pieces, words: int, at_once: int) -> Part:
        keys = keys.part(sequences)
        used = keys.exists.any(dim=0)
        if self.is_self_attention:
            used[:words] = True
        units = used.nonzero()[:, 0]
        numbers = used.cumsum(0) - 1
        others = keys.is_other.nonzero()
        of_others = keys.others[others[:, 0], others[:, 1]], keys.owners[others[:, 0], others[:, 1]]
        part = Part(
            sequences=sequences,
            units=to_device(units, self._device),
            first=to_device(keys.first[:, units], self._device),
            exists=to_device(keys.exists[:, units], self._device),
            others=to_device(torch.stack([others[:, 0], of_others[0]], dim=1), self._device),
            owners=to_device(others[:, 0] * len(units) + numbers[of_others[1]], self._device),
            strips=(),
        )
        whole = slice(0, self.rows.shape[2])
        if sequences.stop - sequences.start > 1 or words <= at_once:
            return dataclasses.replace(part, strips=(Strip(sequences, slice(0, words), whole),))
        strips = []
        for start in range(0, words, at_once):
            chosen = slice(start, min(words, start + at_once))
            held = self.host.rows[sequences.start, chosen].any(dim=0).nonzero()
            if len(held):
                strips.append(Strip(sequences, chosen, slice(int(held[0]), int(held[-1]) + 1)))
        return dataclasses.replace(part, strips=tuple(strips))

    def rows_of(self, strip: Strip) -> Float[Tensor, "batch word query"]:
        """The rows of a strip."""
        return self.rows[strip.sequences, strip.words, strip.queries]

    def others(self, weights: Float[Tensor, "batch head query key"], strip: Strip) -> Tensor:
        """Weights of a strip's queries without those on themselves, whose vectors include the residual connection."""
        if not self.is_self_attention:
            return weights
        weights = weights.clone()
        own = torch.arange(weights.shape[2], device=weights.device)
        weights[:, :, own, own + strip.queries.start] = 0
        return weights

    def merged_neurons(
        self,
        part: Part,
        strip: Strip,
        rows: Float[Tensor, "batch word query"],
        weights: Float[Tensor, "batch head query key"],
        gates: "list[tuple[KeyVectors, Float[Tensor, 'batch query width']]]",
    ) -> Float[Tensor, "batch unit word width"]:
        """Σ_{i∈I} rows_Ii Σ_g A^g_i ⊙ Σ_{j∈J} Σ_h weights^h_ij v^h_j M^g, where every query has slopes A_i of its own.

        Args:
            part: The source words.
            strip: The target words.
            rows: The share of each query in each target word.
            weights: α of the strip's queries.
            gates: v M^g, and A^g of the strip's queries.
        """
        pieces = self.targets
        here = slice(strip.words.start, strip.words.stop)
        columns, of_strip = self._others_of(strip)
        owners = pieces.owners[strip.sequences][:, columns].sub(here.start).masked_fill(~of_strip, 0)

        def of(tokens: Tensor, words: Tensor, exist: Tensor) -> Tensor:
            tokens = tokens.sub(strip.queries.start).masked_fill(~exist, 0)
            batch = torch.arange(len(tokens), device=tokens.device)[:, None]
            shares = rows[batch, words, tokens] * exist
            chosen = weights.transpose(1, 2)[batch, tokens].mul_(shares[..., None, None]).transpose(1, 2)
            sums = None
            for vectors, slopes in gates:
                neurons = part.over_keys(chosen, vectors).mul_(slopes[batch, tokens].unsqueeze(1))
                sums = neurons if sums is None else sums.add_(neurons)
            assert sums is not None
            return sums

        words = torch.arange(here.stop - here.start, device=rows.device)[None]
        sums = of(pieces.first[strip.sequences, here], words, pieces.exists[strip.sequences, here])
        if len(columns):
            more = of(pieces.others[strip.sequences][:, columns], owners, of_strip)
            batch = torch.arange(len(more), device=rows.device)
            for piece in range(len(columns)):
                sums[batch, :, owners[:, piece]] += more[:, :, piece]
        return sums

    def _others_of(self, strip: Strip) -> tuple[Int[Tensor, " piece"], Bool[Tensor, "batch piece"]]:
        """Columns of `Pieces.others` that some target word of a strip needs, and whether one of a sequence's does."""
        pieces = self.host.targets
        inside = (pieces.owners >= strip.words.start) & (pieces.owners < strip.words.stop)
        of_strip = (pieces.is_other & inside)[strip.sequences]
        columns = of_strip.any(dim=0).nonzero()[:, 0]
        return to_device(columns, self._device), to_device(of_strip[:, columns], self._device)

    def with_own(
        self,
        vectors: Float[Tensor, "batch unit word model"],
        rows: Float[Tensor, "batch word query"],
        own: Float[Tensor, "sequences queries model"],
        strip: Strip,
    ) -> Float[Tensor, "batch unit word model"]:
        """The vectors of a strip's pairs, to which what tokens take from themselves is added at their word and itself.

        Args:
            vectors: Of all source words and the strip's target words; changed in place.
            rows: The share of each of the strip's queries in each target word.
            own: What every token takes from itself.
            strip: The queries and words.
        """
        if self.is_self_attention:
            itself = torch.arange(strip.words.start, strip.words.stop, device=vectors.device)
            vectors[:, itself, itself - strip.words.start] += rows @ own[strip.sequences, strip.queries]
        return vectors

    def with_own_norms(
        self,
        vectors: Float[Tensor, "batch unit word model"],
        norms: Float[Tensor, "batch word unit"],
        rows: Float[Tensor, "batch word query"],
        own: Float[Tensor, "sequences queries model"],
        strip: Strip,
    ) -> Float[Tensor, "batch word unit"]:
        """The norms of `with_own`, from those of the vectors: they differ in a word's pair with itself alone.

        Args:
            vectors: See `with_own`; left as they are.
            norms: Of the vectors.
            rows: See `with_own`.
            own: See `with_own`.
            strip: See `with_own`.
        """
        itself = torch.arange(strip.words.start, strip.words.stop, device=vectors.device)
        pairs = vectors[:, itself, itself - strip.words.start] + rows @ own[strip.sequences, strip.queries]
        norms = norms.clone()
        norms[:, itself - strip.words.start, itself] = torch.linalg.vector_norm(pairs, dim=-1)
        return norms

    def to(self, device: torch.device) -> "WordGroups":
        """The groups on another device."""
        if device == self._device:
            return self
        return dataclasses.replace(
            self,
            rows=to_device(self.rows, device),
            targets=self.targets.to(device),
            units=self.units.to(device),
            on_host=None if device.type == "cpu" else self.host,
        )

    def part(self, sequences: slice) -> "WordGroups":
        """The groups of some sequences."""
        if sequences == slice(0, len(self.rows)):
            return self
        return dataclasses.replace(
            self,
            rows=self.rows[sequences],
            targets=self.targets.part(sequences),
            units=self.units.part(sequences),
            on_host=None if self.on_host is None else self.on_host.part(sequences),
        )

    def like(self, tensor: Tensor) -> "WordGroups":
        """The groups with the dtype and on the device of a tensor."""
        moved = (self.host if tensor.device.type == "cpu" else self).to(tensor.device)
        if moved.rows.dtype == tensor.dtype:
            return moved
        # 1/3 in float32 is none in float64.
        return dataclasses.replace(moved, rows=_shares(moved.targets, tensor.dtype))


def _shares(words: Pieces, dtype: torch.dtype) -> Float[Tensor, "batch word query"]:
    """1/|I| at the tokens of each word."""
    numbers = torch.arange(words.first.shape[1], device=words.first.device)
    members = (words.of_token.unsqueeze(1) == numbers[:, None]).to(dtype)
    return members / members.sum(dim=-1, keepdim=True).clamp(min=1)


def _lengths(exists: Bool[Tensor, "batch word"]) -> list[int]:
    """1 + the number of the last word that exists."""
    numbers = torch.arange(1, exists.shape[1] + 1, device=exists.device)
    lengths: list[int] = (exists * numbers).amax(dim=1).tolist() if exists.shape[1] else [0] * len(exists)
    return lengths


def word_weights(
    weights: Float[Tensor, "batch head query key"], groups: WordGroups
) -> Float[Tensor, "batch head word unit"]:
    """α between words: what a target word's tokens give to all tokens of a source word, in the mean."""
    return groups.sums(groups.rows.unsqueeze(1) @ weights)


def word_head_norms(
    weights: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch head key head_dim"],
    factors: Float[Tensor, "head head_dim rank"],
    groups: WordGroups,
) -> Float[Tensor, "batch head word unit"]:
    """‖1/|I| Σ_i Σ_j α_ij f(x_j)‖ of single heads.

    Args:
        weights: Post-softmax α.
        value: v, with b_V inside.
        factors: See `norms.norm_factors`.
        groups: The words.
    """
    return merged_head_norms(groups.rows.unsqueeze(1) @ weights, value @ factors, groups)


def merged_head_norms(
    means: Float[Tensor, "batch head word key"], vectors: Float[Tensor, "batch head key rank"], groups: WordGroups
) -> Float[Tensor, "batch head word unit"]:
    """‖Σ_j m_j f(x_j)‖ over the tokens j of each source word, for weights m_j ≥ 0.

    Most words have one token, for which this is m_j ‖f(x_j)‖. Of the others the square is
    Σ_j m_j² ‖f(x_j)‖² + 2 Σ_{j<j'} m_j m_j' ⟨f(x_j), f(x_j')⟩.

    Args:
        means: m: α, averaged over the tokens of each target word.
        vectors: f(x_j), or any vectors with the same products.
        groups: The words.
    """
    lengths = means * torch.linalg.vector_norm(vectors, dim=-1).unsqueeze(2)
    norms = groups.sums(lengths)
    pairs = groups.siblings
    if not len(pairs):
        return norms
    sequence, one, other = pairs.unbind(-1)
    words, numbers = groups.words_of_siblings
    # Pairs, then words of several tokens, with axes head and target word.
    products = means[sequence, :, :, one] * means[sequence, :, :, other]
    grams = (vectors[sequence, :, one] * vectors[sequence, :, other]).sum(dim=-1)
    squares = products.new_zeros(len(words), *products.shape[1:])
    squares.index_add_(0, numbers, products.mul_(2 * grams.unsqueeze(-1)))
    squares += groups.sums(lengths.square())[words[:, 0], :, :, words[:, 1]]
    # Rounding can make a zero square slightly negative.
    norms[words[:, 0], :, :, words[:, 1]] = squares.clamp(min=0).sqrt()
    return norms
