"""The tensors captured from one layer during a forward pass, and the block built from them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.linear.layers import LayerFollower
from normscope.maths.attention import repeat_heads
from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.keys import KeyMap
from normscope.maths.masks import Mask, Visibility
from normscope.models.blocks.block import AttentionBlock, BlockParameters, full_precision
from normscope.models.observe.attention_function import AttentionCall
from normscope.models.sites.block_modules import BlockModules
from normscope.models.sites.layer_hooks import vectors_in


@dataclasses.dataclass
class LayerCapture:
    """The tensors captured so far from the layer that is running."""

    modules: BlockModules
    inputs: Tensor | None = None
    attention_inputs: Tensor | None = None
    query_inputs: Tensor | None = None
    """What W_Q of cross-attention outside the registry reads; elsewhere it reads what W_K reads."""
    call: AttentionCall | None = None
    """What the attention function was given, with keys and values for each head of queries."""
    large_scores: bool | None = None
    """Whether scores are known to be large, see `AttentionWeights.known_large`."""
    attended: Tensor | None = None
    """What the attention function has returned, (batch, query, head, dimension)."""
    log_normaliser: Tensor | None = None
    unnormed_key: Tensor | None = None
    gate: Tensor | None = None
    """The factors on the outputs of the heads."""
    attends: bool = False
    """Whether the attention module is running."""
    own_weights: Tensor | None = None
    own_key: Tensor | None = None
    """The keys that an attention module outside the registry has multiplied with its queries."""
    attention_output: Tensor | None = None
    follower: LayerFollower | None = None
    """Follows what the rest of the layer makes of the block, if that is visited."""

    def take_residual(self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What the residual connection adds."""
        vectors = vectors_in(args, kwargs)
        self.inputs = self.modules.layout.kept(vectors)
        if self.follower is not None:
            self.follower.enter(vectors)

    def take_bottleneck(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        """What the residual connection adds, in a bottleneck."""
        self.inputs = self.modules.layout.kept(output)

    def take_attention_inputs(self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The input of W_K."""
        # DeBERTa-v2 projects its positions with the same module, after the tokens.
        if self.attention_inputs is None:
            self.attention_inputs = self.modules.layout.kept(vectors_in(args, kwargs), "attention input")

    def take_query_inputs(self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The input of W_Q."""
        self.query_inputs = self.modules.layout.kept(vectors_in(args, kwargs), "attention input")

    def take_unnormed_key(self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The keys before their norm."""
        self.unnormed_key = vectors_in(args, kwargs)

    def take_gate(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        """The output of the linear layer of a gate."""
        gate = self.modules.site.attention.gate
        assert gate is not None
        self.gate = gate.applied(full_precision(self.modules.layout.by_text(output, "attention input")))

    def begin_own_attention(self, _module: nn.Module, _args: tuple[Any, ...]) -> None:
        """An attention module begins that does not use the registry."""
        self.attends = True

    def block(self, parameters: BlockParameters, token_mask: Tensor, key_mask: Tensor) -> AttentionBlock:
        """Build the block, once every part is captured.

        Raises:
            InputError: If a part is missing, or the number of heads is not that of the weights.
        """
        inputs, output = (full_precision(self._captured(part)) for part in ("inputs", "attention_output"))
        if self.modules.reads_attention_inputs is None:
            norm = parameters.input_normalisation
            attention_inputs = inputs if norm is None else norm.normalised(inputs)
        else:
            attention_inputs = full_precision(self._captured("attention_inputs"))
        if isinstance(self.modules.scale, Tensor) or self.modules.scale != 1:
            output = output * self.modules.scale
        key_map = functools.cache(functools.partial(self._key_map, parameters, attention_inputs))
        if self.own_weights is not None:
            seen = _seen(self.own_weights, token_mask, key_mask)
            self.call = self._own_call(parameters, attention_inputs, key_map(), seen)
        call = self._checked_call(parameters)
        return AttentionBlock(
            layer=self.modules.layer,
            inputs=inputs,
            attention_inputs=attention_inputs,
            value=full_precision(call.value),
            alpha=AttentionWeights(
                query=full_precision(call.query),
                key=full_precision(call.key),
                log_normaliser=self.log_normaliser,
                seen=Visibility(call.mask, token_mask, key_mask, self.modules.layout.is_cross_attention),
                scale=call.scale,
                given=None if self.own_weights is None else self.own_weights.to(inputs.dtype),
                cap=call.cap,
                known_large=self.large_scores,
                sinks=None if call.sinks is None else full_precision(call.sinks),
            ),
            attention_output=output,
            parameters=parameters,
            find_key_map=key_map,
            gate=None if self.modules.heads.gate is None else self._captured("gate"),
        )

    def _own_call(
        self, parameters: BlockParameters, attention_inputs: Tensor, key_map: KeyMap, seen: Mask
    ) -> AttentionCall:
        """Queries, keys and values from the weights: an attention module outside the registry does not expose its own."""
        of_query = attention_inputs if self.query_inputs is None else full_precision(self.query_inputs)
        return AttentionCall(
            query=parameters.queries(of_query, key_map),
            key=parameters.keys(attention_inputs, key_map),
            value=parameters.values(attention_inputs),
            mask=seen,
            scale=self.modules.own_scale,
        )

    def _checked_call(self, parameters: BlockParameters) -> AttentionCall:
        if self.call is None:
            raise self._missing("query")
        heads, configured = self.call.query.shape[1], len(parameters.output_weight)
        if heads != configured:
            raise InputError(
                f"the attention of layer {self.modules.layer} cannot be observed: it has {heads} heads, but the model's config "
                f"says {configured}; correct the config, or pass a model that matches it"
            )
        return self.call

    def _key_map(self, parameters: BlockParameters, attention_inputs: Tensor) -> KeyMap:
        norms, planes = self._key_norm(parameters), self.modules.site.attention.rotation
        if planes is None:
            return norms
        before = parameters.keys(attention_inputs, KeyMap())
        if norms.turns_first:
            after = self._unnormed_keys()
            after = after.reshape(*after.shape[:2], -1, before.shape[-1]).transpose(1, 2)
        else:
            before = norms(before)
            after = full_precision(self._checked_call(parameters).key if self.own_key is None else self.own_key)
            after = after.reshape(len(before), -1, *after.shape[-2:])
        rotation = planes.rotation(before, repeat_heads(after, before.shape[1]))
        return norms._replace(cosine=rotation.cosine, sine=rotation.sine, adjacent=rotation.adjacent)

    def _unnormed_keys(self) -> Tensor:
        """What the norm of the keys reads, with the axis of keys second."""
        key = full_precision(self._captured("unnormed_key"))
        norms = self.modules.site.attention.head_norms
        return key.transpose(1, 2) if norms is not None and norms.by_head else key

    def _key_norm(self, parameters: BlockParameters) -> KeyMap:
        norm, norms = parameters.key_normalisation, self.modules.site.attention.head_norms
        if norm is None or norms is None:
            return KeyMap()
        key = self._unnormed_keys()
        factors = norm.weight / norm.deviation(key).unsqueeze(-1)  # over one head or over all heads
        heads, _, head_dim = parameters.key_weight.shape
        factors = factors.expand(key.shape).reshape(*key.shape[:2], -1, head_dim).transpose(1, 2)
        # The mean over all heads together is already subtracted in W_K and b_K.
        centred = norm.centred and norm.is_of_heads(parameters.key_weight)
        return KeyMap(factors=repeat_heads(factors, heads), centred=centred, turns_first=norms.turned)

    def _captured(self, part: str) -> Tensor:
        tensor: Tensor | None = getattr(self, part)
        if tensor is None:
            raise self._missing(part)
        return tensor

    def _missing(self, part: str) -> InputError:
        return InputError(
            f"the attention of layer {self.modules.layer} cannot be observed: {part.replace('_', ' ')} was not captured; "
            f"{type(self.modules.attention).__name__} does not compute attention as its family does, so pass a model "
            "whose modules are unchanged"
        )


def _seen(weights: Tensor, token_mask: Tensor, key_mask: Tensor) -> Mask:
    """The keys that some head gives weight; verification catches weight on padding."""
    seen = (weights > 0).any(dim=1)
    return Mask(keys=key_mask, allowed=lambda text, _head, query, key: seen[text, query, key], queries=token_mask)
