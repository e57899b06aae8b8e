"""One proof for each model that the tests load: many load the same tiny checkpoint, for which it is the same every time."""

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.models.load import loaded, vectors


def prove_once(patch: pytest.MonkeyPatch) -> None:
    """Let loaded models take over what has been found out in this process about another one that is the same.

    That is for models whose modules are all of transformers or torch, or ours around these: they are the same if code, config
    and weights are.
    """
    for function in (loaded.verify, loaded.batching_of):
        patch.setattr(loaded, function.__name__, _kept(function))


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    found: dict[object, Any] = {}

    @functools.wraps(function)
    def once(model: PreTrainedModel, *given: Any, **options: Any) -> Any:
        if not all(map(_is_stock, model.modules())):
            return function(model, *given, **options)
        of_facts = (each for each in given if not isinstance(each, str))  # but not of names, which are for messages
        key = *of_facts, *options.items(), _digest(model), *map(_code, model.modules())
        if key not in found:
            found[key] = function(model, *given, **options)
        return found[key]

    return once


def _is_stock(module: nn.Module) -> bool:
    """Whether a module is of a class of these libraries, and nothing changes what it returns."""
    return (
        type(module).__module__.startswith(("transformers.", "torch.", vectors.__name__))
        and "forward" not in vars(module)
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def _code(module: nn.Module) -> tuple[Any, ...]:
    """The function that runs, which a test may have replaced in the class, and the module's settings."""
    settings = [(name, value) for name, value in vars(module).items() if isinstance(value, int | float | str)]
    return type(module).forward, *settings


def _digest(model: PreTrainedModel) -> str:
    """A hash of config and weights, and of where and in which type these are."""
    digest = hashlib.blake2b(f"{model.config._attn_implementation} {model.config.to_json_string()}".encode())
    for name, tensor in _tensors(model):
        digest.update(f"{name} {tensor.dtype} {tensor.device} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
