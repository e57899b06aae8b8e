"""Tiny random models of every family, built from their transformers configs."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModel
from transformers.modeling_utils import PreTrainedModel

_BERT_LIKE = {
    "vocab_size": 99,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}

_NO_SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
_GROUPED = _BERT_LIKE | {"num_key_value_heads": 2, **_NO_SPECIAL_TOKENS}

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _BERT_LIKE | {"model_type": "bert"},
    "roberta": _BERT_LIKE | {"model_type": "roberta", "pad_token_id": 1},
    "xlm-roberta": _BERT_LIKE | {"model_type": "xlm-roberta", "pad_token_id": 1},
    "camembert": _BERT_LIKE | {"model_type": "camembert", "pad_token_id": 1},
    "electra": _BERT_LIKE | {"model_type": "electra", "embedding_size": 16},
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 99,
        "dim": 24,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 40,
        "max_position_embeddings": 64,
    },
    "albert": _BERT_LIKE | {"model_type": "albert", "embedding_size": 16, "num_hidden_groups": 2},
    "mpnet": _BERT_LIKE | {"model_type": "mpnet", "pad_token_id": 1},
    "deberta": _BERT_LIKE
    | {"model_type": "deberta", "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "deberta-v2": _BERT_LIKE
    | {
        "model_type": "deberta-v2",
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "modernbert": _BERT_LIKE
    | {"model_type": "modernbert", "global_attn_every_n_layers": 2, "local_attention": 6, **_NO_SPECIAL_TOKENS},
    "roberta-prelayernorm": _BERT_LIKE | {"model_type": "roberta-prelayernorm", "pad_token_id": 1},
    "eurobert": _BERT_LIKE | {"model_type": "eurobert", "num_key_value_heads": 2, **_NO_SPECIAL_TOKENS},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 99,
        "n_embd": 24,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "gpt_neox": _BERT_LIKE | {"model_type": "gpt_neox", "rotary_pct": 0.34, **_NO_SPECIAL_TOKENS},
    "llama": _GROUPED | {"model_type": "llama", "attention_bias": True},
    "mistral": _GROUPED | {"model_type": "mistral", "sliding_window": 4},
    "qwen2": _GROUPED | {"model_type": "qwen2"},
    "qwen3": _GROUPED | {"model_type": "qwen3", "head_dim": 8},
    "gemma": _GROUPED | {"model_type": "gemma", "head_dim": 8},
    "olmo2": _GROUPED | {"model_type": "olmo2"},
}
"""One family each; windows and odd sizes are small enough to matter in a probe of nine tokens."""


_BART_LIKE = {
    "vocab_size": 99,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

STACK_CONFIGS: dict[str, dict[str, Any]] = {
    "marian": _BART_LIKE | {"model_type": "marian"},
    "bart": _BART_LIKE | {"model_type": "bart"},
    "mbart": _BART_LIKE | {"model_type": "mbart"},
    "m2m_100": _BART_LIKE | {"model_type": "m2m_100"},
    "t5": {
        "model_type": "t5",
        "vocab_size": 99,
        "d_model": 24,
        "d_kv": 8,
        "d_ff": 40,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 6,
        "relative_attention_max_distance": 8,
        "decoder_start_token_id": 0,
    },
}
"""Encoder–decoders; their stacks differ in depth and, where they can, in heads."""


def tiny_stack(model_type: str, stack: str, dtype: torch.dtype) -> PreTrainedModel:
    """What is observed of a tiny encoder–decoder: its encoder alone, or all of it."""
    model = tiny_model(STACK_CONFIGS[model_type], dtype)
    return model.get_encoder() if stack == "encoder" else model


def tiny_model(config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """A model whose every parameter is random: biases are not zero, norms are not one, attention is not flat."""
    settings = dict(config)
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    model.config.use_cache = False
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.to(dtype).eval().requires_grad_(False)


def token_batch(model: PreTrainedModel, lengths: tuple[int, ...], seed: int = 1) -> dict[str, torch.Tensor]:
    """Random tokens, right-padded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, model.config.vocab_size, (len(lengths), max(lengths)), generator=generator)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = ids.masked_fill(~token_mask, model.config.pad_token_id or 0)
    return {"input_ids": ids, "attention_mask": token_mask.long()}
