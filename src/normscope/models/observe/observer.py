"""Runs a model and hands out its attention blocks, one layer at a time.

The observer uses five points: the attention function, which it replaces through transformers' registry; the output projection
W_O; the block's norm, whose parameters it reads; the feed-forward network; and the hidden vectors, that is, the input of each
layer and the output of the last. A block is handed out as soon as its output projection has run and released when the visitor
returns, so memory grows with neither depth nor corpus. If feed-forward networks are visited, the network's block is handed out
when the model leaves its layer, since families differ in what runs first, and the attention block is kept until then.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.layers import LayerFollower
from normscope.linear.rules import HeldFixed
from normscope.models.blocks.block import BlockParameters
from normscope.models.observe.attention_function import IMPLEMENTATION, active, attention_by, own_attention_by
from normscope.models.observe.capture import LayerCapture
from normscope.models.observe.forward_pass import (
    FeedForwardVisitor,
    ForwardPass,
    HiddenVisitor,
    NotFollowedError,
    Replacement,
    Targets,
    Visitor,
    Visitors,
)
from normscope.models.observe.identities import bound_with_norms, known_rests
from normscope.models.observe.own_attention import OwnAttention, returns_weights
from normscope.models.observe.skipped_layers import LayerOutput, skipped
from normscope.models.observe.text_check import Check, PassCheck, TextCheck
from normscope.models.observe.untouched_layers import compare_layers
from normscope.models.sites.block_modules import BlockWeights, bind_blocks, takes_no_copy
from normscope.models.sites.layer_hooks import layer_hooks
from normscope.models.sites.layout import ModelLayout
from normscope.models.sites.rotary import length_dependent_rotations, rotate_each_alone
from normscope.models.stored.model_code import StopForward, model_code
from normscope.models.stored.stored_weights import execution_device
from normscope.rounding import counted


@dataclasses.dataclass(frozen=True, eq=False)
class _Event:
    """A hook that tells the observer's current pass what a module was given or has computed.

    Args:
        take: Receives it: a method of the pass, or of what the pass captures of the current layer.
        part: The pass's attribute with that; None for the pass itself.
    """

    observer: "Observer"
    take: Callable[..., Any]
    part: Literal["attention"] | None = None

    def __call__(self, *arguments: Any) -> Any:
        receiver: Any = self.observer.current
        if receiver is None or receiver.paused:
            return None
        if self.part is not None:
            receiver = getattr(receiver, self.part)
        return None if receiver is None else self.take(receiver, *arguments)


class Observer:
    """Calls a visitor with each attention block of a model.

    Use it as a context manager: inside, the model runs our attention function; on exit, the model is restored.

    Args:
        model: A base model in evaluation mode.
        layers: Layers whose blocks are visited, from 1; None for all that have one.
        hidden: Layers whose hidden vectors are visited, from 0, the output of the embedding.
        feed_forward: Whether the feed-forward networks of `layers` are visited as well.

    The forward pass ends after the last block or hidden vectors to be visited.

    Raises:
        AttributeError: If the model lacks a module that the layout names.
        InputError: If `feed_forward` is set and a layer has no network that can be observed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: ModelLayout,
        layers: Sequence[int] | None = None,
        hidden: Collection[int] = (),
        *,
        feed_forward: bool = False,
    ) -> None:
        self._model, self._layout = model, layout
        self._layers = bind_blocks(model, layout)
        wanted = frozenset(layout.attends if layers is None else layers)
        if feed_forward:
            _require_networks(layout, wanted)
        modules = {modules.layer: modules for modules in self._layers if modules.layer in wanted}
        self._targets = Targets(
            layout=layout,
            entries=layout.entries(model),
            layers={modules.layer: modules for modules in self._layers},
            wanted=wanted,
            hidden=frozenset(hidden),
            followed=wanted if feed_forward else frozenset(),
            parameters=BlockWeights(modules, keep=takes_no_copy(model)),
        )
        self.hidden_norms = {
            layer: layout.normalisation(norm, execution_device(model))
            for layer, norm in layout.hidden_norms(model).items()
        }
        """Weights of the norms that output hidden vectors, by layer from 0."""
        name = model.config.name_or_path or type(model).__name__
        norms = [norm for block in self._layers for norm in (block.norm, block.attention_norm, block.output_norm)]
        bound = bound_with_norms(model, layout, norms)
        self.check = TextCheck(name, bound, model.dtype, layout, dict(self._targets.layers))
        """Compares what is observed with what the model does, during the passes."""
        self._returns_weights = returns_weights(model)
        self._own = model.config._attn_implementation
        """The attention that the untouched model runs."""
        self._exit = contextlib.ExitStack()
        self.current: ForwardPass | None = None
        """The pass that is running."""

    @property
    def networks(self) -> bool:
        """Whether feed-forward networks are observed."""
        return bool(self._targets.followed)

    @property
    def parameters(self) -> Mapping[int, BlockParameters]:
        """Weights of the blocks to visit, by layer."""
        return self._targets.parameters

    def __enter__(self) -> "Observer":
        # A second observer's hooks would interfere with the first's.
        if any(isinstance(hook, _Event) for hook in self._layers[0].output._forward_hooks.values()):
            raise RuntimeError("this model is already being observed")
        try:
            self._change_model()
        except BaseException:  # even an interrupt leaves the model as it was
            self._exit.close()
            raise
        return self

    def _change_model(self) -> None:
        if self._layout.registry:
            self._exit.enter_context(attention_by(self._model, IMPLEMENTATION))
        else:
            # The fused attention of these models returns no weights or (Falcon) weights that include later keys.
            self._exit.enter_context(own_attention_by(self._model, "eager"))
        self.check.rest = known_rests(self._model, self._layout)
        for handle in self._hooks():
            self._exit.callback(handle.remove)

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def _hooks(self) -> Iterator[RemovableHandle]:
        for rotation in length_dependent_rotations(self._model):
            yield rotate_each_alone(rotation, lambda: None if self.current is None else self.current.token_mask)
        yield from layer_hooks(
            self._model, self._layout, _Event(self, ForwardPass.enter), _Event(self, ForwardPass.leave)
        )
        yield from self._hooks_of_check()
        attention = functools.partial(_Event, self, part="attention")
        # Layers that share modules also share hooks; the order of the calls tells which layer is running.
        for modules in {id(modules.entry): modules for modules in self._layers}.values():
            if modules.bottleneck is not None:
                yield modules.bottleneck.register_forward_hook(attention(LayerCapture.take_bottleneck))
            elif modules.carried is not None:
                yield modules.carried.register_forward_pre_hook(attention(LayerCapture.take_residual), with_kwargs=True)
            if modules.reads_attention_inputs is not None:
                yield modules.reads_attention_inputs.register_forward_pre_hook(
                    attention(LayerCapture.take_attention_inputs), with_kwargs=True
                )
            yield modules.output.register_forward_hook(_Event(self, ForwardPass.take_attention_output))
            if modules.heads.gate is not None:
                yield modules.heads.gate.register_forward_hook(attention(LayerCapture.take_gate))
            if modules.heads.key_norm is not None:
                yield modules.heads.key_norm.register_forward_pre_hook(
                    attention(LayerCapture.take_unnormed_key), with_kwargs=True
                )
            if not self._layout.registry:
                yield modules.attention.register_forward_pre_hook(attention(LayerCapture.begin_own_attention))
                if modules.reads_query_inputs is not None:
                    yield modules.reads_query_inputs.register_forward_pre_hook(
                        attention(LayerCapture.take_query_inputs), with_kwargs=True
                    )

    def _hooks_of_check(self) -> Iterator[RemovableHandle]:
        read, written = self.check.watched()
        for module in read:
            yield module.register_forward_pre_hook(_Event(self, ForwardPass.read), with_kwargs=True)
        for module in written:
            yield module.register_forward_hook(_Event(self, ForwardPass.wrote))

    def run(
        self,
        inputs: Mapping[str, Tensor],
        visit: Visitor,
        visit_hidden: HiddenVisitor | None = None,
        visit_feed_forward: FeedForwardVisitor | None = None,
        *,
        on_host: Mapping[str, Tensor] | None = None,
        replacements: Mapping[int, Replacement] | None = None,
        whole: nn.Module | None = None,
        outputs: dict[int, Any] | None = None,
        after: LayerOutput | None = None,
        check: Check = Check.SOME,
    ) -> Any:
        """Run one forward pass and call `visit` with its blocks, in order.

        Args:
            inputs: Keyword arguments of the model, at least `input_ids` and `attention_mask`.
            visit: Called with each block, under `torch.inference_mode`.
            visit_hidden: Called with the layer's number and hidden vectors, for each layer in `hidden`.
            visit_feed_forward: Called with the block of each feed-forward network when the model leaves its layer, if the
                observer was made with `feed_forward`. The block holds the attention block of the same layer.
            on_host: The inputs in CPU memory. With them, the host knows what is padding without waiting for the device.
            replacements: New values for some dimensions of a layer's input, by layer; the block and the residual connection
                both read them.
            whole: A model that contains the observed one; it is run instead, to its end.
            outputs: Receives what each of its layers returns, as `after` takes it. A value stays None if no pass can begin
                after the layer, because no module runs it or because layers leave more for later ones than what they return.
            after: A layer and what it returned for these inputs, in a pass without replacements up to there: it and the layers
                before it do not run again, and their blocks are not visited.
            check: How much of what is observed is compared with what the model does. Differences are found after blocks have
                been visited.

        Returns:
            The output of `whole`; None without it.

        Raises:
            InputError: If what is observed is not what the model does with these inputs.
        """
        forward = self._begin(inputs, Visitors(visit, visit_hidden, visit_feed_forward))
        forward.masks_on_host = [mask for name, mask in (on_host or {}).items() if name.endswith("attention_mask")]
        forward.replacements, forward.whole = replacements or {}, whole is not None
        forward.outputs = outputs if self._layout.stream.in_modules else None
        ids = inputs["decoder_input_ids" if self._layout.reads_target else "input_ids"]
        forward.check = self.check.begin(check, forward.token_mask, on_host, ids)
        # Some attention modules have a softmax only if they are asked for their weights.
        weights = {} if self._layout.registry or not self._returns_weights else {"output_attentions": True}
        with contextlib.nullcontext() if after is None else self._skipped(after):
            try:
                output = self._forward(forward, self._model if whole is None else whole, {**inputs, **weights})
            except NotFollowedError:
                self._explain(forward, {**inputs, **weights})
                raise
        self._require_all_shown(forward, 1 if after is None else after.layer + 1)
        if forward.check is not None:
            self.check.require(forward.check.compared, forward.check.scores)
            if check is Check.TEXTS and not forward.replacements and after is None:
                self._compare_untouched(inputs, forward.check)
        return output

    def _explain(self, failed: ForwardPass, inputs: Mapping[str, Any]) -> None:
        """Run the model once more, to say which function keeps a layer from being followed.

        Raises:
            NotFollowedError: Always, if the model does the same again.
        """
        forward = self._begin(inputs, Visitors(lambda _block: None, None, lambda _block: None))
        forward.replacements, forward.explains = failed.replacements, True
        self._forward(forward, self._model, inputs)

    def _require_all_shown(self, forward: ForwardPass, first: int) -> None:
        """Check that every wanted layer has been visited, from the first that ran."""
        missing = {layer for layer in self._targets.wanted if layer >= first} - forward.shown
        if missing:
            raise InputError(
                f"the attention of {counted(len(missing), 'layer')} ({', '.join(map(str, sorted(missing)))}) cannot be "
                "observed: the forward pass skips its modules or calls others; pass a model whose modules are unchanged"
            )

    def _compare_untouched(self, inputs: Mapping[str, Tensor], check: PassCheck) -> None:
        """Compare the layers of a pass with those of the untouched model."""
        done = len(check.compared)
        # Hooks of the observer stay, and do nothing outside a pass.
        registry = self._layout.registry
        with contextlib.nullcontext() if registry else own_attention_by(self._model, self._own):
            compare_layers(self._model, self._layout, inputs, check, self._targets.layers)
        self.check.require(check.compared[done:], check.scores)

    def _skipped(self, after: LayerOutput) -> contextlib.AbstractContextManager[None]:
        def running() -> int:
            assert self.current is not None
            return self.current.passed

        return skipped(self._targets.entries, after, running, copied=self._layout.stream.changes_in_place)

    def _begin(self, inputs: Mapping[str, Tensor], visitors: Visitors) -> ForwardPass:
        token_mask = inputs["decoder_attention_mask" if self._layout.reads_target else "attention_mask"].bool()
        key_mask = inputs["attention_mask"].bool() if self._layout.is_cross_attention else token_mask
        return ForwardPass(self._targets, visitors, token_mask, key_mask)

    def _forward(self, forward: ForwardPass, module: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Run a module in a forward pass; None if the pass ends before the module does."""
        token, self.current = active.set(forward), forward
        own = contextlib.nullcontext() if self._layout.registry else OwnAttention(forward)
        followed: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if forward.visitors.feed_forward is not None and self._targets.followed:
            forward.follower = LayerFollower()
            mode = HeldFixed(self._model, carries=True, added=forward.follower.add, wide=True)
            mode.explains, followed = forward.explains, mode
        try:
            with torch.inference_mode(), own, model_code(module), followed:
                return module(**inputs)
        except StopForward:
            return None
        finally:
            active.reset(token)
            self.current = None


def _require_networks(layout: ModelLayout, layers: Collection[int]) -> None:
    """Check that layers have feed-forward networks."""
    for site in layout.sites:
        if site.layer in layers and not site.has_network:
            raise InputError(
                f"model: layer {site.layer} of this {layout.family} has no feed-forward network; leave out what needs one"
            )
