"""Why a model's attention cannot be measured, and where in its code."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch import nn

from normscope.errors import InputError
from normscope.rounding import numbered


class NotRecognisedError(InputError):
    """A model has attention whose block cannot be measured exactly."""


class StageError(NotRecognisedError):
    """What is read as a layer cannot be measured, and may be a stage, with layers of its own."""


TWO_BLOCKS = "its layer has two blocks of attention to the same tokens, and so no single number"
"""Why a layer cannot be measured."""

WITHOUT_ATTENTION = "no softmax attention"
WINDOWS = "attention within windows that are not followed"
PADDED = "attention within windows that are padded"
POOLED = "attention with pooled queries or keys"
OTHER_TOKENS = "another number of tokens than enter the first layer"
AFTER_OTHERS = "layers before with another number of tokens"
"""What a layer has that is not measured, beside layers that are."""


class NoneMeasuredError(NotRecognisedError):
    """Every layer with attention has been left out."""


class LeftOut(NamedTuple):
    """A layer that is not measured."""

    has: str
    """What it has instead of attention that is measured."""
    place: str
    """The line of the model's code that multiplies weights by values."""


def not_measured(layers: Mapping[int, str]) -> str:
    """Layers and what they have instead of attention that is measured: `layers 1, 2 have attention within windows`.

    Args:
        layers: What each of them has, by number.
    """
    by_reason: dict[str, list[int]] = {}
    for layer in sorted(layers):
        by_reason.setdefault(layers[layer], []).append(layer)
    return ", ".join(
        f"layer{'s' * (len(each) > 1)} {numbered(each)} {'have' if len(each) > 1 else 'has'} {has}"
        for has, each in by_reason.items()
    )


def none_measured(left_out: Mapping[int, LeftOut]) -> NotRecognisedError:
    """The error for a model of which no layer can be measured."""
    if not left_out:
        return NotRecognisedError(f"{WITHOUT_ATTENTION} was found")
    what = not_measured({layer: each.has for layer, each in left_out.items()})
    return NoneMeasuredError(f"none of its layers can be measured: {what} ({left_out[min(left_out)].place})")


def refusal(
    why: str, layer: int | None, place: str, kind: type[NotRecognisedError] = NotRecognisedError
) -> NotRecognisedError:
    """The error for attention whose block cannot be measured, with its layer and the line of the model's code."""
    where = "attention" if layer is None else f"the attention of layer {layer}"
    return kind(f"{where} cannot be measured: {why} ({place})")


def running_line() -> str:
    """The line of the model's own code that is running: file, number and function."""
    frame: FrameType | None = sys._getframe()
    places = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_AROUND):
            place = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
            if isinstance(frame.f_locals.get("self"), nn.Module):
                return place
            places.append(place)
        frame = frame.f_back
    return places[0] if places else "an unknown line"


_AROUND = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
"""Folders whose functions stand between a model's code and its operations."""
