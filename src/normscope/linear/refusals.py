"""Why a model's attention cannot be measured, and where in its code."""

import sys
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from normscope.errors import InputError


class NotRecognisedError(InputError):
    """A model has attention whose block cannot be measured exactly."""


TWO_BLOCKS = "its layer has two blocks of attention to the same tokens, and so no single number"
"""Why a layer cannot be measured."""


def refusal(why: str, layer: int | None, place: str) -> NotRecognisedError:
    """The error for attention whose block cannot be measured, with its layer and the line of the model's code."""
    where = "attention" if layer is None else f"the attention of layer {layer}"
    return NotRecognisedError(f"{where} cannot be measured: {why} ({place})")


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
