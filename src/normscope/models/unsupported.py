"""Configs that would be measured as something else than what they describe."""

import transformers
from transformers import PretrainedConfig

from normscope.errors import InputError
from normscope.models.families import FAMILIES, STACKS

# Families that are one in code: checkpoints of one are published under the name of another.
_SAME_FAMILY = frozenset({"roberta", "xlm-roberta", "camembert"})


def refuse_other_family(config: PretrainedConfig, name: str) -> None:
    """Refuse a config whose class of model is of another family: tensors of the same names and shapes would load in silence.

    Raises:
        InputError: If model_type and architectures disagree.
    """
    declared = config.architectures
    for architecture in declared if isinstance(declared, list) else ():
        model_class = getattr(transformers, architecture, None) if isinstance(architecture, str) else None
        family = getattr(getattr(model_class, "config_class", None), "model_type", None)
        if family not in (*FAMILIES, *STACKS, None) or family in (config.model_type, None):
            continue
        if not {family, config.model_type} <= _SAME_FAMILY:
            raise InputError(
                f"model.name={name}: its config.json says model_type {config.model_type}, but architectures "
                f"{architecture}, which is of the family {family}; one of them is wrong"
            )


def refuse_unsupported(config: PretrainedConfig) -> None:
    """Refuse a config of which transformers, or we, would leave out a part.

    Raises:
        InputError: If it is one; the message names the key.
    """
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(
            "quantization_config: quantised weights are not what the model computes with; set model.name to the model in "
            "float32, float16 or bfloat16"
        )
    # transformers 5 lets Gemma see later tokens only in batches without padding.
    if getattr(config, "use_bidirectional_attention", False) and getattr(config, "is_causal", True):
        raise InputError(
            "use_bidirectional_attention=true: transformers applies it to some batches and not to others; set is_causal=false "
            "in the config instead"
        )
    # transformers 5 dropped BERT's relative positions and would run such a checkpoint without them, in silence.
    kind = getattr(config, "position_embedding_type", None)
    if kind not in (None, "absolute"):
        raise InputError(f"position_embedding_type={kind!r} is not supported by transformers; set another model.name")
    if getattr(config, "talking_head", False):
        raise InputError(
            "talking_head=true mixes the weights of heads, which may become negative; set another model.name"
        )
