"""The stacks of an encoder–decoder, each with what to observe it through."""

from collections.abc import Mapping
from typing import NamedTuple, get_args

from transformers.modeling_utils import PreTrainedModel

from normscope.models.infer.layouts import layout_of
from normscope.models.sites.layout import ModelLayout, Stack


class ObservedStack(NamedTuple):
    """One stack."""

    model: PreTrainedModel
    """The encoder alone, or the whole model for the decoder's attention."""
    layout: ModelLayout


def stacks_of(model: PreTrainedModel) -> Mapping[Stack, ObservedStack]:
    """The stacks of an encoder–decoder."""
    return {
        stack: ObservedStack(model.get_encoder() if stack == "encoder" else model, layout_of(model.config, stack))
        for stack in get_args(Stack)
    }
