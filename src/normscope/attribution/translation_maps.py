"""Maps of an encoder–decoder: which tokens of the source and of the target so far each output comes from."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.layer_maps import attention_map, cross_attention_map
from normscope.attribution.methods import MapMethod, MapStage
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.maths.contributions import decoder_layer_map, through_decoder_layer
from normscope.models.block import AttentionBlock
from normscope.models.observer import Observer
from normscope.models.stacks import stacks_of


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
