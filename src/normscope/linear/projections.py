"""What makes queries, keys and values: W_Q, W_K and W_V by head, and what norms and rotations make of the keys after W_K.

The model's own functions between a linear layer and attention are run again by the rules of `rules.py`, with the deviations of
norms held fixed. Keys are then an affine map of what W_K gives, token by token. Each dimension of a key takes something from
one output of W_K or, where positions turn it, from two: which ones is seen when every token reads another output alone, with
random numbers in place of the angles.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from normscope.linear.axes import Axes
from normscope.linear.computed import Computed
from normscope.linear.provenance import made_of
from normscope.linear.rules import (
    MOVES,
    SUMS,
    HeldFixed,
    Kind,
    NotAffineError,
    Stack,
    Step,
    kind_of,
    marked,
    parts_from,
    stack_of,
    tensors_in,
)
from normscope.linear.trails import Trail
from normscope.linear.weighted_values import by_head, einsum_terms
from normscope.maths.keys import PlaneMap
from normscope.maths.tensors import full_precision

_QUERY, _KEY, _VALUE = range(3)


class HeadProjection(NamedTuple):
    """W_Q, W_K or W_V by head."""

    weight: Float[Tensor, "head model head_dim"]
    bias: Float[Tensor, "head head_dim"]
    """Zero if absent."""


class Layer:
    """A linear layer, as the model's code called it.

    Args:
        computed: The call.
        end: How the vectors of heads were computed from what it gives.
        texts: Number of texts in the batch.
    """

    def __init__(self, computed: Computed, end: Computed, texts: int) -> None:
        assert computed.vectors is not None
        self.computed, self._end, self._texts = computed, end, texts
        self._vectors = full_precision(computed.vectors)
        self._summed, self._tokens, self._given = _axes(computed)

    @functools.cached_property
    def _axes(self) -> Axes:
        """The axes of what it reads."""

        def tokens_first() -> bool:
            first: bool = _once(self, ("tokens first",), self._are_tokens_first)
            return first

        return Axes.of(self._vectors, self._texts, dimension=self._summed, tokens_first=tokens_first)

    def _are_tokens_first(self) -> bool:
        """Whether other vectors in the first place of the first axis change a token of every text."""
        changed = self._vectors.movedim(self._summed, -1).clone()
        changed[0] += 1 + changed[0].abs()
        given = self._vectors, changed.movedim(-1, self._summed)
        before, after = (by_head(self._until_end(self._of(each)), self._texts) for each in given)
        differs = (before != after).any(dim=-1).any(dim=1)
        return bool(differs[1:].any())

    def _until_end(self, output: Tensor) -> Tensor:
        """The vectors of heads, given what the layer gives."""
        made: dict[Computed, Any] = {self.computed: output}

        def value(each: Computed) -> Any:
            if each not in made:
                is_first = each.vectors is not None and not each.is_layer
                made[each] = each.vectors if is_first else each.run(value, _wide)
            return made[each]

        vectors: Tensor = value(self._end)
        return vectors

    @property
    def output(self) -> Tensor:
        """x W + b, with the model's axes."""
        return self._of(self._vectors)

    @functools.cached_property
    def blank(self) -> Tensor:
        """Zeros with the axes of the output, which take no memory."""
        assert self.computed.shape is not None
        return self._vectors.new_zeros(1).expand(self.computed.shape)

    def _of(self, vectors: Tensor) -> Tensor:
        made: Tensor = self.computed.run(lambda _operand: vectors, full_precision)
        return made

    @property
    def inputs(self) -> Float[Tensor, "batch token model"] | None:
        """x; None if the layer reads something else than one vector of each token."""
        return self._axes.by_text(self._vectors, self._texts) if self._vectors.ndim in (2, 3) else None

    def reads_as(self, other: "Layer") -> bool:
        """Whether another layer reads the same vectors; without numbers, only if they are one tensor."""
        if self.computed.operands[0].made is other.computed.operands[0].made:
            return True
        has_numbers = not isinstance(self._vectors, FakeTensor) and not self._vectors.is_meta
        if not has_numbers or self.inputs is None or other.inputs is None or self.inputs.shape != other.inputs.shape:
            return False
        return torch.equal(self.inputs, other.inputs)

    @property
    def columns(self) -> int:
        """Number of outputs."""
        return math.prod(self.blank.shape[axis] for axis in self._given)

    def as_output(self, vectors: Float[Tensor, "batch token output"]) -> Tensor:
        """Vectors with the axes of the output."""
        vectors = self._axes._replace(dimension=-1).by_model(vectors)
        vectors = vectors.flatten(0, 1) if self._vectors.ndim == 2 else vectors
        vectors = vectors.unflatten(-1, [self.blank.shape[axis] for axis in self._given])
        return vectors.movedim([*range(-len(self._given), 0)], list(self._given))

    @functools.cached_property
    def weight_and_bias(self) -> tuple[Float[Tensor, "model output"], Float[Tensor, " output"]]:
        """W and b."""
        args, name = self.computed.args, self.computed.name
        if name == "linear" and not self.computed.kwargs:
            weight, bias = args[1].T, args[2] if len(args) > 2 else None
        elif name == "addmm" and not self.computed.kwargs:
            bias, _, weight = args
        else:
            size = self._vectors.shape[self._summed]
            bias = self._unit(self._vectors.new_zeros(1, size))[0]
            weight = self._unit(torch.eye(size, dtype=self._vectors.dtype, device=self._vectors.device)) - bias
        weight = full_precision(weight)
        return weight, weight.new_zeros(weight.shape[1]) if bias is None else full_precision(bias)

    def _unit(self, vectors: Float[Tensor, "token model"]) -> Float[Tensor, "token output"]:
        """What the layer gives for some vectors."""
        shape = [1] * self._vectors.ndim
        shape[self._tokens[0]], shape[self._summed] = vectors.shape
        in_order = self._tokens[0] % len(shape) < self._summed % len(shape)
        return self._of((vectors if in_order else vectors.T).reshape(shape)).movedim(self._tokens[1], 0).flatten(1)


def _wide(tensor: Tensor) -> Tensor:
    return full_precision(tensor) if tensor.is_floating_point() else tensor


def _axes(layer: Computed) -> tuple[int, tuple[int, int], Sequence[int]]:
    """The axis that a linear layer sums over; one of tokens, in what it reads and in what it gives; and those of outputs."""
    if layer.name != "einsum":
        return (1, (-1, -1), (1,)) if layer.name.startswith("conv") else (-1, (-2, -2), (-1,))
    operands = layer.args[1] if isinstance(layer.args[1], tuple | list) else layer.args[1:]
    assert layer.vectors is not None
    terms, output = einsum_terms(
        layer.args[0], [layer.vectors if isinstance(each, Computed) else each for each in operands]
    )
    given, weight = terms if isinstance(operands[0], Computed) else reversed(terms)
    token = next(axis for axis in given if axis not in weight)
    summed = next(axis for axis in given if axis not in output)
    return (
        given.index(summed),
        (given.index(token), output.index(token)),
        [output.index(axis) for axis in output if axis not in given],
    )


@dataclasses.dataclass(eq=False)
class Rerun:
    """What the functions after a linear layer make of its outputs."""

    start: Stack
    end: Stack
    centred: int | None
    """Over how many dimensions their mean is subtracted; None if it is not."""

    @functools.cached_property
    def steps(self) -> Sequence[Step]:
        """The steps on the way."""
        found, waiting = {self.end}, [self.end]
        for each in waiting:
            waiting += [operand for operand in each.operands if operand not in found]
            found.update(each.operands)
        return [each.step for each in found if each.step is not None]

    @property
    def is_scaled(self) -> bool:
        """Whether vectors are multiplied by anything."""
        return any(step.factor is not None for step in self.steps)

    @property
    def differs(self) -> bool:
        """Whether tokens may be mapped differently: by a deviation, or by a factor with several axes."""
        factors = [step.factor for step in self.steps if isinstance(step.factor, Tensor)]
        return any(kind_of(each) is not None or (each.ndim > 1 and each.numel() > 1) for each in factors)

    @property
    def has_constants(self) -> bool:
        """Whether constants are added."""
        return any(step.constants for step in self.steps)

    def of(self, outputs: Tensor, *, bias: bool = False) -> Tensor:
        """The linear part, and the constants if asked for."""
        (made,) = parts_from({self.start: outputs.unsqueeze(0)}, [self.end], bias=bias)
        return made[0]


def rerun(end: Computed, layer: Layer, *, scrambled: bool = False) -> Rerun | None:
    """Run the functions after a linear layer again; None if they are not affine.

    Args:
        end: The last of them.
        scrambled: Whether to put random numbers in place of tensors that do not depend on the tokens, such as angles; the same
            for all tokens.
    """
    moves = all(each.name in MOVES for each in _between(layer.computed, end))
    start = marked(layer.blank.detach() if moves else layer.output, Kind.LINEAR)
    start._stack = Stack(None)
    generator = torch.Generator().manual_seed(0)
    made: dict[object, Any] = {layer.computed: start}
    centred: list[int] = []

    def plain(tensor: Tensor) -> Tensor:
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if not scrambled or tensor.ndim < 2 or not is_number or isinstance(tensor, nn.Parameter):
            return tensor
        if id(tensor) not in made:
            wide = torch.promote_types(tensor.dtype, torch.float64)
            random = torch.rand(tensor.shape[-1], generator=generator, dtype=wide) + 0.5
            made[id(tensor)] = random.to(tensor.device, tensor.dtype).expand(tensor.shape)
        changed: Tensor = made[id(tensor)]
        return changed

    def value(each: Computed) -> Any:
        if each not in made:
            made[each] = found = each.run(value, plain) if each.vectors is None else plain(each.vectors)
            uncentred = _uncentred(each, value)
            if uncentred is not None:
                centred.append(found.shape[-1])
                found._stack = stack_of(uncentred)  # type: ignore[union-attr]
        return made[each]

    with HeldFixed(nn.Module(), carries=True, wide=True):
        result = value(end)
    if kind_of(result) is not Kind.LINEAR or len(centred) > 1:
        return None
    found = Rerun(start._stack, stack_of(result), centred[0] if centred else None)
    return None if any(step.mixes for step in found.steps) else found


def _between(start: Computed, end: Computed) -> Sequence[Computed]:
    """The functions after a linear layer."""
    calls = [] if end is start else [end]
    for call in calls:
        calls += [operand for operand in call.operands if operand is not start and operand not in calls]
    return calls


def _uncentred(each: Computed, value: Callable[[Computed], Any]) -> Tensor | None:
    """What a function makes, without subtracting the mean; None if it subtracts none."""
    if each.name == "layer_norm":
        names = ("input", "normalized_shape", "weight", "bias", "eps")
        given = dict(zip(names, each.args, strict=False)) | dict(each.kwargs)
        x, weight, bias = value(given["input"]), given.get("weight"), given.get("bias")
        if kind_of(x) is not Kind.LINEAR:
            return None
        scale = torch.native_layer_norm(x.detach(), given["normalized_shape"], None, None, given.get("eps", 1e-5))[2]
        made = x * marked(scale.to(x.dtype), Kind.HELD)
        made = made if weight is None else made * weight
        return made if bias is None else made + bias
    if each.name not in SUMS or "sub" not in each.name or len(each.operands) != 2:
        return None
    one, other = each.operands
    subtracts = other.name == "mean" and other.operands[0] is one and kind_of(value(one)) is Kind.LINEAR
    return value(one) if subtracts else None


class HeadColumns(NamedTuple):
    """From which outputs of a linear layer the vectors of heads are made."""

    own: Int[Tensor, "head head_dim"]
    """The output that becomes each dimension, if positions do not turn it."""
    partner: Int[Tensor, " head_dim"] | None
    """The dimension whose output turns with it, or the dimension itself; None without rotation."""
    same_for_heads: bool
    """Whether all heads are mapped alike."""
    first: int | None
    """The first column, if they are all those that follow it, in order; None otherwise."""

    def of(self, weight: Float[Tensor, "*axes output"]) -> Float[Tensor, "*axes head head_dim"]:
        """Those of a weight or a bias; without a copy if they are in order."""
        if self.first is None:
            return weight[..., self.own]
        return weight[..., self.first : self.first + self.own.numel()].unflatten(-1, self.own.shape)


_KNOWN: "WeakIdKeyDictionary" = WeakIdKeyDictionary()
"""What has been found out by looking at numbers, by the weights of the layer: later batches do not wait for their device."""


def _once(layer: Layer, key: tuple[object, ...], find: Callable[[], Any]) -> Any:
    """What is found out once for a linear layer."""
    weight = tensors_in(layer.computed.args)[0]
    known = _KNOWN.setdefault(weight if weight._base is None else weight._base, {})
    key = *key, weight.storage_offset(), weight.shape
    if key not in known:
        known[key] = find()
    return known[key]


def columns_of(computed: Computed, layer: Layer, what: int) -> HeadColumns | None:
    """The columns of some heads; None if their vectors are no affine map of a linear layer, with at most two outputs each."""
    columns: HeadColumns | None = _once(layer, ("columns", what), lambda: _found_columns(computed, layer))
    return columns


def _found_columns(computed: Computed, layer: Layer) -> HeadColumns | None:
    again = rerun(computed, layer, scrambled=True)
    inputs = layer.inputs
    if again is None or inputs is None:
        return None
    rows = _outputs_of_columns(again, layer, inputs.shape[:2])
    found = _read_by_heads(rows)
    if found is None:  # positions may turn some tokens alone: patches, but not [CLS]
        others = _outputs_of_columns(again, layer, inputs.shape[:2], from_end=True)
        more, fewer = ((each != 0).sum(dim=(1, 2), keepdim=True) for each in (others, rows))
        found = _read_by_heads(others.where(more > fewer, rows))
    return found


def _outputs_of_columns(
    again: Rerun, layer: Layer, size: Sequence[int], *, from_end: bool = False
) -> Float[Tensor, "output head head_dim"]:
    """What is made of each output of a linear layer alone: every token reads another one.

    Args:
        size: Numbers of texts and tokens.
        from_end: Whether the last token reads the first output.
    """
    rows = []
    for first in range(0, layer.columns, size[0] * size[1]):
        units = torch.zeros(size[0] * size[1], layer.columns, dtype=layer.blank.dtype, device=layer.blank.device)
        units.diagonal(first).fill_(1)
        units = units.flip(0) if from_end else units
        made = by_head(again.of(layer.as_output(units.unflatten(0, tuple(size)))), size[0])
        made = made.transpose(1, 2).flatten(0, 1)
        rows.append(made.flip(0) if from_end else made)
    return torch.cat(rows)[: layer.columns].abs()


def _read_by_heads(rows: Float[Tensor, "output head head_dim"]) -> HeadColumns | None:
    """The outputs that make each dimension of heads; None if there are more than two, or none."""
    sizes, places = rows.topk(min(3, len(rows)), dim=0)
    largest = sizes[0]
    if not bool(largest.all()) or bool((sizes[2:] > _NEARLY_ZERO * largest).any()):
        return None
    places[1:] = places[1:].where(sizes[1:] > _NEARLY_ZERO * largest, places[0])
    alike = torch.allclose(largest[:1].expand_as(largest), largest, rtol=_NEARLY_ZERO)
    return _paired(places[:2].amin(dim=0), places[:2].amax(dim=0), alike)


_NEARLY_ZERO = 1e-5
"""Below this share of what is largest, a number is a rounding error."""


def _paired(lower: Tensor, higher: Tensor, alike: bool) -> HeadColumns | None:
    """The columns, from the lower and the higher of the outputs that each dimension is made of."""
    if torch.equal(lower, higher):
        return HeadColumns(lower, None, alike, _first_in_order(lower))
    dimensions = torch.arange(lower.shape[1], device=lower.device)
    same = (lower[:, :, None] == lower[:, None]) & (higher[:, :, None] == higher[:, None])
    same[:, dimensions, dimensions] = False
    partner = torch.where(same.any(dim=-1), same.int().argmax(dim=-1), dimensions)
    if not bool(((same.sum(dim=-1) == (lower != higher)) & (partner == partner[0])).all()):
        return None
    own = torch.where(dimensions <= partner, lower, higher)
    return HeadColumns(own, partner[0], alike, _first_in_order(own))


def _first_in_order(columns: Int[Tensor, "head head_dim"]) -> int | None:
    first = int(columns[0, 0])
    in_order = torch.arange(first, first + columns.numel(), device=columns.device)
    return first if torch.equal(columns.flatten(), in_order) else None


class Heads:
    """The vectors of heads: what a linear layer, norms and rotations make of what attention reads.

    Args:
        computed: How queries, keys or values of one or several heads were computed.
        layer: The linear layer.
        heads: Number of heads of queries, several of which may share a head.
        what: Which of the three the vectors are, from 0.
    """

    def __init__(self, computed: Computed, layer: Layer, heads: int, what: int) -> None:
        columns, again = columns_of(computed, layer, what), rerun(computed, layer)
        if columns is None or again is None:
            raise NotAffineError("the vectors of heads are no affine map of what a linear layer gives")
        self._layer, self._columns, self._rerun = layer, columns, again
        self._repeats, self._what = heads // len(columns.own), what

    @functools.cached_property
    def _coefficients(self) -> tuple[Tensor, Tensor | None]:
        """What each dimension takes from its own output, and from the one that turns with it."""
        columns, partner = self._columns.own, self._columns.partner
        if partner is None:
            return self._of_columns(columns), None
        is_first = torch.arange(len(partner), device=partner.device) <= partner
        first, second = (self._of_columns(columns, chosen) for chosen in (is_first, ~is_first))
        return torch.where(is_first, first, second), torch.where(is_first, second, first)

    def _of_columns(
        self, columns: Int[Tensor, "head head_dim"], chosen: Bool[Tensor, " head_dim"] | None = None
    ) -> Float[Tensor, "batch head token head_dim"]:
        """What is made of ones in the chosen ones of some columns (all by default), and zeros in the others."""
        ones = torch.zeros(self._layer.columns, dtype=self._layer.blank.dtype, device=columns.device)
        ones[columns] = torch.ones_like(ones[0]) if chosen is None else chosen.to(ones).expand(columns.shape)
        assert self._layer.inputs is not None
        return self._made(self._layer.as_output(ones.expand(*self._layer.inputs.shape[:2], -1)))

    def _made(self, outputs: Tensor, *, bias: bool = False) -> Float[Tensor, "batch head token head_dim"]:
        assert self._layer.inputs is not None
        return by_head(self._rerun.of(outputs, bias=bias), len(self._layer.inputs))

    @functools.cached_property
    def map(self) -> PlaneMap:
        """What norms and rotations make of the outputs of the linear layer."""
        if not self._rerun.differs:
            return PlaneMap()
        own, other = (
            each
            if each is None
            else each[:, :1]
            if self._columns.same_for_heads
            else each.repeat_interleave(self._repeats, 1)
            for each in self._coefficients
        )
        return PlaneMap(own, other, self._columns.partner, self._centres_heads)

    @property
    def _centres_heads(self) -> bool:
        return self._rerun.centred == self._columns.own.shape[1]

    @functools.cached_property
    def projection(self) -> HeadProjection | None:
        """W and b; None if what is added to the vectors differs between tokens."""
        weight, bias = map(self._columns.of, self._layer.weight_and_bias)
        weight = weight.transpose(0, 1)
        if self._rerun.has_constants:
            added = self._added()
            if added is None and (self._what != _QUERY or not self._rerun.differs):
                return None
            bias = bias if added is None else bias + added  # what differs is the bias of the norm of queries
        if self._rerun.is_scaled and not self._rerun.differs:
            scale = self._coefficients[0][0, :, 0]
            weight, bias = weight * scale.unsqueeze(1), bias * scale
        if self._what == _KEY and self._rerun.centred is not None and not self._centres_heads:
            weight, bias = weight - weight.mean(dim=(0, 2), keepdim=True), bias - bias.mean()
        if self._repeats > 1:
            weight, bias = (each.repeat_interleave(self._repeats, dim=0) for each in (weight, bias))
        return HeadProjection(weight, bias)

    def _added(self) -> Float[Tensor, "head head_dim"] | None:
        """The biases that are added after the linear layer, as if they belonged to it; None if tokens' differ."""
        own, other = self._coefficients
        constant = self._made(self._layer.blank, bias=True)
        if other is None:
            added = constant / own
        else:
            partner = self._columns.partner
            turned = own * own[..., partner] - other * other[..., partner]
            added = (own[..., partner] * constant - other * constant[..., partner]) / turned
        one = added[:1, :, :1]

        def is_same() -> bool:
            return torch.allclose(added, one.expand_as(added), rtol=1e-4, atol=1e-4 * float(one.abs().max()))

        return one[0, :, 0] if _once(self._layer, ("added", self._what), is_same) else None


class Projections:
    """What a block's queries, keys and values are made of, found when it is asked for.

    Args:
        trail: The block, from attention to its sum.
        texts: Number of texts in the batch.
        heads: Number of heads of queries.
    """

    def __init__(self, trail: Trail, texts: int, heads: int) -> None:
        self._texts, self._heads = texts, heads // len(trail.attention)
        self._query, self._is_self, self._carried = trail.query, trail.is_self, made_of(trail.inputs)
        self._reads = [each.reads() for each in trail.attention]
        self._found: dict[int, Sequence[Heads]] = {}

    @functools.cached_property
    def attention_inputs(self) -> Float[Tensor, "batch key model"] | None:
        """What keys and values are made of: the block's input, or its norm. None if no linear layer reads it."""
        layers = [self._first_layer(each) for each in self._reads[0][_KEY:]]
        return next((layer.inputs for layer in layers if layer is not None), None)

    def _first_layer(self, computed: Computed) -> Layer | None:
        """The first linear layer on the way from what the residual connection carries."""
        layer = computed.origin
        if not isinstance(layer, Computed) or not layer.is_layer:
            return None
        reached = None if self._carried is None else self._query.shared_with(self._carried)
        while isinstance(before := layer.operands[0].origin, Computed) and before.is_layer:
            if reached is None or before.made in (None, reached) or not before.made.reads(reached):
                break
            layer = before
        return Layer(layer, computed, self._texts)

    @functools.cached_property
    def query(self) -> HeadProjection | None:
        """W_Q and b_Q; None if queries are more than a linear map of what attention reads, a norm and a rotation."""
        return self._projection(_QUERY)

    @functools.cached_property
    def key(self) -> HeadProjection | None:
        """W_K and b_K, likewise; without their mean over all heads if the norm of the keys subtracts that."""
        return self._projection(_KEY)

    @functools.cached_property
    def value(self) -> HeadProjection | None:
        """W_V and b_V; None if values are more than a linear map of what attention reads."""
        found = self._projection(_VALUE)
        return found if all(each.map.same_for_all_keys for each in self._of(_VALUE)) else None

    def find_key_map(self) -> PlaneMap:
        """What norms and rotations make of x W_K + b_K."""
        first, *rest = maps = [each.map for each in self._of(_KEY)]
        if not rest or first.own is None or len(first.own[0]) == 1:
            return first
        own = [each.own for each in maps if each.own is not None]
        other = [each.other for each in maps if each.other is not None]
        return first._replace(own=torch.cat(own, dim=1), other=torch.cat(other, dim=1) if other else None)

    @property
    def has_value_weights(self) -> bool:
        """Whether there is a W_V, as far as the functions say: numbers are not looked at."""
        return self._is_mapped(_VALUE)

    @property
    def has_score_weights(self) -> bool:
        """Whether there are W_Q and W_K, likewise."""
        return self._is_mapped(_QUERY) and self._is_mapped(_KEY)

    def reads(self, width: int) -> bool:
        """Whether vectors of this width are read, which in front of a bottleneck are wider than the block's."""
        return self.attention_inputs is None or self.attention_inputs.shape[-1] == width

    def _is_mapped(self, what: int) -> bool:
        for reads in self._reads:
            first = self._first_layer(reads[what]) if reads else None
            of_keys = self._first_layer(reads[_KEY]) if reads else None
            if first is None or first.computed is not reads[what].origin:
                return False
            reads_other = of_keys is None or not first.reads_as(of_keys)
            if reads_other and (self._is_self or what != _QUERY):
                return False
            again = rerun(reads[what], first)
            if again is None or (what == _VALUE and again.differs):
                return False
        return bool(self._reads)

    def _projection(self, what: int) -> HeadProjection | None:
        found = [each.projection for each in self._of(what)]
        known = [each for each in found if each is not None]
        if not known or len(known) < len(self._reads):
            return None
        return known[0] if len(known) == 1 else HeadProjection(*map(torch.cat, zip(*known, strict=True)))

    def _of(self, what: int) -> Sequence[Heads]:
        """The heads of queries, keys or values; none if the layer before them does not read what attention reads."""
        if what not in self._found:
            self._found[what] = self._find(what)
        return self._found[what]

    def _find(self, what: int) -> Sequence[Heads]:
        found = []
        for reads in self._reads:
            layer = reads[what].origin if reads else None
            if not isinstance(layer, Computed) or not layer.is_layer:
                return []
            read = Layer(layer, reads[what], self._texts)
            reads_the_same = functools.partial(self._reads_the_same, read)
            if (self._is_self or what != _QUERY) and not _once(read, ("reads", what), reads_the_same):
                return []
            try:
                found.append(Heads(reads[what], read, self._heads, what))
            except NotAffineError:
                return []
        return found

    def _reads_the_same(self, layer: Layer) -> bool:
        return _equal(layer.inputs, self.attention_inputs)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two linear layers read the same vectors of tokens."""
    if one is None or other is None or one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)  # a broken model's vectors may be NaN
