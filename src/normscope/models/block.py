"""One attention block: its weights, and its activations on one batch."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths import attention as attention_maths
from normscope.maths.composition import Composition, NormPosition
from normscope.maths.keys import KeyMap
from normscope.maths.masks import Mask
from normscope.maths.mixing import (
    CROSS_ATTENTION_METHODS,
    OF_STAGE,
    Method,
    mixing_ratios,
    preserving_vectors,
    word_mixing_ratios,
)
from normscope.maths.normalisation import Normalisation
from normscope.maths.norms import norm_factors, transformed_norms
from normscope.maths.pieces import pieces
from normscope.maths.received import weight_received
from normscope.maths.scores import part_of_keys
from normscope.maths.transfers import to_device
from normscope.maths.weight_tiles import Tile, weight_tiles
from normscope.maths.words import WordGroups, merged_head_norms, word_weights

WEIGHTS_AT_ONCE = {"cpu": 2**22}
"""Entries of α to materialise at once, by device. 2²² float32 weights (16 MiB) were fastest on a CPU, because of its cache."""

WEIGHTS_AT_ONCE_ON_ACCELERATORS = 2**27
"""The same on other devices, which need large pieces of work to be busy."""

TokenSelector = Callable[[Tensor, Tensor], Tensor]
"""Chooses tokens, given hidden vectors (batch, token, model) and a mask of what is not padding."""


def full_precision(tensor: Tensor) -> Tensor:
    """A tensor in float32 or better: models may run in half precision, measurements may not."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclasses.dataclass(frozen=True, eq=False)
class BlockParameters:
    """The weights of one block by head, however its family stores them; in float32 or better."""

    query_weight: Float[Tensor, "head model head_dim"]
    """W_Q."""
    query_bias: Float[Tensor, "head head_dim"]
    """b_Q; zero if absent."""
    key_weight: Float[Tensor, "head model head_dim"]
    """W_K."""
    key_bias: Float[Tensor, "head head_dim"]
    """b_K; zero if absent."""
    value_weight: Float[Tensor, "head model head_dim"]
    """W_V."""
    value_bias: Float[Tensor, "head head_dim"]
    """b_V; zero if absent."""
    output_weight: Float[Tensor, "head head_dim model"]
    """W_O."""
    output_bias: Float[Tensor, " model"] | None
    """b_O."""
    normalisation: Normalisation | None
    """The norm after the residual connection or of the attention output; None if the block has neither."""
    input_normalisation: Normalisation | None
    """The norm of what self-attention reads; None if that is the block's input itself."""
    norm_position: NormPosition
    """The position of `normalisation`."""
    key_normalisation: Normalisation | None
    """The norm of the keys, of each head or of all heads together; None if the family has none."""
    query_normalisation: Normalisation | None
    """The norm of the queries, likewise."""

    @cached_property
    def norm_factors(self) -> Float[Tensor, "head head_dim rank"]:
        """A factor L of W_O with ‖v W_O‖ = ‖v L‖ for every v; see `maths.norms.norm_factors`."""
        return norm_factors(self.output_weight)


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionBlock:
    """One block of one layer: attention, the residual connection and the normalisation that belongs to it.

    It holds the layer's activations, so do not keep it after the visit. Everything that is not a field is computed from the
    fields on first use, once, and shared by the analyses.
    """

    layer: int
    """Counted from 1."""
    inputs: Float[Tensor, "batch query model"]
    """x_i: the block's input, which the residual connection adds to the attention output."""
    attention_inputs: Float[Tensor, "batch key model"]
    """The input of W_K and W_V (and of W_Q in self-attention): the block's input, or its norm."""
    query: Float[Tensor, "batch head query head_dim"]
    key: Float[Tensor, "batch head key head_dim"]
    value: Float[Tensor, "batch head key head_dim"]
    """v = x W_V + b_V."""
    mask: Mask | None
    """The keys visible to each query, and position biases on the scores; None if everything is visible."""
    scale: float
    """Factor on q·k before the softmax."""
    log_normaliser: Float[Tensor, "batch head query"] | None
    """ℓ_i = log Σ_j exp(scale·q_i·k_j), with the sink in the sum if there is one; None with `own_weights`."""
    attention_output: Float[Tensor, "batch query model"]
    """Σ_j F_ij + b_O, as the model computed it."""
    parameters: BlockParameters
    token_mask: Bool[Tensor, "batch query"]
    """True at tokens, False at padding. Rows of padding hold meaningless but finite numbers in every tensor."""
    key_mask: Bool[Tensor, "batch key"]
    """True at keys that are tokens, False at padding."""
    is_cross_attention: bool
    """Whether keys and queries come from different sequences, so that no key is the token itself."""
    key_map: KeyMap
    """The map from x W_K + b_K to the keys: their norm and rotation."""
    own_weights: Float[Tensor, "batch head query key"] | None = None
    """α as the model's attention module returned it, if query and key alone do not determine it; else None."""
    cap: float | None = None
    """c of a soft cap: the score is c·tanh(scale·q·k / c); None without one."""
    sinks: Float[Tensor, " head"] | None = None
    """Each head's learned score for attending to no key, which takes part in the softmax; None if α sums to one."""

    @cached_property
    def weights(self) -> Float[Tensor, "batch head query key"]:
        """Post-softmax attention α; zero at invisible keys."""
        if self.own_weights is not None:
            return self.own_weights
        term = None
        if self.mask is not None:
            term = self.mask.term(slice(0, self._lengths[1]), slice(0, self._lengths[2]), self._lengths, self.query)
        weights = attention_maths.attention_weights(
            self.query, self.key, term, self.scale, cap=self.cap, sinks=self.sinks, log_normaliser=self.log_normaliser
        )
        if self._lone is not None:
            weights.diagonal(dim1=-2, dim2=-1).masked_fill_(self._lone.unsqueeze(1), 1)
        return weights

    def weight_tiles(self) -> Iterator[Tile]:
        """α in tiles (see `maths/weight_tiles.py`).

        Iterating over all of them also computes their sum, `received`.
        """
        known = self.own_weights if self.log_normaliser is None else self.log_normaliser
        assert known is not None
        received = known.new_zeros(*self.query.shape[:2], self.key.shape[2])
        for tile in self._tiles():
            received[tile.sequences, :, tile.keys] += tile.weights.sum(dim=2)
            yield tile
        # Where `cached_property` keeps it.
        vars(self)["received"] = received.masked_fill_(~self.key_mask.unsqueeze(1), 0)

    def _tiles(self) -> Iterator[Tile]:
        if self.own_weights is None:
            assert self.log_normaliser is not None
            yield from weight_tiles(
                self.query,
                self.key,
                self.log_normaliser,
                self.token_mask,
                self.mask,
                self.scale,
                self.cap,
                self._lone,
            )
            return
        sequences, queries, keys = self._lengths
        for some in pieces(slice(0, sequences), self.queries_at_once // queries):
            for part in pieces(slice(0, queries), self.queries_at_once):
                weights = self.weights_of(part, some, padding=False)
                yield Tile(some, part, slice(0, keys), weights)

    @cached_property
    def weight_to_nowhere(self) -> Float[Tensor, "batch head query"] | None:
        """1 − Σ_j α_ij, the weight that a head's sink takes: exp(s − ℓ_i). None without sinks, where α sums to one."""
        if self.sinks is None:
            return None
        assert self.log_normaliser is not None
        return (self.sinks.to(self.log_normaliser.dtype)[:, None] - self.log_normaliser).exp()

    @property
    def _lengths(self) -> tuple[int, int, int]:
        """Numbers of sequences, queries and keys."""
        return len(self.query), self.query.shape[2], self.key.shape[2]

    @property
    def output_bias(self) -> Float[Tensor, " model"] | None:
        """b_O."""
        return self.parameters.output_bias

    @property
    def normalisation(self) -> Normalisation | None:
        """The norm after the residual connection or of the attention output; None if the block has neither."""
        return self.parameters.normalisation

    @property
    def norm_position(self) -> NormPosition:
        """The position of the block's norm."""
        return self.parameters.norm_position

    @property
    def everything_visible(self) -> bool:
        """Whether every query sees every key, padding aside."""
        return self.mask is None or self.mask.everything_visible

    @property
    def queries_at_once(self) -> int:
        """The number of queries, over all sequences, whose weights may be materialised at once."""
        at_once = WEIGHTS_AT_ONCE.get(self.inputs.device.type, WEIGHTS_AT_ONCE_ON_ACCELERATORS)
        return max(1, at_once // (self.query.shape[1] * self.key.shape[2]))

    def visible(
        self,
        queries: slice | Int[Tensor, " chosen"] = slice(None),
        sequences: slice = slice(None),
        keys: slice = slice(None),
    ) -> Bool[Tensor, "some #head chosen _"]:
        """Which of some keys are visible to some queries of some sequences (by default all); none to padding."""
        indices = [torch.arange(n, device=self.inputs.device) for n in self._lengths]
        token_mask = self.token_mask[sequences][:, None, queries, None]
        columns = indices[2][keys]
        seen = None if self.mask is None else self.mask.visible(indices[1][queries], columns, indices[0][sequences])
        token_mask = token_mask.expand(-1, -1, -1, len(columns))
        return token_mask if seen is None else token_mask & seen

    @cached_property
    def visible_counts(self) -> Int[Tensor, "batch query"]:
        """How many keys each query sees; 0 at padding."""
        counts = (self.mask or Mask()).visible_counts(self.key_mask, self._lengths[1])
        return counts.masked_fill(~self.token_mask, 0)

    def visible_keys(
        self, rows: Int[Tensor, " pair"], queries: Int[Tensor, " pair"], ranks: Int[Tensor, " pair"]
    ) -> Int[Tensor, " pair"]:
        """The n-th visible key of queries.

        Args:
            rows: The sequence of each pair.
            queries: The query of each pair.
            ranks: n for each pair, from 0 to below the query's `visible_counts`.
        """
        return (self.mask or Mask()).visible_keys(rows, queries, ranks, self.key_mask)

    def weights_of(
        self,
        queries: slice | Int[Tensor, " chosen"],
        sequences: slice = slice(None),
        keys: slice | None = None,
        *,
        padding: bool = True,
    ) -> Float[Tensor, "some head chosen _"]:
        """Rows of α: the weights of some queries of some sequences, without materialising the others.

        Args:
            queries: Which queries.
            sequences: Which sequences.
            keys: Which keys, including those of the queries; None for all.
            padding: Whether rows of padding may hold meaningless numbers; they are zero otherwise.
        """
        tokens = self.token_mask[sequences][:, None, queries]
        keys = slice(0, self._lengths[2]) if keys is None else keys
        if self.own_weights is not None or "weights" in self.__dict__:
            weights = self.weights[sequences][:, :, queries, keys]
            return weights if padding else weights * tokens.unsqueeze(-1)
        assert self.log_normaliser is not None
        log_normaliser = self.log_normaliser[sequences][:, :, queries]
        if not padding:
            log_normaliser = log_normaliser.masked_fill(~tokens, torch.inf)
        query, key = self.query[sequences][:, :, queries], self.key[sequences][:, :, keys]
        term = None
        if self.mask is not None and isinstance(queries, slice) and self.mask.is_small(self._lengths):
            term = self.mask.term(queries, keys, self._lengths, query)
            term = term if term is None or len(term) == 1 else term[sequences]
        elif self.mask is not None:
            term = self.mask.chosen_term(sequences, queries, keys, self._lengths, query)
        weights = attention_maths.attention_weights(
            query, key, term, self.scale, cap=self.cap, sinks=self.sinks, log_normaliser=log_normaliser
        )
        if self._lone is None:
            return weights
        places = (torch.arange(self._lengths[1], device=weights.device)[queries] - keys.start).unsqueeze(-1)
        places = places.expand(*weights.shape[:2], -1, -1)
        own = weights.gather(-1, places).masked_fill_(self._lone[sequences][:, None, queries, None], 1)
        return weights.scatter_(-1, places, own)

    def weights_at(
        self,
        row: Int[Tensor, " pair"],
        head: Int[Tensor, " pair"],
        query: Int[Tensor, " pair"],
        key: Int[Tensor, " pair"],
    ) -> Float[Tensor, " pair"]:
        """Single α_ij: exp(scale·q_i·k_j + b_ij − ℓ_i)."""
        if self.log_normaliser is None or "weights" in self.__dict__:
            return self.weights[row, head, query, key]
        scores = (self.query[row, head, query] * self.key[row, head, key]).sum(dim=-1).to(self.log_normaliser.dtype)
        scores = attention_maths.capped(scores * self.scale, self.cap)
        weights = scores - self.log_normaliser[row, head, query]
        if self.mask is not None and self.mask.bias is not None:
            weights = weights + self.mask.bias.expand(len(self.inputs), -1, -1, -1)[row, head, query, key]
        seen = None if self.mask is None else self.mask.sees(row, query, key)
        weights = weights.exp() if seen is None else weights.exp().masked_fill(~seen, 0)
        return weights if self._lone is None else weights.masked_fill(self._lone[row, query] & (query == key), 1)

    @cached_property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij over the queries that are tokens: the total weight that each key receives; zero at padding."""
        if self.own_weights is not None or "weights" in self.__dict__:
            return (self.token_mask.to(self.weights.dtype)[:, None, None, :] @ self.weights).squeeze(2)
        assert self.log_normaliser is not None
        received = weight_received(
            self.query, self.key, self.log_normaliser, self.token_mask, self.mask, self.scale, self.cap
        )
        return received.masked_fill(~self.key_mask.unsqueeze(1), 0)

    @cached_property
    def transformed_norms(self) -> Float[Tensor, "batch head key"]:
        """‖f^h(x_j)‖."""
        return transformed_norms(self.value, self.parameters.norm_factors)

    @cached_property
    def self_weights(self) -> Float[Tensor, "batch head query"]:
        """α_ii, the weight of each token on itself, without materialising `weights`."""
        if self.is_cross_attention:
            return torch.zeros_like(self.query[..., 0])
        if self.own_weights is not None:
            return self.own_weights.diagonal(dim1=-2, dim2=-1)
        assert self.log_normaliser is not None
        bias = None if self.mask is None else self.mask.bias
        added = None if bias is None else bias.diagonal(dim1=-2, dim2=-1).to(self.query.dtype)
        weights = attention_maths.self_attention_weights(
            self.query, self.key, self.log_normaliser, self.scale, added, self.cap
        )
        return weights if self._lone is None else weights.masked_fill_(self._lone.unsqueeze(1), 1)

    @cached_property
    def preserving(self) -> Float[Tensor, "batch query model"]:
        """F_ii, what each token takes from itself through attention; zero in cross-attention."""
        if self.is_cross_attention:
            return torch.zeros_like(self.attention_output)
        return preserving_vectors(self.self_weights, self.value, self.parameters.output_weight)

    @cached_property
    def composition(self) -> Composition:
        """The parts of the block's output."""
        return Composition(
            inputs=self.inputs,
            attention_output=self.attention_output,
            preserving=self.preserving,
            output_bias=self.output_bias,
            norm_position=self.norm_position,
            normalisation=self.normalisation,
        )

    @property
    def mixing(self) -> Float[Tensor, "batch query model"]:
        """Σ_{j≠i} F_ij, what each token takes from the others through attention."""
        return self.composition.mixing

    @cached_property
    def mixing_ratios(self) -> Mapping[Method, Float[Tensor, "batch query"]]:
        """r_i of every token by method, for the methods that are defined for the block.

        A token that can see no other, such as the first of a causal model, has exactly 0: its difference from 0 would be
        rounding, which a ranking of tokens takes at face value.
        """
        ratios = mixing_ratios(self.self_weights, self.composition, self.weight_to_nowhere)
        if not self.is_cross_attention:
            ratios = {method: r.masked_fill(self._sees_only_itself, 0) for method, r in ratios.items()}
        return {
            method: r
            for method, r in ratios.items()
            if not self.is_cross_attention or method in CROSS_ATTENTION_METHODS
        }

    @cached_property
    def _lone(self) -> Bool[Tensor, "batch query"] | None:
        """Tokens whose weight on themselves is 1, which exp(s − ℓ) is only up to rounding; None if sinks leave no such token.

        A ranking of weights would take the last digits at face value.
        """
        return None if self.is_cross_attention or self.sinks is not None else self._sees_only_itself & self.token_mask

    @cached_property
    def _sees_only_itself(self) -> Bool[Tensor, "batch query"]:
        """Tokens that see neither neighbour. Every mask shows a query an interval around itself, so they see nothing else."""
        mask, (batch, tokens) = self.mask or Mask(), self.key_mask.shape
        sequence = torch.arange(batch, device=self.key_mask.device)[:, None]
        earlier = torch.arange(tokens - 1, device=self.key_mask.device)
        pairs = self.key_mask[:, :-1] & self.key_mask[:, 1:]

        def seen(query: Tensor, key: Tensor) -> Tensor:
            visible = mask.sees(sequence, query, key)
            return pairs if visible is None else pairs & visible

        with_neighbour = torch.zeros_like(self.key_mask)
        with_neighbour[:, :-1] |= seen(earlier, earlier + 1)
        with_neighbour[:, 1:] |= seen(earlier + 1, earlier)
        return ~with_neighbour

    def pair_maps(self) -> dict[Method, Float[Tensor, "batch query key"]]:
        """How much every query takes from every key: α averaged over heads, and ‖V_ij‖ at every stage, in float64 on the CPU.

        The weights of single heads are materialised in strips of queries, never for all pairs at once.
        """
        means: list[Tensor] = []

        def strips() -> Iterator[Tensor]:
            for start in range(0, self.query.shape[2], self.queries_at_once):
                weights = self.weights_of(slice(start, start + self.queries_at_once)).cpu().double()
                means.append(weights.mean(dim=1))
                yield weights

        norms = self.composition.double().pair_norms(
            strips(),
            self.value.cpu().double(),
            self.parameters.output_weight.cpu().double(),
            is_cross_attention=self.is_cross_attention,
        )
        return {Method.ATTN_W: torch.cat(means, dim=1)} | {OF_STAGE[stage]: maps for stage, maps in norms.items()}

    def word_maps(
        self, groups: WordGroups, *, in_double: bool = True
    ) -> dict[Method, Float[Tensor, "batch word unit"]]:
        """How much every word takes from every other: α averaged over heads, and ‖V_IJ‖ at every stage.

        Args:
            groups: The words; see `maths/words.py`.
            in_double: Whether to compute in float64 on the CPU, or as the model does.
        """
        composition, value, output_weight = self.composition, self.value, self.parameters.output_weight
        if in_double:
            composition, value, output_weight = composition.double(), value.cpu().double(), output_weight.cpu().double()
        groups = groups.like(value)
        norms = composition.word_norms(self.weights_of, value, output_weight, groups)
        means = torch.cat(
            [
                self.weights_of(slice(start, start + self.queries_at_once)).to(value).mean(dim=1)
                for start in range(0, self.query.shape[2], self.queries_at_once)
            ],
            dim=1,
        )
        weights = word_weights(means.unsqueeze(1), groups).squeeze(1)
        return {Method.ATTN_W: weights} | {OF_STAGE[stage]: maps for stage, maps in norms.items()}

    def word_head_maps(
        self, groups: WordGroups, *, in_double: bool = True
    ) -> tuple[Float[Tensor, "batch head word unit"], Float[Tensor, "batch head word unit"]]:
        """α and ‖αf(x)‖ of single heads between words.

        Args:
            groups: The words; see `maths/words.py`.
            in_double: Whether to compute in float64 on the CPU, or as the model does.
        """
        value, factors = self.value, self.parameters.norm_factors
        if in_double:
            value, factors = value.cpu().double(), norm_factors(self.parameters.output_weight.cpu().double())
        groups = groups.like(value)
        means = groups.rows.unsqueeze(1) @ self.weights_of(slice(None)).to(value)
        return groups.sums(means), merged_head_norms(means, value @ factors, groups)

    def word_strips(self, groups: WordGroups) -> Iterator[tuple[slice, slice, Float[Tensor, "some head _ key"]]]:
        """α from words to tokens in strips, each with its sequences and target words; see `word_rows`.

        Args:
            groups: The words; see `maths/words.py`.
        """
        sequences, queries, _ = self._lengths
        # Words have at least one token, so that a strip of words has at least as many queries.
        words = min(groups.rows.shape[1], self.queries_at_once)
        for some in pieces(slice(0, sequences), self.queries_at_once // queries):
            for part in pieces(slice(0, groups.rows.shape[1]), words):
                yield some, part, self.word_rows(groups, some, part)

    def word_rows(
        self, groups: WordGroups, sequences: slice, words: slice | Int[Tensor, " chosen"]
    ) -> Float[Tensor, "some head chosen key"]:
        """α from target words to tokens: the mean over the tokens of each word; zero for words that a sequence does not have.

        Args:
            groups: The words; see `maths/words.py`.
            sequences: Which sequences.
            words: Which target words; indices in CPU memory.
        """
        chosen = words if isinstance(words, slice) else to_device(words, groups.rows.device)
        rows, queries = groups.rows[sequences, chosen], groups.queries_of(sequences, words)
        weights = self.weights_of(queries, sequences, padding=False).to(rows)
        return rows[:, :, queries].unsqueeze(1) @ weights

    def word_mixing_ratios(self, groups: WordGroups) -> Mapping[Method, Float[Tensor, "batch word"]]:
        """The mixing ratio of every word by the methods of `mixing_ratios`.

        What the word's tokens take from one another counts as taken from the word itself.

        Args:
            groups: The words; see `maths/words.py`.
        """
        groups = groups.like(self.value)
        if self.is_cross_attention:
            ratios = word_mixing_ratios(self.self_weights, self.composition, groups.rows, self.weight_to_nowhere)
            return {method: ratio for method, ratio in ratios.items() if method in CROSS_ATTENTION_METHODS}
        weights, vectors = self._within(groups)
        preserving = dataclasses.replace(self.composition, preserving=vectors)
        ratios = word_mixing_ratios(weights, preserving, groups.rows, self.weight_to_nowhere)
        alone = self._see_only_their_word(groups)
        return {method: ratio.masked_fill(alone, 0) for method, ratio in ratios.items()}

    def _within(
        self, groups: WordGroups
    ) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch query model"]]:
        """What each token gives to all tokens of its word, by head, and what it takes from them."""
        weights = self.self_weights.to(self.value).clone()
        values = weights.unsqueeze(-1) * self.value
        row, query, key = groups.ordered_siblings
        for head in range(weights.shape[1]):
            shares = self.weights_at(row, torch.full_like(row, head), query, key).to(weights)
            weights[:, head].index_put_((row, query), shares, accumulate=True)
            values[:, head].index_put_((row, query), shares[:, None] * self.value[row, head, key], accumulate=True)
        return weights, torch.einsum("bhqd,hdm->bqm", values, self.parameters.output_weight)

    def _see_only_their_word(self, groups: WordGroups) -> Bool[Tensor, "batch word"]:
        """Words none of whose tokens sees another word."""
        row, query, key = groups.ordered_siblings
        seen = (self.mask or Mask()).sees(row, query, key)
        inside = self.token_mask.long()
        inside.index_put_((row, query), torch.ones_like(row) if seen is None else seen.long(), accumulate=True)
        others = (self.visible_counts - inside).to(groups.rows.dtype)
        return (groups.rows @ others.unsqueeze(-1)).squeeze(-1) == 0

    def weight_of_groups(
        self, members: Bool[Tensor, "group batch key"], without: Sequence[int] = ()
    ) -> Float[Tensor, "batch head query group"]:
        """Σ_{j∈group} α_ij, optionally with scores that ignore some dimensions of the keys' inputs.

        Subtracting Σ_{d∈without} x_d W_K[d] from every key removes exactly these dimensions' part of the scores.
        """
        removed = (
            self.key_map(part_of_keys(self.attention_inputs, self.parameters.key_weight, without)) if without else None
        )
        if self.own_weights is None:
            key = self.key if removed is None else self.key - removed
            return attention_maths.attention_by_group(
                self.query, key, members, self.mask, self.scale, cap=self.cap, sinks=self.sinks
            )
        weights = self.own_weights
        if removed is not None:
            # exp(score − difference) / Σ: log α is the score up to a constant per query, which cancels.
            difference = self.scale * self.query @ removed.transpose(-1, -2)
            weights = (weights.log() - difference).softmax(dim=-1)
        return torch.einsum("bhqk,gbk->bhqg", weights, members.to(weights.dtype))

    def transformed(self) -> Float[Tensor, "batch head key model"]:
        """f^h(x_j) of every head, explicitly: `head` times the size of the activations, so not for whole corpora."""
        return torch.einsum("bhkd,hdm->bhkm", self.value, self.parameters.output_weight)
