"""Infers the layout of a model from its recorded pass: where every layer keeps its parts."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.models.infer.graph import Graph, Node, Norm, NotInferredError, Projection, is_mask, is_movement
from normscope.models.infer.infer import InferredBlock, infer
from normscope.models.infer.infer_layers import Layer, check_lists, layers_of, stream_of, swapped_axes
from normscope.models.infer.infer_sites import SiteFinder
from normscope.models.infer.trace import Operation, Trace, Value
from normscope.models.sites.layout import ModelLayout, Stack, StreamLayout
from normscope.models.sites.norm_weights import is_measured
from normscope.models.sites.rotary import Planes


def layout_from(trace: Trace, model_type: str, source: int, target: int, stack: Stack | None) -> ModelLayout:
    """The layout of one stack of a recorded pass.

    Args:
        source: Length of the longest source text.
        target: Length of the longest target text; without a target, that of the source.

    Raises:
        NotInferredError: If no rule covers something in the stack.
    """
    graph = Graph(trace)
    queries, keys = {"decoder": (target, target), "cross": (target, source)}.get(stack or "", (source, source))
    return _Stack(graph, infer(graph, queries, keys), model_type, stack).layout()


class _Stack:
    """The stream of a stack: what each layer reads and returns, and what is before and after the layers."""

    def __init__(self, graph: Graph, blocks: Sequence[InferredBlock], model_type: str, stack: Stack | None) -> None:
        self._graph, self._model_type, self._kind = graph, model_type, stack
        self._calls, self._layers = layers_of(graph, blocks, stack)

    def layout(self) -> ModelLayout:
        """The layout."""
        running = self._graph.trace.operations[self._calls[0].first : self._calls[-1].end]
        planes: dict[object, Planes | None] = {}
        found = [SiteFinder(self._graph, layer, planes, self._kind) for layer in self._layers]
        sites = tuple(each.site() for each in found)
        if self._layers[0].gathered:
            check_lists(self._graph, {path for each in found for path in each.paths})
        return ModelLayout(
            family=self._model_type,
            source="",
            stream=self._stream(_changes(running, self._calls[0].inputs[0].shape)),
            sites=sites,
            stack=self._kind,
            routed=any(operation.name in ("topk", "sort") for operation in running),
            unit_offset=any(
                _adds_one(_inside(self._graph, norm)) for norm in self._graph.norms if not is_measured(norm.call.module)
            ),
            float32_inside=_rounds(self._graph, self._layers),
        )

    def _stream(self, changes_in_place: bool) -> StreamLayout:
        """Where the layers are, and what comes before and after them."""
        final = self._final_norm()
        end, read_at_end = self._end(final)
        return StreamLayout(
            layers=tuple(call.path for call in self._calls),
            width=self._width(),
            end=end,
            embedding_norm=self._embedding_norm(),
            convolution=self._convolution(),
            final_norm=final,
            output_projection=self._output_projection(final),
            swapped=swapped_axes(self._graph, self._layers, read_at_end),
            changes_in_place=changes_in_place,
        )

    def _width(self) -> int:
        if self._layers[0].inner:
            return self._calls[0].inputs[0].shape[-1]
        return self._layers[0].block.output.gives.shape[-1]

    def _embedding_norm(self) -> str | None:
        first = self._layers[0]
        # In a decoder, self-attention comes before cross-attention, whose residual is not the layer's input.
        first_has_block = first.number == 1 and self._kind != "cross" and not first.inner
        read = first.block.stream.carried if first_has_block else self._calls[0].inputs[0]
        made = self._graph.maker(stream_of(self._graph, read))
        return made.path if isinstance(made, Norm) else None

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
            for node, _ in self._graph.forward(
                self._graph.same(last.outputs[0]), lambda node: is_movement(node) or is_mask(node)
            )
            if isinstance(node, Norm) and not last.holds(node.call)
        ]
        return norms[0].path if len(norms) == 1 else None

    def _end(self, final: str | None) -> tuple[str | None, Value | None]:
        """The module that reads the last layer's output, if no module runs that layer, and what it reads.

        Its path is empty if the model returns the output.
        """
        if not self._layers[0].gathered:
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


def _rounds(graph: Graph, layers: Sequence[Layer]) -> bool:
    """Whether scores, weights, gates or the blocks' norms are rounded to float32 in a float64 model."""

    def rounds(node: Node) -> bool:
        if isinstance(node, Projection):
            return False
        return any(
            isinstance(each, Operation)
            and any(value.tensor.dtype == torch.float32 for value in each.outputs)
            and any(value.tokens and value.tensor.dtype == torch.float64 for value in each.reads)
            for each in (_inside(graph, node) if isinstance(node, Norm) else [node])
        )

    return any(rounds(node) for layer in layers for node in layer.block.rounding)


def _inside(graph: Graph, norm: Norm) -> Sequence[Operation]:
    """The operations of a norm."""
    return graph.trace.operations[norm.call.first : norm.call.end]


def _changes(operations: Sequence[Operation], shape: tuple[int, ...]) -> bool:
    """Whether an operation changes vectors of this shape in place."""
    return any(
        operation.name.endswith("_") and operation.outputs and operation.outputs[0].shape == shape
        for operation in operations
    )


def _adds_one(operations: Sequence[Operation]) -> bool:
    """Whether a norm multiplies by one plus its stored weight."""
    return any(
        each.name == "add" and 1 in each.args and not any(value.tokens for value in each.reads) for each in operations
    )
