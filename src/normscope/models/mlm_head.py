"""Loads the masked-language-modelling head of a checkpoint, if it has one."""

from pathlib import Path

from transformers import AutoModelForMaskedLM, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel


def masked_language_head(
    folder: Path, config: PretrainedConfig, base: PreTrainedModel, *, allow_pickle: bool, trust_remote_code: bool
) -> PreTrainedModel | None:
    """Load a checkpoint's masked language model around its base model, which is already loaded.

    Args:
        folder: The checkpoint's folder.
        config: Its config.
        base: Its base model, which becomes part of the result, so weights are in memory once.
        allow_pickle: Whether weights may be pickled.
        trust_remote_code: Whether to run code that comes with the checkpoint.

    Returns:
        The model; None if its family has no such head, or the checkpoint no weights for it.
    """
    # An encoder–decoder predicts masked tokens with its decoder, not with a head on the observed stack.
    if config.is_encoder_decoder or type(config) not in AutoModelForMaskedLM._model_mapping:
        return None
    model, loading = AutoModelForMaskedLM.from_pretrained(
        folder,
        config=config,
        dtype=base.dtype,
        use_safetensors=None if allow_pickle else True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    if loading["missing_keys"]:
        return None
    setattr(model, model.base_model_prefix, base)
    model.tie_weights()
    return model.to(base.device).eval().requires_grad_(False)
