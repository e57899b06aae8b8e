"""Signed shares: how much each of the vectors that add up to an output contributes along it.

With y = Σ_j c_j, the share of c_j is

    s_j = ⟨c_j, y⟩ / ⟨y, y⟩        Σ_j s_j = 1

A part that points against the output has a negative share. Shares add up over tokens, heads, categories and words; ratios of
norms do not, because contributions that cancel look as large as contributions that add.

A layer normalisation is linear once σ_i is held, so what a part contributes behind it is read out before it:

    ⟨γ ⊙ (v − mean(v)) / σ_i, d⟩ = ⟨v, w⟩,        w = (γ ⊙ d − mean(γ ⊙ d)) / σ_i

Only one vector w is built for each token, and none for pairs of tokens.

Source: Cunningham and Cirone 2026 (arXiv:2606.07604) call such projections contribution weights.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.composition import Composition, Stage
from normscope.maths.layer_composition import LayerComposition, LayerStage
from normscope.maths.normalisation import Normalisation

ELEMENTS_AT_ONCE = {"cpu": 2**18}
"""Elements of vectors to multiply at once, by device: 1 MiB in float32 stays in a processor's cache."""

ELEMENTS_ON_ACCELERATORS = 2**28
"""The same on other devices, which need large pieces of work to be busy."""


class Shares(NamedTuple):
    """The shares of the parts of an output, which add up to 1."""

    others: Float[Tensor, "*token"]
    """What comes from the other tokens."""
    own: Float[Tensor, "*token"]
    """What comes from the token itself, through attention; in a whole layer, through the residual connection as well."""
    residual: Float[Tensor, "*token"]
    """What the residual connection of the attention block carries; 0 where there is none, or it counts as `own`."""
    bias: Float[Tensor, "*token"]
    """What comes from no token: biases and β."""

    @property
    def sum(self) -> Float[Tensor, "*token"]:
        """1, but for rounding."""
        return self.others + self.own + self.residual + self.bias


PARTS = Shares._fields
"""Names of the parts."""


class Readout(NamedTuple):
    """The vectors with which parts of a block's output are read out."""

    output: Float[Tensor, "batch token model"]
    """y/⟨y, y⟩ at the stage itself."""
    attended: Float[Tensor, "batch token model"]
    """For the vectors that attention sums, F_ij and b_O."""
    carried: Float[Tensor, "batch token model"]
    """For the block's inputs, which the residual connection adds."""


def along(
    output: Float[Tensor, "*token model"],
    rows: Float[Tensor, "batch word source"] | None = None,
    factors: Float[Tensor, "*token"] | None = None,
) -> Float[Tensor, "*token model"]:
    """y/⟨y, y⟩, with which parts of y are read out; 0 where y is 0.

    Args:
        rows: See `block_readout`.
        factors: What to multiply each token's vector by; 1 by default.
    """
    if rows is not None:
        rows = rows.to(output)
        # Every token belongs to one word, so that the word's direction reaches each of its tokens once.
        words = along(rows @ output)
        direction = (rows > 0).to(output).transpose(1, 2) @ words
        return direction if factors is None else direction * factors.unsqueeze(-1)
    inverse = _product(output, output).clamp(min=torch.finfo(output.dtype).tiny).reciprocal()
    return output * (inverse if factors is None else inverse * factors).unsqueeze(-1)


def block_readout(
    composition: Composition, stage: Stage, rows: Float[Tensor, "batch word token"] | None = None
) -> Readout:
    """The vectors that read out shares of a block's output.

    Args:
        rows: The share of each token in its word, to read out along the outputs of words, which are the means of their tokens'.
    """
    direction = along(composition.whole(stage), rows)
    if stage is not Stage.NORMALISED:
        return Readout(direction, direction, direction)
    norm = composition.normalisation
    assert norm is not None
    attended = _before(norm, composition.deviation, direction)
    return Readout(direction, attended, direction if composition.norm_position == "branch" else attended)


def block_shares(
    composition: Composition, rows: Float[Tensor, "batch word token"] | None = None
) -> dict[Stage, Shares]:
    """The shares of a block's output by stage.

    The other tokens' share is what the rest leaves of 1; see `share_of_others`.

    Args:
        composition: The parts of the output. For words, `preserving` is what each token takes from its own word.
        rows: See `block_readout`; shares are then those of words.
    """
    if rows is None:
        return _token_shares(composition)
    shares = {}
    for stage in composition.stages:
        readout = block_readout(composition, stage, rows)
        whole = _product(composition.whole(stage), readout.output)
        own = _product(composition.preserving, readout.attended)
        residual = (
            _product(composition.inputs, readout.carried) if stage is not Stage.ATTENTION else torch.zeros_like(own)
        )
        bias = _product(readout.attended, composition.output_bias)
        if stage is Stage.NORMALISED:
            bias = bias + _of_bias(composition.normalisation, readout.output)
        shares[stage] = _of_words(Shares(whole - own - residual - bias, own, residual, bias), rows)
    return shares


def _token_shares(composition: Composition) -> dict[Stage, Shares]:
    """The shares of every token's output, from a few products of vectors, some tokens at a time."""
    vectors = composition.inputs, composition.attention_output, composition.preserving
    at_once = ELEMENTS_AT_ONCE.get(composition.inputs.device.type, ELEMENTS_ON_ACCELERATORS)
    count = max(1, math.ceil(composition.inputs.numel() / at_once))
    some_tokens = zip(*(part.flatten(0, 1).tensor_split(count) for part in vectors), strict=True)
    products = torch.cat([_products(composition, *some) for some in some_tokens], dim=-1)
    # All stages are divided at once: with so few numbers, the cost is that of the calls.
    products = products.unflatten(-1, composition.inputs.shape[:2])
    squares = products[:, -1:].square()
    parts = products[:, :-1] / squares.clamp(min=torch.finfo(products.dtype).tiny)
    others = (squares[:, 0] > 0).to(parts) - parts.sum(dim=1)
    return {stage: Shares(others[place], *parts[place]) for place, stage in enumerate(composition.stages)}


def _products(
    composition: Composition,
    x: Float[Tensor, "token model"],
    attended: Float[Tensor, "token model"],
    own: Float[Tensor, "token model"],
) -> Float[Tensor, "stage 4 token"]:
    """What the shares of some tokens are made of: the products of own, residual and bias with the output y, and ‖y‖.

    Args:
        composition: The block.
        x: The block's inputs.
        attended: Σ_j F_ij + b_O.
        own: F_ii.
    """
    bias, norm, branch = composition.output_bias, composition.normalisation, composition.norm_position == "branch"
    output = attended
    products = [_product(own, output), torch.zeros_like(output[:, 0]), _product(output, bias), _length(output)]
    if not branch:
        output = x + attended
        products += [_product(own, output), _product(x, output), _product(output, bias), _length(output)]
    if norm is not None:
        normed, deviation = norm.applied(output)
        output = x + normed if branch else normed
        of_bias, length = _product(output, norm.bias), _length(output)
        if branch:
            carried = _product(x, output)
        read = norm.transposed_(output)  # but for σ, by which products are divided instead
        if not branch:
            carried = _product(x, read) / deviation
        products += [_product(own, read) / deviation, carried, _product(read, bias) / deviation + of_bias, length]
    return torch.stack(products).unflatten(0, (-1, 4))


def share_of_others(
    composition: Composition, stage: Stage, rows: Float[Tensor, "batch word token"] | None = None
) -> Float[Tensor, "batch token"]:
    """The share of the other tokens, computed from what they contribute instead of what the rest leaves.

    It costs more than all of `block_shares`, and proves them.

    Args:
        rows: See `block_readout`.
    """
    readout = block_readout(composition, stage, rows)
    shares = _product(composition.mixing, readout.attended)
    return shares if rows is None else (rows.to(shares) @ shares.unsqueeze(-1)).squeeze(-1)


def share_error(
    composition: Composition, shares: Mapping[Stage, Shares], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, ""]:
    """By how much the shares of a token differ most from 1 with what the other tokens really contribute.

    Relative to the sum of their magnitudes, over the stages that are given. It costs more than the shares.

    Args:
        composition: The parts of the output.
        shares: Those of `block_shares`.
        token_mask: True at tokens, False at padding.
    """
    errors = [composition.inputs.new_zeros(())]
    for stage, parts in shares.items():
        size = torch.stack(list(parts)).abs().sum(dim=0).clamp(min=1)
        excess = (share_of_others(composition, stage) - parts.others).abs() / size
        errors.append(excess.masked_fill(~token_mask, 0).max())
    return torch.stack(errors).max()


def layer_shares(
    composition: LayerComposition, rows: Float[Tensor, "batch word token"] | None = None
) -> dict[LayerStage, Shares]:
    """The shares of a layer's output by stage.

    Args:
        composition: The parts of the output.
        rows: See `block_readout`; shares are then those of words.
    """
    shares = {}
    for stage in composition.stages:
        parts = composition.parts(stage)
        if rows is None:
            # What the others contribute is what the rest leaves of 1.
            square = _product(parts.whole, parts.whole)
            inverse = square.clamp(min=torch.finfo(square.dtype).tiny).reciprocal()
            own, bias = (_product(part, parts.whole) * inverse for part in (parts.own, parts.constant))
            others = (square > 0).to(own) - own - bias
        else:
            direction = along(parts.whole, rows)
            others, own, bias = (_product(part, direction) for part in (parts.others, parts.own, parts.constant))
        shares[stage] = _of_words(Shares(others, own, torch.zeros_like(bias), bias), rows)
    return shares


def attention_readout(
    attention_output: Float[Tensor, "batch query model"],
    token_mask: Bool[Tensor, "batch query"],
    rows: Float[Tensor, "batch word query"] | None = None,
) -> Float[Tensor, "batch query model"]:
    """The vectors that read out shares of attention outputs; 0 at padding.

    Args:
        attention_output: Σ_j F_ij + b_O.
        token_mask: True at tokens, False at padding.
        rows: The share of each token in its word, if outputs are those of words, the means of their tokens'.
    """
    counted = token_mask.to(attention_output)
    return along(attention_output, rows, counted if rows is None else counted * rows.sum(dim=1))


def pair_readout(
    readout: Float[Tensor, "batch query model"], output_weight: Float[Tensor, "head head_dim model"]
) -> Float[Tensor, "batch head query head_dim"]:
    """The vectors r^h_i with which each head's values are read out: the share of token j is Σ_h α^h_ij ⟨v^h_j, r^h_i⟩."""
    heads, head_dim, model = output_weight.shape
    read = readout @ output_weight.reshape(heads * head_dim, model).T.to(readout)
    return read.unflatten(-1, (heads, head_dim)).transpose(1, 2)


def _of_words(shares: Shares, rows: Tensor | None) -> Shares:
    if rows is None:
        return shares
    return Shares(*((rows.to(part) @ part.unsqueeze(-1)).squeeze(-1) for part in shares))


def _before(norm: Normalisation, deviation: Tensor, direction: Tensor) -> Tensor:
    """What reads out a norm's input as `direction` reads out its output; centring is symmetric."""
    return norm.transposed(direction) / deviation.unsqueeze(-1)


def _of_bias(norm: Normalisation | None, direction: Tensor) -> Tensor:
    return _product(direction, None if norm is None else norm.bias)


def _product(one: Tensor, other: Tensor | None) -> Tensor:
    """Products of vectors with others or with a single one; 0 without one."""
    if other is None:
        return torch.zeros_like(one[..., 0])
    # With a single vector too: on a CPU, a product of a matrix with a vector runs in one thread.
    return torch.linalg.vecdot(one, other)


def _length(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1)
