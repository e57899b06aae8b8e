"""Tiny models of any text architecture of transformers: its default config with smaller sizes."""

import contextlib
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModel
from transformers.modeling_utils import PreTrainedModel

from docs.architectures import LAYERS
from normscope.models.load.loading import run_experts_in_float64

SMALL: dict[int, tuple[str, ...]] = {
    99: ("vocab_size",),
    32: ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"),
    2: LAYERS,
    4: ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    8: ("head_dim", "d_kv", "rotary_dim"),
    40: (
        *("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "hidden_dim"),
        *("d_inner", "ffn_hidden_size", "dff"),
    ),
    64: ("max_position_embeddings", "n_positions", "max_seq_len"),
    12: ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    16: ("embedding_size", "moe_intermediate_size", "entity_emb_size"),
}
"""Sizes, and the config keys that are set to them."""

_HYBRID: dict[str, Any] = {"num_hidden_layers": 4}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 4}
_MIXTURE = {"num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 4,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}
_KIMI = _LATENT | {
    "q_lora_rank": None,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse"] * 2,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "qk_head_dim": 12,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
}
_T5GEMMA2 = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
_IMAGES = {"image_token_index": 98, "boi_token_index": 97, "eoi_token_index": 96}

OWN: dict[str, dict[str, Any]] = {
    "esm": {
        "vocab_size": 99,
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "token_dropout": False,
    },
    "xmod": {"languages": ("en_XX",), "default_language": "en_XX"},
    "mobilebert": {
        "true_hidden_size": 16,
        "intra_bottleneck_size": 16,
        "embedding_size": 16,
        "num_feedforward_networks": 2,
    },
    "squeezebert": {"embedding_size": 32, "q_groups": 2, "intermediate_groups": 2},
    "ctrl": {"n_embd": 32},
    "llama4_text": _HYBRID | {"no_rope_layers": [1, 0, 1, 0], "moe_layers": [3], "intermediate_size_mlp": 40},
    "ministral": {"head_dim": 8, "num_key_value_heads": 2},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "flint": {"mlp_only_layers": [0]},
    "hy_v3": {"enable_moe_fp32_combine": False},
    "hunyuan_v1_moe": {
        "head_dim": 8,
        "moe_topk": [2, 2],
        "moe_intermediate_size": [16, 16],
        "num_shared_expert": [1, 1],
    },
    "xlm": {"emb_dim": 32},
    "flaubert": {"emb_dim": 32},
    "afmoe": _HYBRID | _MIXTURE | {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 4},
    "bamba": _HYBRID | _MAMBA | {"attn_layer_indices": [1, 3]},
    "deepseek_v2": _LATENT | _MIXTURE | {"q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": _LATENT | _MIXTURE,
    "jamba": _HYBRID
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    | {"mamba_dt_rank": 4, "mamba_d_state": 4, "use_mamba_kernels": False, "num_experts": 4, "num_experts_per_tok": 2},
    "lfm2": _HYBRID | {"layer_types": ["conv", "full_attention"] * 2},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "full_attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 4,
    },
    "olmo_hybrid": _HYBRID | _DELTA,
    "qwen3_5_text": _HYBRID | _DELTA,
    "qwen3_5_moe_text": _HYBRID | _DELTA | _MIXTURE | {"shared_expert_intermediate_size": 16},
    "qwen3_next": _HYBRID | _DELTA | _MIXTURE | {"shared_expert_intermediate_size": 16},
    "bailing_hybrid": _HYBRID | _MIXTURE | _KIMI | {"first_k_dense_replace": 1},
    "kimi_linear": _HYBRID | _MIXTURE | _KIMI,
    "recurrent_gemma": _HYBRID
    | {"block_types": ["recurrent", "attention"], "lru_width": 32, "attention_window_size": 64},
    "youtu": _LATENT,
    "esmc": {"num_key_value_heads": 4},
    "falcon": {"num_kv_heads": 4},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64},
    "marian": {"decoder_vocab_size": 99, "decoder_start_token_id": 0},
    "t5_gemma_module": {"layer_types": ["sliding_attention", "full_attention"], "cross_attention_hidden_size": 32},
    "t5gemma2_decoder": _T5GEMMA2,
    "t5gemma2_text": _T5GEMMA2,
    "t5gemma2_encoder": _IMAGES,
    "t5gemma2": _IMAGES,
    "dots1": _MIXTURE | {"n_shared_experts": 1},
    "lfm2_moe": _HYBRID | _MIXTURE | {"layer_types": ["conv", "full_attention"] * 2},
    "minicpm3": _LATENT,
    "axk1": _LATENT | _MIXTURE,
    "glm4_moe_lite": _LATENT | _MIXTURE,
}
"""Further values that some architectures need."""

_LAYERS_DIFFER: dict[str, Any] = _HYBRID | {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 4,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
}
BUILT = {"gemma4_text": _LAYERS_DIFFER, "gemma4_unified_text": _LAYERS_DIFFER}
"""All values of configs that can't be changed later, since their layers differ."""


def tiny_architecture(model_type: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A model in which all parameters are random.

    Args:
        model_type: The name of the architecture in transformers.
    """
    config: Any = CONFIG_MAPPING[model_type]()
    if not config.is_encoder_decoder:
        config = config.get_text_config()
        model_type = config.model_type
    if model_type in BUILT:
        config = CONFIG_MAPPING[model_type](**BUILT[model_type])
    else:
        _shrink(config)
    config.pad_token_id = 0
    config.use_cache = False
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    run_experts_in_float64(model)
    return model.eval().requires_grad_(False)


def _shrink(config: Any) -> None:
    """Make the sizes of a config small, and those of the configs of its parts."""
    for part in config.sub_configs:
        if getattr(config, part, None) is not None:
            _shrink(getattr(config, part))
    own = OWN.get(config.model_type, {})
    sizes = {name: number for number, names in SMALL.items() for name in names} | {"num_key_value_heads": 2}
    for name, number in sizes.items():
        if type(getattr(config, name, None)) is int:
            # ProphetNet and Falcon derive some sizes from others.
            with contextlib.suppress(NotImplementedError, AttributeError):
                setattr(config, name, number)
    if getattr(config, "layer_types", None) and not own:
        config.layer_types = (config.layer_types * 2)[:2]
    for name, value in own.items():
        setattr(config, name, value)
