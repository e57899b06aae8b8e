"""One attention block: its activations on one batch, with its weights."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.errors import InputError
from normscope.linear.block_parameters import NOT_LINEAR as NOT_LINEAR
from normscope.linear.block_parameters import BlockParameters as BlockParameters
from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.composition import Composition
from normscope.maths.keys import PlaneMap
from normscope.maths.masks import Mask
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, OF_STAGE, Method, mixing_ratios, preserving_vectors
from normscope.maths.norms import gated_head_norms, transformed_norms, weighted_norms
from normscope.maths.shares import Shares, attention_readout, block_shares, pair_readout, share_error
from normscope.maths.tensors import full_precision as full_precision

T = TypeVar("T")

TokenSelector = Callable[[Tensor, Tensor], Tensor]
"""Chooses tokens, given hidden vectors (batch, token, model) and a mask of what is not padding."""


GATED = "the outputs of the heads are multiplied by a gate that depends on the query, so no single vector f(x) belongs to a key"
"""Why a measure of f(x) is not defined."""


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionBlock:
    """One block of one layer: attention, the residual connection and the normalisation that belongs to it.

    It holds the layer's activations, so do not keep it after the visit. Properties are computed from the fields once, on
    first use, and shared by the analyses.
    """

    layer: int
    """Counted from 1."""
    inputs: Float[Tensor, "batch query model"]
    """x_i: the block's input, which the residual connection adds to the attention output."""
    value: Float[Tensor, "batch head key head_dim"]
    """v = x W_V + b_V."""
    alpha: AttentionWeights
    """Queries and keys, and the attention weights in every form."""
    attention_output: Float[Tensor, "batch query model"]
    """Σ_j F_ij + b_O, as the model computed it."""
    parameters: BlockParameters
    gate: Float[Tensor, "batch head query #head_dim"] | None = None
    """g_i, the factor on what each head has summed, before W_O; None without a gate. With a gate, key j contributes
    α_ij (g_i ⊙ v_j) W_O to query i, which is not a multiple of one vector f(x_j)."""

    @property
    def attention_inputs(self) -> Float[Tensor, "batch key model"]:
        """The input of W_K and W_V (and of W_Q in self-attention): the block's input, or its norm.

        Raises:
            InputError: If no linear layer reads it.
        """
        inputs = self.parameters.projections.attention_inputs
        if inputs is None:
            raise InputError(NOT_LINEAR.format("keys"))
        return inputs

    @cached_property
    def key_map(self) -> PlaneMap:
        """The map from x W_K + b_K to the keys: their norm and rotation."""
        return self.parameters.projections.find_key_map()

    @property
    def query(self) -> Float[Tensor, "batch head query head_dim"]:
        """q, after any norm and rotation."""
        return self.alpha.query

    @property
    def key(self) -> Float[Tensor, "batch head key head_dim"]:
        """k, likewise."""
        return self.alpha.key

    @property
    def mask(self) -> Mask | None:
        """The keys visible to each query, and position biases on the scores; None if everything is visible."""
        return self.alpha.seen.mask

    @property
    def token_mask(self) -> Bool[Tensor, "batch query"]:
        """True at tokens, False at padding. Rows of padding hold meaningless but finite numbers in every tensor."""
        return self.alpha.seen.queries

    @property
    def key_mask(self) -> Bool[Tensor, "batch key"]:
        """True at keys that are tokens, False at padding."""
        return self.alpha.seen.keys

    @property
    def is_cross_attention(self) -> bool:
        """Whether keys and queries come from different sequences, so that no key is the token itself."""
        return self.alpha.seen.is_cross_attention

    @property
    def weights(self) -> Float[Tensor, "batch head query key"]:
        """Post-softmax attention α of all pairs; zero at invisible keys."""
        return self.alpha.whole

    @property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij over the queries that are tokens: the total weight that each key receives; zero at padding."""
        return self.alpha.received

    @property
    def weight_to_nowhere(self) -> Float[Tensor, "batch head query"] | None:
        """1 − Σ_j α_ij, the weight that a head's sink takes: exp(s − ℓ_i). None without sinks, where α sums to one."""
        return self.alpha.to_nowhere

    def require_vectors_of_keys(self) -> None:
        """Check that each key contributes a multiple of one vector f(x_j) to every query.

        Raises:
            InputError: If the block has a gate.
        """
        if self.gate is not None:
            raise InputError(f"layer {self.layer}: {GATED}")

    @cached_property
    def transformed_norms(self) -> Float[Tensor, "batch head key"]:
        """‖f^h(x_j)‖.

        Raises:
            InputError: If the block has a gate, which makes f depend on the query; see `head_norms`.
        """
        self.require_vectors_of_keys()
        return transformed_norms(self.value, self.parameters.norm_factors)

    def transformed(self) -> Float[Tensor, "batch head key model"]:
        """f^h(x_j) of every head, explicitly: `head` times the size of the activations, so not for whole corpora.

        Raises:
            InputError: If the block has a gate, which makes f depend on the query; see `attended`.
        """
        self.require_vectors_of_keys()
        return torch.einsum("bhkd,hdm->bhkm", self.value, self.parameters.output_weight)

    def attended(
        self, weights: Float[Tensor, "batch head query key"], queries: slice | Int[Tensor, " query"] = slice(None)
    ) -> Float[Tensor, "batch query model"]:
        """Σ_h Σ_j w^h_ij f^h(x_j), with weights w in place of α.

        Args:
            queries: Those of the weights.
        """
        heads = self.gated(weights @ self.value.to(weights), queries)
        return torch.einsum("bhqd,hdm->bqm", heads, self.parameters.output_weight.to(heads))

    def gated(
        self, vectors: Float[Tensor, "batch head query head_dim"], queries: slice | Int[Tensor, " query"] = slice(None)
    ) -> Float[Tensor, "batch head query head_dim"]:
        """A vector for each query and head, multiplied by the gate, if there is one."""
        return vectors if self.gate is None else vectors * self.gate[:, :, queries].to(vectors)

    def head_norms(
        self, weights: Float[Tensor, "batch head query key"], queries: Int[Tensor, " query"] | None = None
    ) -> Float[Tensor, "batch head query key"]:
        """‖α_ij f(x_j)‖ of every head; with a gate, ‖α_ij (g_i ⊙ v_j) W_O‖, for which a vector is built for each pair.

        Args:
            weights: α of these queries.
            queries: Which queries; all by default.
        """
        if self.gate is None:
            return weighted_norms(weights, self.transformed_norms.to(weights))
        gate = self.gate if queries is None else self.gate[:, :, queries]
        return gated_head_norms(weights, self.value, gate, self.parameters.norm_factors)

    @property
    def mixing(self) -> Float[Tensor, "batch query model"]:
        """Σ_{j≠i} F_ij, what each token takes from the others through attention."""
        return self.composition.mixing

    @cached_property
    def composition(self) -> Composition:
        """The parts of the block's output."""
        weights = self.parameters
        if self.is_cross_attention:
            preserving = torch.zeros_like(self.attention_output)
        else:
            preserving = preserving_vectors(self.alpha.own, self.gated(self.value), weights.output_weight)
        return Composition(
            inputs=self.inputs,
            attention_output=self.attention_output,
            preserving=preserving,
            output_bias=weights.output_bias,
            norm_position=weights.norm_position,
            normalisation=weights.normalisation,
        )

    @cached_property
    def mixing_ratios(self) -> Mapping[Method, Float[Tensor, "batch query"]]:
        """r_i of every token by method, for the methods that are defined for the block.

        A token that can see no other, such as the first of a causal model, has exactly 0: a rounding error would count
        as a difference in rankings of tokens.
        """
        ratios = self.defined(mixing_ratios(self.alpha.own, self.composition, self.weight_to_nowhere))
        if self.is_cross_attention:
            return ratios
        return {method: ratio.masked_fill(self.alpha.seen.only_itself, 0) for method, ratio in ratios.items()}

    @cached_property
    def shares(self) -> Mapping[Method, Shares]:
        """The signed shares of the parts of every token's output, by the methods that measure vectors; they add up to 1."""
        return self.defined({OF_STAGE[stage]: parts for stage, parts in block_shares(self.composition).items()})

    def defined(self, by_method: Mapping[Method, T]) -> dict[Method, T]:
        """The values of the methods that are defined for the block."""
        return {
            method: value
            for method, value in by_method.items()
            if not self.is_cross_attention or method in CROSS_ATTENTION_METHODS
        }

    def share_error(self) -> Float[Tensor, ""]:
        """By how much the shares of a token differ most from 1 with what the other tokens really contribute."""
        shares = {stage: self.shares[method] for stage, method in OF_STAGE.items() if method in self.shares}
        return share_error(self.composition, shares, self.token_mask)

    def received_shares(self, rows: Float[Tensor, "batch word query"] | None = None) -> Float[Tensor, "batch head key"]:
        """Σ_i s^h_ij: the signed shares of each key in the attention outputs of all queries, head by head; zero at padding.

        Over heads and keys, the shares of a query add up to 1 less the share of b_O.

        Args:
            rows: The share of each token in its word, if the outputs are those of words, the means of their tokens'.
        """
        readers = self.readers if rows is None else self._readers(rows)
        return torch.linalg.vecdot(self.alpha.gathered(readers), self.value)

    @cached_property
    def readers(self) -> Float[Tensor, "batch head query head_dim"]:
        """r^h_i, which reads values out along a query's attention output: s^h_ij = α^h_ij ⟨v^h_j, r^h_i⟩; 0 at padding."""
        return self._readers(None)

    def _readers(self, rows: Tensor | None) -> Tensor:
        # Only the attention output is needed, not all of `composition`, which costs a projection.
        along = attention_readout(self.attention_output, self.token_mask, rows)
        return self.gated(pair_readout(along, self.parameters.output_weight))
