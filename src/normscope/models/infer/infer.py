"""Infers from a recorded pass where a model keeps the parts of its attention blocks, with one function for each rule.

No rule matches names or numbers: every rule follows the graph. `verification` then proves what was inferred.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from normscope.maths.composition import NormPosition
from normscope.models.infer.graph import (
    Graph,
    Node,
    Norm,
    NotInferredError,
    Projection,
    factor_of,
    is_movement,
    is_product,
    is_projection,
    is_sum,
    scale_of,
)
from normscope.models.infer.infer_heads import (
    Heads,
    InferredGate,
    concatenation,
    joined_heads,
    output_projection,
    product_with_values,
    side_by_side,
    value_heads,
)
from normscope.models.infer.infer_network import InferredNetwork, NoNetworkError, network_of
from normscope.models.infer.infer_scores import Scores, scores_of, scores_together
from normscope.models.infer.trace import Call, Operation, Trace, Value


@dataclasses.dataclass(frozen=True, eq=False)
class InferredBlock:
    """One attention module, the residual connection around it, and the feed-forward network that follows."""

    attention: Call
    """The call of the module in which the softmax runs."""
    weights: Value
    """α, as it enters the product with the values."""
    scores: Scores
    value: Heads | NotInferredError
    """W_V, or why no single linear layer maps what attention reads to the values. α, values and W_O are then still exact, and
    whatever does not need W_V can be measured."""
    reader: Projection | None
    """The first linear layer that reads what attention reads."""
    output: Projection
    """W_O."""
    gate: InferredGate | None
    """The gate on the outputs of the heads."""
    stream: "Residual"
    norm_position: NormPosition
    norm: Norm | None
    """The norm of the block."""
    attention_norm: Norm | None
    """The norm of the input of attention."""
    given: Value
    """The block's output."""
    rounding: Sequence[Node]
    """The nodes whose rounding affects the block: those from queries and keys to α, the gate, and the block's norm."""
    network: InferredNetwork | NotInferredError
    """The feed-forward network, or why it is not known."""


def infer(graph: Graph, queries: int, keys: int) -> list[InferredBlock]:
    """The blocks of a recorded pass whose softmax attention has these numbers of queries and keys, in order.

    Raises:
        NotInferredError: If there is none, or no rule covers one of them; the message names its number.
    """
    found: list[InferredBlock] = []
    for together in softmaxes_by_layer(graph, queries, keys):
        try:
            found.append(_block(graph, together))
        except NotInferredError as error:
            raise NotInferredError(f"in attention {len(found) + 1}, {error}") from error
    if not found:
        raise NotInferredError("no softmax over all tokens was found")
    followed = [_is_residual_of(graph, block, after) for block, after in itertools.pairwise(found)]
    nothing = NoNetworkError("nothing is added to the block's output before the next block")
    return [
        dataclasses.replace(block, network=nothing) if is_next else block
        for block, is_next in zip(found, [*followed, False], strict=True)
    ]


def _is_residual_of(graph: Graph, block: InferredBlock, after: InferredBlock) -> bool:
    """Whether the residual connection of the next block carries the output of a block, with no network between them."""
    return block.norm_position != "parallel" and graph.same(after.stream.carried) is graph.same(block.given)


def softmaxes(trace: Trace, queries: int, keys: int) -> Iterator[Operation]:
    """The operations that make attention weights: softmaxes over queries and keys (the last two axes), possibly with a sink."""
    for operation in trace.operations:
        if operation.name in ("_softmax", "_safe_softmax") and operation.outputs[0].tokens:
            shape = operation.outputs[0].shape
            last = operation.args[1] in (-1, len(shape) - 1)
            if last and len(shape) > 2 and shape[-2] == queries and shape[-1] in (keys, keys + 1):
                yield operation


def softmaxes_by_layer(graph: Graph, queries: int, keys: int) -> Iterator[list[Operation]]:
    """The softmaxes of each attention module: one, or one for each head if heads are separate modules."""
    over_tokens = (softmax for softmax in softmaxes(graph.trace, queries, keys) if not _is_over_outputs(graph, softmax))
    for _, together in itertools.groupby(over_tokens, lambda softmax: _concatenation(graph, softmax) or softmax):
        yield list(together)


def _is_over_outputs(graph: Graph, softmax: Operation) -> bool:
    """Whether a softmax runs over the outputs of one linear layer, as a router's does over experts, not over tokens.

    There may be as many experts as recorded tokens.
    """
    ends, _ = graph.back(softmax.reads[0], lambda node: is_projection(node) or is_product(node))
    return len(ends) == 1 and is_projection(ends[0])


def _concatenation(graph: Graph, softmax: Operation) -> Operation | None:
    for node, _ in graph.forward(softmax.outputs[0], is_movement):
        if is_product(node) and isinstance(node, Operation):
            return concatenation(graph, node.outputs[0])
    return None


def _block(graph: Graph, heads: Sequence[Operation]) -> InferredBlock:
    products, all_weights, values = zip(*(product_with_values(graph, softmax) for softmax in heads), strict=True)
    joined = joined_heads(graph, [product.outputs[0] for product in products])
    output, gate = output_projection(graph, joined)
    scores = scores_together([scores_of(graph, softmax) for softmax in heads])
    weights = all_weights[0]
    stream = residual_sum(graph, output, graph.ancestors(graph.operands(scores.product)[0]))
    position, norm, given = norm_of(graph, stream)
    try:
        beside = next(iter(stream.beside), None)
        network: InferredNetwork | NotInferredError = network_of(graph, position, given, beside, stream.carried)
    except NotInferredError as error:
        network = error
    way = [node for each in all_weights for node in graph.back(each, is_product)[1]]
    value = _values_of(graph, values)
    crosses = weights.shape[-1] != weights.shape[-2]  # keys and queries come from different texts
    norm_before, reader = None, None
    if not crosses:
        read, norm_before = attention_input(graph, value, values[0], stream.carried)
        value, scores = value_reading(graph, value, read), scores.reading(graph, read)
        reader = _first_reader(graph, read, values[0])
    elif isinstance(value, NotInferredError):
        raise value
    return InferredBlock(
        attention=_holding(heads),
        weights=weights,
        scores=scores,
        value=value,
        reader=reader,
        output=output,
        gate=gate,
        stream=stream,
        norm_position=position,
        norm=norm,
        attention_norm=norm_before,
        given=given,
        rounding=[*scores.way, *heads, *way, *([] if norm is None else [norm]), *([] if gate is None else gate.way)],
        network=network,
    )


def _holding(operations: Sequence[Operation]) -> Call:
    """The innermost call in which all operations run."""
    call = operations[0].call
    while call is not None and not all(call.first <= each.number < call.end for each in operations):
        call = call.parent
    assert call is not None
    return call


class Residual(NamedTuple):
    """The sum of attention output and residual."""

    carried: Value
    """x, which the residual connection carries."""
    total: Value
    """The sum of attention output and residual."""
    norm: Norm | None
    """The norm of the attention output."""
    scale: float
    """The factor on the attention output."""
    scales: str | None
    """The parameter that holds a factor on it, or one for each of its dimensions (LayerScale)."""
    beside: tuple[Value, ...]
    """Other branches that are added to the attention output before the residual."""


def residual_sum(graph: Graph, output: Projection, past: frozenset[Value]) -> Residual:
    """Walk from W_O through movements, factors and norms to the addition of the term from which the queries are computed.

    In a bottleneck, that term is a linear map of a vector from which they are computed.

    Args:
        past: All values from which the queries are computed.
    """
    try:
        return _sum_with(graph, output, past.__contains__)
    except NotInferredError as error:
        try:
            return _sum_with(graph, output, lambda value: _before_bottleneck(graph, value) in past)
        except NotInferredError:
            raise error from None


def _before_bottleneck(graph: Graph, value: Value) -> Value | None:
    """What the linear layer reads that makes a value, possibly followed by norms; None if no linear layer makes it."""
    node = graph.maker(graph.chain(value, lambda node: is_movement(node) or isinstance(node, Norm))[0])
    return graph.same(node.reads) if isinstance(node, Projection) else None


def _sum_with(graph: Graph, output: Projection, is_residual: Callable[[Value], bool]) -> Residual:
    value, norm, scale, scales, beside = output.gives, None, 1.0, None, tuple[Value, ...]()
    while True:
        readers = list(graph.forward(value, is_movement))
        if len(readers) != 1:
            reason = "the attention output is read by more than one operation"
            raise NotInferredError(reason, readers[0][0] if readers else output)
        ((node, read),) = readers
        factor = factor_of(node)
        if isinstance(node, Norm) and norm is None:
            norm, value = node, node.gives
        elif norm is None and scales is None and (scales := scale_of(node)) is not None:
            (value,) = graph.results(node)
        elif factor is not None:
            scale, (value,) = scale * factor, graph.results(node)
        elif is_sum(node):
            (other,) = [each for each in graph.operands(node) if each is not read]
            if is_residual(graph.same(other)):
                return Residual(other, node.outputs[0], norm, scale, scales, beside)
            made = graph.maker(graph.same(other))
            if isinstance(made, Operation) and factor_of(made) is not None:
                (carried,) = [each for each in graph.operands(made) if each.tokens]
                if is_residual(graph.same(carried)):
                    raise NotInferredError("the residual connection carries a multiple of the stream", made)
            value, beside = node.outputs[0], (*beside, other)
        else:
            raise NotInferredError("the attention output is not added to a residual connection", node)


def norm_of(graph: Graph, stream: Residual) -> tuple[NormPosition, Norm | None, Value]:
    """The position of the block's norm, the norm, and the block's output, inferred from what reads the sum."""
    if stream.beside:
        return "parallel", None, stream.total
    if stream.norm is not None:
        return "branch", stream.norm, stream.total
    readers = [node for node, _ in graph.forward(stream.total, is_movement)]
    only = readers[0] if len(readers) == 1 else None
    # The output of a norm after the sum is the next residual; that of a norm before the network is read by the network alone.
    if isinstance(only, Norm) and any(is_sum(node) for node, _ in graph.forward(only.gives, is_movement)):
        return "post", only, only.gives
    if is_sum(only):
        return "parallel", None, stream.total
    return "pre", None, stream.total


def _values_of(graph: Graph, values: Sequence[Value]) -> Heads | NotInferredError:
    """W_V, or why a linear layer alone does not make the values."""
    try:
        by_head = [value_heads(graph, each) for each in values]
        return by_head[0] if len(by_head) == 1 else side_by_side(by_head)
    except NotInferredError as error:
        return error


def attention_input(
    graph: Graph, value: Heads | NotInferredError, values: Value, carried: Value
) -> tuple[Value, Norm | None]:
    """What self-attention reads, and the norm that makes it; no norm if it reads the residual itself, or another map of the
    vector from which a bottleneck makes the residual.

    Args:
        value: W_V, if a linear layer alone makes the values.
        values: The values.
        carried: The residual.

    Raises:
        NotInferredError: If self-attention reads neither the residual nor its norm.
    """
    residual = graph.same(carried)
    past = graph.ancestors(values)
    node: Node | None = None
    if isinstance(value, Heads):
        read = graph.same(value.projection.reads)
        node = graph.maker(read)
        if read is residual:
            return residual, None
        if isinstance(node, Norm) and graph.same(node.reads) is residual:
            return read, node
    if residual not in past and _before_bottleneck(graph, residual) in past:
        return residual, None
    norms = [norm for norm in graph.norms if graph.same(norm.reads) is residual and norm.gives in past]
    if len(norms) == 1:
        return norms[0].gives, norms[0]
    if norms or residual not in past:
        raise NotInferredError("attention reads neither the residual nor a norm of the residual", node)
    return residual, None


def value_reading(graph: Graph, value: Heads | NotInferredError, read: Value) -> Heads | NotInferredError:
    """W_V if it reads what attention reads, and not something that is computed from that."""
    if isinstance(value, Heads) and not graph.equal(value.projection.reads, read):
        reason = "the linear layer that makes the values reads something else than attention does"
        return NotInferredError(reason, value.projection)
    return value


def _first_reader(graph: Graph, read: Value, values: Value) -> Projection | None:
    """The first linear layer on the way to the values that reads the given vector."""
    past = graph.ancestors(values)
    readers = [node for node, _ in graph.forward(graph.same(read), is_movement)]
    return next((node for node in readers if isinstance(node, Projection) and node.gives in past), None)
