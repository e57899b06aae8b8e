"""Rotary positions whose frequencies depend on the length of a text, applied to every text of a batch as if it were alone.

LongRoPE has one set of frequencies for short texts and another for long ones; dynamic NTK scaling computes its set from the
length. transformers takes the padded length of the batch for the length of each text in it, and dynamic scaling also
remembers the longest batch so far. A text would then be rotated differently in different company.

Sources: Ding et al. 2024 (arXiv:2402.13753) for LongRoPE; `transformers.modeling_rope_utils.dynamic_rope_update` for both.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# Types whose frequencies are fixed when the model is built. Any other type is treated as dependent on the length, which is
# always right and only costs time.
_FIXED = frozenset({"default", "linear", "yarn", "llama3", "proportional"})


def length_dependent_rotations(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that compute rotary positions whose frequencies depend on the length of a text."""
    return [module for module in model.modules() if not _types(module) <= _FIXED]


def rotate_each_alone(
    module: nn.Module, token_mask: Callable[[], Bool[Tensor, "batch token"] | None]
) -> RemovableHandle:
    """Make a module rotate every text of a batch as if it were alone.

    Args:
        module: One of `length_dependent_rotations`.
        token_mask: Gives the tokens of the current batch, True where they are not padding; None leaves the module as it is.

    Returns:
        Undoes it.
    """

    def replace(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> Any:
        tokens = token_mask()
        if tokens is None:
            return None
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        return _rotations(module, arguments, tokens)

    return module.register_forward_hook(replace, with_kwargs=True)


def _rotations(
    module: nn.Module, arguments: dict[str, Any], token_mask: Bool[Tensor, "batch token"]
) -> tuple[Tensor, ...]:
    """Cosine and sine, (batch, token, rotary): those of each text alone, zero at padding after it."""
    places = torch.arange(1, token_mask.shape[1] + 1, device=token_mask.device)
    lengths = (token_mask * places).amax(dim=1).clamp(min=1)
    positions = arguments["position_ids"].expand(len(token_mask), -1)
    result: tuple[Tensor, ...] = ()
    for length in lengths.unique().tolist():
        rows = lengths == length
        # A single token makes a dynamic module forget the longest text that it has seen.
        module.forward(**(arguments | {"position_ids": torch.zeros_like(positions[:1, :1])}))
        alone = module.forward(**(arguments | {"position_ids": positions[rows, :length]}))
        result = result or tuple(part.new_zeros(*positions.shape, part.shape[-1]) for part in alone)
        for part, of_rows in zip(result, alone, strict=True):
            part[rows, :length] = of_rows
    return result


def _types(module: nn.Module) -> frozenset[str]:
    """Types of the rotary positions that a module computes, which may differ between types of layers."""
    given = getattr(module, "rope_type", None)
    if given is None:
        return frozenset()
    return frozenset(given.values() if isinstance(given, dict) else [given])
