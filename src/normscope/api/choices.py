"""Checks of arguments that several functions of the Python interface share."""

import enum
from typing import TypeVar

from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import batch_from_texts, describe_type

Choice = TypeVar("Choice", bound=enum.StrEnum)


def chosen(argument: str, value: object, choices: type[Choice]) -> Choice:
    """Return the choice of this name."""
    for choice in choices:
        if value == choice:
            return choice
    raise InputError(f"{argument}={value!r}: expected one of {', '.join(choices)}")


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
    if isinstance(text, list):
        raise InputError(f"{function} takes one text or one pair (tuple) of texts; got {describe_type(text)}")
    batch = batch_from_texts(model, text, level)
    if batch.sequences != 1:
        raise InputError(f"{function} takes one text; got a BatchEncoding of {batch.sequences}")
    return batch.to(model.device)
