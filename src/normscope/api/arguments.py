"""Preparation of every call to the Python interface.

Arguments are checked, and errors name them instead of config keys; the caller's numeric settings of torch are set
aside; and only one call uses a model at a time.
"""

import contextlib
import dataclasses
import enum
import functools
import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar, Union

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BatchEncoding
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.batching import Batch
from normscope.data.options import DatasetOptions, Level
from normscope.errors import InputError, printable
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import Text, batch_from_texts, describe_type, is_single
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.models.stored.stored_weights import number_format
from normscope.reporting.options import FigureOptions
from normscope.results.result import Result

_GROUPS = {"model": ModelOptions, "dataset": DatasetOptions, "device": DeviceOptions, "figures": FigureOptions}
_KEYS = {f"{group}.{field.name}" for group, options in _GROUPS.items() for field in dataclasses.fields(options)}

# Keys whose argument has another name in every Python function.
_ARGUMENTS = {"device.name": "device", "dataset.path": "texts", "dataset.categories": "token_categories"}


@contextlib.contextmanager
def in_terms_of_arguments(model: str = "model") -> Iterator[None]:
    """Replace config keys in messages about invalid input with the arguments of a Python function.

    A key without an entry becomes the argument of its last part: `device.dtype` becomes `dtype`.

    Args:
        model: The argument that is, or names, the model.

    Raises:
        InputError: In place of one that names config keys.
    """
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


Texts = Text | list[Text] | BatchEncoding
"""A text, a list of texts, or what a tokenizer made of them."""

Choice = TypeVar("Choice", bound=enum.StrEnum)


def chosen(argument: str, value: object, choices: type[Choice]) -> Choice:
    """Return the choice of this name."""
    for choice in choices:
        if value == choice:
            return choice
    raise InputError(f"{argument}={value!r}: expected one of {', '.join(choices)}")


def whole_numbers(argument: str, values: Iterable[object] | None, first: int, last: int) -> list[int] | None:
    """The different numbers of a list, in its order; None for None.

    Raises:
        InputError: If the list is empty, or one of them is no whole number from `first` to `last`.
    """
    if values is None:
        return None
    numbers = list(values)
    if not numbers:
        raise InputError(f"{argument}: expected at least one number, got none")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not first <= number <= last:
            raise InputError(
                f"{argument}: expected whole numbers from {first} to {last}, got {printable(repr(number), 40)}"
            )
    return list(dict.fromkeys(int(number) for number in numbers))  # type: ignore[call-overload]


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
F = TypeVar("F", bound=Callable[..., Any])

_AUTOCAST = ("cpu", "cuda", "mps")
"""Types of devices that models run on, each with an autocast of its own."""


def checked(target: F) -> F:
    """A function, or a class, that raises InputError for an argument whose type does not match its annotation.

    It computes as if the caller had turned autocast off and set no default device: a model is measured in the dtype of its
    weights, and what we compute beside it lies where we put it. An iterator that it returns is not covered.

    Elements of lists and other iterables are left to what reads them: reading may use them up.
    """
    if isinstance(target, type):
        target.__init__ = checked(target.__init__)  # type: ignore[misc]
        return target
    signature = inspect.signature(target)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [name for name, parameter in signature.parameters.items() if parameter.kind not in several]

    @functools.cache
    def hints() -> dict[str, Any]:
        annotated = typing.get_type_hints(target)
        return {name: annotated[name] for name in named if name in annotated}

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        for name, hint in hints().items():
            if name in given and not _fits(given[name], hint):
                raise InputError(f"{name}: expected {_in_words(hint)}, got {_shown(given[name])}")
        with _settings_of_torch():
            return target(*args, **kwargs)

    return typing.cast(F, call)


@contextlib.contextmanager
def _settings_of_torch() -> Iterator[None]:
    """Torch without the caller's autocast and default device; both are settings of a thread."""
    with contextlib.ExitStack() as settings:
        if torch.get_default_device().type != "cpu":
            settings.enter_context(torch.device("cpu"))
        for kind in _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                settings.enter_context(torch.autocast(kind, enabled=False))
        yield


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """A function that uses its argument `model`, which no other call may use in the meantime; see `Exclusive`.

    Raises:
        InputError: If another call is using the model, or a number of the result is not finite.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        model: LoadedModel = signature.bind(*args, **kwargs).arguments["model"]
        with in_terms_of_arguments():
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


def _fits(value: object, hint: Any) -> bool:
    """Whether a value has the type of an annotation. True is no number, and bytes are no list of numbers."""
    kind = typing.get_origin(hint) or hint
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if kind is Any:
        return True
    if kind is tuple:
        parts = typing.get_args(hint)
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if kind is Mapping:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if isinstance(value, bool | np.bool_):
        return kind in (bool, object)
    if kind in (int, float):
        return isinstance(value, numbers.Integral if kind is int else numbers.Real)
    return isinstance(value, kind) and not (kind in (Iterable, Sequence) and isinstance(value, bytes))


_NAMES: Mapping[Any, str] = {
    types.NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a str",
    Path: "a Path",
    tuple: "a pair (tuple) of two str",
    list: "a list",
    Sequence: "a list",
    Iterable: "a list",
    Mapping: "a dict with names as keys",
    Callable: "a function",
    Tensor: "an array of token ids",
    np.ndarray: "an array of token ids",
    nn.Module: "a torch.nn.Module",
    BatchEncoding: "a tokenizer's BatchEncoding",
    PreTrainedTokenizerBase: "a transformers tokenizer",
    LoadedModel: "a model from normscope.load or normscope.wrap(model, tokenizer)",
}


def _in_words(hint: Any) -> str:
    names = list(dict.fromkeys(_NAMES.get(kind, f"a {getattr(kind, '__name__', kind)}") for kind in _kinds(hint)))
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _kinds(hint: Any) -> Iterator[Any]:
    kind = typing.get_origin(hint) or hint
    if kind in (Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _kinds(each)
    else:
        yield kind


def _shown(value: object) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return printable(repr(value), 60) if plain else describe_type(value)
