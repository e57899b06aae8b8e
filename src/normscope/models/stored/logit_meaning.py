"""What the numbers of a classification head mean."""

import enum
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import PretrainedConfig

from normscope.maths.tensors import wide


class LogitMeaning(enum.StrEnum):
    """How the logits of a head are read. `explain`, the live page, `attribute` and `analysis=attribution` share this rule."""

    softmax = "softmax"
    """Classes of which a text has exactly one: the softmax of all logits is their probability."""
    sigmoid = "sigmoid"
    """Labels of which a text has any number, or the two sides of a single logit: each has a probability of its own."""
    value = "value"
    """A regression: each number is itself the answer."""

    @classmethod
    def of(cls, config: PretrainedConfig) -> "LogitMeaning":
        """What a classifier's config says; without a word from it, one logit is a sigmoid and several are a softmax.

        Source: TextClassificationPipeline of transformers, and CrossEncoder of sentence-transformers, whose models name the
        activation that they were trained with.
        """
        activation = _cross_encoder_activation(config)
        if config.problem_type == "regression" or activation == "Identity":
            return cls.value
        if config.problem_type == "multi_label_classification" or config.num_labels == 1 or activation == "Sigmoid":
            return cls.sigmoid
        return cls.softmax

    def read(self, logits: Float[Tensor, "*batch choice"]) -> Float[Tensor, "*batch choice"]:
        """The probability of each choice, or its value, in float64."""
        match self:
            case LogitMeaning.softmax:
                return wide(logits).softmax(dim=-1)
            case LogitMeaning.sigmoid:
                return wide(logits).sigmoid()
            case LogitMeaning.value:
                return wide(logits)


def _cross_encoder_activation(config: Any) -> str:
    """The class of the activation that a cross-encoder's config names; empty without one."""
    own = getattr(config, "sentence_transformers", None)
    newer = own.get("activation_fn") if isinstance(own, dict) else None
    named = newer or getattr(config, "sbert_ce_default_activation_function", None)
    return str(named).rpartition(".")[2] if named else ""
