"""Compares the layers of an observed pass with those of the untouched model, each given the same input."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.models.observe.attention_function import attention_by
from normscope.models.observe.text_check import PassCheck
from normscope.models.observe.untouched import reference_attention
from normscope.models.sites.block_modules import BlockModules
from normscope.models.sites.layer_hooks import layer_hooks, vectors_from, with_vectors
from normscope.models.sites.layout import ModelLayout
from normscope.models.sites.rotary import length_dependent_rotations
from normscope.models.stored.model_code import StopForward


def compare_layers(
    model: PreTrainedModel,
    layout: ModelLayout,
    inputs: Mapping[str, Tensor],
    check: PassCheck,
    modules: Mapping[int, BlockModules],
) -> None:
    """Compare every layer of an observed pass with that of the untouched model, given what the observed one read.

    With the same input, rounding does not add up from layer to layer.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        inputs: The batch.
        check: The observed pass, with what every layer read.
        modules: Those of the layers that have a block.
    """
    alone = bool(length_dependent_rotations(model))
    if alone and len(inputs["attention_mask"]) > 1:
        return  # their rotations in a batch are those of its longest text
    last, layer = max(check.inputs), 0

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal layer
        layer += 1
        return with_vectors(args, kwargs, layout.by_text(check.inputs[layer]))

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        check.compare_untouched(layer, "layer output", vectors_from(output))
        if layer == last:
            raise StopForward

    def attended(module: nn.Module, _args: Any, output: Tensor) -> None:
        block = modules.get(layer)
        if block is not None and block.output is module:
            check.compare_untouched(layer, "attention output", output * block.scale)

    with contextlib.ExitStack() as exit_:
        exit_.enter_context(torch.inference_mode())
        if alone:  # one token makes dynamic scaling forget the longest text so far
            model(**{name: tensor[:, :1] for name, tensor in inputs.items()})
        for handle in layer_hooks(model, layout, enter, leave):
            exit_.callback(handle.remove)
        for output in {id(block.output): block.output for block in modules.values()}.values():
            exit_.callback(output.register_forward_hook(attended).remove)
        if layout.registry:
            exit_.enter_context(attention_by(model, reference_attention(model, layout)))
        exit_.enter_context(contextlib.suppress(StopForward))
        model(**inputs)
