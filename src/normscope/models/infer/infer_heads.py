"""Rules for heads: which outputs of a linear layer form each head's vector, and where α is multiplied by the values."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.models.infer.graph import (
    Graph,
    Node,
    Norm,
    NotInferredError,
    Projection,
    bias_of,
    is_movement,
    is_one_of,
    is_product,
    is_projection,
)
from normscope.models.infer.trace import Operation, Value
from normscope.models.sites.site import BESIDE, GATES


@dataclasses.dataclass(frozen=True, eq=False)
class Heads:
    """The vectors of all heads that W_Q, W_K or W_V compute."""

    projection: Projection
    columns: Tensor
    """(head, head_dim): the indices of the linear layer's outputs that form each head's vector."""
    begins: Value
    """The vectors before any rotation."""
    ends: Value
    """The vectors as they enter the product with α or with each other."""
    biases: tuple[str, ...] = ()
    """Parameters that are added in addition to the linear layer's own bias."""
    norm: Norm | None = None
    """The norm of queries or keys."""
    norm_by_head: bool = False
    """Whether the input of that norm has shape (batch, head, key, head_dim)."""
    norm_turned: bool = False
    """Whether that norm comes after the rotation; then `ends` is what it reads."""
    others: tuple[Projection, ...] = ()
    """The linear layers of all heads but the first, if each head has one of its own."""

    @property
    def path(self) -> str:
        """The path of the linear layer, or the paths of those of all heads."""
        return BESIDE.join(each.path for each in (self.projection, *self.others))

    @property
    def in_order(self) -> bool:
        """Whether the heads take the outputs of the linear layers one after the other."""
        width = sum(each.gives.shape[-1] for each in (self.projection, *self.others))
        return torch.equal(self.columns.flatten(), torch.arange(width))


def side_by_side(heads: Sequence[Heads]) -> Heads:
    """Treat heads with linear layers of their own as the heads of a single one.

    Raises:
        NotInferredError: If they have anything besides a linear layer each, or share one.
    """
    first, *others = heads
    layers = tuple(each.projection for each in others)
    plain = all(not each.biases and each.norm is None and each.in_order for each in heads)
    if not plain or len({each.path for each in heads}) < len(heads):
        raise NotInferredError(
            "heads in separate modules share a linear layer or have norms of their own", first.projection
        )
    columns = torch.arange(sum(each.columns.numel() for each in heads)).view(len(heads), -1)
    return dataclasses.replace(first, columns=columns, others=layers)


def product_with_values(graph: Graph, softmax: Operation) -> tuple[Operation, Value, Value]:
    """The product of attention weights and values, and its two operands: the weights and the values."""

    def same(node: Node) -> bool:
        return is_movement(node) or is_one_of(node, "masked_fill", "where")

    readers = list(graph.forward(softmax.outputs[0], same))
    # Weights that are only returned change nothing.
    readers = [(node, read) for node, read in readers if any(graph.is_used(each) for each in graph.results(node))]
    others = [node for node, _ in readers if not is_product(node)]
    if len(readers) != 1 or others:
        reason = "attention weights are read by an operation other than the product with the values"
        raise NotInferredError(reason, (others or [softmax])[0])
    product, weights = readers[0]
    values = [value for value in graph.operands(product) if value is not weights]
    if len(values) != 1:
        raise NotInferredError("attention weights are multiplied by something other than values", product)
    assert isinstance(product, Operation)
    return product, weights, values[0]


def value_heads(graph: Graph, values: Value) -> Heads:
    """W_V: walk back from the values through movements and biases to a linear layer."""
    start, way = graph.chain(values, lambda node: is_movement(node) or bias_of(node) is not None)
    projection = graph.maker(start)
    if not isinstance(projection, Projection):
        raise NotInferredError("values are not computed by a linear layer", projection)
    biases = tuple(bias for node in way if (bias := bias_of(node)) is not None)
    # Heads that share their values are listed once.
    columns = columns_of(graph, start, values, values.shape[-1]).unique_consecutive(dim=0)
    return Heads(projection, columns, values, values, biases)


def columns_of(graph: Graph, start: Value, heads: Value, head_dim: int) -> Tensor:
    """Which outputs of a projection form the vector of each head: indices of shape (head, head_dim).

    The operations between the two are replayed on the indices themselves.
    """
    width, texts = start.shape[-1], graph.trace.texts
    moved = graph.moved(heads, start, torch.arange(math.prod(start.shape)).view(start.shape))
    # Texts and heads may be folded into one axis, in either order.
    for shape in (moved.shape, (texts, -1, *moved.shape[1:]), (-1, texts, *moved.shape[1:])):
        if moved.shape[0] % texts and shape != moved.shape:
            break
        places = moved.reshape(shape)
        of_tokens, of_columns = _varying(places // width), _varying(places % width)
        axes = [axis for axis in sorted(of_columns) if places.shape[axis] == head_dim]
        if of_tokens & of_columns or not axes:
            continue
        columns = places % width
        for axis in of_tokens:
            columns = columns.narrow(axis, 0, 1)
        return columns.movedim(axes[-1], -1).reshape(-1, head_dim)
    raise NotInferredError("the vector of a head mixes tokens", graph.maker(heads))


def _varying(places: Tensor) -> set[int]:
    """The axes along which the indices differ."""
    return {axis for axis in range(places.ndim) if not bool((places == places.narrow(axis, 0, 1)).all())}


def joined_heads(graph: Graph, heads: Sequence[Value]) -> Value:
    """The vectors of all heads, side by side; heads in separate modules are concatenated.

    Raises:
        NotInferredError: If they are not concatenated in this order.
    """
    if len(heads) == 1:
        return heads[0]
    node = concatenation(graph, heads[0])
    assert node is not None
    axis = node.args[1] if len(node.args) > 1 else 0
    order = [graph.same(read) for read in node.reads]
    if axis not in (-1, len(node.outputs[0].shape) - 1) or order != [graph.same(each) for each in heads]:
        raise NotInferredError("the outputs of the heads are concatenated in an unknown order", node)
    return node.outputs[0]


def concatenation(graph: Graph, head: Value) -> Operation | None:
    """The operation that puts the output of one head beside those of others; None if there is none."""
    readers = [node for node, _ in graph.forward(head, is_movement)]
    (node,) = readers if len(readers) == 1 else (None,)
    return node if is_one_of(node, "cat") else None


@dataclasses.dataclass(frozen=True, eq=False)
class InferredGate:
    """A gate by which the outputs of the heads are multiplied before W_O: g(x W + b), where x belongs to the query."""

    projection: Projection
    columns: Tensor
    """(head, head_dim): the indices of the linear layer's outputs by which each dimension of each head is multiplied."""
    function: str
    """The name of g."""
    way: Sequence[Node]
    """The nodes between the linear layer and the product with the outputs of the heads."""


def output_projection(graph: Graph, heads: Value) -> tuple[Projection, InferredGate | None]:
    """W_O, and the gate on what it reads, if there is one.

    Walk forward from the outputs of the heads to a linear layer, which reads them concatenated.
    """
    places = torch.arange(math.prod(heads.shape)).view(heads.shape)
    gate: InferredGate | None = None
    readers = list(graph.forward(heads, is_movement))
    if len(readers) == 1 and is_one_of(readers[0][0], "mul") and len(graph.operands(readers[0][0])) == 2:
        ((product, read),) = readers
        places = graph.moved(read, heads, places)
        gate = _gate(graph, heads, places, next(each for each in graph.operands(product) if each is not read))
        heads_or_gated = graph.results(product)[0]
        readers = list(graph.forward(heads_or_gated, is_movement))
    else:
        heads_or_gated = heads
    if len(readers) != 1 or not isinstance(readers[0][0], Projection):
        reason = "the outputs of the heads are not read by a single linear layer"
        raise NotInferredError(reason, readers[0][0] if readers else None)
    ((projection, read),) = readers
    assert isinstance(projection, Projection)
    queries, head_dim = heads.shape[-2:]
    rows = graph.moved(read, heads_or_gated, places).reshape(-1, read.shape[-1])
    token, head = rows // head_dim % queries, rows // (head_dim * queries)
    if not bool((token == token[:, :1]).all()):
        raise NotInferredError("the outputs of the heads mix tokens", graph.maker(read))
    # Texts and heads are folded into one axis; within a row, only the head changes.
    step = int(head[0, -1] - head[0, 0]) // max(rows.shape[1] // head_dim - 1, 1)
    columns = (head - head[:, :1]) // max(step, 1) * head_dim + rows % head_dim
    if not bool((columns == torch.arange(rows.shape[1])).all()):
        raise NotInferredError("the outputs of the heads are concatenated in an unknown order", projection)
    return projection, gate


def _gate(graph: Graph, heads: Value, places: Tensor, factor: Value) -> InferredGate:
    """The gate that makes a factor on the outputs of the heads.

    Args:
        heads: The outputs of the heads.
        places: Where in these is each element of what is multiplied.
        factor: The other operand of the product.
    """
    start, way = graph.chain(factor, lambda node: not is_projection(node))
    projection = graph.maker(start)
    applied = [node for node in way if not is_movement(node)]
    operation = applied[0] if len(applied) == 1 else None
    if not isinstance(projection, Projection) or not is_one_of(operation, *GATES):
        reason = "the outputs of the heads are multiplied by something other than a function of one linear layer"
        raise NotInferredError(reason, graph.maker(factor))
    width, (queries, head_dim) = start.shape[-1], heads.shape[-2:]
    made = graph.moved(factor, start, torch.arange(math.prod(start.shape)).view(start.shape)).expand(places.shape)
    first = made // width == 0  # what belongs to the first token of the first text
    columns, places = made[first] % width, places[first]
    if bool((places // head_dim % queries != 0).any()):
        raise NotInferredError("the gate of one token multiplies the outputs of another", graph.maker(factor))
    order = (places // (head_dim * queries) * head_dim + places % head_dim).argsort()
    return InferredGate(projection, columns[order].view(-1, head_dim), operation.name.rstrip("_"), way)
