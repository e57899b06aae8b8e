"""Checks on a config: a model that would not compute what its config describes is refused."""

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import CONFIG_MAPPING, PretrainedConfig

from normscope.errors import InputError, printable
from normscope.untrusted.plain_data import MIB, json_value, shown

# Families that share their code: checkpoints of one are published under the name of another.
_SAME_FAMILY = frozenset({"roberta", "xlm-roberta", "camembert"})


# The deepest published models have a few hundred layers. Configs list what each layer is, so a wrong number takes all memory.
_MOST_LAYERS = 10_000
# Modules are built one by one, so many in half a minute. Large mixtures of experts have 100,000.
_MOST_MODULES = 200_000
_TOO_MANY = f"expected a config of at most {_MOST_MODULES:,} modules, got more"
# The widest published models have some 20,000 dimensions.
_LARGEST = 1_000_000


@contextlib.contextmanager
def silent_warnings() -> Iterator[None]:
    """Silence transformers' warnings about a config's values: an invalid one is an error with a line of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextlib.contextmanager
def bounded_modules(most: int = _MOST_MODULES, refusal: str = _TOO_MANY) -> Iterator[None]:
    """Context in which a model may be built, whatever the keys of its config that say how often something is repeated.

    Args:
        most: The largest number of modules.
        refusal: The line for a model that has more.

    Raises:
        InputError: If it has more.
    """
    count = itertools.count(1)

    def refuse_more(*_: object) -> None:
        if next(count) > most:
            raise InputError(refusal)

    handle = register_module_module_registration_hook(refuse_more)
    try:
        yield
    finally:
        handle.remove()


def check_config_file(folder: Path, name: str) -> None:
    """Check that a config.json is one, and that reading it takes no more memory than it has.

    Configs make a name for every label, and many an entry for every layer.

    Raises:
        InputError: If it cannot be read, has too many labels or layers, or a negative ε.
    """
    path = folder / "config.json"
    try:
        config = json_value(path, MIB * 64)
        if not isinstance(config, dict):
            raise InputError(f"{path}: expected a mapping, got {shown(config)}")
    except InputError as error:
        raise InputError(f"model.name={name}: its config.json cannot be used: {error}") from error
    for place in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key, most in {"num_labels": _LARGEST, **dict.fromkeys(_counts_of_layers(place), _MOST_LAYERS)}.items():
            number = place.get(key)
            if isinstance(number, int | float) and not 0 <= number <= most:
                raise InputError(
                    f"model.name={name}: its config.json cannot be used: expected from 0 to {most:,} for {key}, got "
                    f"{shown(number)}"
                )
        for key, number in place.items():
            if (
                f"_{key}".endswith(("_eps", "_epsilon"))
                and isinstance(number, int | float)
                and not 0 <= number < math.inf
            ):
                raise InputError(
                    f"model.name={name}: its config.json cannot be used: expected a finite {printable(key, 60)} of at least 0, "
                    f"got {shown(number)}"
                )


def _counts_of_layers(config: Mapping[str, Any]) -> set[str]:
    """The keys that its family reads as the number of layers."""
    family = config.get("model_type")
    known = isinstance(family, str) and family in CONFIG_MAPPING
    renamed = CONFIG_MAPPING[family].attribute_map if known else {}
    return {"num_hidden_layers", renamed.get("num_hidden_layers", "num_hidden_layers")}


def check_family(config: PretrainedConfig, name: str) -> None:
    """Check that the config's model_type and architectures name the same family.

    Tensors of another family with the same names and shapes would load without a warning.

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
    size = getattr(config, "hidden_size", None)
    if isinstance(size, int) and not 1 <= size <= _LARGEST:
        raise InputError(
            f"hidden_size={size} in the model's config: expected from 1 to {_LARGEST:,}; correct the config.json of "
            "model.name"
        )
    if _sees_later_tokens_at_times(config):
        raise InputError(
            "use_bidirectional_attention=true: transformers applies it to some batches and not to others; set is_causal=false "
            "in the config instead"
        )


def see_later_tokens(text: PretrainedConfig) -> None:
    """Let the tokens of a language model see later ones in every batch if they do in some.

    Of a model that reads images (PaliGemma), the processor marks all that it writes as a prefix, whose tokens see one another.
    """
    if _sees_later_tokens_at_times(text):
        text.is_causal = False


def _sees_later_tokens_at_times(config: PretrainedConfig) -> bool:
    # In transformers 5.23, Gemma sees later tokens only in batches without padding. Gemma 2 no longer does.
    inconsistent = config.model_type == "gemma" and getattr(config, "is_causal", True)
    return bool(inconsistent and getattr(config, "use_bidirectional_attention", False))
