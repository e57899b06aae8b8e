"""Rotations of queries and keys, computed for each text as if it were alone.

LongRoPE has one set of frequencies for short texts and another for long ones; dynamic NTK scaling computes frequencies from the
length. transformers uses the padded length of the batch for every text in it, and dynamic scaling also remembers the longest
batch so far. The same text would then be rotated differently in different batches.

Sources: Ding et al. 2024 (arXiv:2402.13753) for LongRoPE; `transformers.modeling_rope_utils.dynamic_rope_update` for both.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# Types with fixed frequencies. All others are treated as length-dependent, which is always correct, only slower.
_FIXED = frozenset({"default", "linear", "yarn", "llama3", "proportional"})


def length_dependent_rotations(model: nn.Module) -> list[nn.Module]:
    """The modules of a model whose rotary frequencies depend on the length of a text."""
    return [module for module in model.modules() if not _types(module) <= _FIXED]


def rotate_each_alone(
    module: nn.Module, token_mask: Callable[[], Bool[Tensor, "batch token"] | None]
) -> RemovableHandle:
    """Make a module compute the rotation of each text of a batch as if it were alone.

    Args:
        module: One of `length_dependent_rotations`.
        token_mask: Returns the token mask of the current batch, False at padding; None leaves the module's output as it is.

    Returns:
        A handle that removes the change.
    """

    def replace(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> Any:
        tokens = token_mask()
        if tokens is None:
            return None
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        positions = arguments.get("position_ids")
        if not isinstance(positions, Tensor) or positions.shape[-1] != tokens.shape[1]:
            return None  # the rows and columns of patches
        return _rotations(module, arguments, tokens)

    return module.register_forward_hook(replace, with_kwargs=True)


def _rotations(
    module: nn.Module, arguments: dict[str, Any], token_mask: Bool[Tensor, "batch token"]
) -> tuple[Tensor, ...]:
    """Cosine and sine (batch, token, rotary) of each text alone; zero at its padding."""
    numbers = torch.arange(1, token_mask.shape[1] + 1, device=token_mask.device)
    lengths = (token_mask * numbers).amax(dim=1).clamp(min=1)
    positions = arguments["position_ids"].expand(len(token_mask), -1)
    result: tuple[Tensor, ...] = ()
    for length in lengths.unique().tolist():
        rows = lengths == length
        # Running a single token resets the longest length that dynamic scaling remembers.
        module.forward(**(arguments | {"position_ids": torch.zeros_like(positions[:1, :1])}))
        alone = module.forward(**(arguments | {"position_ids": positions[rows, :length]}))
        result = result or tuple(part.new_zeros(*positions.shape, part.shape[-1]) for part in alone)
        for part, part_alone in zip(result, alone, strict=True):
            part[rows, :length] = part_alone
    return result


def _types(module: nn.Module) -> frozenset[str]:
    """The types of rotary embedding that a module computes; there may be one per type of layer."""
    rope_type = getattr(module, "rope_type", None)
    if rope_type is None:
        return frozenset()
    return frozenset(rope_type.values() if isinstance(rope_type, dict) else [rope_type])
