"""The tensors captured from one layer during a forward pass, and the block built from them."""

import dataclasses
import functools

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.maths.attention import repeat_heads
from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.keys import KeyMap
from normscope.maths.masks import Mask
from normscope.maths.visibility import Visibility
from normscope.models.block import AttentionBlock, BlockParameters, full_precision
from normscope.models.block_modules import BlockModules, mapped_queries
from normscope.models.experts import Routes, SharedNetwork
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.feed_forward_modules import FeedForwardModules
from normscope.models.linear_layers import stacked_heads
from normscope.models.norm_weights import normalises_heads


@dataclasses.dataclass
class LayerCapture:
    """The tensors captured so far from the layer that is running."""

    modules: BlockModules
    inputs: Tensor | None = None
    attention_inputs: Tensor | None = None
    query_inputs: Tensor | None = None
    """What W_Q of cross-attention outside the registry reads; elsewhere it reads what W_K reads."""
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    mask: Mask | None = None
    scale: float = 1.0
    cap: float | None = None
    sinks: Tensor | None = None
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
            # The module does not expose its queries, keys and values.
            of_query = attention_inputs if self.query_inputs is None else full_precision(self.query_inputs)
            self.query, self.key, self.value = (
                stacked_heads(read, weight, bias)
                for read, weight, bias in (
                    (of_query, parameters.query_weight, parameters.query_bias),
                    (attention_inputs, parameters.key_weight, parameters.key_bias),
                    (attention_inputs, parameters.value_weight, parameters.value_bias),
                )
            )
            self.query = mapped_queries(self.query, parameters.query_normalisation, key_map())
            self.key = key_map()(self.key)
            # A key is visible if some head gives it weight; verification catches weight on padding.
            seen = (self.own_weights > 0).any(dim=1)
            self.mask = Mask(
                keys=key_mask, allowed=lambda text, _head, query, key: seen[text, query, key], queries=token_mask
            )
            self.scale = self.modules.own_scale
        self._check_heads(parameters)
        return AttentionBlock(
            layer=self.modules.layer,
            inputs=inputs,
            attention_inputs=attention_inputs,
            value=full_precision(self._captured("value")),
            alpha=AttentionWeights(
                query=full_precision(self._captured("query")),
                key=full_precision(self._captured("key")),
                log_normaliser=self.log_normaliser,
                seen=Visibility(self.mask, token_mask, key_mask, self.modules.layout.is_cross_attention),
                scale=self.scale,
                given=None if self.own_weights is None else self.own_weights.to(inputs.dtype),
                cap=self.cap,
                sinks=None if self.sinks is None else full_precision(self.sinks),
            ),
            attention_output=output,
            parameters=parameters,
            find_key_map=key_map,
            gate=None if self.modules.heads.gate is None else self._captured("gate"),
        )

    def _check_heads(self, parameters: BlockParameters) -> None:
        heads, configured = self._captured("query").shape[1], len(parameters.output_weight)
        if heads != configured:
            raise InputError(
                f"the attention of layer {self.modules.layer} cannot be observed: it has {heads} heads, but the model's config "
                f"says {configured}; correct the config, or pass a model that matches it"
            )

    def _key_map(self, parameters: BlockParameters, attention_inputs: Tensor) -> KeyMap:
        norms, planes = self._key_norm(parameters), self.modules.planes
        if planes is None:
            return norms
        before = stacked_heads(attention_inputs, parameters.key_weight, parameters.key_bias)
        if norms.turns_first:
            after = self._unnormed_keys()
            after = after.reshape(*after.shape[:2], -1, before.shape[-1]).transpose(1, 2)
        else:
            before = norms(before)
            after = full_precision(self._captured("key") if self.own_key is None else self.own_key)
            after = after.reshape(len(before), -1, *after.shape[-2:])
        rotation = planes.rotation(before, repeat_heads(after, before.shape[1]))
        return norms._replace(cosine=rotation.cosine, sine=rotation.sine, adjacent=rotation.adjacent)

    def _unnormed_keys(self) -> Tensor:
        """What the norm of the keys reads, with the axis of keys second."""
        key = full_precision(self._captured("unnormed_key"))
        norms = self.modules.layout.attention.head_norms
        return key.transpose(1, 2) if norms is not None and norms.by_head else key

    def _key_norm(self, parameters: BlockParameters) -> KeyMap:
        norm, norms = parameters.key_normalisation, self.modules.layout.attention.head_norms
        if norm is None or norms is None:
            return KeyMap()
        key = self._unnormed_keys()
        factors = norm.weight / norm.deviation(key).unsqueeze(-1)  # over one head or over all heads
        heads, _, head_dim = parameters.key_weight.shape
        factors = factors.expand(key.shape).reshape(*key.shape[:2], -1, head_dim).transpose(1, 2)
        # The mean over all heads together is already subtracted in W_K and b_K.
        centred = norm.centred and normalises_heads(norm, parameters.key_weight)
        return KeyMap(factors=repeat_heads(factors, heads), centred=centred, turns_first=norms.turned)

    def _captured(self, part: str) -> Tensor:
        tensor: Tensor | None = getattr(self, part)
        if tensor is None:
            raise InputError(
                f"the attention of layer {self.modules.layer} cannot be observed: {part.replace('_', ' ')} was not captured; "
                f"{type(self.modules.attention).__name__} does not compute attention as its family does, so pass a model "
                "whose modules are unchanged"
            )
        return tensor


@dataclasses.dataclass
class FeedForwardCapture:
    """The tensors captured so far from the feed-forward network of the layer that is running."""

    modules: FeedForwardModules
    attention: AttentionBlock | None = None
    """The attention block of the same layer, kept until the model leaves the layer."""
    inputs: Tensor | None = None
    pre_activations: Tensor | None = None
    """What W_1 gives; of a fused network what V gives as well."""
    multipliers: Tensor | None = None
    output: Tensor | None = None
    """What W_2 gives, or the experts of a mixture."""
    routes: Routes | None = None
    """The experts of every token."""
    shared_output: Tensor | None = None
    """What the network beside the experts gives."""
    shared_logit: Tensor | None = None

    def block(self) -> FeedForwardBlock:
        """Build the block, once the model leaves the layer.

        Raises:
            InputError: If a part is missing.
        """
        if self.routes is not None:
            return self._mixture(self.routes)
        u, w = self.pre_activations, self.multipliers
        if self.attention is None or self.inputs is None or u is None or self.output is None:
            raise InputError(
                f"the feed-forward network of layer {self.modules.layer} cannot be observed: the model does not run it, or "
                "runs it outside the layer; pass a model whose modules are unchanged"
            )
        if self.modules.layout.fused:
            u, w = self.modules.halves(u)
        axes = self.attention.inputs.shape[:2]  # OPT's network reads all tokens of a batch in one row

        def by_token(vectors: Tensor) -> Tensor:
            return full_precision(vectors).reshape(*axes, -1)

        output, scale = by_token(self.output), self.modules.scale
        return FeedForwardBlock(
            layer=self.modules.layer,
            inputs=by_token(self.inputs),
            output=output * scale if isinstance(scale, Tensor) or scale != 1 else output,
            pre_activations=by_token(u),
            multipliers=None if w is None else by_token(w),
            routing=None,
            parameters=self.modules.parameters(),
            attention=self.attention,
        )

    def _mixture(self, routes: Routes) -> FeedForwardBlock:
        """The block of a mixture of experts. Its neurons are computed again: the model computes those of a few experts."""
        assert self.attention is not None
        assert self.inputs is not None
        assert self.output is not None
        axes = self.attention.inputs.shape[:2]
        parameters, inputs = self.modules.parameters(), full_precision(self.inputs).reshape(*axes, -1)
        neurons = parameters.input_weight.shape[1]
        shared, output, routing = self.modules.shared, full_precision(self.output), None
        if shared is None:
            routing = routes.by_neuron(self.modules.experts, neurons)
        else:
            assert self.shared_output is not None
            beside = SharedNetwork(self.shared_output, self.shared_logit)
            own = shared.parameters().input_weight.shape[1]
            factor = beside.factor.reshape(axes.numel(), 1).expand(-1, own)
            routing = torch.cat([routes.by_neuron(self.modules.experts, neurons - own), factor], dim=1)
            output = beside.added_to(output)
        weight = parameters.multiplier_weight
        return FeedForwardBlock(
            layer=self.modules.layer,
            inputs=inputs,
            output=output.reshape(*axes, -1) * self.modules.scale,
            pre_activations=inputs @ parameters.input_weight,
            multipliers=None if weight is None else inputs @ weight,
            routing=routing.reshape(*axes, -1),
            parameters=parameters,
            attention=self.attention,
        )
