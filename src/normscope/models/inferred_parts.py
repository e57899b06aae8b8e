"""Combines what was inferred for the blocks of all layers into the fields of one layout."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from normscope.models.graph import Graph, Norm, NotInferredError
from normscope.models.infer import InferredBlock
from normscope.models.infer_heads import Heads
from normscope.models.infer_layers import Layer, Places
from normscope.models.infer_network import InferredNetwork, NetworkForm
from normscope.models.infer_scores import planes_of
from normscope.models.layout import Columns, FeedForwardLayout, GateLayout, HeadNorms
from normscope.models.rotary import Planes


class Parts:
    """The parts of the blocks of a stack.

    Args:
        layers: The layers with a block.
        places: Where their parts are.
        count: Number of all layers.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer], places: Places, count: int) -> None:
        self._graph, self._layers, self._places, self._count = graph, layers, places, count

    def fields(self) -> dict[str, Any]:
        """The fields of the layout that are about the parts of blocks."""
        return {
            "attention": self._path("attention", lambda block: block.attention.path),
            "query": self._linear("W_Q", lambda block: block.scores.query),
            "key": self._linear("W_K", lambda block: block.scores.key),
            "value": self._linear("W_V", lambda block: block.value),
            "reader": self._reader_of_input(),
            "output": self._path("W_O", lambda block: block.output.path),
            "query_bias": self._bias("b_Q", lambda block: block.scores.query),
            "value_bias": self._bias("b_V", lambda block: block.value),
            "norm": self._maybe("norm of the block", lambda block: block.norm),
            "attention_norm": self._maybe("norm before attention", lambda block: block.attention_norm),
            "head_norms": self._head_norms(),
            "scaling": self._scaling(),
            "columns": self._columns(),
            "gate": self.one("gate", self._gate),
            "rotation": self._rotation(),
            "scales": self._scales(),
            "residual_scales": self._of_every_layer(lambda block: block.stream.scale),
            **self._counts(),
        }

    def one(self, what: str, of: Callable[[Layer], Any]) -> Any:
        """What is the same in every layer.

        Args:
            what: What it is.
            of: What it is in one layer.

        Raises:
            NotInferredError: If layers differ.
        """
        values = [of(layer) for layer in self._layers]
        if any(value != values[0] for value in values):
            raise NotInferredError(f"layers differ in the {what}: {', '.join(map(str, dict.fromkeys(values)))}")
        return values[0]

    def _of_every_layer(self, of: Callable[[InferredBlock], float | None]) -> tuple[Any, ...]:
        """A factor in every layer; 1 where there is no block."""
        factors = {layer.number: of(layer.block) for layer in self._layers}
        return tuple(factors.get(number, 1.0) for number in range(1, self._count + 1))

    def _path(self, what: str, of: Callable[[InferredBlock], str]) -> str:
        return str(self.one(f"place of {what}", lambda layer: self._places.of(layer, of(layer.block), what)))

    def _maybe(self, what: str, of: Callable[[InferredBlock], Norm | None]) -> str | None:
        """The path of a norm. Layers may lack the norm if they have an identity in its place."""
        paths = {
            None if (norm := of(layer.block)) is None else self._places.of(layer, norm.path, what)
            for layer in self._layers
        }
        given = paths - {None}
        if len(given) > 1:
            raise NotInferredError(f"layers differ in the place of the {what}: {', '.join(map(str, given))}")
        if None in paths and given:
            (path,) = given
            for layer in self._layers:
                if of(layer.block) is None and not isinstance(self._places.part(layer, str(path)), nn.Identity):
                    raise NotInferredError(f"some layers have a {what} ({path}), others do not")
        return next(iter(given), None)

    def _scaling(self) -> str | None:
        """The parameter by whose elements the attention output is multiplied."""

        def of(layer: Layer) -> str | None:
            path = layer.block.stream.scales
            return None if path is None else self._places.of(layer, path, "LayerScale")

        scaling: str | None = self.one("LayerScale", of)
        return scaling

    def _head_norms(self) -> HeadNorms | None:
        """The norms of queries and keys, which only some layers may have."""

        def path(layer: Layer, what: str, heads: Heads | None) -> str | None:
            return None if heads is None or heads.norm is None else self._places.of(layer, heads.norm.path, what)

        def of(layer: Layer) -> HeadNorms | None:
            query, key = layer.block.scores.query, layer.block.scores.key
            paths = path(layer, "norm of the keys", key), path(layer, "norm of the queries", query)
            if paths == (None, None):
                return None
            by_head, turned = (False, False) if key is None else (key.norm_by_head, key.norm_turned)
            return HeadNorms(*paths, by_head, turned, frozenset())

        found = {layer.number: norms for layer in self._layers if (norms := of(layer)) is not None}
        kinds = {*found.values()}
        if len(kinds) > 1:
            raise NotInferredError("layers differ in the norms of queries and keys")
        return kinds.pop()._replace(layers=frozenset(found)) if kinds else None

    def _rotation(self) -> dict[int, Planes]:
        """The planes in which positions turn queries and keys, in the layers in which they do."""
        known: dict[object, Planes | None] = {}
        rotation: dict[int, Planes] = {}
        for layer in self._layers:
            scores = layer.block.scores
            if scores.rotates and scores.query is not None:
                # Layers that read the same angles have the same planes.
                angles = (scores.query.columns.shape[1], scores.angles)
                if angles not in known:
                    known[angles] = planes_of(self._graph, scores.query)
                planes = known[angles]
                if planes is not None:
                    rotation[layer.number] = planes
        return rotation

    def _scales(self) -> tuple[float, ...] | None:
        """The factors on q·k."""
        scales = self._of_every_layer(lambda block: block.scores.scale)
        return None if None in scales else scales

    def _counts(self) -> dict[str, Any]:
        """The numbers of heads of queries, and of keys and values."""

        def of(layer: Layer) -> int:
            block = layer.block
            if block.scores.query is not None:
                return len(block.scores.query.columns)
            heads = math.prod(block.weights.shape[:-2]) // self._graph.trace.texts
            # Heads may be modules of their own, with weights of their own.
            return max(heads, len(block.value.columns)) if isinstance(block.value, Heads) else heads

        heads = self.one("number of heads", of)
        shared = {layer.number: layer.block.scores.key or layer.block.value for layer in self._layers}
        counts = {number: len(each.columns) for number, each in shared.items() if isinstance(each, Heads)}
        return {
            "heads": heads,
            "key_heads": tuple(counts.get(number, heads) for number in range(1, self._count + 1)),
        }

    def _linear(self, what: str, of: Callable[[InferredBlock], Heads | NotInferredError | None]) -> str | None:
        """The path of W_Q, W_K or W_V; None if it has none."""
        kinds = {isinstance(of(layer.block), Heads) for layer in self._layers}
        if len(kinds) > 1:
            raise NotInferredError(f"{what} is a linear layer in some layers only")
        return self._path(what, lambda block: _heads(of(block)).path) if kinds == {True} else None

    def _reader_of_input(self) -> str | None:
        """The module that reads what attention reads, if W_K does not; None if no linear layer does."""
        readers = [layer.block.reader for layer in self._layers]
        if all(layer.block.scores.key is not None for layer in self._layers) or None in readers:
            return None
        return self._path(
            "reader of the input of attention", lambda block: "" if block.reader is None else block.reader.path
        )

    def _bias(self, what: str, of: Callable[[InferredBlock], Heads | NotInferredError | None]) -> str | None:
        counts = {len(found.biases) for layer in self._layers if isinstance(found := of(layer.block), Heads)}
        if counts <= {0}:
            return None
        if counts != {1}:
            raise NotInferredError(f"{what} is a sum of several parameters")
        return self._path(what, lambda block: _heads(of(block)).biases[0])

    def _columns(self) -> tuple[Columns | None, Columns | None, Columns | None] | None:
        """Where the heads are among the outputs of W_Q, W_K and W_V; None if each is a layer with its own heads, in order.

        Raises:
            NotInferredError: If the outputs of a head are not evenly spaced, or values and keys differ in number of heads.
        """

        def of(layer: Layer) -> tuple[Columns | None, ...] | None:
            block = layer.block
            value = block.value if isinstance(block.value, Heads) else None
            parts = (block.scores.query, block.scores.key, value)
            key = block.scores.key
            if value is not None and key is not None and len(value.columns) != len(key.columns):
                raise NotInferredError("values and keys have different numbers of heads")
            if all(part is None or part.in_order for part in parts):
                return None
            found = tuple(None if part is None else Columns.of(part.columns) for part in parts)
            if any(part is not None and columns is None for part, columns in zip(parts, found, strict=True)):
                raise NotInferredError("the outputs of a linear layer that form a head are not evenly spaced")
            return found

        columns: Any = self.one("order of the heads", of)
        return columns

    def _gate(self, layer: Layer) -> GateLayout | None:
        gate = layer.block.gate
        if gate is None:
            return None
        # Some gates have a single factor for each head.
        shared = bool((gate.columns == gate.columns[:, :1]).all())
        columns = Columns.of(gate.columns[:, :1] if shared else gate.columns)
        if columns is None:
            raise NotInferredError("the outputs of the linear layer that gate a head are not evenly spaced")
        return GateLayout(self._places.of(layer, gate.projection.path, "gate"), columns, gate.function)

    def network(self, layer: Layer) -> FeedForwardLayout | None:
        """Where a layer has the parts of its feed-forward network; None if that was not inferred."""
        network = layer.block.network
        if not isinstance(network, InferredNetwork):
            return None

        def path(given: str | None, part: str) -> Any:
            return None if given is None else self._places.of(layer, given, part)

        def of(form: NetworkForm, **rest: Any) -> FeedForwardLayout:
            return FeedForwardLayout(
                input=path(form.input, "W_1"),
                activation=path(form.activation, "activation"),
                function=form.function,
                output=path(form.output, "W_2"),
                multiplier=path(form.multiplier, "V"),
                fused=form.fused,
                routed=form.routed,
                shared=None if form.shared is None else of(form.shared),
                shared_gate=path(form.shared_gate, "gate of the network beside the experts"),
                **rest,
            )

        return of(
            network.form,
            added_in_place=network.changed_in_place,
            norm=path(network.norm, "norm of the network"),
            output_norm=path(network.output_norm, "norm of the network's output"),
            scaling=path(network.scales, "LayerScale of the network"),
        )


def _heads(found: Heads | NotInferredError | None) -> Heads:
    assert isinstance(found, Heads)
    return found
