"""What differs from another model of the same shape, layer by layer: weights, and hidden vectors of the same texts."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normscope.checkup.passes import Passes
from normscope.checkup.rounding_cost import distance
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.linear.layer_calls import LayerCall, LayerCalls
from normscope.models.load.loaded import LoadedModel
from normscope.statistics.intervals import interval_over_texts


def require_same_shape(model: LoadedModel, base: LoadedModel) -> None:
    """Check that layers can be compared one by one, and texts token by token.

    Raises:
        InputError: If the models differ in layers, dimensions, the shape of some weights, or tokens.
    """
    key = f"--against={base.name}"
    shapes = [f"{each.facts.family}, {each.layers} layers of {each.facts.width} dimensions" for each in (model, base)]
    if shapes[0] != shapes[1]:
        raise InputError(f"{key}: expected a model of the same shape ({shapes[0]}), got {shapes[1]}")
    before = {name: weight.shape for name, weight in base.model.named_parameters()}
    for name, weight in model.model.named_parameters():
        if before.get(name, weight.shape) != weight.shape:
            ours, theirs = (" × ".join(map(str, shape)) for shape in (weight.shape, before[name]))
            raise InputError(f"{key}: expected a model of the same shape ({name}: {ours}), got {theirs}")
    others = model.tokenizer.get_vocab().items() ^ base.tokenizer.get_vocab().items()
    if others:
        token = min(others)[0]
        raise InputError(
            f"{key}: expected a model with the tokenizer of {model.name}, got one whose vocabulary has other tokens, or "
            f"other numbers for them ({token!r})"
        )


def differences(model: Passes, base: Passes, batches: Sequence[Batch]) -> pd.DataFrame:
    """One row per layer.

    `weights`: ‖W − W₀‖ / ‖W₀‖ over all weights of the layer, biases and norms included; NaN where no module runs the layer.
    `vectors`: ‖x − x₀‖ / ‖x₀‖ of what leaves the layer, a mean over tokens, then texts, with its 95% interval over texts.
    """
    distances: dict[int, list[float]] = {}
    of_weights: dict[int, float] = {}
    for batch in batches:
        (ours, own), (theirs, modules) = (_leaving(each, batch) for each in (model, base))
        for layer, vectors in ours.items():
            distances.setdefault(layer, []).append(distance(vectors, theirs[layer]))
        of_weights = of_weights or {layer: weights_changed(own[layer], modules[layer]) for layer in own}
    rows = []
    for layer, values in sorted(distances.items()):
        interval = interval_over_texts(values)
        row = {"layer": layer, "weights": of_weights.get(layer, float("nan"))}
        rows.append(row | {"vectors": interval.mean, "vectors_low": interval.low, "vectors_high": interval.high})
    return pd.DataFrame(rows)


def weights_changed(module: nn.Module, before: nn.Module) -> float:
    """‖W − W₀‖ / ‖W₀‖ over all parameters."""
    base = {name: weight.detach().double() for name, weight in before.named_parameters()}
    changed = original = 0.0
    for name, weight in module.named_parameters():
        changed += float((weight.detach().double() - base[name]).square().sum())
        original += float(base[name].square().sum())
    return (changed / original) ** 0.5 if original else float("nan")


def _leaving(passes: Passes, batch: Batch) -> tuple[dict[int, Tensor], dict[int, nn.Module]]:
    """The hidden vectors that leave each layer, and what module runs it; no modules where none runs a whole layer."""
    facts = passes.runner.model.facts
    found: dict[int, Tensor] = {}
    modules: dict[int, nn.Module] = {}

    def note(layer: int, call: LayerCall, run: Callable[[], Any]) -> Any:
        modules[layer] = call.layer
        return run()

    def enter(layer: int, vectors: Tensor) -> None:
        found[layer - 1] = vectors.clone()

    calls = LayerCalls(
        passes.base, batch.sequences, enter=enter, leave=found.__setitem__, run=note, places=facts.places
    )
    with torch.inference_mode(), calls:
        output = passes.base(**batch.model_inputs())
    if not facts.in_modules:
        found[facts.layers] = output[0]
    del found[0]
    return found, modules
