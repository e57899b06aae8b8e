"""Passes of a model and its head, with something changed in its linear layers, or from some layer on."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from normscope.data.batching import Batch
from normscope.linear.layer_calls import LayerCalls
from normscope.models.load.interventions import InterventionRunner
from normscope.models.observe.layer_outputs import LayerOutputs

_INPUTS: Mapping[Any, int] = {nn.functional.linear: 0, torch.addmm: 1}
"""Where a function of a linear layer is given its inputs, before its weights; GPT-2's, the second, are transposed."""


class LinearCall(NamedTuple):
    """A linear layer that is being called."""

    name: str
    layer: int | None
    """The layer of the model that is running, from 1; None outside any."""
    inputs: Float[Tensor, "*tokens input"]
    weight: Float[Tensor, "output input"]


Around = Callable[[LinearCall], tuple[Tensor, Tensor]]
"""Called with each call of a linear layer; returns the inputs and the weights that it uses instead."""


class Returned(NamedTuple):
    """What a model makes of one text."""

    loss: float | None
    """In nats per predicted token; None without a head, or if no token is predicted."""
    vectors: Float[Tensor, "batch token model"]
    """What the base model returns: the vectors of the last layer, after any last norm."""


class Passes:
    """Runs a model on one text at a time, with its head if it has one that predicts tokens.

    Args:
        runner: Knows the model, its head and its loss.
    """

    def __init__(self, runner: InterventionRunner) -> None:
        self.runner, self.base = runner, runner.model.model
        self.whole = self.base if runner.predictor is None else runner.predictor.model
        inside = set(self.base.modules())
        self.linear = {
            name: module
            for name, module in self.whole.named_modules()
            if module in inside and isinstance(module, nn.Linear | Conv1D)
        }
        """The linear layers of the base model, by the names that they have in the model with its head."""

    def run(self, batch: Batch, around: Around | None = None, outputs: LayerOutputs | None = None) -> Returned:
        """Run one text.

        Args:
            batch: A batch of one.
            around: What linear layers use instead of their inputs and weights; nothing else by default.
            outputs: Keeps what layers return, or begins after one of them.
        """
        inputs = self.runner.masked_inputs(batch) if self.runner.predicts_masks else batch.model_inputs()
        vectors: list[Tensor] = []
        places = self.runner.model.facts.places
        calls = LayerCalls(self.base, batch.sequences, run=(outputs or LayerOutputs()).run, places=places)
        changed = contextlib.nullcontext() if around is None else _Changed(self.linear, around, calls)
        hook = self.base.register_forward_hook(lambda _model, _inputs, output: vectors.append(output[0]))
        try:
            with torch.inference_mode(), calls, changed:
                output = self.whole(**inputs)
        finally:
            hook.remove()
        if self.runner.predictor is None:
            return Returned(None, vectors[0])
        loss = self.runner.loss(batch, inputs, output.logits)
        return Returned(loss.total / loss.tokens if loss.tokens else None, vectors[0])


class _Changed(TorchFunctionMode):
    """Linear layers with other inputs and weights, told by their weights: the model stays as it is."""

    def __init__(self, linear: Mapping[str, nn.Module], around: Around, calls: LayerCalls) -> None:
        super().__init__()
        self._names = {id(module.weight): name for name, module in linear.items()}
        self._around, self._calls = around, calls

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at, kwargs = _INPUTS.get(function), kwargs or {}
        if at is None or len(args) < at + 2 or id(args[at + 1]) not in self._names:
            return function(*args, **kwargs)
        inputs, weight = args[at : at + 2]
        has_columns = function is torch.addmm
        name = self._names[id(weight)]
        inputs, weight = self._around(LinearCall(name, self._calls.begun, inputs, weight.T if has_columns else weight))
        return function(*args[:at], inputs, weight.T if has_columns else weight, *args[at + 2 :], **kwargs)
