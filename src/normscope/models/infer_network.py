"""Rules for the feed-forward network that follows an attention block or runs in parallel to it."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.maths.activations import ACTIVATIONS, activation_of
from normscope.maths.composition import NormPosition
from normscope.models.experts import is_mixture, why_not_linear
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
    scale_of,
)
from normscope.models.trace import Call, Operation, Value


class NoNetworkError(NotInferredError):
    """No feed-forward network follows the attention block."""


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkForm:
    """What a feed-forward network is made of, as the paths of its modules."""

    input: str
    """W_1, or the module with the experts of a mixture."""
    output: str
    """W_2, or the same module."""
    activation: str | None
    """The path of the activation module; None if the activation is a function."""
    function: str | None
    """The name of that function in `ACTIVATIONS`."""
    reads: Value
    """What W_1 reads."""
    gives: Value
    """What W_2 gives."""
    multiplier: str | None = None
    fused: bool = False
    multiplier_first: bool = False
    routed: bool = False
    """Whether it is a mixture of experts."""
    shared: "NetworkForm | None" = None
    """The network beside the experts that every token runs through."""
    shared_gate: str | None = None
    """The linear layer that makes the logit of the factor on the output of `shared`."""


@dataclasses.dataclass(frozen=True, eq=False)
class InferredNetwork:
    """The feed-forward network of a layer."""

    form: NetworkForm
    norm: str | None
    output_norm: str | None
    scales: str | None
    """The parameter that holds a factor for each dimension of its output (LayerScale)."""
    changed_in_place: bool
    """Whether the layer changes the output of W_2 in place."""
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
        branch,
        lambda node: (
            is_movement(node) or isinstance(node, Norm) or factor_of(node) is not None or scale_of(node) is not None
        ),
    )
    scales = [scale for node in way if (scale := scale_of(node)) is not None]
    if len(scales) > 1 or (scales and any(isinstance(node, Norm) for node in way)):
        raise NotInferredError("the output of the feed-forward network is scaled more than once", graph.maker(branch))
    form = _form(graph, start)
    read = graph.same(form.reads)
    before = graph.maker(read)
    norm = before.path if read is not graph.same(given) and isinstance(before, Norm) else None
    leaving = total
    if position == "post":
        readers = [node for node, _ in graph.forward(total, is_movement)]
        if len(readers) != 1 or not isinstance(readers[0], Norm):
            raise NotInferredError("no norm follows the feed-forward network", readers[0] if readers else None)
        norm, leaving = readers[0].path, readers[0].gives
    return InferredNetwork(
        form=form,
        norm=norm,
        scales=next(iter(scales), None),
        output_norm=next((node.path for node in way if isinstance(node, Norm)), None),
        changed_in_place=any(
            isinstance(node, Operation) and node.name.endswith("_") and node.args[0] is value
            for node, value in graph.forward(form.gives, is_movement)
        ),
        leaving=leaving,
    )


def _form(graph: Graph, branch: Value) -> NetworkForm:
    """The network that makes a branch: a dense one, or experts and what is beside them."""
    if isinstance(graph.maker(branch), Projection):
        return dense_network(graph, branch)
    experts, shared, gate = None, None, None
    for value in _summands(graph, branch):
        call = experts_call(graph, value)
        if call is not None and experts is None:
            experts = _of_experts(call)
        elif shared is None:
            value, gate = _without_gate(graph, value)
            shared = dense_network(graph, value)
        else:
            reason = "the feed-forward network adds something that is neither a linear layer's output nor that of known experts"
            raise NotInferredError(reason, graph.maker(value))
    if experts is None:
        raise NotInferredError("the feed-forward network does not end in a linear layer", graph.maker(branch))
    return experts if shared is None else _beside(graph, experts, shared, gate)


def _beside(graph: Graph, experts: NetworkForm, shared: NetworkForm, gate: Projection | None) -> NetworkForm:
    reads = [shared.reads, *([] if gate is None else [gate.reads])]
    if any(graph.same(read) is not graph.same(experts.reads) for read in reads):
        raise NotInferredError("experts and the network beside them read different vectors")
    module = graph.trace.calls[0].module.get_submodule
    layers = [module(path) for path in (shared.input, shared.multiplier, shared.output) if path is not None]
    if any(layer.bias is not None for layer in layers):
        raise NotInferredError("the network beside the experts has biases")
    if (shared.fused or shared.multiplier is not None) != bool(module(experts.input).has_gate):
        raise NotInferredError("of the experts and the network beside them, only one is gated")
    return dataclasses.replace(experts, shared=shared, shared_gate=None if gate is None else gate.path)


def _summands(graph: Graph, value: Value) -> Iterator[Value]:
    """The vectors of which a sum is made, as far back as the outputs of experts."""
    value = graph.same(value)
    node = graph.maker(value)
    if is_sum(node) and experts_call(graph, value) is None:
        for operand in graph.operands(node):
            yield from _summands(graph, operand)
    else:
        yield value


def experts_call(graph: Graph, value: Value) -> Call | None:
    """The call of experts that gives a value; None if there is none."""
    for call in graph.trace.calls:
        if is_mixture(call.module) and call.outputs and graph.same(call.outputs[0]) is graph.same(value):
            return call
    return None


def _of_experts(call: Call) -> NetworkForm:
    reason = why_not_linear(call.module)
    if len(call.inputs) != 3 or call.inputs[1].tensor.is_floating_point():
        reason = "its experts are not given vectors, the numbers of the chosen experts, and their weights"
    if reason is not None:
        raise NotInferredError(
            f"the feed-forward network is a mixture that cannot be decomposed: {reason} ({call.path})"
        )
    return NetworkForm(
        input=call.path,
        output=call.path,
        activation=f"{call.path}.act_fn",
        function=None,
        reads=call.inputs[0],
        gives=call.outputs[0],
        routed=True,
    )


def _without_gate(graph: Graph, value: Value) -> tuple[Value, Projection | None]:
    """A network's output without the sigmoid that multiplies it, and the linear layer of that sigmoid, if there is one."""
    node = graph.maker(value)
    if not is_one_of(node, "mul") or len(graph.operands(node)) != 2:
        return value, None
    for gated, factor in itertools.permutations(graph.operands(node)):
        sigmoid = graph.maker(graph.same(factor))
        if is_one_of(sigmoid, "sigmoid"):
            linear = graph.maker(graph.same(graph.operands(sigmoid)[0]))
            if isinstance(linear, Projection) and linear.gives.shape[-1] == 1:
                return graph.same(gated), linear
    return value, None


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


def dense_network(graph: Graph, given: Value) -> NetworkForm:
    """The network whose W_2 gives a value.

    Raises:
        NotInferredError: If a linear layer does not give it, or no rule covers what that layer reads.
    """
    second = graph.maker(given)
    if not isinstance(second, Projection):
        raise NotInferredError("the feed-forward network does not end in a linear layer", second)
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
    activation = _module_between(graph, roots[0], gate)
    if activation is not None and not activation.startswith(first.path.rpartition(".")[0]):
        activation = None  # a module that layers share
    return NetworkForm(
        input=first.path,
        multiplier=None if fused or multiplier is None else multiplier.path,
        fused=fused,
        multiplier_first=fused and other is not None and _in_second_half(graph, first, roots[0], other),
        activation=activation,
        function=_function_between(graph, roots[0], gate) if activation is None else None,
        output=second.path,
        reads=first.reads,
        gives=second.gives,
    )


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


def _in_second_half(graph: Graph, first: Projection, activated: Value, multiplied: Value) -> bool:
    """Whether the activation reads the second half of what a linear layer gives, not the first.

    Raises:
        NotInferredError: If the outputs that it reads and those that multiply it are not the two halves.
    """
    half = first.gives.shape[-1] // 2
    places = torch.arange(math.prod(first.gives.shape)).view(first.gives.shape)
    rows = [graph.moved(value, first.gives, places).reshape(-1, half)[0] for value in (activated, multiplied)]
    for second, ordered in ((False, rows), (True, rows[::-1])):
        if torch.equal(torch.cat(ordered), torch.arange(2 * half)):
            return second
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
