"""Arguments of the Python interface: their checks, and errors that name them instead of config keys."""

import contextlib
import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from normscope.data.batching import Batch
from normscope.data.options import DatasetOptions, Level
from normscope.errors import InputError, printable
from normscope.models.loaded import LoadedModel
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.models.text_batches import batch_from_texts, describe_type, is_single
from normscope.reporting.options import FigureOptions

_GROUPS = {"model": ModelOptions, "dataset": DatasetOptions, "device": DeviceOptions, "figures": FigureOptions}
_KEYS = {f"{group}.{field.name}" for group, options in _GROUPS.items() for field in dataclasses.fields(options)}

# Keys whose argument has another name in every Python function.
_ARGUMENTS = {"device.name": "device", "dataset.path": "texts", "dataset.categories": "token_categories"}


@contextlib.contextmanager
def in_terms_of_arguments(arguments: Mapping[str, str]) -> Iterator[None]:
    """Replace config keys in messages about invalid input with the arguments of a Python function.

    A key without an entry becomes the argument of its last part: `device.dtype` becomes `dtype`.

    Args:
        arguments: Arguments by config key, where they differ.

    Raises:
        InputError: In place of one that names config keys.
    """
    try:
        yield
    except InputError as error:
        message = _translated(str(error), _ARGUMENTS | dict(arguments))
        if message == str(error):
            raise
        raise type(error)(message).with_traceback(error.__traceback__) from error.__cause__


def _translated(message: str, arguments: Mapping[str, str]) -> str:
    keys = "|".join(re.escape(key) for key in sorted(_KEYS, key=len, reverse=True))
    message = re.sub(rf"\b({keys})\b", lambda key: arguments.get(key[0], key[0].rpartition(".")[2]), message)
    message = re.sub(r"\banalysis=(\w+)", r"\1", message)
    message = re.sub(r"\banalysis\.\w+\.(\w+)", r"\1", message)
    return re.sub(r"=(true|false)\b", lambda value: f"={value[1].capitalize()}", message)


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


def single_text(model: LoadedModel, text: object, function: str, level: Level = Level.token) -> Batch:
    """One text as a batch on the model's device.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one.
        function: The name of the calling function, for messages.
        level: Whether the batch comes with the word of each token.

    Raises:
        InputError: If it is anything else, or too long for the model.
    """
    if not is_single(text):
        raise InputError(f"{function} takes one text or one pair (tuple) of texts; got {describe_type(text)}")
    batch = batch_from_texts(model, text, level)
    if batch.sequences != 1:
        raise InputError(f"{function} takes one text; got a BatchEncoding of {batch.sequences}")
    return batch.to(model.device)
