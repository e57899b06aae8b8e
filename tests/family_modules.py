"""Where the families of tests/tiny.py keep the modules of a layer, for oracles that read weights without our own code."""

from operator import attrgetter
from typing import NamedTuple

from torch import nn
from transformers.modeling_utils import PreTrainedModel


class Parts(NamedTuple):
    """The modules of one layer."""

    layer: int
    """Counted from 1."""
    entry: nn.Module
    """The layer."""
    attention: nn.Module
    """The module that attends."""
    query: nn.Module
    key: nn.Module
    value: nn.Module
    """W_Q, W_K and W_V: the same module if one linear layer makes them all."""
    output: nn.Module
    """W_O."""
    norm: nn.Module
    """The norm after attention: of the sum in a post-LN layer, of the network's input in a pre-LN layer; in a parallel one that
    before both."""
    network: nn.Module
    """What makes the network's output: the whole network, or its last linear layer where no module runs it alone."""
    scale: float
    """The factor on what W_O gives."""


class _Names(NamedTuple):
    layers: str
    attention: str
    query: str
    key: str
    value: str
    output: str
    """Relative to the layer, as are the norm and the network."""
    norm: str
    network: str


def _same(layers: str, attention: str, fused: str, output: str, norm: str, network: str) -> _Names:
    return _Names(layers, attention, fused, fused, fused, output, norm, network)


_BERT = _Names(
    *("encoder.layer", "attention.self", "query", "key", "value", "attention.output.dense"),
    *("attention.output.LayerNorm", "output.dense"),
)
_DEBERTA_V2 = _BERT._replace(query="query_proj", key="key_proj", value="value_proj")
_LLAMA = _Names(
    *("layers", "self_attn", "q_proj", "k_proj", "v_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp")
)
_BART = _LLAMA._replace(output="self_attn.out_proj", norm="self_attn_layer_norm", network="fc2")
_PARALLEL = _LLAMA._replace(norm="input_layernorm")
_T5 = _Names(
    *("block", "layer.0.SelfAttention", "q", "k", "v", "layer.0.SelfAttention.o"),
    *("layer.1.layer_norm", "layer.1.DenseReluDense"),
)
_FUSED = {
    "deberta": _BERT._replace(query="in_proj", key="in_proj", value="in_proj"),
    "modernbert": _same("layers", "attn", "Wqkv", "attn.Wo", "mlp_norm", "mlp"),
    "gpt2": _same("h", "attn", "c_attn", "attn.c_proj", "ln_2", "mlp"),
    "gpt_neox": _same("layers", "attention", "query_key_value", "attention.dense", "post_attention_layernorm", "mlp"),
    "bloom": _same("h", "self_attention", "query_key_value", "self_attention.dense", "post_attention_layernorm", "mlp"),
    "falcon": _same("h", "self_attention", "query_key_value", "self_attention.dense", "ln_mlp", "mlp"),
    "phi3": _same("layers", "self_attn", "qkv_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp"),
}
NAMES: dict[str, _Names] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "roberta-prelayernorm": _BERT._replace(norm="intermediate.LayerNorm"),
    "distilbert": _Names(
        *("transformer.layer", "attention", "q_lin", "k_lin", "v_lin", "attention.out_lin", "sa_layer_norm", "ffn")
    ),
    "albert": _Names(
        *("encoder.albert_layer_groups", "attention", "query", "key", "value", "attention.dense"),
        *("attention.LayerNorm", "ffn_output"),
    ),
    "mpnet": _Names(
        *("encoder.layer", "attention.attn", "q", "k", "v", "attention.attn.o", "attention.LayerNorm", "output.dense")
    ),
    "deberta-v2": _DEBERTA_V2,
    **_FUSED,
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "eurobert", "gemma", "olmo", "olmo2", "olmo3", "granite", "smollm3"),
        _LLAMA,
    ),
    **dict.fromkeys(("gemma2", "gemma3_text", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "stablelm"), _LLAMA),
    "glm4": _LLAMA._replace(norm="post_self_attn_layernorm"),
    "starcoder2": _LLAMA,
    **dict.fromkeys(("cohere", "cohere2"), _PARALLEL),
    "phi": _PARALLEL._replace(output="self_attn.dense"),
    "opt": _BART._replace(layers="decoder.layers", norm="final_layer_norm"),
    "gptj": _Names("h", "attn", "q_proj", "k_proj", "v_proj", "attn.out_proj", "ln_1", "mlp"),
    **dict.fromkeys(("bart", "marian", "mbart", "m2m_100"), _BART),
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
}
"""By model type; of an encoder–decoder, those of its encoder."""


def parts_of(model: PreTrainedModel) -> list[Parts]:
    """The modules of every layer of a tiny model, in order; a layer that runs twice appears twice."""
    names = NAMES[model.config.model_type]
    return [_parts(number, layer, names, model) for number, layer in enumerate(layers_of(model), start=1)]


def layers_of(model: PreTrainedModel, stack: str | None = None) -> list[nn.Module]:
    """The layers of a tiny model, or of the decoder if the stack is not the encoder's."""
    whole = model.get_decoder() if stack in ("decoder", "cross") else model
    layers = [*attrgetter(NAMES[model.config.model_type].layers)(whole)]
    if model.config.model_type == "albert":
        groups = [group.albert_layers[0] for group in layers]
        total = model.config.num_hidden_layers
        layers = [groups[number * len(groups) // total] for number in range(total)]
    return layers


def final_norm_of(model: PreTrainedModel) -> nn.Module | None:
    """The norm after the last layer of a tiny model; None if it has none."""
    modules = dict(model.named_modules())
    names = ("norm", "ln_f", "final_layer_norm", "final_norm", "decoder.final_layer_norm")
    return next((modules[name] for name in names if name in modules), None)


def _parts(number: int, entry: nn.Module, names: _Names, model: PreTrainedModel) -> Parts:
    attention = entry.get_submodule(names.attention)
    return Parts(
        layer=number,
        entry=entry,
        attention=attention,
        query=attention.get_submodule(names.query),
        key=attention.get_submodule(names.key),
        value=attention.get_submodule(names.value),
        output=entry.get_submodule(names.output),
        norm=entry.get_submodule(names.norm),
        network=entry.get_submodule(names.network),
        scale=getattr(model.config, "residual_multiplier", 1.0),
    )
