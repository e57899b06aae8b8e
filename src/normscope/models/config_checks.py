"""Checks on a config: a model that would not compute what its config describes is refused."""

import transformers
from transformers import PretrainedConfig

from normscope.errors import InputError
from normscope.models.quantised_checkpoints import check_readable

# Families that share their code: checkpoints of one are published under the name of another.
_SAME_FAMILY = frozenset({"roberta", "xlm-roberta", "camembert"})


# The deepest published models have a few hundred layers. Modules are built one by one, so a wrong number takes for ever.
_MOST_LAYERS = 10_000


def check_family(config: PretrainedConfig, name: str) -> None:
    """Check that the config's model_type and architectures name the same family.

    Tensors of another family with the same names and shapes would load without a warning.

    Args:
        config: The config of a checkpoint.
        name: The model's name, for messages.

    Raises:
        InputError: If they differ.
    """
    declared = config.architectures
    for architecture in declared if isinstance(declared, list) else ():
        model_class = getattr(transformers, architecture, None) if isinstance(architecture, str) else None
        family = getattr(getattr(model_class, "config_class", None), "model_type", None)
        if family in (config.model_type, None):
            continue
        if not {family, config.model_type} <= _SAME_FAMILY:
            raise InputError(
                f"model.name={name}: expected model_type and architectures in its config.json to name the same family, got "
                f"model_type {config.model_type} and architectures {architecture}, of the family {family}; correct one of them"
            )


def check_supported(config: PretrainedConfig) -> None:
    """Check that transformers and normscope implement everything that a config asks for.

    Raises:
        InputError: If they do not; the message names the key.
    """
    for key, value in vars(config).items():
        if "layer" in key and isinstance(value, int) and value > _MOST_LAYERS:
            raise InputError(
                f"{key}={value} in the model's config: expected at most {_MOST_LAYERS:,} layers; correct the config.json of "
                "model.name, or model.architecture"
            )
    size = getattr(config, "hidden_size", None)
    if isinstance(size, int) and size < 1:
        raise InputError(
            f"hidden_size={size} in the model's config: expected at least 1; correct the config.json of model.name, or "
            "model.architecture"
        )
    check_readable(config)
    # In transformers 5.23, Gemma sees later tokens only in batches without padding. Gemma 2 no longer does.
    inconsistent = config.model_type == "gemma" and getattr(config, "is_causal", True)
    if inconsistent and getattr(config, "use_bidirectional_attention", False):
        raise InputError(
            "use_bidirectional_attention=true: transformers applies it to some batches and not to others; set is_causal=false "
            "in the config instead"
        )
