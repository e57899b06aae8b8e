"""One BlockLayout literal per architecture family. To add one, see CONTRIBUTING.md."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any, Literal

from normscope.errors import InputError
from normscope.models.layout import BlockLayout, FeedForwardLayout, Stack

_MODELS = "https://github.com/huggingface/transformers/blob/main/src/transformers/models"


def _source(model_type: str) -> str:
    name = model_type.replace("-", "_")
    return f"{_MODELS}/{name}/modeling_{name}.py"


_BERT_NETWORK = FeedForwardLayout(
    input="intermediate.dense",
    activation="intermediate.intermediate_act_fn",
    output="output.dense",
    norm="output.LayerNorm",
)
_LLAMA_NETWORK = FeedForwardLayout(
    input="mlp.gate_proj",
    multiplier="mlp.up_proj",
    activation="mlp.act_fn",
    output="mlp.down_proj",
    norm="post_attention_layernorm",
    float32_inside=True,
)


_FUSED_NETWORK = FeedForwardLayout(
    input="mlp.gate_up_proj",
    fused=True,
    activation="mlp.activation_fn",
    output="mlp.down_proj",
    norm="post_attention_layernorm",
    float32_inside=True,
)
_MEGATRON_NETWORK = FeedForwardLayout(
    input="mlp.dense_h_to_4h",
    activation="mlp.act",
    output="mlp.dense_4h_to_h",
    norm="post_attention_layernorm",
    added_in_place=True,
)


def _bert_like(model_type: str) -> BlockLayout:
    """BERT's block, which its relatives copy unchanged."""
    return BlockLayout(
        model_type=model_type,
        layers="encoder.layer",
        attention="attention.self",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        output="attention.output.dense",
        norm="attention.output.LayerNorm",
        norm_position="post",
        embedding_norm="embeddings.LayerNorm",
        output_norm="output.LayerNorm",
        feed_forward=(_BERT_NETWORK,),
        source=_source(model_type),
    )


def _llama_like(model_type: str) -> BlockLayout:
    """Llama's block, which its relatives copy unchanged."""
    return BlockLayout(
        model_type=model_type,
        layers="layers",
        attention="self_attn",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.o_proj",
        norm_position="pre",
        attention_norm="input_layernorm",
        final_norm="norm",
        sum_consumer="post_attention_layernorm",
        rotary="halves",
        feed_forward=(_LLAMA_NETWORK,),
        source=_source(model_type),
    )


def _norms_around(model_type: str, network: FeedForwardLayout, *, block: str, input: str, output: str) -> BlockLayout:
    """Llama's block with another norm after attention and after the network, inside the residual connection."""
    return dataclasses.replace(
        _llama_like(model_type),
        norm_position="branch",
        norm=block,
        sum_consumer=None,
        feed_forward=(dataclasses.replace(network, norm=input, output_norm=output),),
    )


def _beside(layout: BlockLayout, norm: str = "input_layernorm") -> BlockLayout:
    """The layout with its network beside attention; both read what one norm gives."""
    return dataclasses.replace(
        layout,
        norm_position="parallel",
        sum_consumer=None,
        attention_norm=norm,
        feed_forward=tuple(dataclasses.replace(form, norm=norm) for form in layout.feed_forward),
    )


def _bart_like(
    model_type: str, norm_position: Literal["post", "pre"], *, embedding_norm: bool
) -> tuple[BlockLayout, ...]:
    """The three stacks of BART and its relatives, which differ in the position of the norm."""
    post = norm_position == "post"
    network = FeedForwardLayout(input="fc1", activation="activation_fn", output="fc2", norm="final_layer_norm")

    def stack(
        name: Stack, prefix: str, attention: str, norm: str, sum_consumer: str, residual: str | None
    ) -> BlockLayout:
        return BlockLayout(
            model_type=model_type,
            stack=name,
            heads="encoder_attention_heads" if name == "encoder" else "decoder_attention_heads",
            layer_count="encoder_layers" if name == "encoder" else "decoder_layers",
            start="last" if model_type == "mbart" else "token",
            layers=f"{prefix}layers",
            attention=attention,
            query=f"{attention}.q_proj",
            key=f"{attention}.k_proj",
            value=f"{attention}.v_proj",
            output=f"{attention}.out_proj",
            residual=residual,
            norm=norm if post else None,
            norm_position=norm_position,
            attention_norm="self_attn_layer_norm" if not post and name != "cross" else None,
            final_norm=None if post else f"{prefix}layer_norm",
            sum_consumer=None if post else sum_consumer,
            embedding_norm=f"{prefix}layernorm_embedding" if embedding_norm else None,
            output_norm="final_layer_norm" if post else None,
            feed_forward=() if name == "decoder" else (network,),
            source=_source(model_type),
        )

    self_attention = ("self_attn", "self_attn_layer_norm")
    cross_attention = ("encoder_attn", "encoder_attn_layer_norm")
    return (
        stack("encoder", "", *self_attention, "final_layer_norm", None),
        stack("decoder", "decoder.", *self_attention, "encoder_attn_layer_norm", None),
        # The residual connection carries the input of the norm before attention or, without one, of attention itself.
        stack(
            "cross",
            "decoder.",
            *cross_attention,
            "final_layer_norm",
            cross_attention[0] if post else cross_attention[1],
        ),
    )


def _t5_like(model_type: str) -> tuple[BlockLayout, ...]:
    """The three stacks of T5 and its relatives."""
    return (
        _t5_stack(model_type, "encoder", "", "layer.0.SelfAttention", None, "layer.1"),
        _t5_stack(model_type, "decoder", "decoder.", "layer.0.SelfAttention", None, "layer.1"),
        _t5_stack(model_type, "cross", "decoder.", "layer.1.EncDecAttention", "layer.1", "layer.2"),
    )


def _t5_stack(
    model_type: str, name: Stack, prefix: str, attention: str, residual: str | None, sum_consumer: str
) -> BlockLayout:
    return BlockLayout(
        model_type=model_type,
        stack=name,
        layer_count="num_layers" if name == "encoder" else "num_decoder_layers",
        layers=f"{prefix}block",
        attention=attention,
        query=f"{attention}.q",
        key=f"{attention}.k",
        value=f"{attention}.v",
        output=f"{attention}.o",
        residual=residual,
        norm_position="pre",
        attention_norm=None if name == "cross" else "layer.0.layer_norm",
        final_norm=f"{prefix}final_layer_norm",
        sum_consumer=sum_consumer,
        feed_forward=() if name == "decoder" else _t5_networks(sum_consumer),
        source=_source(model_type),
    )


def _t5_networks(path: str) -> tuple[FeedForwardLayout, ...]:
    """The network of T5, and the gated one of its version 1.1."""
    plain = FeedForwardLayout(
        input=f"{path}.DenseReluDense.wi",
        activation=f"{path}.DenseReluDense.act",
        output=f"{path}.DenseReluDense.wo",
        norm=f"{path}.layer_norm",
        float32_inside=True,
    )
    gated = dataclasses.replace(plain, input=f"{path}.DenseReluDense.wi_0", multiplier=f"{path}.DenseReluDense.wi_1")
    return plain, gated


_GEMMA = _norms_around(
    "gemma2",
    dataclasses.replace(_LLAMA_NETWORK, unit_offset=True),
    block="post_attention_layernorm",
    input="pre_feedforward_layernorm",
    output="post_feedforward_layernorm",
)


def _olmo2_like(model_type: str) -> BlockLayout:
    """Llama's block with the norms after attention and network instead of before them."""
    layout = _norms_around(
        model_type,
        _LLAMA_NETWORK,
        block="post_attention_layernorm",
        input="post_attention_layernorm",
        output="post_feedforward_layernorm",
    )
    return dataclasses.replace(
        layout,
        attention_norm=None,
        key_norm="self_attn.k_norm",
        query_norm="self_attn.q_norm",
        float32_inside=True,
        feed_forward=tuple(dataclasses.replace(form, norm=None) for form in layout.feed_forward),
    )


def _megatron_like(model_type: str) -> BlockLayout:
    """The block of Bloom and Falcon, whose attention does not use the registry."""
    return BlockLayout(
        model_type=model_type,
        layers="h",
        attention="self_attention",
        query="self_attention.query_key_value",
        key="self_attention.query_key_value",
        value="self_attention.query_key_value",
        fused="interleaved",
        output="self_attention.dense",
        norm_position="pre",
        attention_norm="input_layernorm",
        final_norm="ln_f",
        sum_consumer="post_attention_layernorm",
        registry=False,
        causal=True,
        feed_forward=(_MEGATRON_NETWORK,),
        source=_source(model_type),
    )


FAMILIES: dict[str, BlockLayout] = {
    layout.model_type: layout
    for layout in (
        _bert_like("bert"),
        _bert_like("roberta"),
        _bert_like("xlm-roberta"),
        _bert_like("camembert"),
        # ELECTRA projects its embeddings after their norm.
        dataclasses.replace(_bert_like("electra"), embedding_norm=None),
        BlockLayout(
            model_type="distilbert",
            layers="transformer.layer",
            attention="attention",
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            output="attention.out_lin",
            norm="sa_layer_norm",
            norm_position="post",
            embedding_norm="embeddings.LayerNorm",
            output_norm="output_layer_norm",
            feed_forward=(
                FeedForwardLayout(
                    input="ffn.lin1",
                    activation="ffn.activation",
                    output="ffn.lin2",
                    norm="output_layer_norm",
                ),
            ),
            source=_source("distilbert"),
        ),
        BlockLayout(
            model_type="albert",
            layers="encoder.albert_layer_groups",
            shared="albert_layers",
            attention="attention",
            query="attention.query",
            key="attention.key",
            value="attention.value",
            output="attention.dense",
            norm="attention.LayerNorm",
            norm_position="post",
            output_norm="full_layer_layer_norm",
            feed_forward=(
                FeedForwardLayout(
                    input="ffn",
                    activation="activation",
                    output="ffn_output",
                    norm="full_layer_layer_norm",
                ),
            ),
            source=_source("albert"),
        ),
        BlockLayout(
            model_type="mpnet",
            layers="encoder.layer",
            attention="attention.attn",
            query="attention.attn.q",
            key="attention.attn.k",
            value="attention.attn.v",
            output="attention.attn.o",
            norm="attention.LayerNorm",
            norm_position="post",
            registry=False,
            score_terms="position_bias",
            embedding_norm="embeddings.LayerNorm",
            output_norm="output.LayerNorm",
            feed_forward=(_BERT_NETWORK,),
            source=_source("mpnet"),
        ),
        dataclasses.replace(
            _bert_like("deberta"),
            query="attention.self.in_proj",
            key="attention.self.in_proj",
            value="attention.self.in_proj",
            fused="interleaved",
            query_bias="attention.self.q_bias",
            value_bias="attention.self.v_bias",
            float32_inside=True,
            registry=False,
            position_terms="pos_att_type",
            score_terms="disentangled_att_bias",
            feed_forward=(dataclasses.replace(_BERT_NETWORK, float32_inside=True),),
        ),
        dataclasses.replace(
            _bert_like("deberta-v2"),
            query="attention.self.query_proj",
            key="attention.self.key_proj",
            value="attention.self.value_proj",
            registry=False,
            position_terms="pos_att_type",
            counted_terms=("c2p", "p2c"),
            score_terms="disentangled_attention_bias",
            convolution="encoder.conv",
        ),
        BlockLayout(
            model_type="modernbert",
            layers="layers",
            attention="attn",
            query="attn.Wqkv",
            key="attn.Wqkv",
            value="attn.Wqkv",
            fused="stacked",
            output="attn.Wo",
            norm_position="pre",
            attention_norm="attn_norm",
            final_norm="final_norm",
            sum_consumer="mlp_norm",
            rotary="halves",
            float32_inside=True,
            embedding_norm="embeddings.norm",
            feed_forward=(
                FeedForwardLayout(
                    input="mlp.Wi",
                    fused=True,
                    activation="mlp.act",
                    output="mlp.Wo",
                    norm="mlp_norm",
                ),
            ),
            source=_source("modernbert"),
        ),
        dataclasses.replace(
            _bert_like("roberta-prelayernorm"),
            norm=None,
            norm_position="pre",
            attention_norm="attention.LayerNorm",
            final_norm="LayerNorm",
            sum_consumer="intermediate.LayerNorm",
            output_norm=None,
            feed_forward=(dataclasses.replace(_BERT_NETWORK, norm="intermediate.LayerNorm"),),
        ),
        _llama_like("eurobert"),
        BlockLayout(
            model_type="gpt2",
            layers="h",
            attention="attn",
            query="attn.c_attn",
            key="attn.c_attn",
            value="attn.c_attn",
            fused="stacked",
            output="attn.c_proj",
            norm_position="pre",
            attention_norm="ln_1",
            final_norm="ln_f",
            sum_consumer="ln_2",
            feed_forward=(
                FeedForwardLayout(
                    input="mlp.c_fc",
                    activation="mlp.act",
                    output="mlp.c_proj",
                    norm="ln_2",
                ),
            ),
            source=_source("gpt2"),
        ),
        BlockLayout(
            model_type="gpt_neox",
            layers="layers",
            attention="attention",
            query="attention.query_key_value",
            key="attention.query_key_value",
            value="attention.query_key_value",
            fused="interleaved",
            output="attention.dense",
            norm_position="parallel",
            attention_norm="input_layernorm",
            final_norm="final_layer_norm",
            rotary="halves",
            feed_forward=(
                FeedForwardLayout(
                    input="mlp.dense_h_to_4h",
                    activation="mlp.act",
                    output="mlp.dense_4h_to_h",
                    norm="post_attention_layernorm",
                ),
            ),
            source=_source("gpt_neox"),
        ),
        _llama_like("llama"),
        _llama_like("mistral"),
        _llama_like("qwen2"),
        dataclasses.replace(
            _llama_like("qwen3"), key_norm="self_attn.k_norm", query_norm="self_attn.q_norm", float32_inside=True
        ),
        dataclasses.replace(
            _llama_like("gemma"), feed_forward=(dataclasses.replace(_LLAMA_NETWORK, unit_offset=True),)
        ),
        dataclasses.replace(_GEMMA, fused_reference=False, float32_inside=True),
        dataclasses.replace(
            _GEMMA,
            model_type="gemma3_text",
            source=_source("gemma3"),
            key_norm="self_attn.k_norm",
            query_norm="self_attn.q_norm",
            key_norm_by_head=True,
            float32_inside=True,
        ),
        dataclasses.replace(
            _norms_around(
                "glm4",
                _FUSED_NETWORK,
                block="post_self_attn_layernorm",
                input="post_attention_layernorm",
                output="post_mlp_layernorm",
            ),
            rotary="adjacent_halves",
            float32_inside=True,
        ),
        _llama_like("olmo"),
        _olmo2_like("olmo2"),
        _olmo2_like("olmo3"),
        dataclasses.replace(
            _llama_like("phi3"),
            query="self_attn.qkv_proj",
            key="self_attn.qkv_proj",
            value="self_attn.qkv_proj",
            fused="stacked",
            feed_forward=(_FUSED_NETWORK,),
        ),
        dataclasses.replace(_llama_like("smollm3"), rotates="use_rope"),
        dataclasses.replace(_llama_like("granite"), residual_multiplier="residual_multiplier"),
        dataclasses.replace(
            _llama_like("starcoder2"),
            feed_forward=(
                FeedForwardLayout(
                    input="mlp.c_fc", activation="mlp.act", output="mlp.c_proj", norm="post_attention_layernorm"
                ),
            ),
        ),
        dataclasses.replace(
            _llama_like("stablelm"), feed_forward=(dataclasses.replace(_LLAMA_NETWORK, float32_inside=False),)
        ),
        _beside(dataclasses.replace(_llama_like("cohere"), rotary="adjacent", float32_inside=True)),
        _beside(
            dataclasses.replace(
                _llama_like("cohere2"), rotary="adjacent", rotates="sliding_window", float32_inside=True
            )
        ),
        _beside(
            dataclasses.replace(
                _llama_like("phi"),
                output="self_attn.dense",
                final_norm="final_layernorm",
                feed_forward=(FeedForwardLayout(input="mlp.fc1", activation="mlp.activation_fn", output="mlp.fc2"),),
            )
        ),
        # Mixtures of experts, where only attention can be observed; a layer may have Llama's network in their place.
        dataclasses.replace(_llama_like("mixtral"), routed=True, feed_forward=()),
        dataclasses.replace(_llama_like("qwen2_moe"), routed=True),
        dataclasses.replace(
            _llama_like("qwen3_moe"),
            routed=True,
            key_norm="self_attn.k_norm",
            query_norm="self_attn.q_norm",
            float32_inside=True,
        ),
        dataclasses.replace(
            _llama_like("gpt_oss"), routed=True, rotary="angles", fused_reference=False, feed_forward=()
        ),
        BlockLayout(
            model_type="opt",
            layers="decoder.layers",
            attention="self_attn",
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            output="self_attn.out_proj",
            norm_position="pre",
            attention_norm="self_attn_layer_norm",
            final_norm="decoder.final_layer_norm",
            sum_consumer="final_layer_norm",
            feed_forward=(
                FeedForwardLayout(input="fc1", activation="activation_fn", output="fc2", norm="final_layer_norm"),
            ),
            source=_source("opt"),
        ),
        _beside(
            BlockLayout(
                model_type="gptj",
                layers="h",
                attention="attn",
                query="attn.q_proj",
                key="attn.k_proj",
                value="attn.v_proj",
                output="attn.out_proj",
                norm_position="parallel",
                final_norm="ln_f",
                rotary="table",
                registry=False,
                causal=True,
                float32_inside=True,
                feed_forward=(FeedForwardLayout(input="mlp.fc_in", activation="mlp.act", output="mlp.fc_out"),),
                source=_source("gptj"),
            ),
            "ln_1",
        ),
        dataclasses.replace(
            _megatron_like("bloom"),
            score_terms="alibi",
            float32_inside=True,
            embedding_norm="word_embeddings_layernorm",
            feed_forward=(dataclasses.replace(_MEGATRON_NETWORK, activation="mlp.gelu_impl", float32_inside=True),),
        ),
        # The block of Falcon 40B and later models; see `_falcon` for that of 7B.
        dataclasses.replace(
            _beside(_megatron_like("falcon"), "ln_attn"),
            key_heads="num_kv_heads",
            rotary="halves",
            feed_forward=(dataclasses.replace(_MEGATRON_NETWORK, norm="ln_mlp"),),
        ),
    )
}


STACKS: dict[str, dict[Stack, BlockLayout]] = {
    layouts[0].model_type: {layout.stack: layout for layout in layouts if layout.stack is not None}
    for layouts in (
        _bart_like("marian", "post", embedding_norm=False),
        _bart_like("bart", "post", embedding_norm=True),
        _bart_like("mbart", "pre", embedding_norm=True),
        _bart_like("m2m_100", "pre", embedding_norm=False),
        _t5_like("t5"),
        _t5_like("mt5"),
        _t5_like("umt5"),
    )
}
"""The encoder–decoders, by stack."""


def _gpt_neox(config: Any) -> BlockLayout:
    """GPT-NeoX, whose network may read the sum of attention and residual instead of the layer's input."""
    layout = FAMILIES["gpt_neox"]
    if config.use_parallel_residual:
        return layout
    return dataclasses.replace(layout, norm_position="pre", sum_consumer="post_attention_layernorm")


def _stablelm(config: Any) -> BlockLayout:
    """StableLM, which may put its network beside attention and normalise queries and keys head by head."""
    layout = FAMILIES["stablelm"]
    if config.qk_layernorm:
        layout = dataclasses.replace(
            layout, key_norm="self_attn.k_layernorm", query_norm="self_attn.q_layernorm", key_norm_by_head=True
        )
    return _beside(layout) if config.use_parallel_residual else layout


def _cohere(config: Any) -> BlockLayout:
    """Cohere, whose larger models normalise queries and keys."""
    layout = FAMILIES["cohere"]
    return (
        dataclasses.replace(layout, key_norm="self_attn.k_norm", query_norm="self_attn.q_norm")
        if config.use_qk_norm
        else layout
    )


def _opt(config: Any) -> BlockLayout:
    """OPT, whose model of 350 million parameters has its norms after attention and network, and smaller embeddings."""
    layout = FAMILIES["opt"]
    if config.word_embed_proj_dim != config.hidden_size:
        layout = dataclasses.replace(layout, output_projection="decoder.project_out")
    if config.do_layer_norm_before:
        return dataclasses.replace(layout, final_norm=None) if config._remove_final_layer_norm else layout
    return dataclasses.replace(
        layout,
        norm_position="post",
        norm="self_attn_layer_norm",
        attention_norm=None,
        final_norm=None,
        sum_consumer=None,
        output_norm="final_layer_norm",
    )


def _falcon(config: Any) -> BlockLayout:
    """Falcon, whose models differ in heads of keys, in norms and in what the network reads."""
    layout = FAMILIES["falcon"]
    if config.new_decoder_architecture and config.num_ln_in_parallel_attn in (None, 2):
        return layout
    if config.multi_query and not config.new_decoder_architecture:
        layout = dataclasses.replace(layout, key_heads=1)
    if config.new_decoder_architecture or config.parallel_attn:
        return _beside(layout)
    return dataclasses.replace(
        layout,
        norm_position="pre",
        attention_norm="input_layernorm",
        sum_consumer="post_attention_layernorm",
        feed_forward=(_MEGATRON_NETWORK,),
    )


_BY_CONFIG: dict[str, Callable[[Any], BlockLayout]] = {
    "cohere": _cohere,
    "falcon": _falcon,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "stablelm": _stablelm,
}
"""The families whose layout depends on the config."""


def layout_of(model_type: str, stack: Stack | None = None, config: Any = None) -> BlockLayout:
    """The layout of a family.

    Args:
        model_type: The family's name in transformers configs.
        stack: The stack of an encoder–decoder, by default the encoder.
        config: The model's config, on which the layout of some families depends; by default the family's usual one.

    Raises:
        InputError: If the family is unknown (layouts are never guessed) or has no such stack.
    """
    if model_type in STACKS:
        return STACKS[model_type][stack or "encoder"]
    if model_type not in FAMILIES:
        known = [*FAMILIES, *STACKS]
        close = ", ".join(difflib.get_close_matches(str(model_type), known, n=3)) or "bert, llama or t5"
        raise InputError(
            f"model family {model_type!r} is not supported; expected one of {len(known)} families, such as {close} (all are in "
            "the documentation's list of models). Set model.name to a model of one of them"
        )
    if stack is not None:
        raise InputError(
            f"model.stack={stack}: {model_type} has only one stack and no cross-attention; leave it out or, for "
            f"analysis=alignment, set model.name to a model of one of these families: {', '.join(sorted(STACKS))}"
        )
    if config is not None and model_type in _BY_CONFIG:
        return _BY_CONFIG[model_type](config)
    return FAMILIES[model_type]
