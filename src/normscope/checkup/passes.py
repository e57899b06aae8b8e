"""Passes of a model and its head, with something changed in its linear layers, or from some layer on."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normscope.data.batching import Batch
from normscope.linear.layer_calls import LayerCall, LayerCalls
from normscope.models.load.interventions import InterventionRunner

_LINEAR = (nn.Linear, Conv1D)
"""Classes of a linear layer; the weights of the second, which is GPT-2's, are transposed."""


class LinearCall(NamedTuple):
    """A linear layer that is being called."""

    name: str
    module: nn.Module
    layer: int | None
    """The layer of the model that is running, from 1; None outside any."""
    inputs: Float[Tensor, "*tokens input"]


Around = Callable[[LinearCall, Callable[[Tensor], Tensor]], Tensor]
"""Called in place of a linear layer, with its own function; returns its output."""


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
            if module in inside and isinstance(module, _LINEAR)
        }
        """The linear layers of the base model, by the names that they have in the model with its head."""

    def run(
        self, batch: Batch, around: Around | None = None, *, start: int = 1, outputs: dict[int, Any] | None = None
    ) -> Returned:
        """Run one text.

        Args:
            batch: A batch of one.
            around: What happens in place of each linear layer; nothing else by default.
            start: The first layer to run. Those before it return what they returned in an unchanged pass.
            outputs: What each layer returned in an unchanged pass over the same text, by layer; filled if it is empty.
        """
        inputs = self.runner.masked_inputs(batch) if self.runner.predicts_masks else batch.model_inputs()
        fills, vectors = outputs == {}, []

        def layer(number: int, _call: LayerCall, run: Callable[[], Any]) -> Any:
            if outputs is not None and number < start:
                return outputs[number]
            output = run()
            if outputs is not None and fills:
                outputs[number] = output
            return output

        calls = LayerCalls(self.base, batch.sequences, run=layer, places=self.runner.model.facts.places)
        hook = self.base.register_forward_hook(lambda _model, _inputs, output: vectors.append(output[0]))
        try:
            with torch.inference_mode(), calls, self._replaced(around, calls):
                output = self.whole(**inputs)
        finally:
            hook.remove()
        if self.runner.predictor is None:
            return Returned(None, vectors[0])
        loss = self.runner.loss(batch, inputs, output.logits)
        return Returned(loss.total / loss.tokens if loss.tokens else None, vectors[0])

    @contextlib.contextmanager
    def _replaced(self, around: Around | None, calls: LayerCalls) -> Iterator[None]:
        """Context in which `around` is called in place of linear layers."""
        if around is None:
            yield
            return
        had = [(module, vars(module).get("forward")) for module in self.linear.values()]
        for name, module in self.linear.items():
            module.__dict__["forward"] = functools.partial(_called, around, name, module, module.forward, calls)
        try:
            yield
        finally:
            for module, forward in had:
                if forward is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = forward


def _called(
    around: Around, name: str, module: nn.Module, own: Callable[[Tensor], Tensor], calls: LayerCalls, inputs: Tensor
) -> Tensor:
    return around(LinearCall(name, module, calls.number, inputs), own)
