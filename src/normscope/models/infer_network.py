"""Rules for the feed-forward network that follows an attention block or runs in parallel to it."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.maths.activations import ACTIVATIONS, activation_of
from normscope.maths.composition import NormPosition
from normscope.models.graph import (
    PRODUCTS,
    Graph,
    Norm,
    NotInferredError,
    Projection,
    factor_of,
    is_movement,
    is_one_of,
    is_projection,
    is_sum,
)
from normscope.models.trace import Operation, Value


class NoNetworkError(NotInferredError):
    """No feed-forward network follows the attention block."""


@dataclasses.dataclass(frozen=True, eq=False)
class InferredNetwork:
    """The feed-forward network of a layer, as the paths of its modules."""

    input: str
    multiplier: str | None
    fused: bool
    activation: str | None
    """The path of the activation module; None if the activation is a function."""
    function: str | None
    """The name of that function in `ACTIVATIONS`."""
    output: str
    norm: str | None
    output_norm: str | None
    changed_in_place: bool
    """Whether the layer changes the output of W_2 in place."""
    reads: Value
    """What W_1 reads."""
    leaving: Value
    """The output of the layer."""


def network_of(graph: Graph, position: NormPosition, given: Value, beside: Value | None) -> InferredNetwork:
    """The feed-forward network of a layer.

    Args:
        position: The position of the norm of the attention block.
        given: The block's output; in a parallel block, the sum of attention output, residual and `beside`, if any.
        beside: What is added to the attention output before the residual, in a parallel block; None if nothing is.

    Raises:
        NotInferredError: If something else is added to the residual, or no rule covers the form of the network.
    """
    branch, total = _next_branch(graph, given) if beside is None else (beside, given)
    start, way = graph.chain(
        branch, lambda node: is_movement(node) or isinstance(node, Norm) or factor_of(node) is not None
    )
    second = graph.maker(start)
    if not isinstance(second, Projection):
        raise NotInferredError("the feed-forward network does not end in a linear layer", second)
    parts = _parts(graph, second)
    read = graph.same(parts.first.reads)
    before = graph.maker(read)
    norm = before.path if read is not graph.same(given) and isinstance(before, Norm) else None
    leaving = total
    if position == "post":
        readers = [node for node, _ in graph.forward(total, is_movement)]
        if len(readers) != 1 or not isinstance(readers[0], Norm):
            raise NotInferredError("no norm follows the feed-forward network", readers[0] if readers else second)
        norm, leaving = readers[0].path, readers[0].gives
    return InferredNetwork(
        input=parts.first.path,
        multiplier=None if parts.multiplier is None else parts.multiplier.path,
        fused=parts.fused,
        activation=parts.activation,
        function=parts.function,
        output=second.path,
        norm=norm,
        output_norm=next((node.path for node in way if isinstance(node, Norm)), None),
        changed_in_place=any(
            isinstance(node, Operation) and node.name.endswith("_") and node.args[0] is value
            for node, value in graph.forward(second.gives, is_movement)
        ),
        reads=parts.first.reads,
        leaving=leaving,
    )


def _next_branch(graph: Graph, stream: Value) -> tuple[Value, Value]:
    """What is added to the residual next, and the sum."""
    sums = [
        (node, value)
        for node, value in graph.forward(stream, lambda node: is_movement(node) or factor_of(node) is not None)
        if is_sum(node)
    ]
    if not sums:
        raise NoNetworkError("nothing is added to the block's output")
    if len(sums) > 1:
        raise NotInferredError("more than one thing is added to the block's output", sums[1][0])
    ((node, value),) = sums
    assert isinstance(node, Operation)
    (branch,) = [each for each in graph.operands(node) if each is not value]
    return branch, node.outputs[0]


class _Parts(NamedTuple):
    """The parts of the input of W_2, which is g(u) or g(u) ⊙ w."""

    first: Projection
    """W_1."""
    multiplier: Projection | None
    """V, if it is a separate linear layer."""
    fused: bool
    """Whether W_1 and V are halves of one linear layer."""
    activation: str | None
    """The path of the module of g."""
    function: str | None
    """The name of g, if no module computes it."""


def _parts(graph: Graph, second: Projection) -> _Parts:
    ends, region = graph.back(second.reads, is_projection)
    products = [node for node in region if isinstance(node, Operation) and node.name in PRODUCTS]
    if products:
        raise NotInferredError("the feed-forward network multiplies matrices outside linear layers", products[0])
    if not ends or len(ends) > 2:
        raise NotInferredError("the feed-forward network does not begin with one or two linear layers", second)
    gate, other = _gate(graph, graph.chain(second.reads, is_movement)[0])
    roots = _roots(graph, gate)
    if len(roots) != 1:
        raise NotInferredError("the activation reads more than one vector", graph.maker(gate))
    first = graph.maker(graph.same(roots[0]))
    multiplier = None if other is None else graph.maker(graph.same(other))
    assert isinstance(first, Projection)
    assert multiplier is None or isinstance(multiplier, Projection)
    fused = multiplier is first
    if fused:
        assert other is not None
        _check_halves(graph, first, roots[0], other)
    activation = _module_between(graph, roots[0], gate)
    if activation is not None and not activation.startswith(first.path.rpartition(".")[0]):
        activation = None  # a module that layers share
    function = _function_between(graph, roots[0], gate) if activation is None else None
    return _Parts(first, None if fused else multiplier, fused, activation, function)


def _gate(graph: Graph, hidden: Value) -> tuple[Value, Value | None]:
    """g(u), and in a gated network w: the factor that is the unchanged output of a linear layer, or part of it."""
    product = graph.maker(hidden)
    if is_one_of(product, "mul") and len(graph.operands(product)) == 2:
        one, other = graph.operands(product)
        for gate, factor in ((other, one), (one, other)):
            roots = _roots(graph, gate)
            unchanged = isinstance(graph.maker(graph.same(factor)), Projection)
            # Some activations multiply u by a function of u, which is no gate.
            if (
                unchanged
                and len(roots) == 1
                and roots[0] is not factor
                and graph.same(gate) is not graph.same(roots[0])
            ):
                return gate, factor
    return hidden, None


def _check_halves(graph: Graph, first: Projection, activated: Value, multiplied: Value) -> None:
    width = first.gives.shape[-1]
    places = torch.arange(math.prod(first.gives.shape)).view(first.gives.shape)
    for number, value in enumerate((activated, multiplied)):
        row = graph.moved(value, first.gives, places).reshape(-1, width // 2)[0]
        if not torch.equal(row, torch.arange(width // 2) + number * (width // 2)):
            raise NotInferredError("the two halves of a gated network are interleaved", first)


def _roots(graph: Graph, value: Value) -> list[Value]:
    """The linear layers' outputs, or parts of them, from which elementwise operations compute a value."""
    found: list[Value] = []
    pending, seen = [value], set[Value]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        node = graph.maker(graph.same(current))
        if isinstance(node, Projection):
            found.append(current)
        elif node is not None:
            pending.extend(graph.operands(graph.maker(current) or node))
    return found


def _module_between(graph: Graph, read: Value, made: Value) -> str | None:
    """The path of the module that computes one value from another; None if there is none."""
    for call in graph.trace.calls:
        inputs = [value for value in call.inputs if value.tokens]
        if len(inputs) == 1 and graph.same(inputs[0]) is graph.same(read) and made in call.outputs:
            return call.path
    return None


def _function_between(graph: Graph, read: Value, made: Value) -> str:
    """The name of the activation that computes one value from another.

    Raises:
        NotInferredError: If the activation is not in `ACTIVATIONS`.
    """

    def applied(numbers: Tensor) -> Tensor:
        given = numbers.new_zeros(math.prod(read.shape))
        given[: len(numbers)] = numbers
        return graph.replay(made, {read: given.view(read.shape)}).reshape(-1)[: len(numbers)]

    unknown = NotInferredError("the activation is neither a module nor a known function", graph.maker(made))
    try:
        known = activation_of(applied, torch.zeros((), dtype=torch.float64))
    except RuntimeError as error:  # not elementwise, or dependent on data that are known only when the model runs
        raise unknown from error
    for name, activation in ACTIVATIONS.items():
        if activation is known:
            return name
    raise unknown
