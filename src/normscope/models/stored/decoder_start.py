"""What the decoder of an encoder–decoder reads before the target: the model's own code says it, where it shifts labels."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, PretrainedConfig

from normscope.models.stored.text_tower import class_of

Shift = Callable[[list[int]], list[int]]
"""Turns the tokens of a target into those that the decoder reads."""


def decoder_shift(config: PretrainedConfig) -> Shift | None:
    """How the decoder's input is made of a target; None if neither code nor config says which token comes first.

    Most families read a start token, mBART and PLBART the target's last token, and T5Gemma a token of the decoder's config.
    So the family's `prepare_decoder_input_ids_from_labels` is asked, and `decoder_start_token_id` where it has none.
    """
    ids = _three_tokens(config)
    shifted = [_shifted(config, [*ids[:2], last]) for last in (ids[2], ids[0])]
    if all(each is not None and each[1:] == ids[:2] for each in shifted):
        first = [each[0] for each in shifted if each is not None]
        if first == [ids[2], ids[0]]:
            return lambda target: [target[-1], *target[:-1]]
        if first[0] == first[1]:
            return functools.partial(_after, first[0])
    start = getattr(config, "decoder_start_token_id", None)
    return functools.partial(_after, start) if isinstance(start, int) else None


def _after(start: int, target: list[int]) -> list[int]:
    return [start, *target[:-1]]


def _three_tokens(config: PretrainedConfig) -> list[int]:
    """Three ids that are neither padding nor a start token."""
    special = {getattr(config, key, None) for key in ("pad_token_id", "decoder_start_token_id")}
    return [number for number in range(5) if number not in special][:3]


def _shifted(config: PretrainedConfig, target: list[int]) -> list[int] | None:
    """What the family's code makes of labels; None if there is no such code, or it needs what the config lacks."""
    kind: Any = class_of(AutoModelForSeq2SeqLM, config)
    if not hasattr(kind, "prepare_decoder_input_ids_from_labels"):
        return None
    model = kind.__new__(kind)  # the method reads the config alone
    nn.Module.__init__(model)
    model.config = config
    try:
        return list(model.prepare_decoder_input_ids_from_labels(torch.tensor([target]))[0].tolist())
    except Exception:  # somebody else's code, which complains that a token is missing
        return None
