"""Frames of a sound as tokens: which time each stands for."""

import dataclasses

import numpy as np
import torch
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor

from normscope.data.sounds import time_names
from normscope.errors import InputError
from normscope.models.load.input_reading import prepared, rate_of
from normscope.models.load.vectors import Geometry, VectorModel

_LONGEST = 256
"""Seconds of sound beyond which no processor is tried."""
_LONGER = 6
"""Seconds by which one sound is longer than another: a multiple of 10, 20, 24, 25, 30, 40, 50 and 80 ms."""
_STEPS = 100
"""The end of what a processor reads is looked for in steps of so many parts of a second."""


def timed(model: VectorModel, extractor: SequenceFeatureExtractor) -> Geometry:
    """The tokens of a sound, named by when they begin.

    The time from one to the next is what the model makes of time: of a processor that pads or cuts all sounds to one length,
    that length over the number of tokens; of others, the time by which a sound is longer over the tokens that it has more.

    Raises:
        InputError: If tokens are not frames, one after the other.
    """
    geometry = model.geometry
    before = len(geometry.names) - len(geometry.categories.get("frame", ()))
    if before:
        raise InputError(
            f"model: expected a token for each frame of a sound, but {before} of those of {type(model.model).__name__} "
            "are none"
        )
    seconds = _seconds(model, extractor)
    return dataclasses.replace(
        geometry, names=tuple(time_names(len(geometry.names), seconds)), categories={}, seconds=seconds
    )


def _seconds(model: VectorModel, extractor: SequenceFeatureExtractor) -> float:
    """The time from one token to the next."""
    rate = rate_of(extractor)
    noise = np.random.default_rng(0).normal(size=_LONGEST * rate).astype(np.float32)

    def read(steps: int) -> dict[str, torch.Tensor]:
        return prepared(extractor, noise[: steps * rate // _STEPS], model.model)

    one, other = read(_STEPS), read((1 + _LONGER) * _STEPS)
    if {name: each.shape for name, each in one.items()} != {name: each.shape for name, each in other.items()}:
        return _LONGER / (model.tokens_of(other) - model.tokens_of(one))
    whole = read(_LONGEST * _STEPS)
    # Behind the end of what the processor reads, nothing changes.
    least, most = 0, _LONGEST * _STEPS
    while most - least > 1:
        tried = (least + most) // 2
        same = all(torch.equal(each, whole[name]) for name, each in read(tried).items())
        least, most = (least, tried) if same else (tried, most)
    return most / _STEPS / model.table.num_embeddings
