"""Translations: the next token attributed to the tokens of the source and those of the target so far, and their maps."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.layer_maps import attention_map, cross_attention_map
from normscope.attribution.methods import MapMethod, MapStage
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.attribution.passes import held_translation
from normscope.attribution.scalars import attribute_scalars
from normscope.maths.contributions import decoder_layer_map, through_decoder_layer
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.check import Check
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import stacks_of


def attribute_words(head: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Float[Tensor, "target token"]:
    """Scores of the logit of every token of the target that follows the first, in float64, for a single translation.

    Row t is about the target's token t + 1, which the model predicts where it reads token t. Columns are the source's tokens,
    then those of the target; later ones have 0.

    Args:
        head: An encoder–decoder with its head, in evaluation mode.
        inputs: Its keyword arguments.

    Raises:
        InputError: If attribution cannot follow the model.
    """
    following = inputs["decoder_input_ids"][0, 1:]
    passed = held_translation(head, inputs)
    logits = passed.output.logits[0, :-1]
    return attribute_scalars(passed, logits.gather(-1, following[:, None].to(logits.device))[:, 0]).scores


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
        observer.run(inputs, visit_own, check=Check.TEXTS)
    with Observer(*stacks["cross"]) as observer:
        observer.run(inputs, visit_cross, check=Check.TEXTS)
    so_far = torch.eye(own[0].shape[-1]).to(own[0]).expand_as(own[0])
    so_far = torch.nn.functional.pad(so_far, (encoder.total.shape[-1], 0))
    cumulative: list[Tensor] = []
    for layer in layers:
        so_far = through_decoder_layer(layer, encoder.total, so_far)
        cumulative.append(so_far)
    return ModelMaps(so_far, layers, cumulative)
