"""Names what is wrong with a model that differs from a new model of its class and config.

Modules that someone has exchanged are not refused for that: if the proof at load accepts them, they compute what is measured.
Where they make our own code fail, however, they are the reason for it.
"""

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.adapters import adapted_layers
from normscope.models.pointwise import DimensionsFirst, replace_pointwise
from normscope.models.text_tower import base_of
from normscope.models.weight_checks import UNOBSERVED_PARTS


@contextlib.contextmanager
def damage_named(model: object, *, of_proof: bool = False) -> Iterator[None]:
    """Turn an exception into one that names the part of a model that has been changed, if there is one.

    Args:
        model: The model, if it is one of transformers.
        of_proof: Whether the exception comes from the proof that the model is observed exactly. Then an InputError is turned,
            too, since the proof cannot know what has become of a module.

    Raises:
        InputError: In place of the exception.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) and not of_proof:
            raise
        damage = _damage(model) if isinstance(model, PreTrainedModel) else None
        if damage is None:
            raise
        raise InputError(f"model: {damage}") from error


def _damage(whole: PreTrainedModel) -> str | None:
    """The first part of a base model that differs from that of a new one; None if there is none, or parts differ rightly."""
    if adapted_layers(whole):
        return None
    if not isinstance(whole.config, PretrainedConfig):
        return f"expected a transformers config, got {type(whole.config).__name__}"
    model = base_of(whole)
    kind = type(model).__name__
    try:
        with torch.device("meta"):
            made = type(model)(copy.deepcopy(model.config))
        if any(isinstance(module, DimensionsFirst) for module in model.modules()):
            replace_pointwise(made)
    except Exception as error:  # an invalid config fails in many ways
        return f"no {kind} can be created from its config: {one_line(error)}"
    for name, expected, found in _differences(model, made):
        return f"expected {expected} at {name}, as in a new {kind} with the same config, got {found}"
    return None


def _differences(model: PreTrainedModel, made: PreTrainedModel) -> Iterator[tuple[str, object, object]]:
    """Names of parts, what the new model has there, and what the model has."""
    for path, expected in made.named_modules():
        if f"{path}.".startswith(UNOBSERVED_PARTS):
            continue
        module = _module(model, path)
        if type(module) is not type(expected):
            yield path, type(expected).__name__, "nothing" if module is None else type(module).__name__
        where = f"{path}." if path else ""
        for key, parameter in expected.named_parameters(recurse=False):
            found = getattr(module, key, None)
            if not isinstance(found, torch.Tensor) or found.shape != parameter.shape:
                shape = f"the shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else "nothing"
                yield where + key, f"the shape {tuple(parameter.shape)}", shape
            elif found.dtype != model.dtype:
                yield where + key, model.dtype, found.dtype
        for key, number in vars(expected).items():
            if type(number) in (int, float) and getattr(module, key, None) != number:
                yield where + key, number, getattr(module, key, None)


def _module(model: nn.Module, path: str) -> object:
    module: object = model
    for part in path.split(".") if path else []:
        module = getattr(module, part, None)
    return module
