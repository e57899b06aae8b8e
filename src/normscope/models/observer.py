"""Runs a model and hands out its attention blocks, one layer at a time.

The observer uses five points: the attention function, which it replaces through transformers' registry; the output projection
W_O; the block's norm, whose parameters it reads; the feed-forward network; and the hidden vectors, that is, the input of each
layer and the output of the last. A block is handed out as soon as its output projection has run and released when the visitor
returns, so memory grows with neither depth nor corpus. If feed-forward networks are visited, the network's block is handed out
when the model leaves its layer, since families differ in what runs first, and the attention block is kept until then.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.maths.attention import attention, repeat_heads
from normscope.maths.masks import Mask
from normscope.models.attention_function import IMPLEMENTATION, active, attention_by
from normscope.models.block import AttentionBlock, BlockParameters, TokenSelector, full_precision
from normscope.models.capture import FeedForwardCapture, LayerCapture
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.feed_forward_modules import bind_feed_forward
from normscope.models.identities import bound_of, sampled_sum_error
from normscope.models.layout import BlockLayout, BlockModules, normalisation
from normscope.models.offloading import is_offloaded
from normscope.models.quantisation import is_quantised
from normscope.models.rotary import rotation_of
from normscope.models.rotation import length_dependent_rotations, rotate_each_alone
from normscope.rounding import counted

Visitor = Callable[[AttentionBlock], None]
FeedForwardVisitor = Callable[[FeedForwardBlock], None]
HiddenVisitor = Callable[[int, Tensor], None]


class LayerCall(NamedTuple):
    """The arguments of one call of a layer, with which it can run again."""

    layer: int
    """Counted from 1."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def inputs(self) -> Tensor:
        """The hidden vectors that the layer reads."""
        vectors: Tensor = self.args[0] if self.args else self.kwargs["hidden_states"]
        return vectors


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


_CACHES = frozenset({"past_key_values", "past_key_value"})
"""Keyword arguments of layers with the keys and values of earlier passes."""

# The order of the visits to one layer.
_ATTENTION, _FEED_FORWARD, _HIDDEN = range(3)


class StopForward(Exception):
    """Ends a forward pass when the rest of it is not needed."""


class Observer:
    """Calls a visitor with each attention block of a model.

    Use it as a context manager: inside, the model runs our attention function; on exit, the model is restored.

    Args:
        model: A base model in evaluation mode.
        layout: The layout of its family.
        layers: Layers whose blocks are visited, from 1; None for all.
        hidden: Layers whose hidden vectors are visited, from 0, the output of the embedding.
        feed_forward: Whether the feed-forward networks of `layers` are visited as well.

    The forward pass ends after the last block or hidden vectors to visit.

    Raises:
        AttributeError: If the model lacks a module that the layout names.
        InputError: If `feed_forward` is set and a layer has no network that can be observed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: BlockLayout,
        layers: Sequence[int] | None = None,
        hidden: Collection[int] = (),
        *,
        feed_forward: bool = False,
    ) -> None:
        self._model = model
        self._layout = layout
        self._layers = layout.bind(model)
        self._wanted = frozenset(range(1, len(self._layers) + 1) if layers is None else layers)
        self._hidden = frozenset(hidden)
        self._extra_terms = layout.extra_terms(model.config)
        heads = layout.heads_of(model.config)
        wanted = {modules.layer: modules for modules in self._layers if modules.layer in self._wanted}
        self.parameters: Mapping[int, BlockParameters] = BlockWeights(wanted, heads, keep=_takes_no_copy(model))
        """Weights of the blocks to visit, by layer."""
        self.hidden_norms = {layer: normalisation(norm) for layer, norm in layout.hidden_norms(model).items()}
        """Weights of the norms that output hidden vectors, by layer from 0."""
        self._networks = {
            modules.layer: modules
            for modules in (bind_feed_forward(model, layout) if feed_forward else ())
            if modules.layer in self._wanted
        }
        # The hidden vectors of a layer come after its blocks and before the next layer's.
        self._end = max(
            [
                *((layer, _ATTENTION) for layer in self._wanted),
                *((layer, _FEED_FORWARD) for layer in self._networks),
                *((layer, _HIDDEN) for layer in hidden),
            ]
        )
        self._exit = contextlib.ExitStack()
        # The state of the current forward pass.
        self._whole = False
        self._passed = 0
        self._parts: LayerCapture | None = None
        self._network: FeedForwardCapture | None = None
        self._shown: set[int] = set()
        self._token_mask: Tensor | None = None
        self._key_mask: Tensor | None = None
        self._visit: Visitor | None = None
        self._visit_hidden: HiddenVisitor | None = None
        self._visit_feed_forward: FeedForwardVisitor | None = None
        self._replacements: Mapping[int, Replacement] = {}
        self._calls: list[LayerCall] | None = None
        self._row: int | None = None
        """The sequence whose vectors are added up in this pass; None if it is not longer than those before."""
        self._errors: dict[int, Tensor] = {}
        self._compared = 0
        """The length of the longest sequence whose vectors were added up."""
        self.masks_on_host: Sequence[Tensor] = ()
        """Token masks of the current pass in CPU memory, as far as they are known."""

    def __enter__(self) -> "Observer":
        # A second observer's hooks would interfere with the first's.
        hooks = self._layers[0].whole._forward_pre_hooks.values()
        if any(isinstance(getattr(hook, "__self__", None), Observer) for hook in hooks):
            raise RuntimeError("this model is already being observed")
        try:
            self._change_model()
        except BaseException:  # an interrupt leaves the model as it was, too
            self._exit.close()
            raise
        return self

    def _change_model(self) -> None:
        if self._layout.registry:
            self._exit.enter_context(attention_by(self._model, IMPLEMENTATION))
        else:
            # Their own fused attention returns no weights, or (Falcon) those of attention that sees later keys.
            previous = self._model.config._attn_implementation
            self._exit.callback(setattr, self._model.config, "_attn_implementation", previous)
            self._model.config._attn_implementation = "eager"
        for handle in self._hooks():
            self._exit.callback(handle.remove)

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def _hooks(self) -> Iterator[RemovableHandle]:
        for rotation in length_dependent_rotations(self._model):
            yield rotate_each_alone(rotation, lambda: self._token_mask)
        # Layers that share modules also share hooks; the order of the calls tells which layer is running.
        for modules in {id(modules.whole): modules for modules in self._layers}.values():
            yield modules.whole.register_forward_pre_hook(self._enter, with_kwargs=True)
            yield modules.whole.register_forward_hook(self._leave)
            if modules.residual is not modules.whole:
                yield modules.residual.register_forward_pre_hook(self._take_residual, with_kwargs=True)
            yield modules.key.register_forward_pre_hook(self._take_attention_inputs)
            yield modules.output.register_forward_hook(self._take_attention_output)
            if modules.rotates:
                yield modules.attention.register_forward_pre_hook(self._take_position, with_kwargs=True)
            if modules.key_norm is not None:
                yield modules.key_norm.register_forward_pre_hook(self._take_unnormed_key)
            if not self._layout.registry:
                yield modules.attention.register_forward_hook(self._take_own_weights)
        for network in {id(network.input): network for network in self._networks.values()}.values():
            yield network.input.register_forward_pre_hook(self._take_feed_forward_inputs)
            yield network.input.register_forward_hook(self._take_pre_activations)
            if network.multiplier is not None:
                yield network.multiplier.register_forward_hook(self._take_multipliers)
            yield network.output.register_forward_hook(self._take_feed_forward_output)

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
        calls: list[LayerCall] | None = None,
    ) -> Any:
        """Run one forward pass and call `visit` with its blocks, in order.

        Args:
            inputs: Keyword arguments of the model, at least `input_ids` and `attention_mask`.
            visit: Called with each block, under `torch.inference_mode`.
            visit_hidden: Called with the layer's number and hidden vectors, for each layer in `hidden`.
            visit_feed_forward: Called with the block of each feed-forward network when the model leaves its layer, if the
                observer was made with `feed_forward`. The block holds the attention block of the same layer.
            on_host: The inputs in CPU memory. With them, the host need not wait for the device to tell what is padding.
            replacements: New values for some dimensions of a layer's input, by layer; the block and the residual connection
                both read them.
            whole: A model that contains the observed one; it is run instead, to its end.
            calls: Gets the arguments of every layer's call, for `run_layer`. A hook of the model may then turn gradients on.

        Returns:
            The output of `whole`; None without it.
        """
        self._calls = calls
        self._begin(inputs, visit, visit_hidden, visit_feed_forward)
        self.masks_on_host = [mask for name, mask in (on_host or {}).items() if name.endswith("attention_mask")]
        self._replacements = replacements or {}
        self._whole = whole is not None
        self._choose_row()
        weights = {} if self._layout.registry else {"output_attentions": True}
        gradients = torch.inference_mode() if calls is None else torch.no_grad()
        output = self._forward(gradients, self._model if whole is None else whole, (), {**inputs, **weights})
        missing = self._wanted - self._shown
        if missing:
            raise InputError(
                f"the attention of {counted(len(missing), 'layer')} ({', '.join(map(str, sorted(missing)))}) cannot be "
                "observed: the forward pass skips its modules or calls others; pass a model whose modules are unchanged"
            )
        self._check_sums()
        return output

    def _check_sums(self) -> None:
        """Check that the vectors of this pass add up to the attention output, if it was compared.

        Raises:
            InputError: If they do not.
        """
        errors, self._errors = self._errors, {}
        bound = bound_of(self._model, self._layout)
        for layer, error in errors.items():
            if float(error) >= bound:  # analyses refuse what is not a number
                raise InputError(
                    f"{self._model.config.name_or_path or type(self._model).__name__} cannot be observed exactly on texts of "
                    f"{self._compared} tokens: in layer {layer}, Σ αf(x) differs from the attention output by "
                    f"{float(error):.1e} (relative, at most {bound:.0e}), so attention depends on the length; set "
                    "dataset.max_length to a length at which the two agree"
                )

    def _choose_row(self) -> None:
        """Have the vectors of the pass added up if it is the first, or longer than those before."""
        assert self._key_mask is not None
        assert self._token_mask is not None
        self._row, self._errors = None, {}
        if self._key_mask.shape[1] > self._compared and self._key_mask.device.type != "meta":
            self._compared = self._key_mask.shape[1]
            tokens = next(
                (mask for mask in self.masks_on_host if mask.shape == self._token_mask.shape), self._token_mask
            )
            self._row = int(tokens.sum(dim=1).argmax())

    def run_layer(
        self,
        call: LayerCall,
        inputs: Mapping[str, Tensor],
        visit: Visitor,
        visit_feed_forward: FeedForwardVisitor | None = None,
    ) -> None:
        """Run one layer again and call `visit` with its block, as `run` did.

        Args:
            call: The layer's call, from an earlier `run`.
            inputs: The keyword arguments of that run.
            visit: See `run`.
            visit_feed_forward: See `run`.
        """
        self._begin(inputs, visit, None, visit_feed_forward)
        self._passed, self._row = call.layer - 1, None
        self._forward(torch.inference_mode(), self._layers[call.layer - 1].whole, call.args, call.kwargs)

    def _begin(
        self,
        inputs: Mapping[str, Tensor],
        visit: Visitor,
        visit_hidden: HiddenVisitor | None,
        visit_feed_forward: FeedForwardVisitor | None,
    ) -> None:
        """Set the state of a forward pass."""
        self._token_mask = inputs["decoder_attention_mask" if self._layout.reads_target else "attention_mask"].bool()
        self._key_mask = inputs["attention_mask"].bool() if self._layout.is_cross_attention else self._token_mask
        self._visit, self._visit_hidden, self._visit_feed_forward = visit, visit_hidden, visit_feed_forward
        self._passed = 0
        self._shown.clear()

    def _forward(self, gradients: Any, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a module as the pass that has begun; None if the pass ends before the module does."""
        token = active.set(self)
        try:
            with gradients:
                return module(*args, **kwargs)
        except StopForward:
            return None
        finally:
            active.reset(token)
            self._parts = self._network = self._token_mask = self._key_mask = None
            self._visit = self._visit_hidden = self._visit_feed_forward = self._calls = None
            self._replacements = {}
            self.masks_on_host = ()
            self._whole = False

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor | None:
        """Attention of a layer whose block is visited; None for any other module."""
        parts = self._parts
        if parts is None or parts.modules.attention is not module or parts.modules.layer not in self._wanted:
            return None
        if parts.query is not None:
            raise self._unobservable(f"{type(module).__name__} attends more than once")
        heads = query.shape[1]
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
        output, parts.log_normaliser = attention(query, key, value, mask, scale, cap=cap, sinks=sinks)
        parts.query, parts.key, parts.value, parts.mask, parts.scale = query, key, value, mask, scale
        parts.cap, parts.sinks = cap, sinks
        return output.transpose(1, 2).contiguous()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._visit is None:
            return None
        modules = self._layers[self._passed]
        if modules.whole is not module:
            raise RuntimeError(f"layer {modules.layer} ran out of order")
        self._passed += 1
        vectors = args[0] if args else kwargs["hidden_states"]
        self._show_hidden(modules.layer - 1, vectors)
        if self._calls is not None:
            # A cache of keys would count them twice if the layer ran again.
            self._calls.append(LayerCall(modules.layer, args, kwargs | dict.fromkeys(_CACHES & kwargs.keys())))
        replaced = self._replacements.get(modules.layer)
        if replaced is not None:
            assert self._token_mask is not None
            vectors = replaced.apply(vectors, self._token_mask)
        self._parts = LayerCapture(modules, self._extra_terms, inputs=vectors)
        network = None if self._visit_feed_forward is None else self._networks.get(modules.layer)
        self._network = None if network is None else FeedForwardCapture(network)
        if replaced is None:
            return None
        return ((vectors, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": vectors})

    def _leave(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self._visit is None:
            return
        self._show_feed_forward()
        if self._passed == len(self._layers):
            self._show_hidden(len(self._layers), output[0] if isinstance(output, tuple) else output)

    def _take_residual(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._parts is not None:
            self._parts.inputs = args[0] if args else kwargs["hidden_states"]

    def _take_attention_inputs(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        # DeBERTa-v2 projects its positions with the same module, after the tokens.
        if self._parts is not None and self._parts.attention_inputs is None:
            self._parts.attention_inputs = args[0]

    def _take_position(self, module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._parts is not None:
            assert self._layout.rotary is not None
            try:
                self._parts.rotation = rotation_of(self._layout.rotary, module, kwargs)
            except ValueError as error:
                raise self._unobservable(str(error)) from error

    def _take_unnormed_key(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._parts is not None:
            self._parts.unnormed_key = args[0]

    def _take_own_weights(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if self._parts is not None:
            weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            if not isinstance(weights, Tensor) or weights.ndim != 4:
                raise self._unobservable(f"{type(module).__name__} returns no attention weights")
            self._parts.own_weights = weights
            self._show()

    def _unobservable(self, reason: str) -> InputError:
        return InputError(
            f"the attention of layer {self._passed} cannot be observed: {reason}; pass a model whose modules are unchanged"
        )

    def _take_attention_output(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        if self._parts is not None:
            assert self._token_mask is not None
            if output.shape[:-1] != self._token_mask.shape:
                raise self._unobservable(
                    f"expected a vector for each of {' × '.join(map(str, self._token_mask.shape))} tokens from its output "
                    f"projection, got the shape {tuple(output.shape)}"
                )
            self._parts.attention_output = output
            self._show()

    def _take_feed_forward_inputs(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._network is not None:
            self._network.inputs = args[0]

    def _take_pre_activations(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        if self._network is not None:
            self._network.pre_activations = output

    def _take_multipliers(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        if self._network is not None:
            self._network.multipliers = output

    def _take_feed_forward_output(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        if self._network is not None:
            # Falcon adds the attention output to this tensor, in place.
            self._network.output = output.clone() if self._network.modules.layout.added_in_place else output

    def _show_feed_forward(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            assert self._visit_feed_forward is not None
            self._visit_feed_forward(network.block())
        self._stop_after((self._passed, _FEED_FORWARD))

    def _show_hidden(self, layer: int, vectors: Tensor) -> None:
        if layer in self._hidden and self._visit_hidden is not None:
            self._visit_hidden(layer, full_precision(vectors))
        self._stop_after((layer, _HIDDEN))

    def _stop_after(self, shown: tuple[int, int]) -> None:
        if shown == self._end and not self._whole:
            raise StopForward

    def _show(self) -> None:
        """Visit the block once all of its parts are captured."""
        parts = self._parts
        assert parts is not None
        if parts.modules.layer not in self._wanted:
            return
        if parts.attention_output is None or (parts.own_weights is None and not self._layout.registry):
            return
        assert self._visit is not None
        self._parts = None
        assert self._token_mask is not None
        assert self._key_mask is not None
        block = parts.block(self.parameters[parts.modules.layer], self._token_mask, self._key_mask)
        if self._network is not None:
            self._network.attention = block
        if self._row is not None:
            self._errors[block.layer] = sampled_sum_error(block, self._row)
        self._visit(block)
        self._shown.add(parts.modules.layer)
        self._stop_after((parts.modules.layer, _ATTENTION))


class BlockWeights(Mapping[int, BlockParameters]):
    """The weights of blocks, by layer.

    Args:
        layers: The modules of each layer.
        heads: Numbers of heads of queries, and of keys and values.
        keep: Whether to read the weights of all layers now. Otherwise those of one layer at a time are read, when they are
            needed: all of them would take more memory than the model's own.
    """

    def __init__(self, layers: Mapping[int, BlockModules], heads: tuple[int, int], *, keep: bool) -> None:
        self._layers, self._heads, self._keep = layers, heads, keep
        self._read: dict[int, BlockParameters] = {}
        # They take a decomposition of W_O, and little memory.
        self._factors: dict[int, Tensor] = {}
        if keep:
            for layer in layers:
                self[layer]

    def __getitem__(self, layer: int) -> BlockParameters:
        if layer in self._read:
            return self._read[layer]
        if not self._keep:
            self._release()
        parameters = self._layers[layer].parameters(*self._heads)
        if layer in self._factors:
            parameters.__dict__["norm_factors"] = self._factors[layer]
        self._read[layer] = parameters
        return parameters

    def _release(self) -> None:
        for layer, parameters in self._read.items():
            if "norm_factors" in parameters.__dict__:
                self._factors[layer] = parameters.norm_factors
        self._read.clear()

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def _takes_no_copy(model: PreTrainedModel) -> bool:
    """Whether weights in float32 or better are those of the model itself."""
    return model.dtype in (torch.float32, torch.float64) and not is_offloaded(model) and not is_quantised(model)
