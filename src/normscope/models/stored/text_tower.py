"""The text tower of a multimodal model: the part that reads tokens, as a model of its own."""

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForPreTraining,
    PretrainedConfig,
)
from transformers.modeling_utils import PreTrainedModel


def class_of(auto: Any, config: PretrainedConfig) -> Any:
    """The class that one of transformers' `Auto` classes makes from a config; None if there is none.

    transformers lists some classes that it does not have (Voxtral's text part).
    """
    try:
        return auto._model_mapping.get(type(config), None)
    except ValueError:
        return None


def image_text_class(config: PretrainedConfig) -> Any:
    """The class of models that read images and texts in a language model, with its head; None if there is none."""
    return class_of(AutoModelForImageTextToText, config) or retriever_class(config)


def retriever_class(config: PretrainedConfig) -> Any:
    """The class of models that make a vector of each token of a page or a query (ColPali); None for any other config.

    These are the only ones that transformers knows with their head alone.
    """
    return class_of(AutoModelForPreTraining, config) if class_of(AutoModel, config) is None else None


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config of a multimodal model's text tower, if that is a separate model; otherwise the config itself."""
    text = config.get_text_config()
    if text is config or config.is_encoder_decoder or getattr(text, "add_cross_attention", False):
        return config
    return text if type(text) in AutoModel._model_mapping else config


def text_tower(whole: PreTrainedModel) -> PreTrainedModel:
    """The text tower of a multimodal model, with the head on its tokens if there is one; any other model as it is.

    The result is made of the model's own modules.
    """
    text = text_config(whole.config)
    if text is whole.config:
        return whole
    causal = class_of(AutoModelForCausalLM, text)
    found = _only(whole, causal) or _only(whole, class_of(AutoModel, text))
    if found is None:
        return whole
    return found if causal is None or isinstance(found, causal) else _with_head(found, whole, causal)


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """The base model of a model with a head; any other model as it is.

    Some classes name no part that is their base model, or one that they do not have (Llama 4's): it is then the only part
    of the class that the family's base models have.
    """
    base = model.base_model
    if base is not model and isinstance(base, PreTrainedModel):
        # BART's decoder with a head lies in a wrapper, which looks up no tokens itself.
        return base if _looks_up(base) else next(filter(_looks_up, _parts(base)), base)
    kind = class_of(AutoModel, model.config)
    if kind is not None:
        return model if isinstance(model, kind) else _only(model, kind) or model
    # No base model of Mllama's text part can be made from its config.
    parts = [] if model.config.is_encoder_decoder else [part for part in _parts(model) if _looks_up(part)]
    return parts[0] if len(parts) == 1 else model


def _parts(model: PreTrainedModel) -> list[PreTrainedModel]:
    return [part for part in model.children() if isinstance(part, PreTrainedModel)]


def _looks_up(model: PreTrainedModel) -> bool:
    try:
        return isinstance(model.get_input_embeddings(), nn.Embedding)
    except (NotImplementedError, AttributeError):
        return False


def _only(whole: PreTrainedModel, kind: type | None) -> PreTrainedModel | None:
    """The part of a model that is of a kind; None if there is none, or more than one."""
    parts = [] if kind is None else [module for module in whole.modules() if isinstance(module, kind)]
    return parts[0] if len(parts) == 1 else None


def _with_head(tower: PreTrainedModel, whole: PreTrainedModel, kind: Any) -> PreTrainedModel:
    """A tower with the whole model's head, if that makes what the whole model makes of text alone; otherwise the tower."""
    head = whole.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return tower
    with torch.device("meta"):  # all that has weights is replaced
        view: PreTrainedModel = kind(tower.config)
    setattr(view, view.base_model_prefix, tower)
    view.set_output_embeddings(head)
    view.train(whole.training)
    ids = torch.arange(4, device=head.weight.device)[None]
    try:
        with torch.inference_mode():
            expected, made = (model(input_ids=ids, attention_mask=ids >= 0).logits for model in (whole, view))
    except Exception:  # models that read images may not do without them
        return tower
    # Aya Vision leaves out its tower's factor on the logits.
    return view if torch.allclose(made, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())) else tower
