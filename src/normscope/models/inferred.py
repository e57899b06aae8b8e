"""Infers the layout of a model from its recorded pass: where every layer keeps its parts."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.models.graph import Atom, Graph, Node, Norm, NotInferredError, Projection, is_movement
from normscope.models.infer import InferredBlock, infer
from normscope.models.infer_heads import Heads
from normscope.models.infer_layers import Layer, layers_of, more_than_a_network, stream_of, swapped_axes
from normscope.models.infer_network import InferredNetwork, NetworkForm, NoNetworkError
from normscope.models.infer_scores import planes_of
from normscope.models.layout import (
    BlockLayout,
    Columns,
    FeedForwardLayout,
    GateLayout,
    HeadNorms,
    Stack,
    is_measured,
)
from normscope.models.rotary import Planes
from normscope.models.trace import Operation, Trace, Value


def layout_from(trace: Trace, model_type: str, source: int, target: int, stack: Stack | None) -> BlockLayout:
    """The layout of one stack of a recorded pass.

    Args:
        source: Length of the longest source text.
        target: Length of the longest target text; without a target, that of the source.

    Raises:
        NotInferredError: If no rule covers something in the stack, or its layers differ in structure.
    """
    graph = Graph(trace)
    queries, keys = {"decoder": (target, target), "cross": (target, source)}.get(stack or "", (source, source))
    return _Stack(graph, infer(graph, queries, keys), model_type, stack).layout()


class _Stack:
    """Combines what was inferred for every layer."""

    def __init__(self, graph: Graph, blocks: Sequence[InferredBlock], model_type: str, stack: Stack | None) -> None:
        self._graph, self._model_type, self._kind = graph, model_type, stack
        self._calls, layers, self._places = layers_of(graph, blocks, stack)
        more = [None if stack == "decoder" else more_than_a_network(graph, layer) for layer in layers]
        self._inner = any(more)
        if self._inner:
            layers = [
                layer if reason is None else self._without_network(layer, reason)
                for layer, reason in zip(layers, more, strict=True)
            ]
        self._layers = layers

    def layout(self) -> BlockLayout:
        """The layout, if all layers have the same structure."""
        position = self._one("position of the block's norm", lambda layer: layer.block.norm_position)
        networks = [self._network(layer) for layer in self._layers]
        final = self._final_norm()
        parts = self._parts()
        self._places.check_lists(self._graph.trace)
        end, read_at_end = self._end(final)
        return BlockLayout(
            model_type=self._model_type,
            stack=self._kind,
            source="",
            start=_START.get(self._model_type, "token"),
            layers=tuple(call.path for call in self._calls),
            without=frozenset(range(1, len(self._calls) + 1)) - {layer.number for layer in self._layers},
            places=self._places.of_layers,
            end=end,
            swapped=swapped_axes(self._graph, self._layers, read_at_end),
            changes_stream=self._changes_stream(),
            width=self._width(),
            columns=self._columns(),
            gate=self._one("gate", self._gate),
            norm_position=position,
            residual=self._residual(),
            bottleneck=self._bottleneck(),
            inner=self._inner,
            sum_consumer=self._reader_of_sum() if position == "pre" else None,
            final_norm=final,
            embedding_norm=self._embedding_norm(),
            output_norm=self._output_norm(),
            convolution=self._convolution(),
            output_projection=self._output_projection(final),
            float32_inside=self._rounds(),
            routed=self._routed(),
            unit_offset=any(
                _adds_one(self._inside(norm)) for norm in self._graph.norms if not is_measured(norm.call.module)
            ),
            feed_forward=tuple(dict.fromkeys(form for form in networks if form is not None)),
            unknown_network=self._unknown_network(),
            **parts,
            **self._counts(),
            rotation=self._rotation(),
            scales=self._scales(),
        )

    def _without_network(self, layer: Layer, reason: str) -> Layer:
        """A layer whose network cannot be observed, because more follows its block."""
        block = layer.block
        if self._maker(layer, self._graph.same(block.stream.carried)) is None:
            return layer._replace(block=dataclasses.replace(block, network=NotInferredError(reason)))
        # Weights by dimension of a bottleneck say nothing about dimensions of the stream.
        inside = NotInferredError("its attention block lies inside a bottleneck")
        scores = block.scores._replace(query=None, key=None, rotates=False)
        return layer._replace(
            block=dataclasses.replace(block, network=inside, scores=scores, value=inside, reader=None)
        )

    def _parts(self) -> dict[str, Any]:
        """The paths of the parts of every block."""
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
            "residual_scales": self._of_every_layer(lambda block: block.stream.scale),
        }

    def _scaling(self) -> str | None:
        """The parameter by whose elements the attention output is multiplied."""

        def of(layer: Layer) -> str | None:
            path = layer.block.stream.scales
            return None if path is None else self._places.of(layer, path, "LayerScale")

        scaling: str | None = self._one("LayerScale", of)
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

    def _of_every_layer(self, of: Callable[[InferredBlock], float | None]) -> tuple[Any, ...]:
        """A factor in every layer; 1 where there is no block."""
        factors = {layer.number: of(layer.block) for layer in self._layers}
        return tuple(factors.get(number, 1.0) for number in range(1, len(self._calls) + 1))

    def _inside(self, norm: Norm) -> Sequence[Operation]:
        """The operations of a norm."""
        return self._graph.trace.operations[norm.call.first : norm.call.end]

    def _one(self, what: str, of: Callable[[Layer], Any]) -> Any:
        values = [of(layer) for layer in self._layers]
        if any(value != values[0] for value in values):
            raise NotInferredError(f"layers differ in the {what}: {', '.join(map(str, dict.fromkeys(values)))}")
        return values[0]

    def _path(self, what: str, of: Callable[[InferredBlock], str]) -> str:
        return str(self._one(f"place of {what}", lambda layer: self._places.of(layer, of(layer.block), what)))

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

    def _counts(self) -> dict[str, Any]:
        """The numbers of heads of queries, and of keys and values."""

        def of(layer: Layer) -> int:
            block = layer.block
            if block.scores.query is not None:
                return len(block.scores.query.columns)
            heads = math.prod(block.weights.shape[:-2]) // self._graph.trace.texts
            # Heads may be modules of their own, with weights of their own.
            return max(heads, len(block.value.columns)) if isinstance(block.value, Heads) else heads

        heads = self._one("number of heads", of)
        shared = {layer.number: layer.block.scores.key or layer.block.value for layer in self._layers}
        counts = {number: len(each.columns) for number, each in shared.items() if isinstance(each, Heads)}
        return {
            "heads": heads,
            "key_heads": tuple(counts.get(number, heads) for number in range(1, len(self._calls) + 1)),
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

        columns: Any = self._one("order of the heads", of)
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

    def _residual(self) -> str | None:
        """The module whose input the residual connection carries; None if that is the layer's input."""

        def of(layer: Layer) -> str | None:
            carried = self._graph.same(layer.block.stream.carried)
            read = any(self._graph.same(value) is carried for value in layer.call.inputs[:1])
            if read or self._maker(layer, carried) is not None:
                return None
            return self._reader(layer, carried, "what the residual connection carries")

        path: str | None = self._one("residual connection", of)
        return path

    def _width(self) -> int:
        if self._inner:
            return self._calls[0].inputs[0].shape[-1]
        return int(self._one("width of the stream", lambda layer: layer.block.output.gives.shape[-1]))

    def _bottleneck(self) -> str | None:
        """The module of a layer that returns what the residual connection carries, if that is no vector of the stream."""
        path: str | None = None
        if self._inner:
            path = self._one(
                "bottleneck", lambda layer: self._maker(layer, self._graph.same(layer.block.stream.carried))
            )
        return path

    def _maker(self, layer: Layer, value: Value) -> str | None:
        """The linear layer of a layer, or the norm after it, that makes a value from the layer's input; None if none does."""
        made = self._graph.maker(value)
        if not self._inner or not isinstance(made, Atom) or not layer.runs(made.call):
            return None
        return self._places.of(layer, made.path, "bottleneck")

    def _reader_of_sum(self) -> str:
        what = "the sum of attention output and residual"
        if all(isinstance(layer.block.network, NoNetworkError) for layer in self._layers):
            return ""
        return str(self._one("reader of the sum", lambda layer: self._reader(layer, layer.block.given, what)))

    def _reader(self, layer: Layer, value: Value, what: str) -> str:
        """The first module of a layer that reads a value."""
        for call in self._graph.trace.calls:
            if layer.runs(call) and call.inputs and self._graph.same(call.inputs[0]) is self._graph.same(value):
                return self._places.of(layer, call.path, what)
        raise NotInferredError(f"no module reads {what}")

    def _network(self, layer: Layer) -> FeedForwardLayout | None:
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

    def _unknown_network(self) -> str | None:
        if self._kind == "decoder":  # cross-attention follows
            return None
        for layer in self._layers:
            network = layer.block.network
            if isinstance(network, NotInferredError) and not isinstance(network, NoNetworkError):
                return f"layer {layer.number}: {network}"
        return None

    def _embedding_norm(self) -> str | None:
        first = self._layers[0]
        # In a decoder, self-attention comes before cross-attention, whose residual is not the layer's input.
        first_has_block = first.number == 1 and self._kind != "cross" and not self._inner
        read = first.block.stream.carried if first_has_block else self._calls[0].inputs[0]
        made = self._graph.maker(stream_of(self._graph, read))
        return made.path if isinstance(made, Norm) else None

    def _output_norm(self) -> str | None:
        def of(layer: Layer) -> str | None:
            made = self._graph.maker(self._graph.same(layer.call.outputs[0]))
            if isinstance(made, Norm) and layer.call.holds(made.call) and self._runs_once(layer, made):
                return self._places.of(layer, made.path, "norm of the hidden vectors")
            return None

        path: str | None = self._one("norm of its output", of)
        return path

    def _runs_once(self, layer: Layer, norm: Norm) -> bool:
        """Whether a layer runs a norm once. X-MOD's adapters use the norm of the layer's output as well."""
        return sum(layer.runs(call) and call.module is norm.call.module for call in self._graph.trace.calls) == 1

    def _convolution(self) -> str | None:
        """The convolution module beside the first layer, whose output replaces the first layer's as the input of the second.

        Raises:
            NotInferredError: If anything else writes to the stream between layers.
        """
        beside = None
        for number, (layer, following) in enumerate(itertools.pairwise(self._calls), start=1):
            leaves, reads = layer.outputs[0], following.inputs[0]
            if stream_of(self._graph, leaves) is stream_of(self._graph, reads):
                continue
            calls = [
                call
                for call in self._graph.trace.calls
                if call.outputs
                and stream_of(self._graph, call.outputs[0]) is stream_of(self._graph, reads)
                and hasattr(call.module, "conv")
            ]
            if number > 1 or not calls:
                raise NotInferredError(f"something writes to the stream between layers {number} and {number + 1}")
            beside = calls[0].path
        return beside

    def _final_norm(self) -> str | None:
        last = self._calls[-1]
        norms = [
            node
            for node, _ in self._graph.forward(self._graph.same(last.outputs[0]), is_movement)
            if isinstance(node, Norm) and not last.holds(node.call)
        ]
        return norms[0].path if len(norms) == 1 else None

    def _end(self, final: str | None) -> tuple[str | None, Value | None]:
        """The module that reads the last layer's output, if no module runs that layer, and what it reads.

        Its path is empty if the model returns the output.
        """
        if not self._places.of_layers:
            return None, None
        if final is not None:
            read = next(norm.reads for norm in self._graph.norms if norm.path == final)
            return final, read
        leaves = stream_of(self._graph, self._calls[-1].outputs[0])
        returned = self._returned()
        if returned is not None and stream_of(self._graph, returned) is leaves:
            return "", returned
        for call in self._graph.trace.calls:
            after = call.first >= self._calls[-1].end
            if after and call.inputs and stream_of(self._graph, call.inputs[0]) is leaves:
                return call.path, call.inputs[0]
        raise NotInferredError("no module reads the output of the last layer, which no module runs")

    def _output_projection(self, final: str | None) -> str | None:
        leaves = self._calls[-1].outputs[0]
        values = [leaves]
        values += [
            node.gives
            for node, _ in self._graph.forward(self._graph.same(leaves), is_movement)
            if isinstance(node, Norm) and node.path == final
        ]
        for value in values:
            for node, _ in self._graph.forward(self._graph.same(value), is_movement):
                if isinstance(node, Projection) and len(node.gives.shape) == 3 and self._is_output(node.gives):
                    return node.path
        return None

    def _is_output(self, value: Value) -> bool:
        returned = self._returned()
        return returned is not None and self._graph.same(returned) is self._graph.same(value)

    def _returned(self) -> Value | None:
        """The first vectors that the model returns."""
        output = self._graph.trace.output
        last = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", None)
        return self._graph.trace.values(last) if isinstance(last, Tensor) else None

    def _rounds(self) -> bool:
        """Whether scores, weights or the block's norm are rounded to float32 in a float64 model."""

        def rounds(node: Node) -> bool:
            if isinstance(node, Projection):
                return False
            operations = [node]
            if isinstance(node, Norm):
                operations = [*self._inside(node)]
            return any(
                isinstance(each, Operation)
                and any(value.tensor.dtype == torch.float32 for value in each.outputs)
                and any(value.tokens and value.tensor.dtype == torch.float64 for value in each.reads)
                for each in operations
            )

        return any(rounds(node) for layer in self._layers for node in layer.block.rounding)

    def _changes_stream(self) -> bool:
        first, last = self._calls[0], self._calls[-1]
        shape = first.inputs[0].shape
        return any(
            operation.name.endswith("_") and operation.outputs and operation.outputs[0].shape == shape
            for operation in self._graph.trace.operations[first.first : last.end]
        )

    def _routed(self) -> bool:
        first, last = self._calls[0].first, self._calls[-1].end
        return any(operation.name in ("topk", "sort") for operation in self._graph.trace.operations[first:last])


def _heads(found: Heads | NotInferredError | None) -> Heads:
    assert isinstance(found, Heads)
    return found


_START: dict[str, Literal["token", "last"]] = {"mbart": "last"}
"""What the decoder reads before the target, for families without a start token; the computation does not show this."""


def _adds_one(operations: Sequence[Operation]) -> bool:
    """Whether a norm multiplies by one plus its stored weight."""
    return any(
        each.name == "add" and 1 in each.args and not any(value.tokens for value in each.reads) for each in operations
    )
