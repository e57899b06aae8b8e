"""Rules for scores: queries, keys, the factor on their product, and the planes in which positions rotate them."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from normscope.models.infer.graph import (
    COPIES,
    Graph,
    Node,
    Norm,
    NotInferredError,
    Projection,
    bias_of,
    constant,
    factor_of,
    is_movement,
    is_one_of,
    is_product,
    is_projection,
)
from normscope.models.infer.infer_heads import Heads, columns_of, side_by_side
from normscope.models.infer.trace import Operation, Value
from normscope.models.sites.rotary import Planes


class Scores(NamedTuple):
    """How scores are computed."""

    query: Heads | None
    """W_Q; None if queries are more than a linear map of what attention reads, a norm and a rotation. α is then still exact."""
    key: Heads | None
    """W_K, likewise."""
    product: Operation
    """The product q·k."""
    scale: float | None
    """The factor on q·k in the score; None if scores are not a multiple of q·k plus other terms, as with a soft cap."""
    rotates: bool
    """Whether positions rotate queries and keys."""
    way: Sequence[Node]
    """The nodes between the projections and the product."""

    @property
    def angles(self) -> frozenset[Value]:
        """The tensors that do not depend on tokens by which queries and keys are multiplied."""
        factors = [node for node in self.way if is_one_of(node, "mul")]
        return frozenset(value for node in factors for value in node.reads if not value.tokens)

    def reading(self, graph: Graph, read: Value) -> "Scores":
        """The same without W_Q or W_K if they read something other than what attention reads."""
        query, key = (
            heads if heads is not None and graph.equal(heads.projection.reads, read) else None
            for heads in (self.query, self.key)
        )
        return self._replace(query=query, key=key, rotates=self.rotates and query is not None and key is not None)


def scores_of(graph: Graph, softmax: Operation) -> Scores:
    """Walk back from the softmax to the product of queries and keys, and on to the linear layers that compute them."""
    products, _ = graph.back(softmax.reads[0], is_product)
    # With relative positions, there are other products, in which one factor does not depend on the tokens.
    found = [product for product in products if len(graph.operands(product)) == 2]
    product = found[0] if len(found) == 1 else None
    if not isinstance(product, Operation):
        raise NotInferredError("scores are not computed from a single product of queries and keys", softmax)
    first, second = graph.operands(product)
    head_dim = first.shape[-1]
    query, of_query = _heads(graph, first, head_dim)
    key, of_key = _heads(graph, second, head_dim)
    way = [*of_query, *of_key]
    if key is not None and key.norm is not None and _shifts(key.norm):
        key = None  # what the norm adds to a key is no linear map of anything
    linear = query is not None and key is not None
    rotates = linear and any(is_one_of(node, "mul") and _by_position(node) for node in way)
    return Scores(query, key, product, _scale(graph, softmax, product, way), rotates, way)


def _shifts(norm: Norm) -> bool:
    """Whether a norm adds a bias; one that is not known yet, in a model without weights, counts as different from zero."""
    named = norm.call.module.named_parameters()
    biases = [parameter for name, parameter in named if name.rpartition(".")[2] == "bias"]
    return any(isinstance(bias, FakeTensor) or bool(bias.any()) for bias in biases)


def scores_together(heads: Sequence[Scores]) -> Scores:
    """How the scores of all heads are computed, if heads are separate modules.

    Raises:
        NotInferredError: If positions rotate their queries and keys, or heads differ in the factor on q·k.
    """
    first = heads[0]
    if len(heads) == 1:
        return first
    queries = [each.query for each in heads if each.query is not None]
    keys = [each.key for each in heads if each.key is not None]
    whole = len(queries) == len(keys) == len(heads)
    if not whole or any(each.rotates or each.scale != first.scale for each in heads):
        raise NotInferredError(
            "heads in separate modules rotate queries and keys, use different scales, or have no W_Q or W_K of their own",
            first.product,
        )
    return first._replace(
        query=side_by_side(queries),
        key=side_by_side(keys),
        way=[node for each in heads for node in each.way],
    )


def _heads(graph: Graph, ends: Value, head_dim: int) -> tuple[Heads | None, Sequence[Node]]:
    projections, way = graph.back(ends, is_projection)
    norms = [node for node in way if isinstance(node, Norm)]
    if len(projections) != 1 or len(norms) > 1:
        return None, way
    (projection,) = projections
    assert isinstance(projection, Projection)
    begins = _before_rotation(graph, projection, ends, head_dim, way)
    turned = bool(norms) and not graph.comes_before(norms[0].gives, begins)
    # Heads that share their keys are listed once.
    columns = columns_of(graph, projection.gives, begins, head_dim).unique_consecutive(dim=0)
    biases = tuple(bias for node in way if (bias := bias_of(node)) is not None)
    if not norms:
        return Heads(projection, columns, begins, ends, biases), way
    (norm,) = norms
    by_head = len(norm.reads.shape) == 4 and norm.reads.shape[1] == len(columns)
    return Heads(projection, columns, begins, norm.reads if turned else ends, biases, norm, by_head, turned), way


def _before_rotation(graph: Graph, projection: Projection, ends: Value, head_dim: int, way: Sequence[Node]) -> Value:
    """The last value before any rotation: each element still comes from one output of the linear layer."""
    made, candidates = graph.ancestors(ends), list[tuple[int, int, Value]]()
    if projection.gives.shape[-1] == head_dim:  # a single head
        candidates.append((math.prod(projection.gives.shape), 0, projection.gives))
    for node in way:
        if isinstance(node, Operation) and node.name in {*COPIES, "unsqueeze"}:
            continue  # a rotation may begin with copies
        for result in graph.results(node):
            start, _ = graph.chain(result, _keeps_columns)
            size, number = math.prod(result.shape), 0 if result.source is None else result.source.number
            if (
                head_dim in result.shape
                and result in made
                and start is projection.gives
                and size <= math.prod(ends.shape)
            ):
                candidates.append((size, number, result))
    if not candidates:
        raise NotInferredError("queries or keys are not split into heads", projection)
    return max(candidates, key=lambda each: each[:2])[-1]  # a rotation splits heads into smaller tensors


def _keeps_columns(node: Node) -> bool:
    return isinstance(node, Norm) or is_movement(node) or bias_of(node) is not None or factor_of(node) is not None


def _by_position(node: Operation) -> bool:
    """Whether a node multiplies by a tensor that can differ between positions."""
    return any(not value.tokens and len(value.shape) > 1 and value.tensor.numel() > 1 for value in node.reads)


def _scale(graph: Graph, softmax: Operation, product: Operation, way: Sequence[Node]) -> float | None:
    """The product of all numbers by which queries, keys or scores are multiplied before the softmax."""
    scale = float(product.kwargs.get("alpha", 1.0))
    for node in way:
        scale *= factor_of(node) or 1.0
    value = product.outputs[0]
    while True:
        readers = [node for node, _ in graph.forward(value, is_movement)]
        if readers == [softmax]:
            return scale
        reader = readers[0] if len(readers) == 1 else None
        if not isinstance(reader, Operation):
            return None
        factor = factor_of(reader)
        if (
            factor is None
            and not _keeps_or_hides(reader)
            and not is_one_of(reader, "add", "masked_fill", "where", "sub", "rsub", "maximum")
        ):
            return None
        scale *= factor or 1.0
        value = reader.outputs[0]


def _keeps_or_hides(node: Operation) -> bool:
    """Whether a node multiplies by ones and zeros, as a multiplicative mask does; or by data known only at run time."""
    if not is_one_of(node, "mul"):
        return False
    others = [value for value in node.reads if not value.tokens]
    data = [constant(value) for value in others]
    return len(others) == 1 and (data[0] is None or bool(((data[0] == 0) | (data[0] == 1)).all()))


def planes_of(graph: Graph, queries: Heads) -> Planes | None:
    """Which dimensions of a head rotate together: those that are mixed between queries and rotated queries; None if none are.

    The operations in between are replayed on unit vectors, with random numbers in place of the angles.

    Raises:
        NotInferredError: If the mixed dimensions are neither neighbours nor corresponding dimensions of two halves.
    """
    generator = torch.Generator().manual_seed(0)

    @functools.cache
    def anything(value: Value) -> Tensor:
        if not (value.tensor.is_floating_point() or value.tensor.is_complex()):
            return torch.zeros(value.shape, dtype=value.tensor.dtype)
        kind = torch.complex128 if value.tensor.is_complex() else torch.float64
        return torch.rand(value.shape, generator=generator, dtype=kind) + 0.5

    size = queries.columns.shape[1]
    mixed = torch.zeros(size, size, dtype=torch.bool)
    for dimension in range(size):
        vectors = torch.zeros(queries.begins.shape, dtype=torch.float64)
        vectors[..., dimension] = 1
        turned = graph.replay(queries.ends, {queries.begins: vectors}, anything)
        mixed[dimension] = (turned != 0).reshape(-1, size).any(dim=0)
    if not mixed.triu(1).any():
        return None  # Llama 4 scales queries by their position
    for planes in (Planes(turning, adjacent) for turning in range(size, 0, -1) for adjacent in (False, True)):
        if planes.size % 2 == 0 and torch.equal(mixed, planes.mixed(size)):
            return planes
    reason = "positions rotate neither neighbouring dimensions of a head nor corresponding dimensions of two halves"
    raise NotInferredError(reason, graph.maker(queries.ends))
