"""Models built by a function of the user's: `model.factory=package.module:function`."""

import importlib
import os
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import nn

from normscope.errors import InputError, one_line
from normscope.models.facts import ModelFacts
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import DTYPES, torch_device
from normscope.models.load.tokenizer_loading import read_tokenizer
from normscope.models.load.wrapping import wrap_model
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.models.stored.random_state import drawing

_ARGUMENTS = ("tokenizer", "inputs", "tokens")
"""What a factory may return besides the model: arguments of `normscope.wrap`."""


class BuiltModel:
    """A model from a factory.

    Args:
        options: The options of the model.

    Raises:
        InputError: If the factory cannot be called, or returns no module.
    """

    def __init__(self, options: ModelOptions) -> None:
        assert options.factory is not None
        self._options = options
        with drawing(options.seed):
            self._module, self._arguments = _built(options.factory)
        if options.tokenizer is not None:
            self._arguments["tokenizer"] = read_tokenizer(None, options)

    @cached_property
    def facts(self) -> ModelFacts:
        """Where the model keeps its parts."""
        return self._wrapped().facts

    def load(self, device: DeviceOptions, *, devices: range = range(0)) -> LoadedModel:  # noqa: ARG002 - of one device
        """Put the model on its device, and prepare it for observation.

        Raises:
            InputError: If it cannot be observed.
        """
        if device.map is not None:
            raise InputError("device.map=auto: expected a checkpoint, got model.factory; leave out device.map")
        self._module.to(torch_device(device.name), DTYPES[device.dtype])
        return self._wrapped()

    def _wrapped(self) -> LoadedModel:
        stack = self._options.stack
        return wrap_model(
            self._module, stack=None if stack is None else stack.value, tower=self._options.tower, **self._arguments
        )


def _built(factory: str) -> tuple[nn.Module, dict[str, Any]]:
    """What a factory returns: a module, and arguments of `wrap_model`."""
    function = _function(factory)
    try:
        given = function()
    except Exception as error:  # somebody else's code
        raise InputError(f"model.factory={factory}: the function failed: {one_line(error)}") from error
    match given:
        case nn.Module():
            return given, {}
        case (nn.Module() as module, tokenizer):
            return module, {"tokenizer": tokenizer}
        case Mapping() if isinstance(given.get("model"), nn.Module) and given.keys() <= {"model", *_ARGUMENTS}:
            return given["model"], {name: value for name, value in given.items() if name != "model"}
    raise InputError(
        f"model.factory={factory}: expected a torch.nn.Module, a pair of a module and its tokenizer, or a dict with model and "
        f"any of {', '.join(_ARGUMENTS)}, got {type(given).__name__}"
    )


def _function(factory: str) -> Any:
    module, _, name = factory.partition(":")
    if not module or not name:
        raise InputError(f"model.factory={factory}: expected package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`, also from an installed command
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs somebody else's code
        raise InputError(f"model.factory={factory}: cannot import it: {one_line(error)}") from error
    if not callable(function):
        raise InputError(f"model.factory={factory}: expected a function, got {type(function).__name__}")
    return function
