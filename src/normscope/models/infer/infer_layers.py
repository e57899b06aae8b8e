"""Rules for layers: the module that runs each one or, if no module runs a whole layer, the modules that make it up."""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from torch import nn

from normscope.models.infer.graph import Atom, Graph, NotInferredError, Projection, is_mask, is_movement
from normscope.models.infer.infer import InferredBlock
from normscope.models.infer.infer_network import InferredNetwork, NoNetworkError
from normscope.models.infer.trace import Call, Operation, Value
from normscope.models.sites.layout import Point, Stack


class Layer(NamedTuple):
    """One layer of a stack, with a block."""

    number: int
    """Counted from 1."""
    block: InferredBlock
    call: Call
    """The call of the module that runs the layer. If none does, a stand-in for everything from the first module that reads
    the layer's input onwards; its `module` is that first module."""
    gathered: bool
    """Whether no module runs the layer."""
    inner: bool = False
    """Whether more than one network follows the block."""

    def runs(self, call: Call) -> bool:
        """Whether a call is part of the layer."""
        if self.gathered:
            return self.call.holds(call) and call.end <= self.call.end
        return call is not self.call and self.call in _around(call)

    def bottleneck(self, graph: Graph, carried: Value) -> Atom | None:
        """The linear layer, or the norm after it, that makes what the residual connection carries; None if that is a vector of
        the stream.
        """
        made = graph.maker(carried)
        return made if self.inner and isinstance(made, Atom) and self.runs(made.call) else None


def check_lists(graph: Graph, paths: Collection[str]) -> None:
    """Check that the lists of modules that make up layers which no module runs hold nothing else.

    Args:
        paths: Those of all parts of the layers.

    Raises:
        NotInferredError: If a list also holds layers without attention, as in a hybrid.
    """
    model = graph.trace.calls[0].module
    used = {each for path in paths for each in _prefixes(path)}
    for call in graph.trace.calls:
        for path in _prefixes(call.path):
            group = path.rpartition(".")[0]
            if group not in used or path in used or next(call.module.parameters(), None) is None:
                continue
            if isinstance(model.get_submodule(group), nn.ModuleList):
                raise NotInferredError(f"{path} is not part of any layer with attention")


def _has_more_than_a_network(graph: Graph, layer: Layer) -> bool:
    """Whether anything besides one feed-forward network and a norm follows the block of a layer."""
    network = layer.block.network
    if not isinstance(network, InferredNetwork):
        return False
    value, leaves = graph.same(layer.call.outputs[0]), graph.same(network.leaving)
    while value is not leaves:
        node = graph.maker(value)
        if node is None or len(graph.operands(node)) != 1 or isinstance(node, Projection):
            return True
        if isinstance(node, Operation) and any(read.name is not None for read in node.reads):
            return True
        value = graph.same(graph.operands(node)[0])
    return False


def layers_of(graph: Graph, blocks: Sequence[InferredBlock], stack: Stack | None) -> tuple[list[Call], list[Layer]]:
    """The calls of all layers of a stack, and the layers with these blocks.

    The others are those of a hybrid in which something other than softmax attention mixes tokens.

    Raises:
        NotInferredError: If it is not known where a layer begins or ends.
    """
    calls = _running(graph, blocks)
    gathered = calls is None
    if calls is None:
        if stack is not None:
            raise NotInferredError("no module runs a whole layer, from its input to its output")
        calls = _gathered(graph, blocks)
    together = calls if gathered else _siblings(graph, calls) or calls
    return together, [
        _layer(graph, Layer(together.index(call) + 1, block, call, gathered), stack)
        for block, call in zip(blocks, calls, strict=True)
    ]


def _layer(graph: Graph, layer: Layer, stack: Stack | None) -> Layer:
    """The layer, without a network that belongs to another layer; `inner` says if more than one network follows its block."""
    network = layer.block.network
    if not isinstance(network, InferredNetwork):
        return layer
    made = network.leaving.source
    if made is not None and made.number >= layer.call.end:
        nothing = NoNetworkError("no feed-forward network follows its attention block in the same layer")
        return layer._replace(block=dataclasses.replace(layer.block, network=nothing))
    if stack == "decoder" or not _has_more_than_a_network(graph, layer):
        return layer
    layer = layer._replace(inner=True)
    if layer.bottleneck(graph, graph.same(layer.block.stream.carried)) is None:
        return layer
    # Weights by dimension of a bottleneck say nothing about dimensions of the stream.
    inside = NotInferredError("its attention block lies inside a bottleneck")
    scores = layer.block.scores._replace(query=None, key=None, rotates=False)
    block = dataclasses.replace(layer.block, network=inside, scores=scores, value=inside, reader=None)
    return layer._replace(block=block)


def _siblings(graph: Graph, calls: Sequence[Call]) -> list[Call] | None:
    """The calls of layers with attention, and of the layers between, before and after them that have none; None if they do
    not form a chain.

    Such a layer is in the same list of modules, reads what the layer before it returns, and returns what the next one reads.
    """
    lists = {call.path.rpartition(".")[0] for call in calls}
    model = graph.trace.calls[0].module
    if not all(isinstance(model.get_submodule(path), nn.ModuleList) for path in lists):
        return None
    siblings = [
        call
        for call in graph.trace.calls
        if call.path.rpartition(".")[0] in lists and call.depth == calls[0].depth and call.inputs and call.outputs
    ]
    stream = [(stream_of(graph, call.inputs[0]), stream_of(graph, call.outputs[0])) for call in siblings]
    followed = all(leaves is reads for (_, leaves), (reads, _) in itertools.pairwise(stream))
    return siblings if followed and all(call in siblings for call in calls) else None


def _running(graph: Graph, blocks: Sequence[InferredBlock]) -> list[Call] | None:
    """The call of the module that runs each layer: it reads the stream and returns what the next layer reads.

    Raises:
        NotInferredError: If such a module reads something other than a vector for each token.
    """
    around = [list(_around(block.attention)) for block in blocks]
    depths = (
        _depth(graph, calls, leaving)
        for block, calls, following in zip(blocks, around, [*blocks[1:], None], strict=True)
        # In a hybrid, the next block is not in the next layer.
        for leaving in (_leaving(block), None if following is None else following.stream.carried)
        if leaving is not None
    )
    depth = next((depth for depth in depths if depth is not None), None)
    depth = depth or _depth_of_chain(graph, around) or _depth_of_siblings(graph, blocks, around)
    if depth is None:
        return None
    found = [[call for call in calls if call.depth == depth] for calls in around]
    calls = [same[0] for same in found if same]
    if len({*calls}) < len(blocks):
        return None
    for call in calls:
        _check_vectors(graph, call.inputs[0], f"layer {call.path} reads")
    return calls


def _check_vectors(graph: Graph, value: Value, what: str) -> None:
    if len(value.shape) != 3 or graph.trace.texts not in value.shape[:2]:
        shape = " × ".join(map(str, value.shape))
        raise NotInferredError(
            f"{what} a tensor of shape {shape} for {graph.trace.texts} texts: expected a vector for each token of each text"
        )


def swapped_axes(graph: Graph, layers: Sequence[Layer], end: Value | None) -> dict[Point, tuple[int, int]]:
    """Where vectors have the shape (token, text, dimension) or (text, dimension, token), and the axes that differ."""
    block = layers[0].block
    values: dict[Point, Value] = {
        "stream": layers[0].call.inputs[0],
        "attention output": block.output.gives,
    }
    reader = block.reader if block.scores.key is None else block.scores.key.projection
    if reader is not None:
        values["attention input"] = reader.reads
    if end is not None:
        values["end"] = end
    texts, size = graph.trace.texts, block.output.gives.shape[-1]
    swapped: dict[Point, tuple[int, int]] = {}
    for point, value in values.items():
        if len(value.shape) != 3:
            continue
        if value.shape[1] == texts != value.shape[0]:
            swapped[point] = (0, 1)
        elif point in ("stream", "end") and value.shape[1] == size != value.shape[2]:
            swapped[point] = (1, 2)
    return swapped


def _depth(graph: Graph, calls: Sequence[Call], leaving: Value) -> int | None:
    """The nesting depth of the innermost call that returns the output of a layer."""
    for call in calls:
        if call.outputs and stream_of(graph, call.outputs[0]) is stream_of(graph, leaving):
            return call.depth
    return None


def _depth_of_chain(graph: Graph, around: Sequence[Sequence[Call]]) -> int | None:
    """The nesting depth of the innermost calls that each read what the one before returns; None if there are none."""
    for call in around[0] if len(around) > 1 else ():
        chain = [next((each for each in calls if each.depth == call.depth), None) for calls in around]
        whole = [each for each in chain if each is not None and each.inputs and each.outputs]
        if len(whole) == len(around) and all(
            stream_of(graph, one.outputs[0]) is stream_of(graph, after.inputs[0])
            for one, after in itertools.pairwise(whole)
        ):
            return call.depth
    return None


def _depth_of_siblings(graph: Graph, blocks: Sequence[InferredBlock], around: Sequence[Sequence[Call]]) -> int | None:
    """The nesting depth of the innermost calls that return their block's output, changed or not, and make a chain with their
    siblings, as in hybrids whose layers are attention, a network or something else; None if there are none.
    """
    for call in around[0]:
        chain = [each for calls in around for each in calls if each.depth == call.depth]
        if len(chain) == len(blocks) and all(
            each.outputs and graph.same(block.given) in graph.ancestors(graph.same(each.outputs[0]))
            for block, each in zip(blocks, chain, strict=True)
        ):
            return call.depth if _siblings(graph, chain) is not None else None
    return None


def _gathered(graph: Graph, blocks: Sequence[InferredBlock]) -> list[Call]:
    """Stand-ins for the calls of layers that no module runs.

    Raises:
        NotInferredError: If no module of its own reads a layer's input, or the last layer's output is not known.
    """
    begins = [_entry(graph, block, blocks) for block in blocks]
    entered = [call.module for call in begins]
    if any(
        sum(call.module is module for call in graph.trace.calls) != sum(each is module for each in entered)
        for module in entered
    ):
        raise NotInferredError("no module runs a whole layer, and no module begins each layer")
    leaving = [
        _leaving(block) or (None if following is None else following.stream.carried)
        for block, following in itertools.zip_longest(blocks, blocks[1:])
    ]
    last = leaving[-1]
    if last is None:
        network = blocks[-1].network
        raise NotInferredError(f"no module runs a whole layer, and the end of the last layer is unknown: {network}")
    assert last.source is not None
    ends = [*(call.first for call in begins[1:]), last.source.number + 1]
    return [
        Call(call.module, call.path, call.parent, call.first, (block.stream.carried,), (value,), end)
        for call, block, value, end in zip(begins, blocks, leaving, ends, strict=True)
        if value is not None
    ]


def _entry(graph: Graph, block: InferredBlock, blocks: Sequence[InferredBlock]) -> Call:
    """The call of the first module of a layer that reads its input, and runs no other layer."""
    carried = graph.same(block.stream.carried)
    _check_vectors(graph, carried, "the residual connection carries")
    moved: Call | None = None
    for call in graph.trace.calls:
        alone = not any(call.holds(other.attention) for other in blocks if other is not block)
        if call.parent is None or not alone or not call.inputs or graph.same(call.inputs[0]) is not carried:
            continue
        if call.inputs[0].shape == block.stream.carried.shape:  # with the same axes as in other layers
            return call
        moved = moved or call
    if moved is None:
        raise NotInferredError("no module runs a whole layer, and no module reads the layer's input")
    return moved


def _leaving(block: InferredBlock) -> Value | None:
    """The output of a layer, if its feed-forward network was inferred or it has none."""
    if isinstance(block.network, NoNetworkError):
        return block.given
    return block.network.leaving if isinstance(block.network, InferredNetwork) else None


def stream_of(graph: Graph, value: Value) -> Value:
    """The original of a value, before movements and before padding was set to zero."""
    return graph.chain(value, lambda node: is_movement(node) or is_mask(node))[0]


def _prefixes(path: str) -> Iterable[str]:
    """The paths of a module and of those that contain it."""
    names = path.split(".")
    return [".".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _around(call: Call) -> Iterable[Call]:
    """A call and the calls that contain it, innermost first."""
    current: Call | None = call
    while current is not None:
        yield current
        current = current.parent
