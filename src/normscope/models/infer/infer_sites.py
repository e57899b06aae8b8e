"""Rules for sites: where a layer has the parts of its block, as paths from the base model."""

import math

from normscope.models.infer.graph import Graph, Norm, NotInferredError
from normscope.models.infer.infer_heads import Heads, InferredGate
from normscope.models.infer.infer_layers import Layer
from normscope.models.infer.infer_network import InferredNetwork, NoNetworkError
from normscope.models.infer.infer_scores import planes_of
from normscope.models.infer.trace import Value
from normscope.models.sites.layout import Stack
from normscope.models.sites.linear_layers import Columns
from normscope.models.sites.rotary import Planes
from normscope.models.sites.site import (
    BESIDE,
    AttentionSite,
    GateSite,
    HeadNorms,
    HeadsSite,
    ResidualSite,
    Site,
)


class SiteFinder:
    """Finds the site of one layer.

    Args:
        layer: The layer.
        planes: The planes of earlier layers, by the angles that these read; those of this layer are added.
        stack: The stack that is observed.
    """

    def __init__(self, graph: Graph, layer: Layer, planes: dict[object, Planes | None], stack: Stack | None) -> None:
        self._stack = stack
        self._graph, self._layer, self._block, self._planes = graph, layer, layer.block, planes
        self._run = {call.path for call in graph.trace.calls if layer.runs(call)} | {layer.call.path}
        self.paths: set[str] = set()
        """The paths of all parts that have been found."""

    def site(self) -> Site:
        """The site.

        Raises:
            NotInferredError: If the layer uses a module that runs outside it, or no rule covers what it does.
        """
        return Site(
            layer=self._layer.number,
            attention=self._attention(),
            residual=self._residual(),
            has_network=self._stack != "decoder" and not isinstance(self._block.network, NoNetworkError),
            inner=self._layer.inner,
        )

    def _path(self, path: str) -> str:
        for each in path.split(BESIDE):
            if each not in self._run:
                raise NotInferredError(f"layer {self._layer.call.path} uses {each}, which lies outside the layer")
        return self._noted(path)

    def _noted(self, path: str) -> str:
        self.paths.update(path.split(BESIDE))
        return path

    def _attention(self) -> AttentionSite:
        block, scores = self._block, self._block.scores
        heads = self._number_of_heads()
        reader = block.reader if scores.key is None else None
        return AttentionSite(
            module=self._noted(block.attention.path),  # which may run every layer
            query=self._heads("Q", scores.query),
            key=self._heads("K", scores.key),
            value=self._heads("V", block.value),
            output=self._path(block.output.path),
            heads=heads,
            key_heads=self._number_of_key_heads(heads),
            reader=None if reader is None else self._path(reader.path),
            gate=None if block.gate is None else self._gate(block.gate),
            head_norms=self._head_norms(),
            rotation=self._rotation(),
            scale=scores.scale,
        )

    def _number_of_heads(self) -> int:
        block = self._block
        if block.scores.query is not None:
            return len(block.scores.query.columns)
        heads = math.prod(block.weights.shape[:-2]) // self._graph.trace.texts
        # Heads may be modules of their own, with weights of their own.
        return max(heads, len(block.value.columns)) if isinstance(block.value, Heads) else heads

    def _number_of_key_heads(self, heads: int) -> int:
        """The number of heads of keys and values; the number of query heads if no linear layer makes either."""
        parts = (self._block.scores.key, self._block.value)
        found = {len(each.columns) for each in parts if isinstance(each, Heads)}
        if len(found) > 1:
            raise NotInferredError("values and keys have different numbers of heads")
        return found.pop() if found else heads

    def _heads(self, letter: str, heads: Heads | NotInferredError | None) -> HeadsSite | None:
        """Where W_Q, W_K or W_V is; None if there is no such linear layer."""
        if not isinstance(heads, Heads):
            return None
        if len(heads.biases) > 1:
            raise NotInferredError(f"b_{letter} is a sum of several parameters")
        columns = None if heads.in_order else Columns.of(heads.columns)
        if columns is None and not heads.in_order:
            raise NotInferredError("the outputs of a linear layer that form a head are not evenly spaced")
        return HeadsSite(self._path(heads.path), columns, self._noted(heads.biases[0]) if heads.biases else None)

    def _gate(self, gate: InferredGate) -> GateSite:
        # Some gates have one factor per head.
        shared = bool((gate.columns == gate.columns[:, :1]).all())
        columns = Columns.of(gate.columns[:, :1] if shared else gate.columns)
        if columns is None:
            raise NotInferredError("the outputs of the linear layer that gate a head are not evenly spaced")
        return GateSite(self._path(gate.projection.path), columns, gate.function)

    def _head_norms(self) -> HeadNorms | None:
        query, key = self._block.scores.query, self._block.scores.key
        of_key, of_query = (None if heads is None else self._norm(heads.norm) for heads in (key, query))
        if of_key is None and of_query is None:
            return None
        by_head, turned = (False, False) if key is None else (key.norm_by_head, key.norm_turned)
        return HeadNorms(of_key, of_query, by_head, turned)

    def _rotation(self) -> Planes | None:
        scores = self._block.scores
        if not scores.rotates or scores.query is None:
            return None
        angles = (scores.query.columns.shape[1], scores.angles)
        if angles not in self._planes:
            self._planes[angles] = planes_of(self._graph, scores.query)
        return self._planes[angles]

    def _residual(self) -> ResidualSite:
        block = self._block
        carried = self._graph.same(block.stream.carried)
        bottleneck = self._bottleneck(carried)
        is_input = any(self._graph.same(value) is carried for value in self._layer.call.inputs[:1])
        return ResidualSite(
            norm_position=block.norm_position,
            norm=self._norm(block.norm),
            attention_norm=self._norm(block.attention_norm),
            sum_consumer=self._reader_of_sum() if block.norm_position == "pre" else None,
            output_norm=self._output_norm(),
            carried=None
            if is_input or bottleneck is not None
            else self._reader(carried, "what the residual connection carries"),
            bottleneck=bottleneck,
            scaling=None if block.stream.scales is None else self._noted(block.stream.scales),
            scaling_of_network=self._scaling_of_network(),
            scale=block.stream.scale,
        )

    def _scaling_of_network(self) -> str | None:
        network = self._block.network
        if not isinstance(network, InferredNetwork):
            return None
        self.paths |= network.modules
        return None if network.scales is None else self._noted(network.scales)

    def _norm(self, norm: Norm | None) -> str | None:
        return None if norm is None else self._path(norm.path)

    def _bottleneck(self, carried: Value) -> str | None:
        """The module that returns what the residual connection carries, if that is not a vector of the stream."""
        made = self._layer.bottleneck(self._graph, carried)
        return None if made is None else self._path(made.path)

    def _reader_of_sum(self) -> str:
        if isinstance(self._block.network, NoNetworkError):
            return ""
        return self._reader(self._block.given, "the sum of attention output and residual")

    def _reader(self, value: Value, what: str) -> str:
        """The first module of the layer that reads a value."""
        for call in self._graph.trace.calls:
            reads = call.inputs and self._graph.same(call.inputs[0]) is self._graph.same(value)
            if reads and self._layer.runs(call):
                return self._path(call.path)
        raise NotInferredError(f"no module reads {what}")

    def _output_norm(self) -> str | None:
        call = self._layer.call
        made = self._graph.maker(self._graph.same(call.outputs[0]))
        if isinstance(made, Norm) and call.holds(made.call) and self._runs_once(made):
            return self._path(made.path)
        return None

    def _runs_once(self, norm: Norm) -> bool:
        """Whether the layer runs a norm once. X-MOD's adapters use the norm of the layer's output as well."""
        return sum(self._layer.runs(call) and call.module is norm.call.module for call in self._graph.trace.calls) == 1
