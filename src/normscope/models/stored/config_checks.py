"""Checks on a config: a model that would not compute what its config describes is refused."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import transformers
from transformers import PretrainedConfig

from normscope.errors import InputError, printable
from normscope.untrusted.plain_data import LARGEST, MIB, json_mapping, shown

# Families that share their code: checkpoints of one are published under the name of another.
_SAME_FAMILY = frozenset({"roberta", "xlm-roberta", "camembert"})


# The deepest published models have a few hundred layers. Modules are built one by one, so a wrong number takes for ever.
_MOST_LAYERS = 10_000
# The widest published models have some 20,000 dimensions. A layer is inferred dimension by dimension.
_LARGEST = 1_000_000


@contextlib.contextmanager
def silent_warnings() -> Iterator[None]:
    """Silence transformers' warnings about a config's values: an invalid one is an error with a line of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def check_config_file(folder: Path, name: str) -> None:
    """Check that a config.json is one, and that reading it takes no more memory than it has: a name is made for every label.

    Args:
        folder: The model's folder.
        name: The model's name, for messages.

    Raises:
        InputError: If it cannot be read, or has too many labels.
    """
    try:
        config = json_mapping(folder / "config.json", MIB * 64, finite=False, whole=LARGEST)
    except InputError as error:
        raise InputError(f"model.name={name}: its config.json cannot be used: {error}") from error
    for place in (config, *(value for value in config.values() if isinstance(value, dict))):
        labels = place.get("num_labels")
        if isinstance(labels, int | float) and not 0 <= labels <= _LARGEST:
            raise InputError(
                f"model.name={name}: its config.json cannot be used: expected from 0 to {_LARGEST:,} for num_labels, got "
                f"{shown(labels)}"
            )


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


def check_not_quantised(config: PretrainedConfig) -> None:
    """Check that the weights of a checkpoint are floating-point numbers, not integers with scales.

    Raises:
        InputError: If they are quantised.
    """
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return
    method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    found = "quantised ones" if method is None else printable(str(getattr(method, "value", method)), 60)
    raise InputError(
        f"quantization_config in the model's config: expected weights that are not quantised, got {found}; set model.name to "
        "a model in float32, float16 or bfloat16"
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
                "model.name"
            )
    size = getattr(config, "hidden_size", None)
    if isinstance(size, int) and not 1 <= size <= _LARGEST:
        raise InputError(
            f"hidden_size={size} in the model's config: expected from 1 to {_LARGEST:,}; correct the config.json of "
            "model.name"
        )
    # In transformers 5.23, Gemma sees later tokens only in batches without padding. Gemma 2 no longer does.
    inconsistent = config.model_type == "gemma" and getattr(config, "is_causal", True)
    if inconsistent and getattr(config, "use_bidirectional_attention", False):
        raise InputError(
            "use_bidirectional_attention=true: transformers applies it to some batches and not to others; set is_causal=false "
            "in the config instead"
        )
