"""The boundary around a model's own code: what that raises is a refusal, what ours raises is a bug and keeps its traceback."""

import contextlib
import sys
import traceback
from collections.abc import Iterator

import torch
from torch import nn

from normscope.errors import InputError, one_line

_PASSING = (
    "normscope.linear.blocks",
    "normscope.linear.layer_calls",
    "normscope.models.observe.attention_function",
)
"""Modules of ours through which the operations of a model pass. What they raise is due to what the model passes to them."""


class StopForward(Exception):
    """Ends a forward pass when the rest of it is not needed."""


@contextlib.contextmanager
def model_code(model: nn.Module, on: str = "") -> Iterator[None]:
    """A context in which a model runs: an exception of its own code becomes one line that names the module.

    From the innermost frame of the traceback outwards, either code of ours or a method of a module comes first, and tells whose
    exception it is.

    Args:
        model: The model.
        on: What it runs on, for messages.

    Raises:
        InputError: In place of an exception that the model's code raised, or that an operation raised for what the code passed.
    """
    try:
        with _uncompiled():
            yield
    except Exception as error:
        if isinstance(error, InputError | torch.OutOfMemoryError):
            raise
        module = _running(model, error)
        if module is None:
            raise
        on = f" on {on}" if on else ""
        raise InputError(f"model: {module} fails{on}: {_reason(error)}") from error


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    """Context in which functions that are compiled run as they are written: no function mode sees what runs compiled."""
    # Without this module, nothing is compiled; it takes seconds to import.
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def _reason(error: Exception) -> str:
    """The message of an exception, with its type if that says more: a KeyError's message is the key alone."""
    named = isinstance(error, LookupError | AttributeError | AssertionError | NotImplementedError)
    return f"{type(error).__name__}: {one_line(error)}" if named else one_line(error)


def _running(model: nn.Module, error: Exception) -> str | None:
    """The innermost module that was running, by its path and class; None if code of ours raised the error."""
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        code, module = str(frame.f_globals.get("__name__", "")), frame.f_locals.get("self")
        if code in _PASSING:
            continue
        if code.partition(".")[0] == "normscope":
            return None
        if isinstance(module, nn.Module):
            path = next((path for path, each in model.named_modules() if each is module), "")
            kind = type(module).__name__
            return f"{path} ({kind}) of {type(model).__name__}" if path else kind
    return None
