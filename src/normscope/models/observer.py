"""Runs a model and hands out its attention blocks, one layer at a time.

Four points are watched: the attention function, which is replaced through transformers' registry; the output projection
W_O; the block's norm, whose parameters are read; and the block's input. A block is handed out the moment its output
projection has run and is forgotten when the visitor returns, so memory grows with neither depth nor corpus.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import PreTrainedModel

from normscope.maths.attention import additive_mask, attention, repeat_heads
from normscope.models.block import AttentionBlock, full_precision
from normscope.models.layout import BlockLayout, BlockModules

IMPLEMENTATION = "normscope"
"""The name under which our attention function stands in transformers' registry."""

# What transformers may pass to an attention function without changing what it computes.
_HARMLESS_KEYWORDS = frozenset(
    {"position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states"}
)

Visitor = Callable[[AttentionBlock], None]


class _AttentionCall(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
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
        layers: Numbers of the layers to show, from 1; the forward pass ends after the last of them. None shows all.

    Raises:
        AttributeError: If the model lacks a part that the layout names.
    """

    def __init__(self, model: PreTrainedModel, layout: BlockLayout, layers: Sequence[int] | None = None) -> None:
        self._model = model
        blocks = layout.bind(model)
        wanted = set(range(1, len(blocks) + 1) if layers is None else layers)
        self._blocks = {id(modules.attention): modules for modules in blocks if modules.layer in wanted}
        heads = model.config.num_attention_heads
        self.parameters = {modules.layer: modules.parameters(heads) for modules in self._blocks.values()}
        """Weights of the blocks that are shown, by layer."""
        self._last_layer = max(wanted)
        self._exit = contextlib.ExitStack()
        # What the current forward pass has gathered of blocks not yet shown, by layer.
        self._inputs: dict[int, Tensor] = {}
        self._calls: dict[int, _AttentionCall] = {}
        self._shown: set[int] = set()
        self._mask: tuple[Tensor, Tensor] | None = None
        self._real: Tensor | None = None
        self._visit: Visitor | None = None

    def __enter__(self) -> "Observer":
        previous = self._model.config._attn_implementation
        if previous == IMPLEMENTATION:
            raise RuntimeError(
                "this model is being observed already: finish or close the other loop over its blocks first"
            )
        self._model.set_attn_implementation(IMPLEMENTATION)
        self._exit.callback(self._model.set_attn_implementation, previous)
        for modules in self._blocks.values():
            for handle in (
                modules.whole.register_forward_pre_hook(self._input_hook(modules), with_kwargs=True),
                modules.output.register_forward_hook(self._output_hook(modules)),
            ):
                self._exit.callback(handle.remove)
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def run(self, inputs: Mapping[str, Tensor], visit: Visitor) -> None:
        """One forward pass, whose blocks are shown to `visit` in order.

        Args:
            inputs: The model's keyword arguments, `input_ids` and `attention_mask` at least.
            visit: Called with each block, under `torch.inference_mode`.
        """
        self._real = inputs["attention_mask"].bool()
        self._visit = visit
        self._shown.clear()
        token = _active.set(self)
        stopped = False
        try:
            with torch.inference_mode():
                self._model(**inputs)
        except _Stop:
            stopped = True
        finally:
            _active.reset(token)
            self._inputs.clear()
            self._calls.clear()
            self._mask = self._real = self._visit = None
        missing = {modules.layer for modules in self._blocks.values()} - self._shown
        if missing and not stopped:
            raise RuntimeError(f"the forward pass did not show all parts of layers {sorted(missing)}")

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float
    ) -> Tensor | None:
        """Attention for a layer that is shown, or None for any other."""
        modules = self._blocks.get(id(module))
        if modules is None:
            return None
        heads = query.shape[1]
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
        mask = None if visible is None else self._additive(visible, query.dtype)
        output, log_normaliser = attention(query, key, value, mask, scale)
        self._calls[modules.layer] = _AttentionCall(query, key, value, mask, scale, log_normaliser)
        return output.transpose(1, 2).contiguous()

    def _additive(self, visible: Tensor, dtype: torch.dtype) -> Tensor:
        # All layers of a forward pass are given the same mask object: convert it once.
        if self._mask is None or self._mask[0] is not visible:
            self._mask = (visible, additive_mask(visible, dtype))
        return self._mask[1]

    def _input_hook(self, modules: BlockModules) -> Callable[..., None]:
        def remember(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs[modules.layer] = args[0] if args else kwargs["hidden_states"]

        return remember

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
                    scale=call.scale,
                    log_normaliser=call.log_normaliser,
                    attention_output=full_precision(output),
                    parameters=self.parameters[modules.layer],
                    real=self._real,
                )
            )
            self._shown.add(modules.layer)
            if modules.layer == self._last_layer:
                raise _Stop

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


_active: ContextVar[Observer | None] = ContextVar("normscope_observer", default=None)


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """What transformers calls instead of its own fused attention while a model is observed."""
    observer = _active.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if observer is not None:
        unknown = [name for name, given in keywords.items() if given is not None and name not in _HARMLESS_KEYWORDS]
        if unknown:
            raise NotImplementedError(f"{type(module).__name__} passes {unknown} to attention, which is not understood")
        if dropout:
            raise ValueError("a model must be in evaluation mode to be observed: call model.eval()")
        visible = attention_mask
        if (
            visible is None
            and query.shape[2] > 1
            and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
        ):
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
        output = observer.attend(module, query, key, value, visible, scale)
        if output is not None:
            return output, None
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scale,
        is_causal=is_causal,
        **keywords,
    )


# A new name needs a mask function of its own as well, or transformers may leave padding visible without a word.
AttentionInterface.register(IMPLEMENTATION, _attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
