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
}


def tiny_model(config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """A model whose every parameter is random: biases are not zero, norms are not one, attention is not flat."""
    settings = dict(config)
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.to(dtype).eval().requires_grad_(False)


def token_batch(model: PreTrainedModel, lengths: tuple[int, ...], seed: int = 1) -> dict[str, torch.Tensor]:
    """Random tokens, right-padded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, model.config.vocab_size, (len(lengths), max(lengths)), generator=generator)
    real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = ids.masked_fill(~real, model.config.pad_token_id)
    return {"input_ids": ids, "attention_mask": real.long()}
