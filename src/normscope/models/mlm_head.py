"""The masked-language-modelling head of a checkpoint, where it has one."""

from pathlib import Path

from transformers import AutoModelForMaskedLM, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel


def masked_language_head(
    folder: Path, config: PretrainedConfig, base: PreTrainedModel, *, allow_pickle: bool, trust_remote_code: bool
) -> PreTrainedModel | None:
    """The checkpoint's masked language model around a base model that is loaded already.

    Args:
        folder: The checkpoint.
        config: Its config.
        base: Its base model, which becomes the inside of the result: weights are held once.
        allow_pickle: Whether weights may be other than safetensors.
        trust_remote_code: Whether code that comes with the checkpoint may run.

    Returns:
        None if the family has no such head or the checkpoint lacks its weights.
    """
    # An encoder–decoder fills its gaps with its decoder: no head reads the one stack that is observed.
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
