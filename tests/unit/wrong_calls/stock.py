"""Models and texts for wrong calls, of which everything but one thing is right."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

import normscope
from normscope.models.load.loaded import LoadedModel
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS

TEXT, OTHER = "the old river", "a cat sees it, and walks"


@dataclasses.dataclass(frozen=True)
class Stock:
    """What wrong calls are made with."""

    folder: Path
    """A checkpoint."""
    tokenizer: PreTrainedTokenizerBase
    classifier: PreTrainedModel
    wrapped: LoadedModel
    """The classifier."""
    masked: LoadedModel
    causal: LoadedModel
    translator: LoadedModel
    """By its cross-attention."""

    @classmethod
    def made(cls, folder: Path, tokenizer: PreTrainedTokenizerBase) -> "Stock":
        """A new stock, whose checkpoint is that folder."""
        classifier = tiny(AutoModelForSequenceClassification, "bert", tokenizer)
        causal = tiny(AutoModelForCausalLM, "gpt2", tokenizer, pad_token_id=0)
        return cls(
            folder,
            tokenizer,
            classifier,
            normscope.wrap(classifier, tokenizer),
            normscope.wrap(tiny(AutoModelForMaskedLM, "bert", tokenizer), tokenizer),
            normscope.wrap(causal, tokenizer),
            normscope.wrap(tiny(AutoModelForSeq2SeqLM, "bart", tokenizer), tokenizer, stack="cross"),
        )

    def model(self) -> PreTrainedModel:
        """A copy of the classifier, to be damaged."""
        return copy.deepcopy(self.classifier)


def tiny(kind: Any, family: str, tokenizer: PreTrainedTokenizerBase, **settings: object) -> PreTrainedModel:
    """A tiny random model with a head and the tokenizer's vocabulary."""
    config = (FAMILY_CONFIGS | STACK_CONFIGS)[family] | {"vocab_size": len(tokenizer)} | settings
    torch.manual_seed(0)
    model: PreTrainedModel = kind.from_config(AutoConfig.for_model(**config))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()
