"""Translations: the next token attributed to the tokens of the source and those of the target so far, and their maps."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.layer_maps import attention_map, cross_attention_map
from normscope.attribution.methods import MapMethod, MapStage
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.attribution.scalars import ScalarAttribution
from normscope.maths.contributions import decoder_layer_map, through_decoder_layer
from normscope.maths.tensors import wide
from normscope.models.block import AttentionBlock
from normscope.models.frozen_translation import FrozenTranslation
from normscope.models.observer import Observer
from normscope.models.stacks import stacks_of


def attribute_translation(passed: FrozenTranslation, target: Float[Tensor, "1"]) -> ScalarAttribution:
    """Attribute a scalar of one text to the tokens of the source, then to those of the target.

    Gradient × input of the frozen model, as in `scalars.py`; the gradient reaches the source through the cross-attention of
    every layer. All biases are one part.

    Args:
        target: A scalar that autograd has recorded, linear in the logits.
    """
    leaves = [passed.source, passed.target, *passed.biases]
    gradients = torch.autograd.grad(target.sum(), leaves, allow_unused=True)
    parts = [
        wide(torch.zeros_like(leaf) if gradient is None else gradient) * wide(leaf.detach())
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]
    scores = torch.cat([part.sum(dim=-1) for part in parts[:2]], dim=-1)
    zero = wide(torch.zeros_like(target.detach()))
    bias = sum((part.sum() for part in parts[2:]), zero)
    return ScalarAttribution(scores, bias, zero, wide(target.detach()))


def translation_maps(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> ModelMaps:
    """ALTI+ of a batch of translations, in float64. Each stack takes a separate pass.

    Rows are the decoder's outputs; columns are the source's tokens, then those of the target. The first columns of a layer's
    map alone are the encoder's outputs.

    Args:
        model: The base model of an encoder–decoder in evaluation mode.
        inputs: Its keyword arguments, with both attention masks.

    Source: Ferrando et al. 2022b, ALTI+ (arXiv:2205.11631).
    """
    stacks = stacks_of(model)
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    encoder = model_maps(*stacks["encoder"], source, [MapMethod.ALTI])[MapMethod.ALTI]
    own: list[Tensor] = []
    layers: list[Tensor] = []

    def visit_own(block: AttentionBlock) -> None:
        own.append(attention_map(MapMethod.ALTI, MapStage.LAYER, block))

    def visit_cross(block: AttentionBlock) -> None:
        cross = cross_attention_map(block)
        layers.append(decoder_layer_map(cross[..., :-1], cross[..., -1], own[len(layers)]))

    with Observer(*stacks["decoder"]) as observer:
        observer.run(inputs, visit_own)
    with Observer(*stacks["cross"]) as observer:
        observer.run(inputs, visit_cross)
    so_far = torch.eye(own[0].shape[-1]).to(own[0]).expand_as(own[0])
    so_far = torch.nn.functional.pad(so_far, (encoder.total.shape[-1], 0))
    cumulative: list[Tensor] = []
    for layer in layers:
        so_far = through_decoder_layer(layer, encoder.total, so_far)
        cumulative.append(so_far)
    return ModelMaps(so_far, layers, cumulative)
