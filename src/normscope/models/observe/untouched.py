"""What the untouched model does on a probe batch, with its own fused attention: the reference for verification.

Every module of the model is recorded, not only those that a layout names: what a layout leaves out must show.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput

from normscope.models.observe.attention_function import attention_by
from normscope.models.sites.layer_hooks import key_of_vectors, layer_hooks
from normscope.models.sites.layout import ModelLayout, by_size
from normscope.models.sites.rotary import length_dependent_rotations
from normscope.models.stored.model_code import model_code
from normscope.models.stored.text_tower import base_of

_FUSED = "sdpa"


@dataclasses.dataclass(frozen=True)
class Call:
    """The first tensor that a module read, and the first that it returned; None where there is none."""

    inputs: Tensor | None
    output: Tensor | None


@dataclasses.dataclass(frozen=True)
class LayerRecord:
    """What the untouched model did in one layer."""

    inputs: Tensor
    output: Tensor
    calls: Mapping[nn.Module, Call]
    """The first call of every module inside the layer, in the order in which they returned."""


@dataclasses.dataclass(frozen=True)
class UntouchedPass:
    """What the untouched model did in one forward pass."""

    layers: Mapping[int, LayerRecord]
    """By layer, from 1."""
    around: Mapping[nn.Module, Call]
    """The first call of every module outside the layers."""
    output: Tensor
    """The model's output before any head: a vector for each token."""
    source: Tensor | None
    """What the decoder of an encoder–decoder read of the source; None for other models."""


def untouched_pass(model: PreTrainedModel, layout: ModelLayout, inputs: Mapping[str, Tensor]) -> UntouchedPass:
    """Run the untouched model on a batch, or on each text alone if its rotations depend on the longest text of a batch.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        inputs: The batch.
    """
    if not length_dependent_rotations(model):
        return _pass(model, layout, inputs)
    passes = []
    for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        # One token makes dynamic scaling forget the longest text so far.
        with torch.inference_mode(), model_code(model):
            model(**{name: tensor[row : row + 1, :1] for name, tensor in inputs.items()})
        passes.append(_pass(model, layout, {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}))
    return _together(passes, inputs["input_ids"].shape[1])


def reference_attention(model: PreTrainedModel, layout: ModelLayout) -> str:
    """The attention of the untouched model: fused if that gives what the model computes."""
    return _FUSED if layout.fused_reference and getattr(model, "_supports_sdpa", True) else "eager"


def _padded(text: Tensor, axis: int, width: int) -> Tensor:
    """A tensor with zeros at the end of an axis, if it is shorter than `width` there."""
    behind = [0, 0] * (text.ndim - 1 - axis)
    return nn.functional.pad(text, (*behind, 0, max(width - text.shape[axis], 0)))


def _together(passes: Sequence[UntouchedPass], width: int) -> UntouchedPass:
    """Passes of one text each, as one padded batch."""

    def padded(texts: Iterable[Tensor | None]) -> Any:
        given = [text for text in texts if text is not None]
        # What has no axis of tokens cannot be compared by token.
        if not given or any(text.ndim < 3 or text.ndim != given[0].ndim for text in given):
            return None
        # The axis of tokens is the one along which texts differ in size: heads lie before or behind it.
        tokens = [
            axis for axis, sizes in enumerate(zip(*(text.shape for text in given), strict=True)) if len({*sizes}) > 1
        ]
        if len(tokens) > 1 or 0 in tokens:
            return None
        return torch.cat([_padded(text, tokens[0], width) if tokens else text for text in given])

    def calls(texts: Sequence[Mapping[nn.Module, Call]]) -> dict[nn.Module, Call]:
        return {
            module: Call(padded(text[module].inputs for text in texts), padded(text[module].output for text in texts))
            for module in texts[0]
        }

    layers = {
        layer: LayerRecord(
            padded(each.layers[layer].inputs for each in passes),
            padded(each.layers[layer].output for each in passes),
            calls([each.layers[layer].calls for each in passes]),
        )
        for layer in passes[0].layers
    }
    return UntouchedPass(
        layers,
        calls([each.around for each in passes]),
        padded(each.output for each in passes),
        padded(each.source for each in passes),
    )


def _pass(model: PreTrainedModel, layout: ModelLayout, inputs: Mapping[str, Tensor]) -> UntouchedPass:
    recorder = _Recorder(inputs["decoder_input_ids" if layout.reads_target else "input_ids"].shape)
    with contextlib.ExitStack() as exit_:
        for handle in recorder.hooks(model, layout):
            exit_.callback(handle.remove)
        if layout.registry:
            exit_.enter_context(attention_by(model, reference_attention(model, layout)))
        with torch.inference_mode(), model_code(model):
            output = model(**inputs)
    layers = {
        number: LayerRecord(inputs, output, calls)
        for number, (inputs, output, calls) in enumerate(recorder.layers, start=1)
    }
    last: Any = getattr(output, "last_hidden_state", None)
    if last is None:  # T5's heads are base models themselves
        last = recorder.around[base_of(model.get_decoder())].output
    return UntouchedPass(layers, recorder.around, last, getattr(output, "encoder_last_hidden_state", None))


class _Recorder:
    """Hooks that record what every module reads and writes.

    Tensors are copied: Falcon adds to what its network returns, in place.
    """

    def __init__(self, size: torch.Size) -> None:
        self._size = size
        """Numbers of texts and tokens, which differ in probes."""
        self.layers: list[tuple[Tensor, Tensor, dict[nn.Module, Call]]] = []
        self.around: dict[nn.Module, Call] = {}
        self._calls: dict[nn.Module, Call] | None = None
        """Those of the layer that is running; None outside the layers."""
        self._entered: Tensor | None = None
        """What that layer has read."""
        self._inputs: dict[nn.Module, Tensor | None] = {}

    def hooks(self, model: PreTrainedModel, layout: ModelLayout) -> Iterator[RemovableHandle]:
        """Register the hooks. Layers that share their modules share the hooks."""
        yield from layer_hooks(model, layout, self._enter, self._leave)
        layers = {id(entry) for entry in layout.entries(model)} if layout.stream.in_modules else ()
        for module in model.modules():
            if module is not model and id(module) not in layers:
                yield module.register_forward_pre_hook(self._read, with_kwargs=True)
                yield module.register_forward_hook(self._write)

    def _enter(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self._calls = {}
        self._entered = self._read_by(args, kwargs)

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        vectors, inputs = _first(output), self._entered
        assert self._calls is not None
        assert vectors is not None
        assert inputs is not None
        self.layers.append((inputs, by_size(vectors, self._size).clone(), self._calls))
        self._calls = None

    def _read(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._inputs[module] = self._read_by(args, kwargs)

    def _write(self, module: nn.Module, _args: Any, output: Any) -> None:
        vectors = _first(output)
        call = Call(self._inputs.pop(module, None), None if vectors is None else by_size(vectors, self._size).clone())
        (self.around if self._calls is None else self._calls).setdefault(module, call)

    def _read_by(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        vectors = _first(args) if args else kwargs.get(key_of_vectors(kwargs))
        return by_size(vectors, self._size).clone() if isinstance(vectors, Tensor) else None


def _first(values: Any) -> Tensor | None:
    """The first of several values if it is a tensor, or the tensor itself."""
    value = values[0] if isinstance(values, tuple | list | ModelOutput) and values else values
    return value if isinstance(value, Tensor) else None


def is_norm(module: nn.Module, size: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether what a module makes of a vector does not depend on its length, as with every norm.

    Args:
        size: Number of dimensions of the vectors.
        device: Where it runs.
        dtype: What it takes.
    """
    if next(module.children(), None) is not None:
        return False
    probe = torch.linspace(-1, 1, size, device=device).exp().to(dtype)[None, None]
    run: Callable[[Tensor], Any] = module
    try:
        with torch.inference_mode():
            one, other = run(probe), run(2 * probe)
    except Exception:  # it takes something else
        return False
    if not isinstance(one, Tensor) or one.shape != probe.shape:
        return False
    one, other = one.double(), other.double()
    return bool((one - other).norm() < 0.02 * other.norm())
