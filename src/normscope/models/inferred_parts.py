"""Combines what was inferred for the blocks of all layers into the parts of one layout."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from normscope.maths.composition import NormPosition
from normscope.models.graph import Graph, Norm, NotInferredError
from normscope.models.infer import InferredBlock
from normscope.models.infer_heads import Heads
from normscope.models.infer_layers import Layer, Places
from normscope.models.infer_network import InferredNetwork, NetworkForm
from normscope.models.infer_scores import planes_of
from normscope.models.layout import (
    AttentionLayout,
    FeedForwardLayout,
    GateLayout,
    HeadNorms,
    HeadsLayout,
    ResidualLayout,
)
from normscope.models.linear_layers import Columns
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

    def attention(self) -> AttentionLayout:
        """Where the layers keep the parts of attention."""
        heads, key_heads = self._counts()
        return AttentionLayout(
            module=self._path("attention", lambda block: block.attention.path),
            query=self._heads("Q", lambda block: block.scores.query),
            key=self._heads("K", lambda block: block.scores.key),
            value=self._heads("V", lambda block: block.value),
            output=self._path("W_O", lambda block: block.output.path),
            heads=heads,
            key_heads=key_heads,
            reader=self._reader_of_input(),
            gate=self.one("gate", self._gate),
            head_norms=self._head_norms(),
            rotation=self._rotation(),
            scales=self._scales(),
        )

    def residual(
        self,
        position: NormPosition,
        *,
        sum_consumer: str | None,
        output_norm: str | None,
        carried: str | None,
        bottleneck: str | None,
    ) -> ResidualLayout:
        """Where the layers keep the norms and factors of the residual connection; for the arguments, see `ResidualLayout`."""
        return ResidualLayout(
            norm_position=position,
            norm=self._maybe("norm of the block", lambda block: block.norm),
            attention_norm=self._maybe("norm before attention", lambda block: block.attention_norm),
            sum_consumer=sum_consumer,
            output_norm=output_norm,
            carried=carried,
            bottleneck=bottleneck,
            scaling=self._scaling(),
            scales=self._of_every_layer(lambda block: block.stream.scale),
        )

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

    def _counts(self) -> tuple[int, tuple[int, ...]]:
        """The numbers of heads of queries, and of keys and values."""

        def of(layer: Layer) -> int:
            block = layer.block
            if block.scores.query is not None:
                return len(block.scores.query.columns)
            heads = math.prod(block.weights.shape[:-2]) // self._graph.trace.texts
            # Heads may be modules of their own, with weights of their own.
            return max(heads, len(block.value.columns)) if isinstance(block.value, Heads) else heads

        heads: int = self.one("number of heads", of)

        def shared(layer: Layer) -> int:
            parts = (layer.block.scores.key, layer.block.value)
            found = {len(each.columns) for each in parts if isinstance(each, Heads)}
            if len(found) > 1:
                raise NotInferredError("values and keys have different numbers of heads")
            return found.pop() if found else heads

        counts = {layer.number: shared(layer) for layer in self._layers}
        return heads, tuple(counts.get(number, heads) for number in range(1, self._count + 1))

    def _heads(self, letter: str, of: Callable[[InferredBlock], Heads | NotInferredError | None]) -> HeadsLayout | None:
        """Where W_Q, W_K or W_V is; None if it is no linear layer.

        Raises:
            NotInferredError: If it is one in some layers only, if the outputs of a head are not evenly spaced, or if several
                parameters are added to them.
        """
        found = [each for layer in self._layers if isinstance(each := of(layer.block), Heads)]
        if not found:
            return None
        if len(found) < len(self._layers):
            raise NotInferredError(f"W_{letter} is a linear layer in some layers only")
        if {len(heads.biases) for heads in found} not in ({0}, {1}):
            raise NotInferredError(f"b_{letter} is a sum of several parameters")

        def columns(layer: Layer) -> Columns | None:
            heads = _known(of(layer.block))
            spaced = None if heads.in_order else Columns.of(heads.columns)
            if spaced is None and not heads.in_order:
                raise NotInferredError("the outputs of a linear layer that form a head are not evenly spaced")
            return spaced

        return HeadsLayout(
            self._path(f"W_{letter}", lambda block: _known(of(block)).path),
            self.one("order of the heads", columns),
            self._path(f"b_{letter}", lambda block: _known(of(block)).biases[0]) if found[0].biases else None,
        )

    def _reader_of_input(self) -> str | None:
        """The module that reads what attention reads, if W_K does not; None if no linear layer does."""
        readers = [layer.block.reader for layer in self._layers]
        if all(layer.block.scores.key is not None for layer in self._layers) or None in readers:
            return None
        return self._path(
            "reader of the input of attention", lambda block: "" if block.reader is None else block.reader.path
        )

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
                multiplier_first=form.multiplier_first,
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


def _known(found: Heads | NotInferredError | None) -> Heads:
    assert isinstance(found, Heads)
    return found
