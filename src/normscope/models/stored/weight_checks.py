"""Checks on a checkpoint's weights: the model uses all of them, unchanged, and nothing else."""

import collections
import contextlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line, printable
from normscope.models.stored.config_checks import bounded_modules, silent_warnings
from normscope.models.stored.files import weight_files
from normscope.models.stored.stored_weights import weights_present

# Tensors of a base model that no block depends on: masked-language-model checkpoints have no pooler.
UNOBSERVED_PARTS = ("pooler.",)

# Buffers that older versions of transformers saved, and parts that a base model may be built without.
_HARMLESS = re.compile(
    r"(^|\.)(pooler\..*|position_ids|inv_freq|embed_positions\.weights|version|(attn|attention)\.masked_bias)$"
)

# Masks that GPT-2 and GPT-NeoX used to save.
_MASKS = re.compile(r"\.(attn|attention)\.bias$")

_WRAPPERS = {
    "_orig_mod": "torch.compile",
    "module": "DataParallel or DistributedDataParallel",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning",
}
"""What those who wrap a module call it, and who they are."""

_MUCH_LARGER = 2
"""Times as many numbers as the weights hold: a checkpoint leaves out tied weights and poolers, and no more."""
_MODULES, _SHARED = 10, 1000
"""Times as many modules as tensors, most of which are a module's only one; and tensors that layers may share."""
_SMALL, _MOST_COMPUTED = 2**24, 2**30
"""Numbers that take no noticeable memory, and those that architectures compute: masks and sinusoids of all positions."""

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


def check_shapes(mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]], name: str) -> None:
    """Check that a checkpoint's tensors have the shapes that its config describes.

    Args:
        mismatched: Name, shape in the checkpoint and shape in the model of each tensor whose shapes differ.
        name: The model's name, for messages.
    """
    tensors = sorted((key, tuple(shape), tuple(expected)) for key, shape, expected in mismatched)
    if tensors:
        key, shape, expected = tensors[0]
        more = f" ({len(tensors) - 1} more differ)" if len(tensors) > 1 else ""
        raise InputError(
            f"model.name={name}: the weight {key} has the shape {shape}, but its config.json describes {expected}{more}; use "
            "the config and the weights of one checkpoint"
        )


def check_size(config: PretrainedConfig, folder: Path, name: str) -> None:
    """Check that a config does not describe a model far larger than its weights, before memory is taken for it.

    Raises:
        InputError: If it does.
    """
    try:
        stored = {key: shape for file in weight_files(folder) for key, shape, _ in tensors_in(file)}
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"model.name={name}: its weights cannot be read: {one_line(error)}") from error
    most = _MODULES * (len(stored) + _SHARED)
    refusal = (
        f"model.name={name}: its config.json describes a model of more than {most:,} modules, but its weights hold only "
        f"{len(stored):,} tensors; use the config and the weights of one checkpoint"
    )
    try:
        with torch.device("meta"), silent_warnings(), bounded_modules(most, refusal):
            model = AutoModel.from_config(config)
    except InputError:
        raise
    except Exception:  # of an invalid config, which loading explains
        return
    weights = dict(model.named_parameters())
    held = sum(map(math.prod, stored.values()))
    described = sum(weight.numel() for weight in weights.values())
    computed = sum(buffer.numel() for buffer in model.buffers())
    if described <= _MUCH_LARGER * held + _SMALL and computed <= _MUCH_LARGER * held + _MOST_COMPUTED:
        return
    prefixes = ("", f"{model.base_model_prefix}.")
    named = {key.removeprefix(prefix): shape for key, shape in stored.items() for prefix in prefixes}
    check_shapes(
        [
            (key, named[short], weight.shape)
            for key, weight in weights.items()
            for short in [key.removeprefix(prefixes[1])]
            if short in named and tuple(named[short]) != tuple(weight.shape)
        ],
        name,
    )
    raise InputError(
        f"model.name={name}: its config.json describes a model of {max(described, computed):,} numbers, but its weights hold "
        f"{held:,}; use the config and the weights of one checkpoint"
    )


def check_none_missing(
    config: PretrainedConfig, missing: Collection[str], unexpected: Collection[str], name: str
) -> None:
    """Check that a checkpoint has all weights of its base model, which would otherwise be random.

    Args:
        config: The checkpoint's config.
        missing: Names of the model's tensors that the checkpoint lacks.
        unexpected: Names of the checkpoint's tensors that the model does not use.
        name: The model's name, for messages.

    Raises:
        InputError: If a tensor is missing that a block depends on.
    """
    needed = sorted(key for key in missing if not key.startswith(UNOBSERVED_PARTS))
    if needed:
        computed = _computed(config)
        needed = [key for key in needed if key not in computed]
    if not needed:
        return
    added = _added(needed, unexpected)
    wrapper = next((what for part, what in _WRAPPERS.items() if part in (added or "").split(".")), None)
    if wrapper is not None:
        raise InputError(
            f"model.name={name}: the names of {len(needed)} of its weights have {added} before or in the model's own names, "
            f"which {wrapper} adds; save the model without its wrapper, or remove this from the names"
        )
    prefix = "" if added is None else f" (its own have {added} before these names)"
    raise InputError(
        f"model.name={name}: its weights lack {len(needed)} of the model's tensors, for example {needed[0]}, which would "
        f"be random{prefix}; check that the checkpoint belongs to the family in its config.json"
    )


def _added(missing: Collection[str], unexpected: Collection[str]) -> str | None:
    """What a checkpoint's names have besides those of the tensors that the model lacks; None if they are other names."""
    wanted = set(missing)
    found: collections.Counter[str] = collections.Counter()
    for key in unexpected:
        parts = key.split(".")
        own = [part for part in parts if part not in _WRAPPERS]
        # The name in the model is what remains behind a prefix, wherever wrappers are.
        begin = next((number for number in range(len(own)) if ".".join(own[number:]) in wanted), None)
        if begin is None:
            continue
        wrappers = [part for part in parts if part in _WRAPPERS]
        found[".".join(dict.fromkeys(wrappers or own[:begin])) + "."] += 1
    if found.total() * 2 < len(wanted):
        return None
    added, _ = found.most_common(1)[0]
    return added


def check_all_used(model: PreTrainedModel, unexpected: Collection[str], name: str) -> None:
    """Check that a base model uses all of its weights in a checkpoint.

    Other tensors belong to heads, which the base model rightly ignores.

    Args:
        model: The base model, loaded.
        unexpected: Names of the checkpoint's tensors that it does not use.
        name: The model's name, for messages.

    Raises:
        InputError: If one of them belongs to the base model.
    """
    unused = sorted(key for key in unexpected if _in_base_model(model, key) and not _HARMLESS.search(key))
    if unused:
        raise InputError(
            f"model.name={name}: its weights have {len(unused)} tensors that the model does not use, for example {unused[0]}; "
            "config.json does not describe these weights: check its model_type and number of layers"
        )


def check_dtypes(model: PreTrainedModel, folder: Path, name: str) -> None:
    """Check that weights are stored as floating-point numbers of 16 bits or more; loading would cast others without a warning.

    Raises:
        InputError: If a tensor of the base model is complex, integer or has eight bits.
    """
    for file in weight_files(folder):
        for key, _, dtype in tensors_in(file):
            if dtype in _FLOATS or not _in_base_model(model, key) or _HARMLESS.search(key) or _MASKS.search(key):
                continue
            raise InputError(
                f"model.name={name}: expected weights in float64, float32, float16 or bfloat16, got {dtype} for {key} in "
                f"{file.name}; set model.name to a checkpoint that is not quantised"
            )


def check_pickles(folder: Path, name: str) -> None:
    """Check that pickled weight files hold named tensors and nothing else. Nothing in them is run.

    Raises:
        InputError: If one is damaged or holds something else.
    """
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            continue
        try:
            content = torch.load(file, map_location="meta", weights_only=True)
        except Exception as error:  # a damaged pickle fails in many ways, and PyTorch's advice is to trust it
            raise InputError(
                f"model.name={name}: {file.name} is damaged, or holds something other than tensors; set model.name to another "
                "checkpoint"
            ) from error
        entries = content.items() if isinstance(content, Mapping) else [(None, content)]
        for key, value in entries:
            if not (isinstance(key, str) and isinstance(value, torch.Tensor)):
                where = "" if key is None else f" for {printable(repr(key), 60)}"
                raise InputError(
                    f"model.name={name}: expected named tensors in {file.name}, got {type(value).__name__}{where}; set "
                    "model.name to another checkpoint"
                )


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Check that no weight is NaN or infinite."""
    for path, module in model.named_modules():
        own = [key for key, _ in module.named_parameters(prefix=path, recurse=False)]
        with weights_present(module) if own else contextlib.nullcontext():
            for key, parameter in module.named_parameters(prefix=path, recurse=False):
                # The sum is finite only if every term is; unlike isfinite on the parameter, it needs no tensor of that size.
                if not torch.isfinite(parameter.sum(dtype=torch.float64)):
                    raise InputError(
                        f"model.name={name}: NaN or infinity in the weight {key}; set model.name to another checkpoint"
                    )


def _computed(config: PretrainedConfig) -> set[str]:
    """Tensors that the architecture computes instead of training (Marian's sinusoids), so checkpoints leave them out."""
    with torch.device("meta"):
        untrained = AutoModel.from_config(config)
    return {key for key, parameter in untrained.named_parameters() if not parameter.requires_grad}


def tensors_in(file: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """The name, shape and dtype of every tensor in a weight file, without reading the tensors.

    Raises:
        OSError | SafetensorError | ValueError: If the file cannot be read.
    """
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a mapping
                part = tensors.get_slice(key)
                yield key, tuple(part.get_shape()), part.get_dtype()
        return
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for key, value in torch.load(file, map_location="meta", weights_only=True).items():
        yield key, tuple(value.shape), names.get(value.dtype, str(value.dtype).removeprefix("torch."))


def _in_base_model(model: PreTrainedModel, key: str) -> bool:
    """Whether a tensor belongs to the base model, with or without its prefix."""
    first = key.partition(".")[0]
    parts = {name for name, _ in [*model.named_children(), *model.named_parameters(recurse=False)]}
    return first in parts or first == model.base_model_prefix
