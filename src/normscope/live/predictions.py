"""What a model's checkpoint predicts for one text: a class, the next token, a masked token, or nothing but an embedding."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.api.targets import Label, MaskedToken, NextToken, Target
from normscope.attribution.embeddings import embedding
from normscope.attribution.readouts import EmbeddingReadout
from normscope.errors import InputError
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import PREDICTED, Predictor, last_of_text, masks_in
from normscope.models.load.task_heads import Head
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
    position: int | None = None
    """The token whose vector the answer is read from, from 0; None if it is read from several."""

    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The numbers of the choices. The name of a token may also be a text that becomes another one."""

    def answer(self, name: str) -> str | int | None:
        """The answer with this name: its number, if it is a choice; None for no name."""
        return self.numbers.get(name, name) if name else None

    def aimed_at(self, name: str) -> Target:
        """The target with another answer.

        Raises:
            InputError: If nothing else can be attributed.
        """
        answer = self.answer(name)
        if isinstance(self.target, Label):
            return Label(answer)
        if isinstance(self.target, NextToken | MaskedToken):
            return dataclasses.replace(self.target, token=answer)
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
    batch = batch_from_texts(model, text).to(model.device)
    inputs = batch.model_inputs()
    if model.facts.reads_target:
        if model.translator is None:
            raise InputError(f"model: {model.name} has no weights of a translator; set model.stack=encoder")
        return Prediction("the next token of the translation", [], NextToken())
    masks = masks_in(model.tokenizer, inputs["input_ids"])[0].nonzero().flatten().tolist()
    predictor = Predictor.of(model, [kind for kind in PREDICTED if masks or kind is not Head.MASKED_TOKEN])
    if predictor is None:
        return Prediction("embedding", [], _own_embedding(model))
    with torch.inference_mode():
        (logits,) = predictor.logits(predictor.model(**inputs), inputs)
    read = predictor.meaning.read(logits)
    likely = read.topk(min(count, len(read))).indices.tolist()
    numbers = {predictor.name(number): number for number in reversed(likely)}
    asked = [numbers[name] if name in numbers else predictor.number(name, "target") for name in also]
    likely = [number for number in dict.fromkeys([*likely, *asked]) if number is not None]
    return Prediction(
        predictor.what,
        [(predictor.name(number), float(read[number])) for number in likely],
        _TARGETS[predictor.kind],
        predictor.meaning,
        _read_at(predictor, batch.input_ids, batch.token_mask, masks),
        numbers,
    )


def _read_at(
    predictor: Predictor, ids: Int[Tensor, "1 token"], tokens: Bool[Tensor, "1 token"], masks: Sequence[int]
) -> int | None:
    """The token that the targets of `_TARGETS` read their answer from."""
    match predictor.kind:
        case Head.NEXT_TOKEN:
            return int(last_of_text(ids, tokens, predictor.ending)[0])
        case Head.MASKED_TOKEN:
            return masks[0]
    return None


_TARGETS: Mapping[Head, Target] = {
    Head.CLASS: Label(),
    Head.NEXT_TOKEN: NextToken(),
    Head.MASKED_TOKEN: MaskedToken(),
}


def _own_embedding(model: LoadedModel) -> Target:
    """The length of the text's embedding, along its own direction: the cosine with itself has a gradient of 0."""
    embedder, _ = model.guessed_embedder()
    readout = EmbeddingReadout(model.model, embedder)

    def length(hidden: Float[Tensor, "token model"]) -> Tensor:
        made = embedding(embedder, hidden[None], hidden.new_ones(1, len(hidden)).bool())
        return readout.scalars(made, made.detach())[0]

    return length
