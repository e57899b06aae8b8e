"""What a block makes of what its heads return: W_O by head, the residual connection and the norm, read off the steps between.

Between attention and what carries on, every step is an affine map of each token's vector, once the factors that are computed
from the tokens are left out: gates before W_O, and 1/σ after it. So W_O, b_O, γ and β are what these maps make of unit vectors
and of zero, whatever functions they consist of and in whichever order the heads lie.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.linear.block_parameters import BlockParameters
from normscope.linear.layers import FollowedLayer
from normscope.linear.projections import Projections
from normscope.linear.provenance import made_of
from normscope.linear.rules import Stack, Step, dense
from normscope.linear.trails import Trail, is_scaled
from normscope.maths.composition import NormPosition
from normscope.maths.normalisation import Normalisation
from normscope.maths.norms import norm_factors
from normscope.maths.tensors import full_precision, version_of

_AT_ONCE = 2**22
"""Elements of unit vectors that are mapped together."""


class BlockOutput(NamedTuple):
    """What a block makes of what its heads return."""

    inputs: Float[Tensor, "batch query model"]
    """x_i, which the residual connection adds."""
    attention_output: Float[Tensor, "batch query model"]
    """Σ_j F_ij + b_O, before a norm of the branch, and without a network that runs beside attention."""
    parameters: BlockParameters


class KnownWeights:
    """Weights of a model's blocks, which are found once and stay known as long as its parameters stay as they are.

    Args:
        keeps: Whether to keep weights. Those that are loaded for each layer anew would fill the memory, so only what is made
            of them is kept.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self._factors: dict[object, Tensor] = {}
        self._found: dict[object, tuple[Sequence[Tensor], object, BlockParameters]] = {}

    def of(self, trail: Trail, find: Callable[[], BlockParameters]) -> BlockParameters:
        """The weights of a block; `find` finds those that are not known."""
        place = trail.layer, trail.is_self
        if not self._keeps:
            found = find()
            factors = functools.partial(self._norm_factors, place, found.find_norm_factors)
            return dataclasses.replace(found, find_norm_factors=factors)
        state = [(id(each), version_of(each)) for each in trail.weights]
        if place not in self._found or self._found[place][1] != state:
            self._found[place] = trail.weights, state, find()
        return self._found[place][2]

    def _norm_factors(self, place: object, find: Callable[[], Tensor]) -> Float[Tensor, "head head_dim rank"]:
        if place not in self._factors:
            self._factors[place] = find()
        return self._factors[place]


def block_output(trail: Trail, texts: int, known: KnownWeights) -> BlockOutput:
    """What a block makes of what its heads return.

    Args:
        trail: The block, when it is known what carries on.
        texts: Number of texts in the batch.
        known: Weights that have been found in earlier batches.

    Raises:
        NotRecognisedError: If the block has a norm that is neither a LayerNorm nor an RMSNorm, or its heads do not read texts.
    """
    assert trail.written is not None
    assert trail.inputs is not None
    finder = _Finder(trail, texts)
    parameters = known.of(trail, finder.parameters)
    given = {trail.output: trail.written.vectors.unsqueeze(0), **trail.nothing}
    (attended,) = _fixed(given, finder.reads(parameters.steps_before_norm), bias=True)
    heads = len(parameters.own_output_weight)
    return BlockOutput(
        inputs=full_precision(finder.by_text(trail.inputs)),
        attention_output=full_precision(finder.by_text(attended)),
        parameters=dataclasses.replace(parameters, find_projections=lambda: Projections(trail, texts, heads)),
    )


def norm_position(trail: Trail) -> NormPosition:
    """The position of a block's norm."""
    return _Finder(trail, 1).position


def norm_of_layer(layer: FollowedLayer, trail: Trail, texts: int) -> Normalisation:
    """The norm whose output leaves a layer.

    Args:
        layer: The layer, which has such a norm.
        trail: Its block.
        texts: Number of texts in the batch.
    """
    assert layer.before_norm is not None
    finder = _Finder(trail, texts)
    finder.follow(layer.before_norm.value, layer.before_norm.stack, layer.output.stack)
    return finder.norm()[1]


class _Finder:
    """Finds the weights between attention and what carries on."""

    def __init__(self, trail: Trail, texts: int) -> None:
        assert trail.written is not None
        self._trail, self._written, self._texts = trail, trail.written, texts
        self.position: NormPosition = "pre"
        self._given: Tensor | None = None
        """The vectors that the steps of the norm begin with, if they are not the block's."""
        self._start, self._steps = trail.output, _between(trail.output, trail.before_sum)
        """Where the steps of the norm begin, and what they compute, one after another."""
        if any(map(_is_of_tokens, self._steps)):
            self.position = "branch"
        elif trail.beside:
            self.position = "parallel"
        elif trail.after is not trail.sum and is_scaled(trail.after, since=trail.sum):
            self.position = "post"
            self._start, self._steps = trail.sum, _between(trail.sum, trail.after)

    def by_text(self, vectors: Tensor) -> Float[Tensor, "batch token model"]:
        """Vectors with the axes of texts and tokens first, whatever the model's own order."""
        return self._trail.axes.by_text(vectors, self._texts)

    def follow(self, vectors: Tensor, start: Stack, end: Stack) -> None:
        """Look for a norm that reads some vectors, rather than for that of the block."""
        self.position, self._given, self._start = "post", vectors, start
        self._steps = _between(start, end)

    def reads(self, number: int) -> Stack:
        """What W_O has written, with all factors on it."""
        return [self._start, *self._steps][number] if self.position == "branch" else self._trail.before_sum

    def parameters(self) -> BlockParameters:
        """The weights, found anew."""
        number, norm = self.norm() if self.position in ("post", "branch") else (0, None)
        target = self.reads(number)
        zeros = {each.result: each.nothing().unsqueeze(0) for each in self._trail.attention}
        (made,) = self._mapped(zeros, target, bias=True)
        bias = full_precision(self.by_text(made)[0, 0]).clone()
        has_bias = bool(self._written.step.constants) or bool(bias.any())
        weight = self._output_weight(target)
        return BlockParameters(
            own_output_weight=weight,
            output_bias=bias if has_bias else None,
            normalisation=norm,
            norm_position=self.position,
            steps_before_norm=number,
            find_norm_factors=functools.cache(lambda: norm_factors(full_precision(weight))),
        )

    # W_O.

    def _output_weight(self, target: Stack) -> Float[Tensor, "head head_dim model"]:
        rows = [
            self.by_text(each).flatten(0, 1)
            for units in self._units()
            for each in self._mapped(units, target, bias=False)
        ]
        sizes = [each.zeros(self._texts).shape for each in self._trail.attention]
        heads, head_dim = sum(each[1] for each in sizes), sizes[0][3]
        weight = torch.cat(rows)[: heads * head_dim].unflatten(0, (heads, head_dim))
        own = self._written.step.weight
        if own is not None and own.numel() < weight.numel():
            raise self._trail.refusal(
                "its heads return more than its output projection reads, as if texts were cut into pieces"
            )
        if own is None or own.numel() != weight.numel():
            return weight
        own = own.reshape(weight.shape)
        return own if torch.equal(full_precision(own), weight) else weight  # a view takes no memory

    def _units(self) -> Iterator[Mapping[Stack, Tensor]]:
        """A unit vector for each dimension of each head, one after another, each for another token."""
        like = [full_precision(each.zeros(self._texts)) for each in self._trail.attention]
        texts, _, queries, _ = like[0].shape
        count = sum(each.shape[1] * each.shape[3] for each in like)
        at_once = max(1, _AT_ONCE // sum(each.numel() for each in like))
        for first in range(0, count, at_once * texts * queries):
            sources = min(at_once, math.ceil((count - first) / (texts * queries)))
            wanted = torch.arange(first, first + sources * texts * queries, device=like[0].device).unsqueeze(1)
            known, before = {}, 0
            for attention, each in zip(self._trail.attention, like, strict=True):
                heads, head_dim = each.shape[1::2]
                numbers = torch.arange(before, before + heads * head_dim, device=each.device)
                units = (wanted == numbers).to(each.dtype).view(sources, texts, queries, heads, head_dim)
                known[attention.result] = attention.as_returned(units.transpose(2, 3))
                before += heads * head_dim
            yield known

    def _mapped(self, known: Mapping[Stack, Tensor], target: Stack, *, bias: bool) -> Tensor:
        """What W_O and the factors on its output make of what attention returns."""
        before = _fixed(known, self._written.operand, bias=bias)
        after = dense(self._written.step.made_of(before, bias=bias))
        return _fixed({self._trail.output: after, **self._trail.nothing}, target, bias=bias)

    # The norm.

    def norm(self) -> tuple[int, Normalisation]:
        """How many steps lie before the norm, and its weights."""
        of_tokens = [place for place, each in enumerate(self._steps) if _is_of_tokens(each)]
        if not of_tokens:  # it does not divide
            return 0, self._affine(self._start)._replace(divides=False)
        place, step = of_tokens[0], self._steps[of_tokens[0]].step
        if len(of_tokens) > 1 or step is None or not isinstance(step.factor, Tensor):
            raise self._trail.refusal("several factors on its output are computed from the tokens")
        if step.norm is not None:
            if self.position == "post" and not all(map(_only_moves, self._steps[:place])):
                raise self._trail.refusal("the norm after the residual connection does not read just their sum")
            own = self._affine([self._start, *self._steps][place], axis=-1)
            return place, own._replace(epsilon=step.norm.epsilon)
        # What a norm reads is the first of its vectors from which σ can be computed.
        for number in range(1 if self.position == "post" else place + 1):
            read = [self._start, *self._steps][number]
            rounded = max(torch.finfo(each.dtype).eps for each in (step.factor, self._written.vectors))
            found = _dividing(self._affine(read), self._value(read), step, min(0.03, 1e4 * rounded))
            if found is not None:
                return number, found
        raise self._trail.refusal("a factor on its output is computed from the tokens and is no norm's")

    def _value(self, read: Stack) -> Tensor:
        """Vectors that a norm may read, with the model's axes."""
        if self._given is not None:
            return _fixed({self._start: full_precision(self._given).unsqueeze(0)}, read, bias=True)[0]
        known = {self._trail.output: full_precision(self._written.vectors).unsqueeze(0), **self._trail.nothing}
        if self.position == "post":
            assert self._trail.inputs is not None
            known = {self._trail.sum: _fixed(known, self._trail.before_sum, bias=True) + self._trail.inputs}
        return _fixed(known, read, bias=True)[0]

    def _affine(self, read: Stack, axis: int | None = None) -> Normalisation:
        """γ, β and whether the mean is subtracted, in the steps from what a norm reads to what it returns.

        Args:
            axis: The axis of dimensions in what it reads; by default that in what the residual connection carries.
        """
        axis, value = self._trail.axes.dimension if axis is None else axis, self._value(read)
        signs = value.new_ones(value.shape[axis])
        signs[1::2] = -1
        probes = torch.stack([signs, torch.ones_like(signs), torch.zeros_like(signs)])
        probes = probes.view(3, *(1,) * (value.ndim - 1), -1).movedim(-1, axis).expand(3, *value.shape)
        made = _fixed({read: probes}, self._steps[-1], bias=True)
        of_signs, of_ones, bias = (self.by_text(each)[0, 0].clone() for each in made)
        centred = bool(of_ones.abs().max() < 0.5 * of_signs.abs().max())
        weight = of_signs / (signs - signs.mean() if centred else signs)
        return Normalisation(weight, bias if bool(bias.any()) else None, 0.0, centred)


def _dividing(norm: Normalisation, value: Tensor, step: Step, smallest: float) -> Normalisation | None:
    """A norm with the ε from which its σ follows; None if it is not the deviation of these vectors.

    Args:
        norm: The norm without ε, which is one of the numbers in the functions that compute σ.
        value: What it reads.
        step: The step that divides by σ.
        smallest: By how much σ may differ at most, relative to itself.
    """
    factor = step.parts([torch.ones_like(value).unsqueeze(0)])[0]
    size = norm.weight.shape[-1]
    numbers = [float(each) for each in getattr(step.factor, "_numbers", ()) if torch.as_tensor(each).numel() == 1]
    # The deviation of a sample, and the length of a vector, are multiples of σ.
    multiples = (1.0, math.sqrt(size / max(1, size - 1)), math.sqrt(size))
    best = None
    for epsilon, outside, multiple in itertools.product(
        [*(each for each in numbers if 0 < each < 1), 0.0], (False, True), multiples
    ):
        one = norm._replace(
            weight=norm.weight / multiple,
            epsilon=epsilon / multiple if outside else epsilon / multiple**2,
            adds_outside=outside,
        )
        error = float((factor * multiple * one.deviation(value).unsqueeze(-1) - 1).nan_to_num().abs().amax())
        if error < smallest:
            best, smallest = one, error
    return best


def _between(start: Stack, target: Stack) -> list[Stack]:
    """What is computed one after another after `start`, the last of which is `target`."""
    found = []
    while target is not start:
        found.append(target)
        target = target.operands[0]
    return found[::-1]


def _only_moves(stack: Stack) -> bool:
    step = stack.step
    return step is None or (step.factor is None and not step.constants and len(step.operands) == 1)


def _is_of_tokens(stack: Stack) -> bool:
    """Whether a step multiplies by a factor that is computed from the tokens."""
    return stack.step is not None and made_of(stack.step.factor) is not None


def _fixed(known: Mapping[Stack, Tensor], target: Stack, *, bias: bool) -> Tensor:
    """The parts of a stack, without the factors that are computed from the tokens.

    Args:
        known: Parts, (source, *tensor), of stacks that the others are computed from.
        bias: Whether constants belong to the last source.
    """
    if target in known:
        return known[target]
    parts = [_fixed(known, each, bias=bias) for each in target.operands]
    step = target.step
    if step is None or not _is_of_tokens(target):
        assert target.function is not None
        return dense(target.function(*parts, bias=bias))
    if step.norm is None:
        return parts[0]
    scaled = step.norm.scaled(parts[0])
    if bias and step.norm.bias is not None:
        scaled[-1] += step.norm.bias
    return scaled
