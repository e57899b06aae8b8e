"""Runs a model and hands out its attention blocks, one layer at a time, as `linear/blocks.py` recognises them.

A block is handed out as soon as it is known what carries on, and released when the visitor returns, so memory grows with
neither depth nor corpus.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.block_attention import block_attention
from normscope.linear.block_output import BlockOutput, KnownWeights, block_output, norm_of_layer
from normscope.linear.block_parameters import BlockParameters
from normscope.linear.blocks import Block, BlockRecogniser, without
from normscope.linear.layer_calls import LayerCall, LayerCalls
from normscope.linear.layers import FollowedLayer, NotFollowedError
from normscope.linear.provenance import Made, begin, begin_vectors, made_of
from normscope.linear.refusals import TWO_BLOCKS
from normscope.linear.replaced_output import output_replaced
from normscope.linear.trails import Trail
from normscope.linear.whole_layers import WholeLayers
from normscope.maths.attention import AttentionCall
from normscope.maths.composition import NormPosition
from normscope.maths.tensors import full_precision
from normscope.models.blocks.block import AttentionBlock, TokenSelector
from normscope.models.facts import ModelFacts, token_mask_of
from normscope.models.observe.attention_function import IMPLEMENTATION, active, attention_by, unobserved
from normscope.models.observe.cancelling import check_cancelled
from normscope.models.observe.check import Check, PartError, PartsCheck, PassCheck
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.layer_outputs import LayerOutput, LayerOutputs
from normscope.models.observe.layer_rerun import LayerRerun
from normscope.models.observe.rotations import length_dependent_rotations, rotate_each_alone
from normscope.models.probes import after_encoder, random_batch
from normscope.models.stored.model_code import StopForward, model_code
from normscope.models.stored.stored_weights import is_offloaded
from normscope.rounding import counted

Visitor = Callable[[AttentionBlock], None]
FeedForwardVisitor = Callable[[FeedForwardBlock], None]
HiddenVisitor = Callable[[int, Tensor], None]

_PROBE_LENGTH = 5
"""Number of tokens of the text from which weights are read."""


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


class Observer:
    """Calls a visitor with each attention block of a model.

    Use it as a context manager; on exit, the model is as it was.

    Args:
        model: A base model in evaluation mode.
        facts: What the model is.
        layers: Layers whose blocks are visited, from 1; None for all that have one.
        hidden: Layers whose hidden vectors are visited, from 0, the output of the embedding; the number after that of the last
            layer stands for the vectors that the model returns.
        feed_forward: Whether the feed-forward networks of `layers` are visited as well.
        projections: Whether blocks know what their queries, keys and values are made of; see `BlockParameters.projections`.

    The forward pass ends after the last block or hidden vectors to be visited.

    Raises:
        InputError: If `feed_forward` is set and a layer has no network that can be observed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        facts: ModelFacts,
        layers: Sequence[int] | None = None,
        hidden: Collection[int] = (),
        *,
        feed_forward: bool = False,
        projections: bool = True,
    ) -> None:
        self.model, self.facts = model, facts
        self.wanted = frozenset(facts.attends if layers is None else layers)
        self.hidden = frozenset(hidden)
        self.followed = self.wanted if feed_forward else frozenset()
        if feed_forward:
            self._require_networks()
        self.check = PartsCheck(model, facts)
        """Compares what is observed with what the model does, during the passes."""
        self.projects = projections
        self._positions = {block.layer: block.norm_position for block in facts.blocks}
        self._known = KnownWeights(keeps=not is_offloaded(model))
        self._parameters = _Parameters(self)
        self.compared: list[PartError] = []
        """What the last pass has compared."""
        self._exit = contextlib.ExitStack()
        self.current: _Pass | None = None
        """The pass that is running."""

    @property
    def networks(self) -> bool:
        """Whether feed-forward networks are observed."""
        return bool(self.followed)

    @property
    def parameters(self) -> Mapping[int, BlockParameters]:
        """Weights of the blocks to visit, by layer."""
        return self._parameters

    def last_visit(self, *, networks: bool) -> tuple[int, int]:
        """The last visit of a pass: its layer, and its place among the layer's visits, where hidden vectors come last."""
        visits = {_ATTENTION: self.wanted, _FEED_FORWARD: self.followed if networks else (), _HIDDEN: self.hidden}
        return max((layer, visit) for visit, layers in visits.items() for layer in layers)

    def _require_networks(self) -> None:
        for block in self.facts.blocks:
            if block.layer in self.wanted and not block.networks:
                does = "has no feed-forward network"
                if block.networks is None:
                    does = "does more than add what feed-forward networks give, each token's from that token alone"
                raise InputError(
                    f"model: layer {block.layer} of this {self.facts.family} {does}; leave out what needs such a network"
                )

    def position(self, layer: int | None, is_self: bool) -> NormPosition | None:
        """The position of a layer's norm; None if it is unknown, or the attention is not that of the stack."""
        if layer is None or is_self is self.facts.is_cross_attention:
            return None
        return self._positions.get(layer)

    def _explain(self, inputs: Mapping[str, Tensor], replacements: Mapping[int, Replacement]) -> None:
        """Run the model once more, to say which function keeps a layer from being followed.

        Raises:
            NotFollowedError: Always, if the model does the same again.
        """
        visitors = Visitors(lambda _block: None, None, lambda _layer: None)
        self.current = running = _Pass(self, inputs, visitors, {}, proves=False, explains=True)
        running.replacements = replacements
        running.run(self.model, inputs)

    def find_parameters(self, layers: Collection[int]) -> dict[int, BlockParameters]:
        """The weights of some blocks, by layer, from a pass over a short text."""
        found: dict[int, BlockParameters] = {}

        def visit(block: AttentionBlock) -> None:
            if block.layer in layers:
                found[block.layer] = block.parameters
                _ = block.parameters.projections

        observer = Observer(self.model, self.facts, sorted(layers))
        observer._known = self._known
        lengths = (_PROBE_LENGTH,)
        inputs = random_batch(self.model, lengths, lengths if self.facts.reads_target else None)
        with observer:
            observer.run(inputs, visit, check=Check.NOTHING)
        return found

    def output_of(self, block: Block, texts: int) -> BlockOutput:
        """What a block makes of what its heads return.

        Args:
            texts: Number of texts in the batch.
        """
        return block_output(block.trail, texts, self._known)

    def block(self, block: Block, token_mask: Tensor, key_mask: Tensor, known_large: bool | None) -> AttentionBlock:
        """A block that has been recognised, with all that can be measured of it."""
        output = self.output_of(block, len(token_mask))
        if output.inputs.shape[1] != token_mask.shape[1]:
            raise InputError(
                f"layer {block.layer} reads {output.inputs.shape[1]} vectors for an input of {token_mask.shape[1]} tokens, so "
                "which of them are tokens is not known"
            )
        attention = block_attention(block.trail, token_mask, key_mask, known_large)
        return AttentionBlock(
            layer=block.layer,
            inputs=output.inputs,
            value=attention.value,
            alpha=attention.alpha,
            attention_output=output.attention_output,
            parameters=output.parameters,
            gate=attention.gate,
        )

    def layer(self, block: AttentionBlock, trail: Trail, whole: "WholeLayer") -> FeedForwardBlock:
        """A whole layer that has been followed."""
        texts = len(block.token_mask)
        rerun = None
        if whole.call is not None:
            heads = len(block.parameters.output_weight)
            rerun = LayerRerun(whole.call, texts, heads, trail.axes, whole.keeps_texts, whole.replaced)
        return FeedForwardBlock(
            attention=block,
            followed=whole.followed,
            axes=trail.axes,
            find_output_norm=lambda: norm_of_layer(whole.followed, trail, texts),
            rerun=rerun,
        )

    def __enter__(self) -> "Observer":
        try:
            if isinstance(self.model, PreTrainedModel) and self.model._can_set_attn_implementation():
                self._exit.enter_context(attention_by(self.model, IMPLEMENTATION))
            for rotation in length_dependent_rotations(self.model):
                handle = rotate_each_alone(rotation, self._observed_tokens)
                self._exit.callback(handle.remove)
        except BaseException:  # even an interrupt leaves the model as it was
            self._exit.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def _observed_tokens(self) -> Bool[Tensor, "batch token"] | None:
        """Which tokens of the pass that is running are no padding; None outside a pass, and in parts that are not observed."""
        return None if self.current is None or active.get() is not self.current else self.current.token_mask

    def run(
        self,
        inputs: Mapping[str, Tensor],
        visit: Visitor,
        visit_hidden: HiddenVisitor | None = None,
        visit_feed_forward: FeedForwardVisitor | None = None,
        *,
        token_mask: Bool[Tensor, "batch query"] | None = None,
        on_host: Mapping[str, Tensor] | None = None,
        replacements: Mapping[int, Replacement] | None = None,
        whole: nn.Module | None = None,
        outputs: dict[int, Any] | None = None,
        after: LayerOutput | None = None,
        check: Check = Check.SOME,
        proves: bool = False,
    ) -> Any:
        """Run one forward pass and call `visit` with its blocks, in order.

        Args:
            inputs: Keyword arguments of the model: `input_ids` and `attention_mask`, or whatever it reads instead of ids.
            visit: Called with each block, under `torch.inference_mode`.
            visit_hidden: Called with the layer's number and hidden vectors, for each layer in `hidden`.
            visit_feed_forward: Called with the block of each feed-forward network when the model leaves its layer, if the
                observer was made with `feed_forward`. The block holds the attention block of the same layer.
            token_mask: True at tokens, False at padding; by default, the mask among the inputs, which images come without.
            on_host: The inputs in CPU memory. With them, the host knows what is padding without waiting for the device.
            replacements: New values for some dimensions of what a layer's block and residual connection read, by layer.
            whole: A model that contains the observed one; it is run instead, to its end.
            outputs: See `LayerOutputs.kept`.
            after: A layer and what it returned for these inputs, in a pass without replacements up to there: it and the layers
                before it do not run again, and their blocks are not visited.
            check: How much of what is observed is compared with what the model does. Differences are found after blocks have
                been visited.
            proves: Whether it is shown that one token's vectors reach no other token between attention and the residual
                connection.

        Returns:
            The output of `whole`; None without it.

        Raises:
            InputError: If what is observed is not what the model does with these inputs.
        """
        visitors = Visitors(visit, visit_hidden, visit_feed_forward)
        running = _Pass(self, inputs, visitors, on_host or {}, token_mask, proves=proves)
        if replacements:
            self.facts.require_starts("replaced")
        running.replacements, running.to_the_end = replacements or {}, whole is not None
        running.outputs = LayerOutputs(outputs, after)
        running.checked = self.check.begin(check, running.token_mask)
        self.current = running
        try:
            output = running.run(self.model if whole is None else whole, inputs)
        except NotFollowedError:
            self._explain(inputs, replacements or {})
            raise
        finally:
            self.current = None
        self._finish(running, output)
        return output

    def _finish(self, running: "_Pass", output: Any) -> None:
        """Check that every block was visited, and is what the model does; then visit what the model has returned."""
        first = 1 if running.outputs.after is None else running.outputs.after.layer + 1
        missing = {layer for layer in self.wanted if layer >= first} - running.shown
        if missing:
            does = "this pass does not run it, or bends what carries on"
            if running.unused:
                does = f"its attention weights multiply no values as the softmax gave them ({running.unused[0]})"
            raise InputError(
                f"the attention of {counted(len(missing), 'layer')} ({', '.join(map(str, sorted(missing)))}) cannot be "
                f"observed: {does}; pass a model whose modules are unchanged"
            )
        self.compared = [] if running.checked is None else running.checked.compared
        if running.checked is not None:
            running.checked.require()
        running.show_returned(output)


class _Parameters(Mapping[int, BlockParameters]):
    """Weights of the blocks to visit, by layer, found by a short pass when they are asked for.

    They are kept if that takes no memory of its own, since reading them copies nothing: all of them together would otherwise
    take more memory than the model.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer, self._found = observer, dict[int, BlockParameters]()

    def __getitem__(self, layer: int) -> BlockParameters:
        if layer not in self._found:
            if layer not in self._observer.wanted:
                raise KeyError(layer)
            model = self._observer.model
            keeps = model.dtype in (torch.float32, torch.float64) and not is_offloaded(model)
            self._found = self._observer.find_parameters(self._observer.wanted if keeps else {layer})
        return self._found[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._observer.wanted))

    def __len__(self) -> int:
        return len(self._observer.wanted)


class Visitors(NamedTuple):
    """The functions that are called on each visit."""

    attention: Visitor
    hidden: HiddenVisitor | None = None
    feed_forward: FeedForwardVisitor | None = None


_ATTENTION, _FEED_FORWARD, _HIDDEN = range(3)
"""The order of the visits to one layer."""


class WholeLayer(NamedTuple):
    """A layer that has been followed, and how to run it again."""

    followed: FollowedLayer
    call: LayerCall | None
    """None if no module runs it."""
    keeps_texts: bool
    replaced: Callable[[Callable[[Tensor], Tensor]], contextlib.AbstractContextManager[None]]


class _Pass:
    """A forward pass: what has been visited, and what is still to come."""

    def __init__(
        self,
        observer: Observer,
        inputs: Mapping[str, Tensor],
        visitors: Visitors,
        on_host: Mapping[str, Tensor],
        token_mask: Tensor | None = None,
        *,
        proves: bool,
        explains: bool = False,
    ) -> None:
        facts = observer.facts
        self._observer, self._visitors = observer, visitors
        self.masks_on_host = [mask for name, mask in on_host.items() if name.endswith("attention_mask")]
        self.token_mask = token_mask_of(inputs, facts.stack) if token_mask is None else token_mask
        self.key_mask = inputs["attention_mask"].bool() if facts.is_cross_attention else self.token_mask
        self.replacements: Mapping[int, Replacement] = {}
        self.outputs = LayerOutputs()
        self.to_the_end = False
        """Whether the pass goes on after everything has been visited."""
        self.checked: PassCheck | None = None
        self.shown: set[int] = set()
        """Layers whose attention blocks have been visited."""
        self._entered = 0
        """The last layer that has begun."""
        self._left: Made | None = None
        """How what the last layer has returned was made."""
        self._trail: Trail | None = None
        """The last block, if no module runs layers."""
        self._block: tuple[AttentionBlock, Trail] | None = None
        """The last block that was visited, if its layer is followed."""
        texts, follows = len(self.token_mask), visitors.feed_forward is not None and bool(observer.followed)
        self._layers = WholeLayers(self._show_layer, observer.followed) if follows else None
        self._recogniser = BlockRecogniser(
            observer.model,
            texts,
            self._show,
            lambda: self._calls.number,
            proves=proves,
            layers=self._layers,
            axes=facts.places.within,
            masks_on_host=self.masks_on_host,
            positions=observer.position,
            projects=observer.projects,
            tokens=self.token_mask.shape[1] if facts.is_of_vectors else None,
        )
        self._recogniser.explains = explains
        self._calls = LayerCalls(
            observer.model,
            texts,
            self._enter,
            self._leave,
            begin=self._recogniser.begin_layer,
            end=self._recogniser.end_layer,
            run=lambda number, call, run: self.outputs.run(number, call, run),
            places=facts.places,
        )
        self._end = observer.last_visit(networks=follows)

    def run(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Run a model; None if the pass ends before the model does."""
        with torch.inference_mode(), model_code(model):
            if self._observer.facts.reads_target:
                with unobserved(self.masks_on_host):
                    inputs = after_encoder(model, inputs)
            token = active.set(self)
            begin_vectors(inputs)
            try:
                with self._calls, self._recogniser:
                    output = model(**inputs)
                    self._show_last(output)
                    return output
            except StopForward:
                return None
            finally:
                active.reset(token)

    def attend(self, module: nn.Module, call: AttentionCall) -> Tensor | None:
        """The attention of a module that calls transformers' function."""
        return self._recogniser.attend(module, call)

    @property
    def unused(self) -> list[str]:
        """The lines of softmaxes whose weights multiply no values."""
        return self._recogniser.unused

    # Layers.

    def _enter(self, layer: int, vectors: Tensor) -> Tensor | None:
        check_cancelled()
        # Another list of parts of layers, or other tokens.
        if layer <= self._entered or layer > self._observer.facts.layers:
            return None
        self._entered = layer
        if self._observer.facts.in_modules:
            self._require_passed_on(layer, made_of(vectors))
            self._show_hidden(layer - 1, vectors)
        replaced = self.replacements.get(layer)
        if replaced is None:
            return None
        if not self._observer.facts.in_modules:
            self._recogniser.settle(vectors)
        with without(self._recogniser):
            new = replaced.apply(vectors, self.token_mask)
        return begin(new)

    def _leave(self, layer: int, vectors: Tensor) -> None:
        self._left = made_of(vectors)
        if layer == self._observer.facts.layers and self._observer.facts.in_modules:
            self._show_hidden(layer, vectors)

    def _require_passed_on(self, layer: int, entered: Made | None) -> None:
        """Check that a layer reads what the one before it has returned, or a multiple, if it did when the model was read."""
        facts, left = self._observer.facts, self._left
        if self.checked is None or left is None or entered is None or facts.writes_between:
            return
        if entered.unscaled() is left.unscaled():
            return
        raise InputError(
            f"{facts.family} cannot be observed exactly on these texts: layer {layer} does not read what layer {layer - 1} "
            "returns, as it does on others"
        )

    def _show_last(self, output: Any) -> None:
        """Visit what leaves the last layer, if no module runs that: the model's output."""
        facts, last = self._observer.facts, self._recogniser.last
        if not facts.in_modules:
            vectors = output[0] if last is None or facts.norm_positions == ("post",) else last
            self._recogniser.settle(vectors)
            if vectors is not output[0] and self._trail is not None:
                vectors = self._trail.axes.by_text(vectors, len(self.token_mask))
            self._show_hidden(facts.layers, vectors)

    # Visits.

    def show_returned(self, output: Any) -> None:
        """Visit what the model has returned, if that is wanted and has a vector for each token."""
        beyond, visit = self._observer.facts.layers + 1, self._visitors.hidden
        if beyond in self._observer.hidden and visit is not None and output[0].shape[:-1] == self.token_mask.shape:
            visit(beyond, full_precision(output[0]))

    def _show(self, block: Block) -> None:
        """Visit a block."""
        facts = self._observer.facts
        if facts.stack is not None and facts.stack != "encoder" and block.is_self is facts.is_cross_attention:
            return
        if not facts.in_modules:
            self._trail = block.trail
            assert block.trail.inputs is not None
            entered = block.trail.axes.by_text(block.trail.inputs, len(self.token_mask))
            self._show_hidden(block.layer - 1, entered)
        if block.layer not in self._observer.wanted:
            return
        if block.layer in self.shown:
            raise block.trail.refusal(TWO_BLOCKS)
        with without(self._recogniser):  # our own computation is not a part of the model
            self._observer.check.require_functions(block)
            large = None if self.checked is None else self.checked.known_large(block.layer)
            made = self._observer.block(block, self.token_mask, self.key_mask, large)
            if self.checked is not None:
                self.checked.add(made, self._carried(block))
            if self._layers is not None:
                self._block = made, block.trail
            self._visitors.attention(made)
        self.shown.add(block.layer)
        self._stop_after((block.layer, _ATTENTION))

    def _carried(self, block: Block) -> Tensor | None:
        """What carries on from a block, by text, if nothing else is in it."""
        trail = block.trail
        if trail.carried is None or trail.beside:
            return None
        return full_precision(trail.axes.by_text(trail.carried, len(self.token_mask)))

    def _show_layer(self, _number: int | None, followed: FollowedLayer) -> None:
        """Visit a whole layer."""
        assert self._block is not None
        assert self._layers is not None
        assert self._visitors.feed_forward is not None
        block, trail = self._block
        with without(self._recogniser):
            call = self._calls.call if self._observer.facts.in_modules else None
            replaced = functools.partial(output_replaced, self._calls, self._layers.output)
            whole = WholeLayer(followed, call, self._layers.keeps_texts, replaced)
            layer = self._observer.layer(block, trail, whole)
            if self.checked is not None and self.checked.sees(block.layer):
                self.checked.add_layer(block.layer, layer.error())
            self._visitors.feed_forward(layer)
        self._block = None
        self._stop_after((block.layer, _FEED_FORWARD))

    def _show_hidden(self, layer: int, vectors: Tensor) -> None:
        if layer in self._observer.hidden and self._visitors.hidden is not None:
            with without(self._recogniser):
                self._visitors.hidden(layer, full_precision(vectors))
        self._stop_after((layer, _HIDDEN))

    def _stop_after(self, visited: tuple[int, int]) -> None:
        if visited != self._end:
            return
        if not self.to_the_end:
            raise StopForward
        self._recogniser.rest()
