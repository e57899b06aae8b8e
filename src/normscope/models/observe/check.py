"""The parts of blocks add up to what the model computes, on the texts that it is run on.

What each token contributes, Σ_j α_ij f(x_j) + b_O, is compared with what W_O has written, and the block made of its parts with
what the model carries on; weights that a model's own code has computed must add up to one. In Python that is done for every
token of every block; in runs, for some tokens of each text, in one layer of each batch, and layers take turns.
"""

import enum
import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.linear.blocks import Block
from normscope.maths.attention_weights import LARGE_SCORES
from normscope.maths.composition import output_of_block
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts, StackName
from normscope.rounding import number

BOUNDS: Mapping[torch.dtype, float] = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}
"""The largest relative difference that rounding explains. float32 rounds at 6e-8, a block adds up some thousand products, and
1e-4 is what results promise. Some models round to float32 inside of float64. Half precision is let through with its figure,
which the results state."""

_ROUNDINGS = 16
"""How many roundings of a score, |s|·ε, a difference may be that precision explains: a score adds up the products of a head."""

_QUERIES = 32
"""Queries of each text, spread evenly, that are compared in runs."""


class Check(enum.Enum):
    """How much of a pass is compared."""

    NOTHING = enum.auto()
    SOME = enum.auto()
    """Some tokens of every text, in one layer."""
    TEXTS = enum.auto()
    """All tokens, in all layers."""


class PartError(NamedTuple):
    """How far one part of a layer is from what it is compared with."""

    layer: int
    part: str
    error: float | Float[Tensor, ""]
    """Relative; in a run a tensor, for which the host need not wait."""

    @property
    def what(self) -> str:
        """The part and its layer, for messages."""
        return f"the {self.part} of layer {self.layer}"


_PROVED: "weakref.WeakKeyDictionary[nn.Module, dict[tuple[StackName | None, int], frozenset[str]]]" = (
    weakref.WeakKeyDictionary()
)
"""The functions that compute the values of each layer in the proof of a model."""


class PartsCheck:
    """Compares passes, and knows whose turn it is.

    Args:
        model: The model.
        facts: What it is.
    """

    def __init__(self, model: nn.Module, facts: ModelFacts) -> None:
        config = getattr(model, "config", None)
        self.name = str(getattr(config, "name_or_path", "") or type(model).__name__)
        self.dtype = next(each.dtype for each in model.parameters() if each.is_floating_point())
        self.bound, self.facts = BOUNDS[self.dtype], facts
        self._model = model
        self.functions: dict[int, frozenset[str]] = {}
        """The functions that have computed the values of each layer so far."""
        self.only: Int[Tensor, " token"] | None = None
        """The tokens that `Check.SOME` compares, in all layers; it chooses some itself if this is None."""
        self.large: dict[int, bool] = {}
        """Whether some scores of each layer have been large, by layer."""
        self._passes = 0

    def require_functions(self, block: Block) -> None:
        """Check that values are computed by functions of which the proof has shown that they keep tokens apart.

        Raises:
            NotRecognisedError: If others compute them with these texts.
        """
        functions = block.trail.value_functions
        self.functions[block.layer] = self.functions.get(block.layer, frozenset()) | functions
        proved = _PROVED.get(self._model, {}).get((self.facts.stack, block.layer))
        new = frozenset() if proved is None else functions - proved
        if new:
            raise block.trail.refusal(
                f"its values are computed by {', '.join(sorted(new))}, as those of the proof's texts are not, so they may be "
                "made of several tokens' vectors each"
            )

    def forget(self) -> None:
        """Forget what has been proved."""
        for at in [at for at in _PROVED.setdefault(self._model, {}) if at[0] == self.facts.stack]:
            del _PROVED[self._model][at]

    def prove(self) -> None:
        """Note that the functions so far keep tokens apart."""
        _PROVED[self._model].update({(self.facts.stack, layer): each for layer, each in self.functions.items()})

    def begin(self, check: Check, token_mask: Tensor) -> "PassCheck | None":
        """What compares the next pass; None if nothing is to be compared, or the device has no numbers."""
        if check is Check.NOTHING or token_mask.device.type == "meta":
            return None
        layers = frozenset(self.facts.attends)
        queries = None
        if check is Check.SOME:
            queries = self.only
            if queries is None:
                layers = frozenset({self.facts.attends[self._passes % len(self.facts.attends)]})
                self._passes += 1
                width = token_mask.shape[1]
                queries = torch.linspace(0, width - 1, min(width, _QUERIES)).round().long()
            queries = queries.to(token_mask.device, non_blocking=True)
        return PassCheck(self, check, layers, queries)

    def require(self, compared: list[PartError], scores: Mapping[int, Tensor]) -> None:
        """Check that everything that was compared is equal up to rounding.

        Args:
            compared: All comparisons of a pass.
            scores: The size of the largest scores of each layer.

        Raises:
            InputError: If something is not; the layer and the part are named.
        """
        found = [*(torch.as_tensor(each.error) for each in compared), *scores.values()]
        device = found[0].device if found else None
        values = torch.stack([value.detach().double().to(device) for value in found]).tolist() if found else []
        errors, sizes = values[: len(compared)], dict(zip(scores, values[len(compared) :], strict=True))
        for layer, size in sizes.items():
            self.large[layer] = self.large.get(layer, False) or size > LARGE_SCORES
        for difference, error in zip(compared, errors, strict=True):
            if error >= self.bound:  # analyses reject NaN
                raise InputError(
                    f"{self.name} cannot be observed exactly on these texts: "
                    + in_words(difference.what, error, self.dtype, sizes.get(difference.layer, 0.0))
                )


def in_words(what: str, error: float, dtype: torch.dtype, score: float = 0.0) -> str:
    """The part of a message about something that differs.

    Args:
        what: What differs.
        error: By how much.
        dtype: That of the model.
        score: The size of the layer's largest scores, by whose rounding the difference may be explained.
    """
    rounding = torch.finfo(torch.promote_types(dtype, torch.float32)).eps * score
    otherwise = ""
    if dtype is not torch.float64 and error <= _ROUNDINGS * rounding:
        otherwise = f"; scores as large as {score:,.0f} are too large for its precision: set device.dtype=float64"
    return (
        f"{what} differs by {number(error, digits=2)} (relative; the limit is {number(BOUNDS[dtype], digits=1)} in "
        f"{str(dtype).removeprefix('torch.')}){otherwise}"
    )


def relative_error(got: Tensor, expected: Tensor, scale: Tensor, token_mask: Tensor) -> float:
    """Largest ‖got − expected‖ / ‖scale‖ over real tokens; infinity if the shapes differ."""
    if got.shape != expected.shape:
        return math.inf
    difference = torch.linalg.vector_norm((got - expected).cpu().double(), dim=-1)
    size = torch.linalg.vector_norm(scale.cpu().double(), dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float((difference / size)[token_mask.cpu()].max())


class PassCheck:
    """Compares one pass."""

    def __init__(
        self, check: PartsCheck, kind: Check, layers: frozenset[int], queries: Int[Tensor, " query"] | None
    ) -> None:
        self._check, self._kind, self._layers, self._queries = check, kind, layers, queries
        self.compared: list[PartError] = []
        self.scores: dict[int, Tensor] = {}

    def known_large(self, layer: int) -> bool | None:
        """Whether the scores of a layer are large, if that must not be looked up: a run would wait for its device."""
        on_host = self._queries is None or self._queries.device.type == "cpu"
        return None if on_host else self._check.large.get(layer)

    def add(self, block: AttentionBlock, carried: Float[Tensor, "batch query model"] | None) -> None:
        """Compare a block with what the model computes.

        Args:
            carried: What carries on, if nothing but the block's parts is in it.
        """
        if block.alpha.largest is not None:
            self.scores[block.layer] = block.alpha.largest
        if block.layer not in self._layers:
            return
        for queries, weights in self._weights(block):
            if block.alpha.given is not None:
                self._compare_weights(block, weights, queries)
            made = block.attended(weights, queries)
            if block.parameters.output_bias is not None:
                made = made + block.parameters.output_bias
            given = block.attention_output[:, queries]
            self._compare(block, "sum of αf(x)", made, given, queries)
        if carried is not None:
            queries = slice(None) if self._queries is None else self._queries
            parameters, inputs = block.parameters, block.inputs[:, queries]
            made = output_of_block(
                parameters.norm_position, inputs, block.attention_output[:, queries], parameters.normalisation
            )
            self._compare(block, "sum of the parts", made, carried[:, queries], queries)

    def add_layer(self, layer: int, error: Float[Tensor, "batch token"]) -> None:
        """Note by how much what leaves a layer differs from the sum of its parts."""
        self.compared.append(PartError(layer, "output", error.max()))

    def sees(self, layer: int) -> bool:
        """Whether a layer is compared."""
        return layer in self._layers

    def require(self) -> None:
        """Check that everything was equal up to rounding.

        Raises:
            InputError: If something was not.
        """
        self._check.require(self.compared, self.scores)

    def _weights(self, block: AttentionBlock) -> Iterator[tuple[Any, Tensor]]:
        """Queries whose vectors are added up, and their α."""
        if self._queries is None:
            yield from block.alpha.strips()
        else:
            yield self._queries, block.alpha.rows(self._queries)

    def _compare_weights(self, block: AttentionBlock, weights: Tensor, queries: Any) -> None:
        """Compare the sum of the weights that a model's own code has computed with one."""
        total, nowhere = weights.sum(dim=-1), block.alpha.given_to_nowhere
        total = total if nowhere is None else total + nowhere[..., queries]
        error = (total - 1).abs().amax(dim=1).masked_fill(~block.token_mask[:, queries], 0)
        self.compared.append(PartError(block.layer, "sum of the attention weights", error.max()))

    def _compare(self, block: AttentionBlock, part: str, made: Tensor, given: Tensor, queries: Any) -> None:
        size = torch.linalg.vector_norm(given, dim=-1).clamp(min=torch.finfo(given.dtype).tiny)
        error = torch.linalg.vector_norm(made - given, dim=-1) / size
        self.compared.append(PartError(block.layer, part, error.masked_fill(~block.token_mask[:, queries], 0).max()))
