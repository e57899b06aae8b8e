"""A model with parts removed or vectors added, for as long as a context is open.

Heads and neurons are removed by setting their rows of W_O and W_2 to zero, so that whatever observes the model sees one without
them. The residual stream is changed where a layer reads it, and frozen layers begin with the same change.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.models.block_modules import bind_blocks
from normscope.models.feed_forward_modules import bind_feed_forward
from normscope.models.layer_hooks import layer_hooks, vectors_in, with_vectors
from normscope.models.layout import ModelLayout
from normscope.models.linear_layers import weight_and_bias
from normscope.models.loaded import LoadedModel
from normscope.models.stream_changes import StreamChange, noted


@contextlib.contextmanager
def changed(
    loaded: LoadedModel,
    heads: Sequence[tuple[int, int]] = (),
    neurons: Sequence[tuple[int, int]] = (),
    stream: Mapping[int, StreamChange] | None = None,
) -> Iterator[None]:
    """Change a model until the context is closed, which restores every bit.

    Args:
        heads: Layers and heads to remove, both counted from 1.
        neurons: Layers and neurons to remove; layers count from 1, neurons from 0.
        stream: Changes of the residual stream, by the layer that reads it.

    Raises:
        InputError: If there is no such head or neuron, or it cannot be changed alone.
    """
    if stream:  # whose proof would find that it does not go on as it should
        _prove(loaded)
    model, layout = loaded.model, loaded.layout
    rows = [*_rows_of_heads(model, layout, heads), *_rows_of_neurons(model, layout, neurons)]
    with loaded.changing(), contextlib.ExitStack() as exit_:
        for of_part in rows:
            exit_.callback(_written, of_part, of_part.clone())
            _written(of_part, torch.zeros_like(of_part))
        exit_.enter_context(noted(model, dict(stream or {})))
        if stream:
            for handle in _hooks(model, layout, stream):
                exit_.callback(handle.remove)
        yield


@torch.no_grad()
def _written(weights: Tensor, values: Tensor) -> None:
    weights.data.copy_(values)  # whose version still tells of changes by others


def _prove(loaded: LoadedModel) -> None:
    """Make the proofs that later calls would make."""
    _ = loaded.verification
    with contextlib.suppress(InputError):
        _ = loaded.layers_verification


def _rows_of_heads(
    model: PreTrainedModel, layout: ModelLayout, heads: Sequence[tuple[int, int]]
) -> Iterator[Float[Tensor, "head_dim model"]]:
    """The rows of W_O that belong to each head, in the model's memory."""
    modules = {each.layer: each.output for each in bind_blocks(model, layout)} if heads else {}
    for layer, head in heads:
        _check_place("heads", (layer, head), (len(layout.stream.layers), layout.attention.heads), first=1)
        layout.check_attends("heads", layer)
        weight = _in_memory(modules, layer, "heads")
        yield weight.view(layout.attention.heads, -1, weight.shape[1])[head - 1]


def _rows_of_neurons(
    model: PreTrainedModel, layout: ModelLayout, neurons: Sequence[tuple[int, int]]
) -> Iterator[Float[Tensor, " model"]]:
    """The row of W_2 that belongs to each neuron, in the model's memory."""
    networks = {each.layer: each for each in bind_feed_forward(model, layout)} if neurons else {}
    for layer, neuron in neurons:
        if layer in networks and networks[layer].routed:
            raise InputError(f"neurons: layer {layer} is a mixture of experts; expected a dense network")
        layout.check_attends("neurons", layer)
        width = len(weight_and_bias(networks[layer].output)[0]) if layer in networks else 0
        _check_place("neurons", (layer, neuron), (len(layout.stream.layers), width), first=0)
        yield _in_memory({number: each.output for number, each in networks.items()}, layer, "neurons")[neuron]


def _check_place(argument: str, place: tuple[int, int], counts: tuple[int, int], first: int) -> None:
    layer, number = place
    if not 1 <= layer <= counts[0]:
        raise InputError(f"{argument}: expected a layer from 1 to {counts[0]}, got {layer}")
    last = counts[1] + first - 1
    if not first <= number <= last:
        raise InputError(f"{argument}: expected a number from {first} to {last} in layer {layer}, got {number}")


def _in_memory(modules: Mapping[int, nn.Module], layer: int, argument: str) -> Float[Tensor, "inner model"]:
    """The weight of a projection (in, out) that changes with the model's own.

    Raises:
        InputError: If layers share the projection, or its weight is stored in another format.
    """
    module = modules[layer]
    sharing = [number for number, each in modules.items() if each is module]
    if len(sharing) > 1:
        raise InputError(
            f"{argument}: layers {sharing[0]} to {sharing[-1]} share their weights, so nothing can be removed from one of them"
        )
    weight, _ = weight_and_bias(module)
    stored = {each.untyped_storage().data_ptr() for each in module.parameters()}
    if weight.untyped_storage().data_ptr() not in stored:
        raise InputError(f"{argument}: expected weights in float32 or float64; load the model with these")
    return weight


def _hooks(model: PreTrainedModel, layout: ModelLayout, stream: Mapping[int, StreamChange]) -> Iterator[Any]:
    """Hooks that change what layers read while the whole model runs: a layer that runs again by itself gets what it got."""
    entries = {id(parts.entry): parts.number for parts in layout.parts(model)}
    if len(entries) < len(layout.stream.layers):
        raise InputError("layers: expected layers with weights of their own; those of this model share them")
    running = False

    def begin(_module: nn.Module, _args: Any) -> None:
        nonlocal running
        running = True

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        nonlocal running
        running = False

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        change = stream.get(entries[id(module)])
        if change is None or not running:
            return None
        return with_vectors(args, kwargs, change.applied(vectors_in(args, kwargs)))

    yield model.register_forward_pre_hook(begin)
    yield model.register_forward_hook(end, always_call=True)
    yield from layer_hooks(model, layout, enter, lambda _module, _args, _output: None)
