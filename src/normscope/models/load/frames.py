"""Frames of a sound as tokens: which time each stands for."""

import numpy as np
import torch
from torch import Tensor
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor

from normscope.data.sounds import time_names
from normscope.models.load.input_reading import prepared, rate_of
from normscope.models.load.vectors import VectorModel

_LONGEST = 256
"""Seconds of sound beyond which no processor is tried."""
_LONGER = 6
"""Seconds by which one sound is longer than another: a multiple of 10, 20, 24, 25, 30, 40, 50 and 80 ms."""
_STEPS = 100
"""The end of what a processor reads is looked for in steps of so many parts of a second."""
_NAMES = 16_384
"""Frames that have names if sounds have several lengths: five and a half minutes of 20 ms each."""


def frame_names(model: VectorModel, seconds: float, *, sizes: bool) -> list[str]:
    """The names of frames: when each begins.

    Args:
        model: A model of sounds.
        seconds: From one frame to the next.
        sizes: Whether sounds have several lengths; if not, all have the length of the model's probe.
    """
    return time_names(_NAMES if sizes else _frames(model, model.probe), seconds)


def seconds_of_frames(model: VectorModel, extractor: SequenceFeatureExtractor) -> float:
    """The time from one token to the next, which is what the model makes of time.

    Of a processor that pads or cuts all sounds to one length, it is that length over the number of tokens; of others, the time
    by which a sound is longer over the tokens that it has more.
    """
    rate = rate_of(extractor)
    noise = np.random.default_rng(0).normal(size=_LONGEST * rate).astype(np.float32)

    def read(steps: int) -> dict[str, Tensor]:
        return prepared(extractor, noise[: steps * rate // _STEPS], model.model)

    one, other = read(_STEPS), read((1 + _LONGER) * _STEPS)
    if any(each.shape != other[name].shape for name, each in one.items()):
        return _LONGER / (_frames(model, other) - _frames(model, one))
    whole = read(_LONGEST * _STEPS)
    # Behind the end of what the processor reads, nothing changes.
    least, most = 0, _LONGEST * _STEPS
    while most - least > 1:
        tried = (least + most) // 2
        same = all(torch.equal(each, whole[name]) for name, each in read(tried).items())
        least, most = (least, tried) if same else (tried, most)
    return most / _STEPS / _frames(model, whole)


def _frames(model: VectorModel, inputs: dict[str, Tensor]) -> int:
    """The number of tokens of one sound."""
    place = torch.zeros(1, 1, dtype=torch.int64, device=next(iter(inputs.values())).device)
    return model.entering(place, **inputs).shape[1]
