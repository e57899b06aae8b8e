"""What a model's checkpoint predicts for one text: a class, the next token, a masked token, or nothing but an embedding."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.api.targets import Label, MaskedToken, NextToken, Target, token_number
from normscope.attribution.embeddings import embedding
from normscope.data.token_texts import TokenTexts
from normscope.errors import InputError
from normscope.models.load.loaded import LoadedModel, last_of_text
from normscope.models.load.text_batches import batch_from_texts
from normscope.models.stored.logit_meaning import LogitMeaning

_CHOICES = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """What the model's checkpoint computes from a text."""

    what: str
    """In a few words."""
    choices: Sequence[tuple[str, float]]
    """The most likely answers, and their probabilities; of a regression, its values; empty for an embedding."""
    target: Target
    """What is attributed: the first of them."""
    meaning: LogitMeaning = LogitMeaning.softmax
    """What the numbers of the choices are."""
    runner_up: int | None = None
    """The number of the second answer, if one excludes the other: what the first is compared with to say why it is the first.
    Most of a logit is shared by all answers."""

    def aimed_at(self, name: str) -> Target:
        """The target with another answer.

        Raises:
            InputError: If nothing else can be attributed.
        """
        if isinstance(self.target, Label):
            return Label(name)
        if isinstance(self.target, NextToken | MaskedToken):
            return dataclasses.replace(self.target, token=name)
        raise InputError(f"target={name!r}: the model computes no predictions for this text; leave the target out")


def prediction_of(model: LoadedModel, text: Any, count: int = _CHOICES, also: Sequence[str] = ()) -> Prediction:
    """What a model predicts for a text.

    Args:
        model: See `normscope.load`.
        text: A text, or a pair (tuple) of texts.
        count: Number of answers.
        also: Names of more answers, which follow the most likely ones.

    Raises:
        InputError: If the text is empty or too long, there is no such answer, or the model translates and has no head.
    """
    # In its turn: another thread may observe the model, and would take this pass for its own.
    return model.exclusively(lambda: _prediction(model, text, count, also))


def _prediction(model: LoadedModel, text: Any, count: int, also: Sequence[str]) -> Prediction:
    inputs = batch_from_texts(model, text).to(model.device).model_inputs()
    last = int(last_of_text(inputs["input_ids"], inputs["attention_mask"], model.ending)[0])
    if model.layout.reads_target:
        if model.translator is None:
            raise InputError(f"model: {model.name} has no weights of a translator; set model.stack=encoder")
        return Prediction("the next token of the translation", [], NextToken())
    with torch.inference_mode():
        if model.classifier is not None:
            logits = model.classifier(**inputs).logits[0]
            names = model.classifier.config.id2label or {}
            labels = [str(names.get(number, number)) for number in range(len(logits))]
            meaning = LogitMeaning.of(model.classifier.config)
            numbers = [number for number, name in enumerate(labels) if name in also]
            likely = _most_likely(logits, meaning, count, numbers)
            found = [(labels[number], each) for number, each in likely]
            what = "class" if meaning is not LogitMeaning.value else "value"
            second = likely[1][0] if meaning is LogitMeaning.softmax and len(likely) > 1 else None
            return Prediction(what, found, Label(), meaning, second)
        if model.next_token_head is not None:
            logits = model.next_token_head(**inputs).logits[0, last]
            return _token_prediction("next token", model, logits, count, also)
        masks = (inputs["input_ids"][0] == (model.tokenizer.mask_token_id or -1)).nonzero().flatten().tolist()
        if masks and model.masked_language_head is not None:
            logits = model.masked_language_head(**inputs).logits[0, masks[0]]
            return _token_prediction("masked token", model, logits, count, also)
    return Prediction("embedding", [], _own_embedding(model))


def _token_prediction(
    what: str, model: LoadedModel, logits: Float[Tensor, " vocabulary"], count: int, also: Sequence[str]
) -> Prediction:
    numbers = [number for name in also if (number := token_number(model, name)) is not None]
    likely = _most_likely(logits, LogitMeaning.softmax, count, numbers)
    texts = TokenTexts(model.tokenizer)
    found = [(texts.of([number])[0], each) for number, each in likely]
    target = NextToken() if what == "next token" else MaskedToken()
    return Prediction(what, found, target, runner_up=likely[1][0] if len(likely) > 1 else None)


def _most_likely(
    logits: Float[Tensor, " choice"], meaning: LogitMeaning, count: int, also: Sequence[int]
) -> list[tuple[int, float]]:
    """The choices with the largest numbers, and then the others that were asked for."""
    read = meaning.read(logits)
    likely = read.topk(min(count, len(logits))).indices.tolist()
    return [(number, float(read[number])) for number in dict.fromkeys([*likely, *also])]


def _own_embedding(model: LoadedModel) -> Target:
    """The length of the text's embedding, along its own direction: the cosine with itself has a gradient of 0."""
    embedder, _ = model.guessed_embedder()

    def length(hidden: Float[Tensor, "token model"]) -> Tensor:
        (made,) = embedding(embedder, hidden[None], hidden.new_ones(1, len(hidden)).bool())
        return made @ torch.nn.functional.normalize(made.detach(), dim=-1)

    return length
