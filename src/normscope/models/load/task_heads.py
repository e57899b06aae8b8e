"""Loads the head of a checkpoint for one task, if it has one."""

import enum
import logging
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.stored.config_checks import silent_warnings
from normscope.models.stored.stored_weights import is_offloaded
from normscope.models.stored.text_tower import base_of, class_of, text_tower
from normscope.models.stored.weight_checks import check_dtypes, check_finite, check_shapes

log = logging.getLogger("normscope")


class Head(enum.StrEnum):
    """What a head predicts."""

    MASKED_TOKEN = "masked-language-modelling"
    NEXT_TOKEN = "language-modelling"
    CLASS = "sequence-classification"
    TRANSLATION = "translation"


_AUTO: dict[Head, Any] = {
    Head.MASKED_TOKEN: AutoModelForMaskedLM,
    Head.NEXT_TOKEN: AutoModelForCausalLM,
    Head.CLASS: AutoModelForSequenceClassification,
    Head.TRANSLATION: AutoModelForSeq2SeqLM,
}


def has_head(model: PreTrainedModel, head: Head) -> bool:
    """Whether a model is a base model with this head."""
    kind = head_class(head, model.config)
    return kind is not None and isinstance(model, kind)


def head_class(head: Head, config: PretrainedConfig) -> type | None:
    """The class of models with this head in the family of a config; None if there is none."""
    kind: type | None = class_of(_AUTO[head], config)
    if kind is None and head is Head.NEXT_TOKEN:  # of a multimodal model
        kind = class_of(AutoModelForImageTextToText, config)
    if kind is None and head is Head.CLASS:
        kind = class_of(AutoModelForImageClassification, config)
    return kind


def task_head(
    head: Head,
    folder: Path,
    config: PretrainedConfig,
    base: PreTrainedModel,
    *,
    name: str,
    allow_pickle: bool,
) -> PreTrainedModel | None:
    """Load a checkpoint's head around its base model, which is already loaded.

    Args:
        folder: The checkpoint's folder.
        base: Its base model, which becomes part of the result, so weights are in memory once.
        name: The model's name, for messages.
        allow_pickle: Whether weights may be pickled.

    Returns:
        The model; None if its family has no such head, or the checkpoint no weights for it.

    Raises:
        InputError: If the head's weights cannot be used.
    """
    kind: Any = head_class(head, config)
    # An encoder–decoder predicts with its decoder, not with a head on the observed stack.
    if config.is_encoder_decoder != (head is Head.TRANSLATION) or kind is None:
        return None
    if is_offloaded(base):
        log.warning(
            "device.map=auto: the %s head of %s is not loaded, because some of its weights are elsewhere", head, name
        )
        return None
    try:
        with silent_warnings():
            whole, loading = kind.from_pretrained(
                folder,
                config=config,
                dtype=base.dtype,
                use_safetensors=None if allow_pickle else True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
    except Exception as error:  # an architecture's head fails on foreign weights in its own way
        raise InputError(f"model.name={name}: its {head} head: {one_line(error)}") from error
    check_shapes(loading["mismatched_keys"], name)
    if loading["missing_keys"]:
        return None
    check_dtypes(whole, folder, name)
    check_finite(whole, name)
    model = text_tower(whole.eval())
    if not has_head(model, head):
        return None
    _share(model, base)
    model.tie_weights()
    loaded: PreTrainedModel = model.to(base.device).eval().requires_grad_(False)
    return loaded


def _share(model: PreTrainedModel, base: PreTrainedModel) -> None:
    """Give a model with a head the modules of its base model. T5's heads hold the stacks themselves."""
    own = base_of(model)
    if own is not model:
        path = next(path for path, module in model.named_modules() if module is own)
        holder, _, name = path.rpartition(".")
        setattr(model.get_submodule(holder), name, base)
        return
    for name, module in base.named_children():
        setattr(model, name, module)
