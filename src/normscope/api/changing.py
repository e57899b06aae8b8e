"""Texts measured again in a model without some of its parts, or with a vector added: before and after in two lines."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.api.calls import checked
from normscope.errors import InputError
from normscope.models.changes import changed
from normscope.models.loaded import LoadedModel
from normscope.models.stream_changes import StreamChange
from normscope.models.text_batches import describe_type


@checked
@contextlib.contextmanager
def ablate(
    model: LoadedModel,
    *,
    heads: Iterable[tuple[int, int]] = (),
    neurons: Iterable[tuple[int, int]] = (),
    dimensions: Iterable[int] = (),
    layers: Iterable[int] | None = None,
    value: float = 0.0,
) -> Iterator[LoadedModel]:
    """A context in which parts of a model are removed. Everything that is measured inside is measured without them.

    ```python
    with normscope.ablate(model, heads=[(3, 5)]):
        after = normscope.decompose(model, text)
    ```

    A head is removed with all that it writes, its values' biases included; b_O stays. Contexts may be nested. The weights are
    restored exactly. Until then, a module that the model was wrapped from is changed as well, because they share weights.

    Args:
        model: See `load`.
        heads: Pairs of a layer and a head, both counted from 1.
        neurons: Pairs of a layer, counted from 1, and a neuron of its feed-forward network, counted from 0.
        dimensions: Dimensions of the residual stream, counted from 0, that some layers read as `value`.
        layers: These layers; by default all.
        value: What they read.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> with normscope.ablate(model, heads=[(1, 3)]):
        ...     without = normscope.decompose(model, "A short text.", heads=True)
        >>> float(without.head_vectors[0, 2].abs().max())  # what head 3 of layer 1 contributes
        0.0

    Raises:
        InputError: If there is no such part, or it cannot be removed: heads and neurons of layers that share their weights, or
            of weights in half precision, and neurons of mixtures of experts.
    """
    chosen = [int(each) for each in _numbers("dimensions", dimensions)]
    where = _layers(model, layers)
    if layers is not None and not chosen:
        raise InputError("layers: expected dimensions as well, because heads and neurons come with their layer")
    stream = None
    if chosen:
        width = int(model.model.config.hidden_size)
        outside = [each for each in chosen if not 0 <= each < width]
        if outside:
            raise InputError(f"dimensions: expected numbers from 0 to {width - 1}, got {outside[0]}")
        keep = torch.ones(width, device=model.device)
        keep[chosen] = 0
        change = StreamChange(keep, (1 - keep) * value)
        stream = dict.fromkeys(where, change)
        _check_stream(model)
    with changed(model, _pairs("heads", heads), _pairs("neurons", neurons), stream):
        yield model


@checked
@contextlib.contextmanager
def steer(model: LoadedModel, vector: Any, layer: int, *, strength: float = 1.0) -> Iterator[LoadedModel]:
    """A context in which a vector is added to the residual stream of every token, where a layer reads it.

    ```python
    with normscope.steer(model, vector, layer=6, strength=4.0):
        after = normscope.attribute(model, text, normscope.NextToken())
    ```

    In an attribution, what the vector adds is part of the biases.

    Args:
        model: See `load`.
        vector: The vector: a tensor, an array or a list of as many numbers as hidden vectors have.
        layer: The layer that reads it, counted from 1.
        strength: A factor on the vector.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> with normscope.steer(model, [1.0] * 384, layer=3):
        ...     steered = normscope.decompose(model, "A short text.")
        >>> plain = normscope.decompose(model, "A short text.")
        >>> [bool((one == other).all()) for one, other in zip(plain.weights, steered.weights)]
        [True, True, False, False, False, False]

    Raises:
        InputError: If the vector has another size, or there is no such layer, or it shares its weights with others.
    """
    width = int(model.model.config.hidden_size)
    try:
        added = torch.as_tensor(
            np.asarray(vector.detach().cpu() if isinstance(vector, Tensor) else vector, dtype=float)
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"vector: expected {width} numbers, got {describe_type(vector)}") from error
    if added.shape != (width,):
        raise InputError(f"vector: expected {width} numbers, got an array of shape {tuple(added.shape)}")
    if not added.isfinite().all():
        raise InputError("vector: expected finite numbers")
    (where,) = _layers(model, [layer])
    _check_stream(model)
    added = added.to(model.device)
    with changed(model, stream={where: StreamChange(torch.ones_like(added), strength * added)}):
        yield model


def _check_stream(model: LoadedModel) -> None:
    what = (
        "a decoder that reads a source" if model.layout.reads_target else "a model with a convolution beside its layers"
    )
    if model.layout.reads_target or model.layout.stream.convolution is not None:
        raise InputError(f"model: the residual stream of {what} cannot be changed; ablate heads instead")


def _layers(model: LoadedModel, layers: Iterable[int] | None) -> Sequence[int]:
    if layers is None:
        return range(1, model.layers + 1)
    numbers = _numbers("layers", layers)
    for number in numbers:
        if not 1 <= number <= model.layers:
            raise InputError(f"layers: expected numbers from 1 to {model.layers}, got {number}")
    return numbers


def _numbers(argument: str, values: Iterable[Any]) -> list[int]:
    listed = list(values)
    if not all(isinstance(each, int | np.integer) and not isinstance(each, bool) for each in listed):
        raise InputError(f"{argument}: expected whole numbers, got {describe_type(listed)}")
    return [int(each) for each in listed]


def _pairs(argument: str, values: Iterable[Any]) -> list[tuple[int, int]]:
    pairs = []
    for pair in values:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"{argument}: expected pairs of a layer and a number, got {describe_type(pair)}")
        layer, number = _numbers(argument, pair)
        pairs.append((layer, number))
    return list(dict.fromkeys(pairs))
