"""What the untouched model does on a probe batch, with its own fused attention: the reference for verification."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import PreTrainedModel

from normscope.models.feed_forward_modules import FeedForwardModules, bind_feed_forward
from normscope.models.layout import BlockLayout, BlockModules
from normscope.models.rotation import length_dependent_rotations

_FUSED = "sdpa"


@dataclasses.dataclass(frozen=True)
class Reference:
    """What the untouched model did in one layer."""

    inputs: Tensor
    attention_output: Tensor
    block_output: Tensor | None = None
    """The output of the block's norm, or what the sum of attention and residual goes into; None where it goes nowhere alone."""
    feed_forward_inputs: Tensor | None = None
    """What W_1 reads; None if feed-forward networks are not compared, as with the next two."""
    feed_forward_output: Tensor | None = None
    layer_output: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class UntouchedPass:
    """What the untouched model did in one forward pass."""

    layers: Mapping[int, Reference]
    """By layer, from 1."""
    hidden: Mapping[int, Tensor]
    """The hidden vectors that are outputs of norms, by layer from 0."""


def untouched_pass(
    model: PreTrainedModel, layout: BlockLayout, inputs: Mapping[str, Tensor], *, feed_forward: bool = False
) -> UntouchedPass:
    """Run the untouched model on a batch, or on each text alone if its rotations depend on the longest text of a batch.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        inputs: The batch.
        feed_forward: Whether to record the feed-forward networks and the outputs of layers as well.

    Raises:
        InputError: If `feed_forward` is set and a layer has no network that can be observed.
    """
    networks = bind_feed_forward(model, layout) if feed_forward else []
    if not length_dependent_rotations(model):
        return _pass(model, layout, networks, inputs)
    width = inputs["input_ids"].shape[1]
    passes = []
    for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        with torch.inference_mode():  # one token makes dynamic scaling forget the longest text so far
            model(**{name: tensor[row : row + 1, :1] for name, tensor in inputs.items()})
        alone = {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}
        passes.append(_pass(model, layout, networks, alone))
    return _together(passes, width)


def _together(passes: Sequence[UntouchedPass], width: int) -> UntouchedPass:
    """Passes of one text each, as one padded batch."""

    def padded(texts: Sequence[Tensor]) -> Tensor:
        return torch.cat([nn.functional.pad(text, (0, 0, 0, width - text.shape[1])) for text in texts])

    first = passes[0]
    layers = {
        layer: Reference(
            **{
                part: padded([getattr(each.layers[layer], part) for each in passes])
                for part, value in vars(reference).items()
                if value is not None
            }
        )
        for layer, reference in first.layers.items()
    }
    return UntouchedPass(layers, {layer: padded([each.hidden[layer] for each in passes]) for layer in first.hidden})


def _pass(
    model: PreTrainedModel, layout: BlockLayout, networks: Sequence[FeedForwardModules], inputs: Mapping[str, Tensor]
) -> UntouchedPass:
    recorder = _Recorder()
    previous = model.config._attn_implementation
    with contextlib.ExitStack() as exit_:
        for handle in recorder.hooks(model, layout, networks):
            exit_.callback(handle.remove)
        if layout.registry:
            model.set_attn_implementation(_FUSED if layout.fused_reference else "eager")
            exit_.callback(model.set_attn_implementation, previous)
        with torch.inference_mode():
            model(**inputs)
    layers = {number: Reference(**parts) for number, parts in enumerate(recorder.layers, start=1)}
    return UntouchedPass(layers, recorder.hidden)


class _Recorder:
    """Hooks that record what every layer reads and writes."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Tensor]] = []
        self.hidden: dict[int, Tensor] = {}

    def hooks(
        self, model: PreTrainedModel, layout: BlockLayout, networks: Sequence[FeedForwardModules]
    ) -> Iterator[RemovableHandle]:
        """Register the hooks. Layers that share their modules share the hooks."""
        for modules in {id(modules.whole): modules for modules in layout.bind(model)}.values():
            yield from self._layer_hooks(modules)
            if networks:
                yield modules.whole.register_forward_hook(self._leave)
        for network in {id(network.input): network for network in networks}.values():
            yield network.input.register_forward_pre_hook(self._record_feed_forward_inputs)
            yield network.output.register_forward_hook(self._record("feed_forward_output", network.residual_scale))
        norms = layout.hidden_norms(model)
        for layer, norm in norms.items():
            if norm not in (other for number, other in norms.items() if number < layer):
                yield norm.register_forward_hook(self._record_hidden(layer))

    def _layer_hooks(self, modules: BlockModules) -> Iterator[RemovableHandle]:
        yield modules.whole.register_forward_pre_hook(self._enter, with_kwargs=True)
        yield modules.output.register_forward_hook(self._record("attention_output", modules.residual_scale))
        if modules.residual is not modules.whole:
            yield modules.residual.register_forward_pre_hook(self._record_residual, with_kwargs=True)
        if modules.norm is not None:
            yield modules.norm.register_forward_hook(self._record("block_output"))
        if modules.sum_consumer is not None:
            yield modules.sum_consumer.register_forward_pre_hook(self._record_sum)

    def _enter(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self.layers.append({"inputs": args[0] if args else kwargs["hidden_states"]})

    def _record_residual(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        self.layers[-1]["inputs"] = args[0] if args else kwargs["hidden_states"]

    def _record_sum(self, _module: nn.Module, args: Any) -> None:
        self.layers[-1].setdefault("block_output", self._by_token(args[0]))

    def _record_feed_forward_inputs(self, _module: nn.Module, args: Any) -> None:
        self.layers[-1].setdefault("feed_forward_inputs", self._by_token(args[0]))

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self.layers[-1]["layer_output"] = output[0] if isinstance(output, tuple) else output

    def _record(self, part: str, scale: float = 1.0) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            # A copy: Falcon adds to its network's output in place.
            self.layers[-1].setdefault(part, self._by_token(output) * scale)

        return hook

    def _by_token(self, vectors: Tensor) -> Tensor:
        # OPT's network reads all tokens of a batch in one row.
        return vectors.view(*self.layers[-1]["inputs"].shape[:2], -1)

    def _record_hidden(self, layer: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            # A norm that several layers share runs once in each of them.
            self.hidden[len(self.layers) if layer else 0] = output

        return hook
