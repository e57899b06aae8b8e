"""Rules for the network that follows an attention block or runs beside it: where it is added, and where the layer ends."""

import dataclasses

from normscope.maths.composition import NormPosition
from normscope.models.infer.graph import (
    Graph,
    Node,
    Norm,
    NotInferredError,
    factor_of,
    is_movement,
    is_sum,
    scale_of,
)
from normscope.models.infer.trace import Operation, Value


class NoNetworkError(NotInferredError):
    """No feed-forward network follows the attention block."""


@dataclasses.dataclass(frozen=True, eq=False)
class InferredNetwork:
    """The feed-forward network of a layer, whatever its form."""

    leaving: Value
    """The output of the layer."""
    scales: str | None
    """The parameter that scales each dimension of its output (LayerScale)."""
    modules: frozenset[str]
    """The paths of the modules that compute what is added to the residual connection."""


def network_of(
    graph: Graph, position: NormPosition, given: Value, beside: Value | None, carried: Value
) -> InferredNetwork:
    """The feed-forward network of a layer.

    Args:
        position: The position of the norm of the attention block.
        given: The block's output; in a parallel block, the sum of attention output, residual and `beside`, if any.
        beside: What is added to the attention output before the residual, in a parallel block; None if nothing is.
        carried: What the residual connection carries.

    Raises:
        NotInferredError: If more than one thing is added to the residual connection, or none.
    """
    branch, total = _next_branch(graph, given) if beside is None else (beside, given)
    leaving = total
    if position == "post":
        readers = [node for node, _ in graph.forward(total, is_movement)]
        if len(readers) != 1 or not isinstance(readers[0], Norm):
            raise NotInferredError("no norm follows the feed-forward network", readers[0] if readers else None)
        leaving = readers[0].gives
    _, way = graph.chain(branch, _is_scaling)
    scales = [scale for node in way if (scale := scale_of(node)) is not None]
    made = graph.ancestors(branch) - graph.ancestors(carried)
    return InferredNetwork(
        leaving,
        scales[0] if len(scales) == 1 else None,
        frozenset(call.path for call in graph.trace.calls if call.outputs and graph.same(call.outputs[0]) in made),
    )


def _is_scaling(node: Node) -> bool:
    return is_movement(node) or isinstance(node, Norm) or factor_of(node) is not None or scale_of(node) is not None


def _next_branch(graph: Graph, stream: Value) -> tuple[Value, Value]:
    """What is added to the residual connection next, and the sum."""
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
