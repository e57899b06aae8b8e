"""Preparation of every call to the Python interface.

Errors name arguments instead of config keys; the caller's numeric settings of torch are set aside; and only one call
uses a model at a time.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from normscope.data.batching import Batch
from normscope.data.options import DatasetOptions, Level
from normscope.errors import InputError, describe_type
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import batch_from_texts, is_single
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.models.stored.stored_weights import number_format
from normscope.reporting.options import FigureOptions
from normscope.results.result import Result

_GROUPS = {"model": ModelOptions, "dataset": DatasetOptions, "device": DeviceOptions, "figures": FigureOptions}
_KEYS = {f"{group}.{field.name}" for group, options in _GROUPS.items() for field in dataclasses.fields(options)}

# Keys whose argument has another name in every Python function.
_ARGUMENTS = {"device.name": "device", "dataset.path": "texts", "dataset.categories": "token_categories"}

_AUTOCAST = ("cpu", "cuda", "mps")
"""Device types, each of which has its own autocast."""


@contextlib.contextmanager
def python_call(model: str = "model") -> Iterator[None]:
    """What surrounds a call: arguments in messages about invalid input, and the numeric settings of torch put aside.

    It computes as if the caller had turned autocast off and set no default device, both of which are settings of a thread: a
    model is measured in the dtype of its weights, and what we compute beside it lies where we put it.

    A config key in a message becomes the argument of its last part, unless it has an entry: `device.dtype` becomes `dtype`.

    Args:
        model: The argument that is, or names, the model.

    Raises:
        InputError: In place of one that names config keys.
    """
    with contextlib.ExitStack() as settings:
        if torch.get_default_device().type != "cpu":
            settings.enter_context(torch.device("cpu"))
        for kind in _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                settings.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        except InputError as error:
            message = _translated(str(error), _ARGUMENTS | {"model.name": model})
            if message == str(error):
                raise
            raise type(error)(message).with_traceback(error.__traceback__) from error.__cause__


def _translated(message: str, arguments: Mapping[str, str]) -> str:
    keys = "|".join(re.escape(key) for key in sorted(_KEYS, key=len, reverse=True))
    message = re.sub(rf"\b({keys})\b", lambda key: arguments.get(key[0], key[0].rpartition(".")[2]), message)
    message = re.sub(r"\banalysis=(\w+)", r"\1", message)
    message = re.sub(r"\banalysis\.\w+\.(\w+)", r"\1", message)
    return re.sub(r"=(true|false)\b", lambda value: f"={value[1].capitalize()}", message)


def within(argument: str, numbers: Iterable[int] | None, first: int, last: int) -> list[int] | None:
    """The different numbers of a list, in its order; None for None.

    Raises:
        InputError: If the list is empty, or one of them is not from `first` to `last`.
    """
    if numbers is None:
        return None
    different = list(dict.fromkeys(numbers))
    if not different:
        raise InputError(f"{argument}: expected at least one number, got none")
    for number in different:
        if not first <= number <= last:
            raise InputError(f"{argument}: expected whole numbers from {first} to {last}, got {number}")
    return different


def single_text(
    model: LoadedModel, text: object, function: str, level: Level = Level.token, *, as_given: bool = False
) -> Batch:
    """One text as a batch on the model's device.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one.
        function: The name of the calling function, for messages.
        level: Whether the batch comes with the word of each token.
        as_given: See `batch_from_texts`.

    Raises:
        InputError: If it is anything else, or too long for the model.
    """
    if not is_single(text):
        raise InputError(f"{function} takes one text or one pair (tuple) of texts; got {describe_type(text)}")
    batch = batch_from_texts(model, text, level, as_given=as_given)
    if batch.sequences != 1:
        raise InputError(f"{function} takes one text; got a BatchEncoding of {batch.sequences}")
    return batch.to(model.device)


P = ParamSpec("P")
R = TypeVar("R")


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """A function that uses its argument `model`, which no other call may use in the meantime; see `Exclusive`.

    Raises:
        InputError: If another call is using the model, or a number of the result is not finite.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        model: LoadedModel = signature.bind(*args, **kwargs).arguments["model"]
        with python_call():
            try:
                result = model.exclusively(lambda: function(*args, **kwargs))
            except InputError:
                model.require_finite_weights()  # the root of what numbers that are not finite led to
                raise
            if not _is_finite(result):
                refuse_overflow(model)
        return result

    return call


def refuse_overflow(model: LoadedModel) -> NoReturn:
    """Say why a result is not finite: a weight that is not, or the type of the model.

    Raises:
        InputError: Always.
    """
    model.require_finite_weights()
    wider = "float64" if model.dtype is torch.float32 else "float32"
    raise InputError(f"model: {model.name} computes NaN or infinity in {number_format(model.model)}; try {wider}")


def _is_finite(result: Any) -> bool:
    """Whether all numbers of a result are: of its fields, or of those of its items."""
    match result:
        case str():  # first, because texts have thousands of tokens
            return True
        case float():
            return math.isfinite(result)
        case Tensor() | np.ndarray():
            values = torch.as_tensor(result)
            # A sum is finite only if all that is added is, and takes a fraction of the time.
            return bool(values.sum().isfinite()) or bool(values.isfinite().all())
        case Mapping():
            return all(map(_is_finite, result.values()))
        case Result():  # whose tables are made of what its maps and metrics hold
            return _is_finite(result.maps) and _is_finite(result.metrics)
        case _ if dataclasses.is_dataclass(result):
            return all(map(_is_finite, vars(result).values()))
        case Sequence():
            return all(map(_is_finite, result))
        case _:
            return True
