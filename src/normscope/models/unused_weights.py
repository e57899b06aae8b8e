"""Weights of a checkpoint that its model would leave out or misread: an error that names the tensor."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.models.files import weight_files

# What older versions of transformers saved beside the weights, or what a base model may be built without.
_HARMLESS = re.compile(
    r"(^|\.)(pooler\..*|position_ids|inv_freq|embed_positions\.weights|version|(attn|attention)\.masked_bias)$"
)

# Masks that GPT-2 and GPT-NeoX used to save.
_MASKS = re.compile(r"\.(attn|attention)\.bias$")

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


def refuse_unused(model: PreTrainedModel, unexpected: Collection[str], name: str) -> None:
    """Refuse a checkpoint of whose base model some tensors are not used.

    Tensors outside the base model are those of heads, which it rightly leaves out.

    Args:
        model: The base model that was loaded.
        unexpected: Names of the checkpoint's tensors that it did not take.
        name: For messages.

    Raises:
        InputError: If one of them is inside the base model.
    """
    unused = sorted(key for key in unexpected if _inside(model, key) and not _HARMLESS.search(key))
    if unused:
        raise InputError(
            f"model.name={name}: its weights hold {len(unused)} tensors that the model does not use, {unused[0]} first; "
            "config.json does not describe these weights: see its model_type and its number of layers"
        )


def refuse_other_numbers(model: PreTrainedModel, folder: Path, name: str) -> None:
    """Refuse weights that are no plain floating-point numbers, which loading would cast without a word.

    Args:
        model: The base model that was loaded.
        folder: Where its weight files are.
        name: For messages.

    Raises:
        InputError: If a tensor of the base model is complex, an integer or in eight bits.
    """
    for file in weight_files(folder):
        for key, kind in _types(file):
            if kind in _FLOATS or not _inside(model, key) or _HARMLESS.search(key) or _MASKS.search(key):
                continue
            raise InputError(
                f"model.name={name}: the weight {key} in {file.name} is of type {kind}; expected float64, float32, float16 or "
                "bfloat16: use a checkpoint that is not quantised"
            )


def _types(file: Path) -> Iterator[tuple[str, str]]:
    """Every tensor's name and type, without reading a tensor."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - no mapping
                yield key, tensors.get_slice(key).get_dtype()
        return
    names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for key, value in torch.load(file, map_location="meta", weights_only=True).items():
        if isinstance(value, torch.Tensor):
            yield key, names.get(value.dtype, str(value.dtype).removeprefix("torch."))


def _inside(model: PreTrainedModel, key: str) -> bool:
    """Whether a tensor belongs to the base model, with or without its prefix."""
    first = key.partition(".")[0]
    parts = {name for name, _ in [*model.named_children(), *model.named_parameters(recurse=False)]}
    return first in parts or first == model.base_model_prefix
