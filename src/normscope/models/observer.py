"""Runs a model and hands out its attention blocks, one layer at a time.

Four points are watched: the attention function, which is replaced through transformers' registry; the output projection
W_O; the block's norm, whose parameters are read; and the hidden vectors: what enters a layer, and what leaves the last. A
block is handed out the moment its output projection has run and is forgotten when the visitor returns, so memory grows with
neither depth nor corpus.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.maths.attention import additive_mask, attention, repeat_heads
from normscope.models.attention_function import IMPLEMENTATION, active
from normscope.models.block import AttentionBlock, full_precision
from normscope.models.layout import BlockLayout, BlockModules, normalisation

Visitor = Callable[[AttentionBlock], None]
HiddenVisitor = Callable[[int, Tensor], None]


class Replacement(NamedTuple):
    """What stands in some dimensions of the residual stream, in the place of what the model computed."""

    dimensions: Tensor
    values: Tensor


class _AttentionCall(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    everything_visible: bool
    scale: float
    log_normaliser: Tensor


class _Stop(Exception):
    """Ends a forward pass once nothing more of it is wanted."""


class Observer:
    """Shows the blocks of a model to a visitor.

    Use as a context manager: inside, the model runs our attention function; on leaving, the model is as it was.

    Args:
        model: A base model in evaluation mode.
        layout: Where its family keeps the parts of a block.
        layers: Numbers of the layers whose blocks are shown, from 1. None shows all.
        hidden: Numbers of the layers whose hidden vectors are shown, from 0, the embedding output.

    The forward pass ends after the last of what is shown.

    Raises:
        AttributeError: If the model lacks a part that the layout names.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: BlockLayout,
        layers: Sequence[int] | None = None,
        hidden: Collection[int] = (),
    ) -> None:
        self._model = model
        blocks = layout.bind(model)
        wanted = set(range(1, len(blocks) + 1) if layers is None else layers)
        self._layers = blocks
        self._blocks = {id(modules.attention): modules for modules in blocks if modules.layer in wanted}
        self._hidden = frozenset(hidden)
        heads = model.config.num_attention_heads
        self.parameters = {modules.layer: modules.parameters(heads) for modules in self._blocks.values()}
        """Weights of the blocks that are shown, by layer."""
        self.hidden_norms = {layer: normalisation(norm) for layer, norm in layout.hidden_norms(model).items()}
        """Weights of the norms whose outputs are hidden vectors, by layer from 0."""
        # The hidden vectors of a layer come after its block, and before the next one.
        self._end = max([*((layer, 0) for layer in wanted), *((layer, 1) for layer in hidden)])
        self._whole = False
        self._exit = contextlib.ExitStack()
        # What the current forward pass has gathered of blocks not yet shown, by layer.
        self._inputs: dict[int, Tensor] = {}
        self._calls: dict[int, _AttentionCall] = {}
        self._shown: set[int] = set()
        self._mask: tuple[Tensor, Tensor, bool] | None = None
        self._real: Tensor | None = None
        self._visit: Visitor | None = None
        self._visit_hidden: HiddenVisitor | None = None
        self._replacements: Mapping[int, Replacement] = {}

    def __enter__(self) -> "Observer":
        previous = self._model.config._attn_implementation
        if previous == IMPLEMENTATION:
            raise RuntimeError(
                "this model is being observed already: finish or close the other loop over its blocks first"
            )
        self._model.set_attn_implementation(IMPLEMENTATION)
        self._exit.callback(self._model.set_attn_implementation, previous)
        handles = [
            modules.whole.register_forward_pre_hook(self._input_hook(modules), with_kwargs=True)
            for modules in self._layers
        ]
        handles += [
            modules.output.register_forward_hook(self._output_hook(modules)) for modules in self._blocks.values()
        ]
        handles.append(self._layers[-1].whole.register_forward_hook(self._last_hook))
        for handle in handles:
            self._exit.callback(handle.remove)
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def run(
        self,
        inputs: Mapping[str, Tensor],
        visit: Visitor,
        visit_hidden: HiddenVisitor | None = None,
        *,
        replacements: Mapping[int, Replacement] | None = None,
        whole: nn.Module | None = None,
    ) -> Any:
        """One forward pass, whose blocks are shown to `visit` in order.

        Args:
            inputs: The model's keyword arguments, `input_ids` and `attention_mask` at least.
            visit: Called with each block, under `torch.inference_mode`.
            visit_hidden: Called with the number of a layer and its hidden vectors, where those were asked for.
            replacements: What stands in some dimensions of the vectors that enter a layer, for the block and the residual
                connection alike, by layer.
            whole: A model that has the observed one inside, which is run to its end in its place.

        Returns:
            What `whole` returns, or None.
        """
        self._real = inputs["attention_mask"].bool()
        self._visit, self._visit_hidden = visit, visit_hidden
        self._replacements = replacements or {}
        self._whole = whole is not None
        self._shown.clear()
        token = active.set(self)
        stopped = False
        output = None
        try:
            with torch.inference_mode():
                output = (self._model if whole is None else whole)(**inputs)
        except _Stop:
            stopped = True
        finally:
            active.reset(token)
            self._inputs.clear()
            self._calls.clear()
            self._mask = self._real = self._visit = self._visit_hidden = None
            self._replacements = {}
        missing = {modules.layer for modules in self._blocks.values()} - self._shown
        if missing and not stopped:
            raise RuntimeError(f"the forward pass did not show all parts of layers {sorted(missing)}")
        return output

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float
    ) -> Tensor | None:
        """Attention for a layer that is shown, or None for any other."""
        modules = self._blocks.get(id(module))
        if modules is None:
            return None
        heads = query.shape[1]
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
        mask, everything = (None, True) if visible is None else self._additive(visible, query.dtype)
        output, log_normaliser = attention(query, key, value, mask, scale)
        self._calls[modules.layer] = _AttentionCall(query, key, value, mask, everything, scale, log_normaliser)
        return output.transpose(1, 2).contiguous()

    def _additive(self, visible: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
        # All layers of a forward pass are given the same mask object: convert it once.
        if self._mask is None or self._mask[0] is not visible:
            assert self._real is not None
            tokens = self._real[:, None, :, None] & self._real[:, None, None, :]
            self._mask = (visible, additive_mask(visible, dtype), bool((visible | ~tokens).all()))
        return self._mask[1:]

    def _input_hook(self, modules: BlockModules) -> Callable[..., Any]:
        def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            vectors = args[0] if args else kwargs["hidden_states"]
            self._show_hidden(modules.layer - 1, vectors)
            replaced = self._replacements.get(modules.layer)
            if replaced is not None:
                vectors = vectors.clone()
                vectors[..., replaced.dimensions] = replaced.values.to(vectors)
            self._inputs[modules.layer] = vectors
            if replaced is None:
                return None
            return ((vectors, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": vectors})

        return enter

    def _last_hook(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._show_hidden(len(self._layers), output[0] if isinstance(output, tuple) else output)

    def _show_hidden(self, layer: int, vectors: Tensor) -> None:
        if layer in self._hidden and self._visit_hidden is not None:
            self._visit_hidden(layer, full_precision(vectors))
        self._stop_after((layer, 1))

    def _stop_after(self, shown: tuple[int, int]) -> None:
        if shown == self._end and not self._whole:
            raise _Stop

    def _output_hook(self, modules: BlockModules) -> Callable[..., None]:
        def show(_module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
            assert self._visit is not None
            assert self._real is not None
            call = self._calls.pop(modules.layer)
            self._visit(
                AttentionBlock(
                    layer=modules.layer,
                    inputs=full_precision(self._inputs.pop(modules.layer)),
                    query=full_precision(call.query),
                    key=full_precision(call.key),
                    value=full_precision(call.value),
                    mask=None if call.mask is None else full_precision(call.mask),
                    everything_visible=call.everything_visible,
                    scale=call.scale,
                    log_normaliser=call.log_normaliser,
                    attention_output=full_precision(output),
                    parameters=self.parameters[modules.layer],
                    real=self._real,
                )
            )
            self._shown.add(modules.layer)
            self._stop_after((modules.layer, 0))

        return show


def observe_blocks(observer: Observer, inputs: Mapping[str, Tensor]) -> Iterator[AttentionBlock]:
    """The blocks of one forward pass as an iterator: the model advances only as blocks are asked for.

    The pass runs in a thread of its own that waits while a block is being looked at. Leaving the loop early ends it.
    """
    requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
    answers: queue.SimpleQueue[AttentionBlock | BaseException | None] = queue.SimpleQueue()

    def hand_over(block: AttentionBlock) -> None:
        answers.put(block)
        if not requests.get():
            raise _Stop

    def forward() -> None:
        try:
            if requests.get():
                observer.run(inputs, hand_over)
            answers.put(None)
        except BaseException as error:
            answers.put(error)

    thread = threading.Thread(target=forward, name="normscope-forward", daemon=True)
    thread.start()
    try:
        while True:
            requests.put(True)
            answer = answers.get()
            if answer is None:
                return
            if isinstance(answer, BaseException):
                raise answer
            yield answer
            del answer
    finally:
        requests.put(False)
        thread.join()
