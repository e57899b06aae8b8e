"""What a model computes from a whole text: the probability of a class, of the next token or of an answer, a loss, an embedding.

A readout does two things for a text: it is the scalar that scores attribute to tokens, and it measures how far the model's
answer moves when tokens are erased.
"""

import abc
from collections.abc import Collection, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.embeddings import embedding
from normscope.errors import InputError
from normscope.maths.choices import Pooling, ReadoutTarget
from normscope.maths.embedder import Embedder
from normscope.maths.log_probabilities import log_probabilities
from normscope.maths.tensors import wide
from normscope.models.blocks.block import full_precision
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import Predictor
from normscope.models.load.task_heads import Head
from normscope.models.stored.logit_meaning import LogitMeaning


class Readout(abc.ABC):
    """One number per text.

    Args:
        model: The model to run: the base model, or the classifier around it.
    """

    quantity: str
    """What falls when tokens are erased: `probability`, `value`, `answer`, `loss` or `cosine`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    @property
    def head(self) -> PreTrainedModel | None:
        """The model to run, if it is not the base model."""
        return None

    @property
    def takes_padding(self) -> bool:
        """Whether the model reads padded batches."""
        return True

    @abc.abstractmethod
    def answers(self, output: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch _"]:
        """What the model answers for each text of a batch: logits, or embeddings. Autograd may record it."""

    @abc.abstractmethod
    def scalars(
        self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """The scalar of each text to attribute to its tokens.

        Args:
            answers: Recorded answers for the texts.
            untouched: The same answers, detached.
        """

    @abc.abstractmethod
    def values(self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]) -> Float[Tensor, " batch"]:
        """What falls, in float64: how much each answer still says what the untouched one said, or a loss.

        Args:
            answers: Answers for texts with tokens erased.
            untouched: The answers for the whole texts.
        """

    def remaining(self, untouched: Float[Tensor, "1 _"], _erased: Collection[int]) -> Float[Tensor, "1 _"]:
        """The part of the untouched answer that is comparable with the answer for the text without some tokens."""
        return untouched


class PredictionReadout(Readout):
    """What a head predicts for the whole text: the logit of the most likely answer, and its probability; of a regression, its
    value.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__(predictor.model)
        self.predictor = predictor
        self.quantity = "value" if predictor.meaning is LogitMeaning.value else "probability"

    @property
    def head(self) -> PreTrainedModel:
        """The model with its head."""
        return self.model

    @property
    def takes_padding(self) -> bool:
        """Whether it can tell where a padded text ends; causal classifiers look for their padding token."""
        return self.predictor.kind is not Head.CLASS or self.model.config.get_text_config().pad_token_id is not None

    def answers(self, output: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch _"]:
        """The logits."""
        return self.predictor.logits(output, inputs)

    def scalars(
        self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """The logit of the most likely answer; of a single logit, its size."""
        if untouched.shape[1] == 1:
            return answers[:, 0] * torch.where(untouched[:, 0] < 0, -1, 1)
        return answers.gather(1, untouched.argmax(dim=1, keepdim=True))[:, 0]

    def values(self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]) -> Float[Tensor, " batch"]:
        """The probability of the answer that was most likely for the whole text; of a regression, the value's size."""
        read = self.predictor.meaning.read
        if untouched.shape[1] == 1:
            return read(self.scalars(answers, untouched)[:, None])[:, 0]
        return read(answers).gather(1, untouched.argmax(dim=1, keepdim=True))[:, 0]


class ContinuationReadout(Readout):
    """The tokens that a text ends with, as a causal language model predicts them: the sum of their log-probabilities.

    The gradient of log p_t at the logits is that of ℓ_t − Σ_v p_v ℓ_v with p held fixed, so scores and biases add up to the sum
    of these.

    Args:
        count: Number of tokens that are predicted.
    """

    quantity = "answer"

    def __init__(self, model: PreTrainedModel, count: int) -> None:
        super().__init__(model)
        self._count = count

    @property
    def head(self) -> PreTrainedModel:
        """The language model."""
        return self.model

    @property
    def takes_padding(self) -> bool:
        """No: the tokens of an answer are counted from the end of a text."""
        return False

    def answers(self, output: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch _"]:
        """The log-probability of each token."""
        count, ids = self._predicted(inputs), inputs["input_ids"]
        logits = output.logits[:, -count - 1 : -1]
        return log_probabilities(logits, ids[:, -count:].to(logits.device))

    def scalars(
        self, answers: Float[Tensor, "batch _"], _untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """Their sum."""
        return answers.sum(dim=1)

    def values(
        self, answers: Float[Tensor, "batch _"], _untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """The geometric mean of their probabilities."""
        return wide(answers).mean(dim=1).exp()

    def _predicted(self, _inputs: Mapping[str, Tensor]) -> int:
        return self._count


class LossReadout(ContinuationReadout):
    """The loss of a causal language model on the text's own tokens but the first: −Σ log p."""

    quantity = "loss"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, 0)

    def scalars(
        self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """Minus the sum of the log-probabilities: tokens with positive scores raise the loss."""
        return -super().scalars(answers, untouched)

    def values(
        self, answers: Float[Tensor, "batch _"], _untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """The mean loss of a token, in nats."""
        return -wide(answers).mean(dim=1)

    def remaining(self, untouched: Float[Tensor, "1 _"], erased: Collection[int]) -> Float[Tensor, "1 _"]:
        """The log-probabilities of the tokens that are not erased; the first token never is."""
        kept = [place for place in range(untouched.shape[1]) if place + 1 not in erased]
        return untouched[:, kept]

    def _predicted(self, inputs: Mapping[str, Tensor]) -> int:
        return inputs["input_ids"].shape[1] - 1


class EmbeddingReadout(Readout):
    """The embedding of a text: its length along the untouched embedding, and its cosine with it."""

    quantity = "cosine"

    def __init__(self, model: PreTrainedModel, embedder: Embedder) -> None:
        super().__init__(model)
        self.embedder = embedder

    def answers(self, output: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch _"]:
        """The embeddings.

        Raises:
            InputError: If the model does not return a vector for each token.
        """
        returned, token_mask = output.last_hidden_state, inputs["attention_mask"].bool()
        if returned.shape[:-1] != token_mask.shape:
            raise InputError(
                f"model: expected a returned vector for each of {token_mask.shape[1]} tokens, to make an embedding, got "
                f"vectors of shape {tuple(returned.shape)}; leave attribution out, or set model to one with a head"
            )
        return embedding(self.embedder, full_precision(returned), token_mask)

    def scalars(
        self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """The product with the direction of the untouched embedding: linear, where the cosine would have a gradient of zero."""
        return (answers * torch.nn.functional.normalize(untouched, dim=-1)).sum(dim=-1)

    def values(self, answers: Float[Tensor, "batch _"], untouched: Float[Tensor, "batch _"]) -> Float[Tensor, " batch"]:
        """The cosine with the untouched embedding."""
        return torch.nn.functional.cosine_similarity(wide(answers), wide(untouched), dim=-1)


_PREDICTED = {ReadoutTarget.label: Head.CLASS, ReadoutTarget.next: Head.NEXT_TOKEN}
"""Targets that a head predicts for the whole text; by default, the first for which there is one."""


def readout_of(
    model: LoadedModel, pooling: Pooling | None, target: ReadoutTarget | None = None, answer: int = 1
) -> tuple[Readout, bool] | None:
    """What a model's checkpoint computes; None if it has no weights of the target.

    Args:
        pooling: How an embedding is pooled; by default, it is then what is read out. None leaves it to the model's
            sentence-transformers files, or to a guess: the last token's vector of a causal model, the mean of others.
        target: What to read out. By default, the class if the model has a classifier; otherwise the next token if it is a
            causal language model; otherwise the embedding.
        answer: Number of tokens of an answer.

    Returns:
        The readout, and whether the pooling is a guess.
    """
    if pooling is not None:
        return EmbeddingReadout(model.model, Embedder(pooling)), False
    if target is None or target in _PREDICTED:
        predictor = Predictor.of(model, [*_PREDICTED.values()] if target is None else [_PREDICTED[target]])
        if predictor is not None:
            return PredictionReadout(predictor), False
    if target in (ReadoutTarget.answer, ReadoutTarget.loss) and model.next_token_head is not None:
        is_loss = target is ReadoutTarget.loss
        return LossReadout(model.next_token_head) if is_loss else ContinuationReadout(
            model.next_token_head, answer
        ), False
    if target not in (None, ReadoutTarget.embedding):
        return None
    embedder, guessed = model.guessed_embedder()
    return EmbeddingReadout(model.model, embedder), guessed
