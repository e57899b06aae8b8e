"""One forward pass of an observed model: what its modules have computed so far, and what has been visited."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.linear.layers import LayerFollower
from normscope.maths.attention import attention
from normscope.models.blocks.block import AttentionBlock, BlockParameters, TokenSelector, full_precision
from normscope.models.observe.attention_function import AttentionCall
from normscope.models.observe.capture import LayerCapture
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.layer_rerun import LayerRerun
from normscope.models.observe.text_check import PassCheck
from normscope.models.sites.block_modules import BlockModules
from normscope.models.sites.layer_hooks import check_cancelled, vectors_from, vectors_in, with_vectors
from normscope.models.sites.layout import ModelLayout
from normscope.models.stored.model_code import StopForward

Visitor = Callable[[AttentionBlock], None]
FeedForwardVisitor = Callable[[FeedForwardBlock], None]
HiddenVisitor = Callable[[int, Tensor], None]


def copy_of(output: Any) -> Any:
    """What a layer returned, a tensor or a tuple, with a copy of the hidden vectors."""
    return output.clone() if isinstance(output, Tensor) else (output[0].clone(), *output[1:])


class Replacement(NamedTuple):
    """New values for some dimensions of the residual stream."""

    dimensions: Tensor
    values: Tensor
    tokens: TokenSelector | None = None
    """Which tokens to change; None for all."""

    def apply(self, vectors: Tensor, token_mask: Tensor) -> Tensor:
        """A copy of the hidden vectors with the new values."""
        changed = vectors.clone()
        changed[..., self.dimensions] = self.values.to(vectors)
        if self.tokens is None:
            return changed
        return torch.where(self.tokens(full_precision(vectors), token_mask).unsqueeze(-1), changed, vectors)


# The order of the visits to one layer.
_ATTENTION, _FEED_FORWARD, _HIDDEN = range(3)


class NotFollowedError(InputError):
    """What leaves a layer is not an affine map of what its attention block gives.

    Args:
        layer: Its number.
        because: The function that is not linear, and its module; None if that is not known.
    """

    def __init__(self, layer: int, because: str | None) -> None:
        self.because = because
        super().__init__(
            f"the feed-forward network of layer {layer} cannot be observed: even with slopes, deviations and gates held fixed, "
            f"{because or 'what leaves the layer'} is not linear in what its attention block gives; the attention blocks can "
            "still be measured"
        )


@dataclasses.dataclass(frozen=True)
class Targets:
    """What to visit in a model."""

    layout: ModelLayout
    entries: Sequence[nn.Module]
    """The module that begins each layer of the model."""
    layers: Mapping[int, BlockModules]
    """The modules of all layers that have a block."""
    wanted: frozenset[int]
    """Layers whose attention blocks are visited."""
    hidden: frozenset[int]
    """Layers whose hidden vectors are visited, from 0."""
    followed: frozenset[int]
    """Layers that are visited again when the model leaves them, with their feed-forward networks."""
    parameters: Mapping[int, BlockParameters]
    """Weights of the blocks to visit, by layer."""

    @cached_property
    def end(self) -> tuple[int, int]:
        """The last visit: its layer, and its place among the layer's visits. Hidden vectors come after the layer's blocks."""
        return max(
            [
                *((layer, _ATTENTION) for layer in self.wanted),
                *((layer, _FEED_FORWARD) for layer in self.followed),
                *((layer, _HIDDEN) for layer in self.hidden),
            ]
        )


class Visitors(NamedTuple):
    """The functions that are called on each visit."""

    attention: Visitor
    hidden: HiddenVisitor | None = None
    feed_forward: FeedForwardVisitor | None = None


@dataclasses.dataclass
class ForwardPass:
    """A forward pass; the model's hooks call its methods, and those of what it captures of the current layer."""

    targets: Targets
    visitors: Visitors
    token_mask: Tensor
    key_mask: Tensor
    check: PassCheck | None = None
    """Compares what is observed with what the model does; None if nothing is compared."""
    replacements: Mapping[int, Replacement] = dataclasses.field(default_factory=dict)
    outputs: dict[int, Any] | None = None
    """Receives what its layers return, unless layers leave more than that for later ones."""
    whole: bool = False
    """Whether the pass goes on after everything has been visited."""
    masks_on_host: Sequence[Tensor] = ()
    """Token masks that are already in CPU memory."""
    passed: int = 0
    """Number of layers that have begun."""
    attention: LayerCapture | None = None
    """What the attention block of the current layer has computed so far; None once it has been visited."""
    follower: LayerFollower | None = None
    """Follows what layers make of their blocks, if that is visited."""
    block: AttentionBlock | None = None
    """The attention block of the current layer, until the model leaves it, if the layer is followed."""
    explains: bool = False
    """Whether the purpose of the pass is to say why a layer cannot be followed."""
    paused: bool = False
    """Whether a layer is being rerun, which is not observed."""
    _called: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
    """The current layer and its arguments, if it is followed."""
    _left: Tensor | None = None
    """What the last layer returned."""
    shown: set[int] = dataclasses.field(default_factory=set)
    """Layers whose attention blocks have been visited."""

    def attend(self, module: nn.Module, call: AttentionCall) -> Tensor | None:
        """Attention of a layer whose block is visited; None for any other module."""
        parts = self.attention
        if parts is None or parts.modules.attention is not module or parts.modules.layer not in self.targets.wanted:
            return None
        if parts.call is not None:
            raise self._unobservable(f"{type(module).__name__} attends more than once")
        with torch._C.DisableTorchFunction():
            parts.call = call = call.repeated()
            output, parts.log_normaliser = attention(
                call.query, call.key, call.value, call.mask, call.scale, cap=call.cap, sinks=call.sinks
            )
            parts.attended = output.transpose(1, 2).contiguous()
            return parts.attended

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A layer begins: visit its input, and change it if there is a replacement."""
        check_cancelled()
        expected = self.targets.entries[self.passed]
        self.passed += 1
        layer = self.passed
        if expected is not module:
            raise RuntimeError(f"layer {layer} ran out of order")
        vectors = self.targets.layout.kept(vectors_in(args, kwargs))
        left = None if self.targets.layout.stream.convolution is not None else self._left
        self._show_hidden(layer - 1, vectors)
        if self.outputs is not None and _shares_state(args, kwargs):
            self.outputs.update(dict.fromkeys(self.outputs))
            self.outputs = None
        replaced = self.replacements.get(layer)
        if replaced is not None:
            vectors = replaced.apply(vectors, self.token_mask)
        modules = self.targets.layers.get(layer)
        large = None if self.check is None else self.check.known_large(layer)
        self.attention = (
            None
            if modules is None
            else LayerCapture(modules, inputs=vectors, attends=modules.attends_throughout, large_scores=large)
        )
        if self.check is not None:
            with torch._C.DisableTorchFunction():
                self.check.enter(layer, vectors, left if replaced is None else None)
        given = vectors_in(args, kwargs) if replaced is None else self.targets.layout.by_text(vectors)
        if self.follower is not None:
            self._follow(given)
            self._called = module, *with_vectors(args, kwargs, given)
        return None if replaced is None else with_vectors(args, kwargs, given)

    def _follow(self, vectors: Tensor) -> None:
        """Follow the layer that begins, from what it is given, if it is to be followed."""
        assert self.follower is not None
        self.follower.forget()
        if self.attention is None or self.passed not in self.targets.followed:
            return
        self.attention.follower = self.follower
        modules = self.attention.modules
        if modules.bottleneck is None and modules.carried is None:
            self.follower.enter(vectors)

    def leave(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """A layer ends: visit its feed-forward network, and its output if it is the last."""
        if self.outputs is not None and self.passed in self.outputs:
            self.outputs[self.passed] = copy_of(output) if self.targets.layout.stream.changes_in_place else output
        vectors = vectors_from(output)
        self._show_feed_forward(vectors)
        self._left = self.targets.layout.by_text(vectors)
        if self.check is not None:
            with torch._C.DisableTorchFunction():
                self.check.leave(self._left)
            self._end_if_due()
        if self.passed == len(self.targets.entries):
            self._show_hidden(self.passed, self._left)

    def take_softmax(self, weights: Tensor) -> None:
        """What a softmax gives: α, if the attention module is running and the softmax is over keys."""
        parts, queries, keys = self.attention, self.token_mask.shape[1], self.key_mask.shape[1]
        if parts is None or not parts.attends or weights.ndim < 3:
            return
        if weights.shape[-2] == queries and weights.shape[-1] in (keys, keys + 1):  # a sink comes last
            found = weights[..., :keys].reshape(len(self.token_mask), -1, queries, keys)
            if parts.own_weights is not None and parts.own_weights.shape[1] < parts.modules.softmaxes:
                found = torch.cat([parts.own_weights, found], dim=1)  # each head is a module of its own
            parts.own_weights = found

    def take_product(self, second: Tensor, product: Tensor) -> None:
        """A product of matrices: of queries and keys, if the attention module is running and has no weights yet."""
        parts, queries, keys = self.attention, self.token_mask.shape[1], self.key_mask.shape[1]
        if parts is not None and parts.attends and parts.own_weights is None and product.shape[-2:] == (queries, keys):
            parts.own_key = second.transpose(-1, -2)

    def _unobservable(self, reason: str) -> InputError:
        return InputError(
            f"the attention of layer {self.passed} cannot be observed: {reason}; pass a model whose modules are unchanged"
        )

    def take_attention_output(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        """The output of W_O."""
        if self.attention is not None:
            if self.attention.follower is not None:
                self.attention.follower.attend(output)
            output = self.targets.layout.by_text(output, "attention output")
            if output.shape[:-1] != self.token_mask.shape:
                raise self._unobservable(
                    f"expected a vector for each of {' × '.join(map(str, self.token_mask.shape))} tokens from its output "
                    f"projection, got the shape {tuple(output.shape)}"
                )
            if not self.targets.layout.registry:
                # The last softmax over the keys gave the weights of an attention module outside the registry.
                self.attention.attends = False
                if self.attention.own_weights is None:
                    kind = type(self.attention.modules.attention).__name__
                    raise self._unobservable(f"{kind} computes no attention weights by a softmax")
            self.attention.attention_output = output
            self._show()

    def _show_feed_forward(self, leaving: Tensor) -> None:
        attention, self.block = self.block, None
        if attention is not None and self.follower is not None:
            assert self.visitors.feed_forward is not None
            with torch._C.DisableTorchFunction():
                followed = self.follower.leave(leaving)
                if followed is None:
                    raise NotFollowedError(self.passed, getattr(leaving, "_because", None))
                modules = self.targets.layers[self.passed]
                assert self._called is not None
                rerun = LayerRerun(*self._called, modules, len(self.token_mask), self._paused)
                block = FeedForwardBlock(attention, followed, modules, rerun)
                if self.check is not None:
                    self.check.add_network(block)
                self.visitors.feed_forward(block)
            self.follower.forget()
            self._called = None
        self._stop_after((self.passed, _FEED_FORWARD))

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def _show_hidden(self, layer: int, vectors: Tensor) -> None:
        if layer in self.targets.hidden and self.visitors.hidden is not None:
            with torch._C.DisableTorchFunction():
                self.visitors.hidden(layer, full_precision(vectors))
        self._stop_after((layer, _HIDDEN))

    def _stop_after(self, shown: tuple[int, int]) -> None:
        if shown == self.targets.end and not self.whole:
            if self.check is None or not self.check.waits:
                raise StopForward
            self.check.ending = True

    def _end_if_due(self) -> None:
        """End the pass if everything has been visited and compared."""
        if self.check is not None and self.check.ending and not self.check.waits:
            raise StopForward

    def read(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module begins whose input is compared."""
        if self.check is not None:
            with torch._C.DisableTorchFunction():
                self.check.read(module, args, kwargs)
            self._end_if_due()

    def wrote(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module ends whose output is compared."""
        if self.check is not None:
            with torch._C.DisableTorchFunction():
                self.check.wrote(module, args, output)
            self._end_if_due()

    def _show(self) -> None:
        """Visit the block, all of whose parts are captured."""
        parts = self.attention
        assert parts is not None
        if parts.modules.layer not in self.targets.wanted:
            return
        self.attention = None
        with torch._C.DisableTorchFunction():  # modes that observe the model must not see our own computation
            block = parts.block(self.targets.parameters[parts.modules.layer], self.token_mask, self.key_mask)
            if parts.follower is not None:
                self.block = block
            if self.check is not None:
                self.check.add(block, parts.attended)
            self.visitors.attention(block)
        self.shown.add(parts.modules.layer)
        self._stop_after((parts.modules.layer, _ATTENTION))


def _shares_state(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a layer is given an object in which it may leave something for later layers, keys and values for example."""
    return any(isinstance(value, dict | list) for value in (*args, *kwargs.values()))
