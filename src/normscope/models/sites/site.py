"""What one layer's attention block is made of, as paths from the base model, and what is at these paths.

Gates on the outputs of heads are factors that depend on the query, and not on the key. The attention output is then
Σ_j Σ_h α^h_ij (g^h_i ⊙ v^h_j) W_O^h + b_O: still a sum over keys, but what a key contributes is no longer a multiple of one
vector f(x_j) (Qiu et al. 2025, arXiv:2505.06708).
"""

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.maths.composition import NormPosition
from normscope.models.blocks.block import full_precision
from normscope.models.sites.linear_layers import Columns, SideBySide
from normscope.models.sites.rotary import Planes

GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
}
"""The functions that make a gate of a linear layer's output, by the name of the operation."""


BESIDE = ", "
"""Separates the paths of linear layers that together stand for one, for example if every head has its own."""


class HeadsSite(NamedTuple):
    """Where a layer makes the queries, keys or values of all heads, x W + b."""

    projection: str
    """W and b. If every head has a linear layer of its own, their paths, joined by `BESIDE`."""
    columns: Columns | None = None
    """Its outputs by head; None if its outputs are just these heads, one after the other."""
    bias: str | None = None
    """b, if it is a separate parameter."""


class GateSite(NamedTuple):
    """The gate on the outputs of the heads, g(x W + b) of each query; see `models/sites/site.py`."""

    projection: str
    """W and b."""
    columns: Columns
    """Its outputs by head: one for each dimension, or a single one."""
    function: str
    """The name of g in `GATES`."""

    def applied(self, output: Float[Tensor, "batch query out"]) -> Float[Tensor, "batch head query #head_dim"]:
        """The gate, from the output of its linear layer."""
        return GATES[self.function](self.columns.take(output)).transpose(1, 2)


class HeadNorms(NamedTuple):
    """The norms of queries and keys."""

    key: str | None
    """The norm of the keys, of each head or of all heads together."""
    query: str | None
    """The norm of the queries, likewise."""
    by_head: bool
    """Whether the norm of the keys reads (batch, head, key, head_dim) instead of (batch, key, ...)."""
    turned: bool
    """Whether both norms come after the rotation instead of before it."""


@dataclasses.dataclass(frozen=True)
class AttentionSite:
    """The parts of a layer's attention, and how it computes its scores."""

    module: str
    """The module that calls transformers' attention function, or returns its own weights (see `ModelLayout.registry`)."""
    query: HeadsSite | None
    """W_Q and b_Q. None if queries are more than a linear map of what attention reads, a norm and a rotation."""
    key: HeadsSite | None
    """W_K and b_K, likewise."""
    value: HeadsSite | None
    """W_V and b_V; None if values are computed from each token in another way, as in latent attention."""
    output: str
    """W_O: its input is the concatenated heads, its output the attention output."""
    heads: int
    """Number of heads of queries."""
    key_heads: int
    """Number of heads of keys and values."""
    reader: str | None = None
    """A module that reads what attention reads, if W_K does not; None if no linear layer reads that."""
    gate: GateSite | None = None
    """The gate on the outputs of the heads; None without one."""
    head_norms: HeadNorms | None = None
    """The norms of queries and keys; None if there are none."""
    rotation: Planes | None = None
    """The planes in which positions turn queries and keys; None if positions do not turn them."""
    scale: float | None = None
    """The factor on q·k in the score; None if scores are not a multiple of q·k plus other terms."""

    @property
    def projections(self) -> tuple[HeadsSite | None, HeadsSite | None, HeadsSite | None]:
        """Queries, keys and values."""
        return self.query, self.key, self.value


@dataclasses.dataclass(frozen=True)
class ResidualSite:
    """The residual connection around a layer's attention, with its norms and factors."""

    norm_position: NormPosition
    """The position of the block's norm; see `maths/composition.py`."""
    norm: str | None = None
    """The norm after the residual connection (`post`) or of the attention output (`branch`)."""
    attention_norm: str | None = None
    """The norm of what self-attention reads (`pre`, `parallel`)."""
    sum_consumer: str | None = None
    """The module that reads the sum of attention output and residual, for a block without its own norm (`pre`). Empty if no
    network follows and the layer returns the sum."""
    output_norm: str | None = None
    """The norm whose output is the layer's hidden vector."""
    carried: str | None = None
    """The module whose input the residual connection carries; None if that is the layer's input."""
    bottleneck: str | None = None
    """The module that returns what the residual connection carries, if that is not a vector of the stream (MobileBERT)."""
    scaling: str | None = None
    """The parameter whose elements scale the attention output (LayerScale); `parameters` includes it in W_O and b_O."""
    scaling_of_network: str | None = None
    """Likewise for the output of the feed-forward network."""
    scale: float = 1.0
    """A factor on what attention and the feed-forward network add to the residual connection."""

    def __post_init__(self) -> None:
        # Verification needs these to prove what the residual connection and the norm do.
        if (self.norm_position in ("post", "branch")) != (self.norm is not None):
            raise ValueError("`norm` belongs to a block with norm_position='post' or 'branch'")
        if (self.norm_position == "pre") != (self.sum_consumer is not None):
            raise ValueError(
                "`sum_consumer`, the module that reads the block's sum, belongs to a block with norm_position='pre'"
            )


@dataclasses.dataclass(frozen=True)
class Site:
    """One layer with softmax attention. Parts are paths from the base model, or from the encoder if that is observed."""

    layer: int
    """Counted from 1."""
    attention: AttentionSite
    residual: ResidualSite
    has_network: bool = True
    """Whether a feed-forward network belongs to the layer; a decoder's self-attention feeds cross-attention."""
    inner: bool = False
    """Whether the layer returns more than the block's output and what one network adds to it. Then nothing relates the block
    to the stream, and the block alone can be observed."""


class LayerParts(NamedTuple):
    """Finds the parts of one layer.

    All but `get` raise InputError if the model lacks the part, or has something else in its place.
    """

    model: nn.Module
    """The base model, where paths begin."""
    number: int
    """That of the layer."""

    def get(self, path: str) -> Any:
        """Whatever is at a path; None if nothing."""
        try:
            return self._at(path)
        except AttributeError:
            return None

    def _at(self, path: str) -> Any:
        return attrgetter(path)(self.model) if path else self.model

    def part(self, part: str, path: str) -> Any:
        """Whatever is at a path."""
        try:
            return self._at(path)
        except AttributeError as error:
            kind = type(self.model).__name__
            raise InputError(
                f"model: expected the {part} of layer {self.number} at {path} of {kind}, got nothing"
            ) from error

    def scale(self, number: float, path: str | None) -> float | Tensor:
        """A factor on the output of a linear layer: a number, or its product with a vector of factors, if there is one."""
        if path is None:
            return number
        factors = self.part("LayerScale", path)
        if not isinstance(factors, Tensor):
            raise self._wrong("LayerScale", path, "a parameter", factors)
        return full_precision(factors.detach().flatten()) * number

    def module(self, part: str, path: str) -> nn.Module:
        """A module."""
        found = self.part(part, path)
        if not isinstance(found, nn.Module):
            raise self._wrong(part, path, "a module", found)
        return found

    def projection(self, part: str, path: str) -> nn.Module:
        """A linear layer."""
        if BESIDE in path:
            return SideBySide([self.projection(part, each) for each in path.split(BESIDE)])
        found = self.module(part, path)
        if not isinstance(getattr(found, "weight", None), Tensor) or not hasattr(found, "bias"):
            raise self._wrong(part, path, "a linear layer", found)
        return found

    def norm(self, part: str, path: str | None) -> nn.Module | None:
        """A norm, or one for each head; None without a path."""
        if path is None:
            return None
        found = self.module(part, path)
        known = any(hasattr(each, "weight") or hasattr(each, "normalized_shape") for each in found.modules())
        vectors = {parameter.ndim for parameter in found.parameters()} <= {1}  # Llama 4 and NanoChat have none
        if not (known or vectors) or isinstance(found, nn.Identity):
            raise self._wrong(part, path, "a norm", found)
        return found

    def _wrong(self, part: str, path: str, expected: str, found: object) -> InputError:
        return InputError(
            f"model: expected {expected} at {path} of layer {self.number}, its {part}, got {type(found).__name__}"
        )
