"""What a model makes of `token_type_ids`: segments of a pair, as in BERT, or something else."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class TokenTypes:
    """What a model makes of `token_type_ids`."""

    number: int | None
    """How many different ids it can look up; None if it looks them up nowhere."""
    segments: bool
    """Whether they say which text of a pair a token belongs to."""


def tables_of_token_types(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[nn.Embedding] | None:
    """The embeddings in which a model looks up `token_type_ids`; None if it takes no such ids for a text.

    Args:
        model: A model whose `forward` has an argument of this name.
        inputs: Its other inputs.
    """
    given = torch.zeros_like(inputs["input_ids"])
    place = given.untyped_storage().data_ptr()
    tables: list[nn.Embedding] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        ids = arguments[0] if arguments else None
        if isinstance(module, nn.Embedding) and isinstance(ids, Tensor) and ids.untyped_storage().data_ptr() == place:
            tables.append(module)

    with contextlib.ExitStack() as stack, torch.inference_mode():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                stack.callback(module.register_forward_pre_hook(note).remove)
        try:
            model(**inputs, token_type_ids=given)
        except Exception:  # TAPAS takes seven ids for each token
            return None
    return tables
