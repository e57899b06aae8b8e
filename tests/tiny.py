"""Tiny random models of every family, built from their transformers configs."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.models.facts import ModelFacts, StackName
from normscope.models.load.loading import run_experts_in_float64
from normscope.models.observe.reading import facts_of

INPUTS = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 5, 6, 0]]),
    "attention_mask": torch.tensor([[1] * 4, [1, 1, 1, 0]]),
}
"""Two sequences, one of them padded."""

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

_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
_PARTIAL_ROTATION = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

KINDS = frozenset(
    {
        *("albert", "bert", "deberta-v2", "distilbert", "modernbert", "mpnet"),
        *("gpt2", "gpt_neox", "qwen2", "qwen2_moe", "olmo2", "gemma2", "gpt_oss", "bloom", "bart", "t5"),
    }
)
"""Families that differ in more than names. Tests marked `kinds` leave out the others, whose sums contracts compare."""

UNKNOWN_NETWORKS = frozenset({"gpt_oss"})
"""Families whose networks no oracle takes apart: the experts of gpt-oss have biases and a gate of their own kind."""

DECODERS = {
    *("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"),
    *(
        "gpt2",
        "gpt_neox",
        "gptj",
        "opt",
        "bloom",
        "falcon",
        "phi",
        "stablelm",
        "starcoder2",
        "cohere",
        "cohere2",
        "smollm3",
    ),
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4",
        "granite",
        "olmo",
        "olmo2",
        "olmo3",
        "phi3",
    ),
}
"""Families with a causal language model in place of a masked one."""

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
    "gpt_neox": _BERT_LIKE | {"model_type": "gpt_neox", "rotary_pct": 0.67, **_NO_SPECIAL_TOKENS},
    "llama": _GROUPED | {"model_type": "llama", "attention_bias": True},
    "mistral": _GROUPED | {"model_type": "mistral", "sliding_window": 4},
    "qwen2": _GROUPED | {"model_type": "qwen2"},
    "qwen3": _GROUPED | {"model_type": "qwen3", "head_dim": 8},
    "gemma": _GROUPED | {"model_type": "gemma", "head_dim": 8},
    "olmo2": _GROUPED | {"model_type": "olmo2"},
    "olmo3": _GROUPED | {"model_type": "olmo3", "sliding_window": 4, "layer_types": _WINDOWS},
    "olmo": _GROUPED | {"model_type": "olmo", "attention_bias": True},
    "gemma2": _GROUPED
    | {
        "model_type": "gemma2",
        "head_dim": 8,
        "query_pre_attn_scalar": 11,
        "attn_logit_softcapping": 1.5,
        "sliding_window": 7,
        "layer_types": _WINDOWS,
    },
    "gemma3_text": _GROUPED
    | {
        "model_type": "gemma3_text",
        "head_dim": 8,
        "query_pre_attn_scalar": 11,
        "sliding_window": 4,
        "layer_types": _WINDOWS,
    },
    "glm4": _GROUPED
    | {"model_type": "glm4", "head_dim": 8, "attention_bias": True, "rope_parameters": _PARTIAL_ROTATION},
    "phi3": _GROUPED
    | {"model_type": "phi3", "hidden_size": 32, "sliding_window": 4, "rope_parameters": _PARTIAL_ROTATION},
    "smollm3": _GROUPED
    | {"model_type": "smollm3", "no_rope_layers": [1, 0, 1], "attention_bias": True, "mlp_bias": True},
    "granite": _GROUPED
    | {
        "model_type": "granite",
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 2.0,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "starcoder2": _GROUPED | {"model_type": "starcoder2", "sliding_window": 4},
    "stablelm": _GROUPED
    | {"model_type": "stablelm", "hidden_size": 32, "use_qkv_bias": True, "rope_parameters": _PARTIAL_ROTATION},
    "cohere": _GROUPED | {"model_type": "cohere", "attention_bias": True},
    "cohere2": _GROUPED | {"model_type": "cohere2", "sliding_window": 4, "layer_types": _WINDOWS},
    "phi": _GROUPED | {"model_type": "phi", "hidden_size": 32, "rope_parameters": _PARTIAL_ROTATION},
    "mixtral": _GROUPED
    | {"model_type": "mixtral", "sliding_window": 4, "num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen2_moe": _GROUPED | {"model_type": "qwen2_moe"} | _EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3_moe": _GROUPED | {"model_type": "qwen3_moe", "head_dim": 8} | _EXPERTS,
    "gpt_oss": _GROUPED
    | {
        "model_type": "gpt_oss",
        "head_dim": 8,
        "sliding_window": 4,
        "layer_types": _WINDOWS,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
    },
    "opt": {
        "model_type": "opt",
        "vocab_size": 99,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "ffn_dim": 40,
        "max_position_embeddings": 64,
        **_NO_SPECIAL_TOKENS,
    },
    "gptj": {
        "model_type": "gptj",
        "vocab_size": 99,
        "n_embd": 24,
        "n_layer": 3,
        "n_head": 3,
        "n_positions": 64,
        "n_inner": 40,
        "rotary_dim": 4,
        **_NO_SPECIAL_TOKENS,
    },
    "bloom": {
        "model_type": "bloom",
        "vocab_size": 99,
        "hidden_size": 24,
        "n_layer": 3,
        "n_head": 4,
        **_NO_SPECIAL_TOKENS,
    },
    "falcon": {
        "model_type": "falcon",
        "vocab_size": 99,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 40,
        "bias": True,
        **_NO_SPECIAL_TOKENS,
    },
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

_T5_LIKE = {
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
}

STACK_CONFIGS: dict[str, dict[str, Any]] = {
    "marian": _BART_LIKE | {"model_type": "marian"},
    "bart": _BART_LIKE | {"model_type": "bart"},
    "mbart": _BART_LIKE | {"model_type": "mbart"},
    "m2m_100": _BART_LIKE | {"model_type": "m2m_100"},
    "t5": _T5_LIKE | {"model_type": "t5"},
    "mt5": _T5_LIKE | {"model_type": "mt5"},
    "umt5": _T5_LIKE | {"model_type": "umt5"},
}
"""Encoder–decoders; their stacks differ in depth and, where they can, in heads."""


def proved_to(model: PreTrainedModel) -> float:
    """What verification of an unchanged float64 model leaves: the norms of many families compute in float32."""
    return 1e-6 if rounds_inside(model) else 1e-12


def rounds_inside(model: PreTrainedModel) -> bool:
    """Whether a float64 model rounds what it makes of its tokens to float32, as the norms of many families do."""
    inputs, rounding = token_batch(model, (7, 7)), _Rounding()
    if model.config.is_encoder_decoder and model.get_encoder() is not model:
        inputs |= {f"decoder_{name}": tensor for name, tensor in inputs.items()}
    with torch.inference_mode(), rounding:
        model(**inputs)
    return rounding.found


class _Rounding(TorchFunctionMode):
    """Notes whether a function makes float32 of float64 numbers of tokens."""

    found = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype is torch.float32:
            given = [each for each in args if isinstance(each, torch.Tensor) and each.dtype is torch.float64]
            self.found = self.found or any(each.ndim > 2 and 7 in each.shape[1:3] for each in given)
        return made


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
    model = model.to(dtype)
    run_experts_in_float64(model)
    return model.eval().requires_grad_(False)


def facts_for(family: str, stack: StackName | None = None, config: PretrainedConfig | None = None) -> ModelFacts:
    """The layout of a family's tiny model, or of a model with another config."""
    if config is None:
        settings = dict((STACK_CONFIGS if family in STACK_CONFIGS else FAMILY_CONFIGS)[family])
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    return _layout_of(config.to_json_string(), stack or ("encoder" if config.is_encoder_decoder else None))


@functools.cache
def _layout_of(config: str, stack: StackName | None) -> ModelFacts:
    model = tiny_model(json.loads(config), torch.float64)
    return facts_of(model.get_encoder() if stack == "encoder" else model, stack)


def token_batch(model: PreTrainedModel, lengths: tuple[int, ...], seed: int = 1) -> dict[str, torch.Tensor]:
    """Random tokens, right-padded."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config.get_text_config()
    ids = torch.randint(5, config.vocab_size, (len(lengths), max(lengths)), generator=generator)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = ids.masked_fill(~token_mask, config.pad_token_id or 0)
    return {"input_ids": ids, "attention_mask": token_mask.long()}


def saved_config(config: dict[str, Any], folder: Path) -> Path:
    """A folder with the config.json of a model alone, which is loaded with random weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def saved_with_head(auto, family, tokenizer, folder, **changes):
    """A small checkpoint with random weights and a head."""
    torch.manual_seed(0)
    settings = (FAMILY_CONFIGS | STACK_CONFIGS)[family] | {"vocab_size": len(tokenizer)} | changes
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    auto.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sentence_encoder(saved: Path, folder: Path) -> Path:
    """A copy of a checkpoint with the files of a sentence encoder that takes the mean."""
    shutil.copytree(saved, folder)
    kinds = {"Transformer": "", "Pooling": "1"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def with_chat_template(folder: Path) -> Path:
    """A checkpoint whose tokenizer gets a chat template."""
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
