"""Loads the masked-language-modelling head of a checkpoint, if it has one."""

from pathlib import Path

from transformers import AutoModelForMaskedLM, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.architecture import silent_warnings
from normscope.models.weight_checks import check_dtypes, check_finite, check_shapes


def masked_language_head(
    folder: Path,
    config: PretrainedConfig,
    base: PreTrainedModel,
    *,
    name: str,
    allow_pickle: bool,
    trust_remote_code: bool,
) -> PreTrainedModel | None:
    """Load a checkpoint's masked language model around its base model, which is already loaded.

    Args:
        folder: The checkpoint's folder.
        config: Its config.
        base: Its base model, which becomes part of the result, so weights are in memory once.
        name: The model's name, for messages.
        allow_pickle: Whether weights may be pickled.
        trust_remote_code: Whether to run code that comes with the checkpoint.

    Returns:
        The model; None if its family has no such head, or the checkpoint no weights for it.

    Raises:
        InputError: If the head's weights cannot be used.
    """
    # An encoder–decoder predicts masked tokens with its decoder, not with a head on the observed stack.
    if config.is_encoder_decoder or type(config) not in AutoModelForMaskedLM._model_mapping:
        return None
    try:
        with silent_warnings():
            model, loading = AutoModelForMaskedLM.from_pretrained(
                folder,
                config=config,
                dtype=base.dtype,
                use_safetensors=None if allow_pickle else True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
    except Exception as error:  # an architecture's head fails on foreign weights in its own way
        raise InputError(f"model.name={name}: its masked-language-modelling head: {one_line(error)}") from error
    check_shapes(loading["mismatched_keys"], name)
    if loading["missing_keys"]:
        return None
    check_dtypes(model, folder, name)
    check_finite(model, name)
    setattr(model, model.base_model_prefix, base)
    model.tie_weights()
    return model.to(base.device).eval().requires_grad_(False)
