"""Attribution of one number to the tokens of a text."""

import dataclasses
import html
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from transformers import BatchEncoding

from normscope.api.answers import attribute_answer
from normscope.api.arguments import chosen, single_text
from normscope.api.calls import checked, in_turn
from normscope.api.coloured_tokens import LEGEND, coloured, signed
from normscope.api.spans import span_of_tokens, sums_of_spans
from normscope.api.targets import Answer, NextToken, Target, prepared, token_number
from normscope.attribution.methods import check_supported
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.translations import attribute_translation
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.choices import AnswerMeasure, ValueBias
from normscope.models.frozen_pass import frozen_pass
from normscope.models.frozen_translation import frozen_translation
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text, describe_type
from normscope.running.token_maps import texts_of


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of a target: the scores of the tokens, the biases and a remainder, which add up to it."""

    tokens: tuple[str, ...]
    """The tokens of the text; for a translation, those of the source, then those of the target so far."""
    scores: Float[np.ndarray, " token"]
    """How much each token adds to the target."""
    bias: float
    """What the model's biases add."""
    remainder: float
    """What remains if the target is not linear in the last hidden vectors; otherwise 0 up to rounding."""
    target: float
    """The target's value."""
    what: str
    """What the target is, in words."""
    error: float
    """How far the parts miss the target, relative to the sum of their sizes: rounding error only."""
    sides: Mapping[str, int] | None = None
    """What the tokens belong to, in order, with the number of tokens of each: `source` and `target` of a translation; for an
    `Answer`, the `prompt`, the `answer` and, with a minus sign, what it is compared with (`against`). None for a single text.
    The last token of an answer predicts nothing and is left out."""
    matrix: pd.DataFrame | None = None
    """For an `Answer` with `matrix=True`: the score of every token (column) for each of the answer's tokens (row)."""
    spans: Mapping[str, float] | None = None
    """The sum of the scores in each span of the text, and in the `rest`; None without spans."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per token; tokens are numbered from 0 on each `side`, if there is more than one."""
        table = pd.DataFrame({"position": range(len(self.tokens)), "token": self.tokens, "value": self.scores})
        if self.sides is not None:
            table.insert(0, "side", [side for side, count in self.sides.items() for _ in range(count)])
            table["position"] = [number for count in self.sides.values() for number in range(count)]
        return table

    @property
    def _sum(self) -> str:
        rounding = 1e-5 * (np.abs(self.scores).sum() + abs(self.bias))
        rest = "" if abs(self.remainder) <= rounding else f" + remainder {signed(self.remainder)}"
        rest += "" if self.spans is None else f"; by span: {_listed(self.spans)}"
        scores = float(self.scores.sum())
        what = f"{self.what[0].upper()}{self.what[1:]}"
        return f"{what} {signed(self.target)} = tokens {signed(scores)} + biases {signed(self.bias)}{rest}"

    def _repr_html_(self) -> str:
        largest = float(np.abs(self.scores).max(initial=0))
        ends = [len(self.tokens)] if self.sides is None else list(itertools.accumulate(self.sides.values()))
        parts = [slice(*ends) for ends in itertools.pairwise([0, *ends])]
        texts = "".join(coloured(self.tokens[part], self.scores[part], largest) for part in parts)
        return (
            '<div style="font-family:system-ui,sans-serif;max-width:50em">'
            f"<p>{html.escape(self._sum)}</p>{texts}{LEGEND}</div>"
        )

    def __repr__(self) -> str:
        return f"{self._sum}\n{self.table.to_string(index=False, float_format='{:.4f}'.format)}"


_SUMMED = {
    AnswerMeasure.logit: "logit of",
    AnswerMeasure.log_probability: "log-probability (the remainder is minus the entropy of the predictions) of",
}
"""What is said of the number that an answer's tokens add up to."""


def _listed(spans: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {signed(value)}" for name, value in spans.items())


@checked
@in_turn
def attribute(
    model: LoadedModel,
    text: Text | BatchEncoding,
    target: Target | str | int,
    *,
    against: str | int | list[int] | None = None,
    spans: Mapping[str, tuple[int, int]] | None = None,
    bias: str = "token",
    level: str = "token",
) -> Attribution:
    """Attribute a number that a model computes from a text to the text's tokens.

    Attention weights, deviations of norms and slopes of activations are held fixed, which makes the model affine. The score
    of a token is gradient × input of that model, from one forward and one backward pass; it equals what DecompX's vectors
    would give. Scores, biases and remainder add up to the target.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer. For the next token of a
            translation, by a model loaded with `stack="cross"`: the source, and the target so far.
        target: What to attribute. `Label`, or a class's name or number, is the logit of a class; `NextToken` and `MaskedToken`
            are the logit of a token; `Answer` is the sum over the tokens of an answer; `SimilarityTo` is the cosine similarity
            with another text. A function of the last hidden
            vectors (token, model) must return a scalar tensor; it is linearised at these vectors, and `.remainder` holds the
            rest.
        against: A class, a token or an answer of the same kind as the target: its value is subtracted, so that scores say why
            the target and not this. For an `Answer`, it is attributed in a pass of its own.
        spans: Parts of the text by name, each as the numbers of its first character and of the first one after it; for a text
            of token ids, numbers of tokens. A token belongs to the span that its first character, spaces apart, lies in. See
            `.spans`.
        bias: Where the value biases go: to no token (`token`), or those of the first layer to the tokens whose values they
            belong to (`decompx`), as in the official code of DecompX.
        level: `token`, or `word` for the scores of whole words: the sums of their tokens' scores.

    Raises:
        InputError: If an argument is invalid, the model has no head for the target, or the text is too long.

    Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
    """
    rule, of_level = chosen("bias", bias, ValueBias), chosen("level", level, Level)
    if model.layout.reads_target:
        if against is not None or spans is not None:
            name = "spans" if against is None else "against"
            raise InputError(
                f"{name}: expected none for a translation, which has no other answer or spans yet; leave it out"
            )
        return _next_of_translation(model, text, target, rule, of_level)
    check_supported(model.layout)
    batch = single_text(model, text, "attribute", of_level)
    owners = None if spans is None else span_of_tokens(model, text, batch, spans)
    if isinstance(target, Answer):
        return _answer(model, batch, (target, against), owners, rule, of_level)
    if isinstance(against, list):
        raise InputError(f"against={against!r}: expected a class or a token; token ids are for target=Answer(…)")
    ready = prepared(model, batch, target, against)
    _ = model.layers_verification
    with (
        frozen_pass(model.model, model.layout, batch.model_inputs(), ready.head) as passed,
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        value, what = ready.evaluate(passed)
        parts = attribute_scalars(passed, value, rule)
    return Attribution(
        tokens=texts_of(model, batch),
        scores=_of_units(parts.scores[0].cpu().numpy(), batch),
        bias=float(parts.bias),
        remainder=float(parts.remainder),
        target=float(parts.target),
        what=what,
        error=float(parts.error),
        spans=None if owners is None else sums_of_spans(parts.scores[0].cpu().numpy(), owners),
    )


def _answer(
    model: LoadedModel,
    prompt: Batch,
    asked: tuple[Answer, str | int | list[int] | None],
    owners: Sequence[str] | None,
    bias: ValueBias,
    level: Level,
) -> Attribution:
    """Attribute an answer, or the difference between two answers to the same prompt."""
    target, against = asked
    if isinstance(against, int):
        raise InputError(f"against={against}: expected another answer, as a text or a list of token ids")
    _ = model.layers_verification
    found = [attribute_answer(model, prompt, target, bias, level)]
    if against is not None:
        other = dataclasses.replace(target, answer=against, matrix=False)
        found.append(attribute_answer(model, prompt, other, bias, level))
    length, signs = prompt.input_ids.shape[1], (1, -1)
    scores = [sign * each.parts.scores[0].cpu().numpy() for sign, each in zip(signs, found, strict=False)]
    of_prompt = np.sum([of_pass[:length] for of_pass in scores], axis=0)
    names = [texts_of(model, each.batch) for each in found]
    numbers = [_numbers(each.batch) for each in found]
    asked_units = len(set(numbers[0][:length]))
    parts = [np.bincount(of_pass, of_scores) for of_pass, of_scores in zip(numbers, scores, strict=True)]
    whole = np.sum([part[:asked_units] for part in parts], axis=0)
    by_token, matrix = found[0].by_token, None
    if by_token is not None:
        rows = model.tokenizer.convert_ids_to_tokens(list(found[0].answer))
        matrix = pd.DataFrame([np.bincount(numbers[0], row) for row in by_token.cpu().numpy()], rows, list(names[0]))
    size = sum(
        float(np.abs(of_pass).sum() + each.parts.bias.abs()) for of_pass, each in zip(scores, found, strict=True)
    )
    sums = {
        name: sum(sign * float(getattr(each.parts, name)) for sign, each in zip(signs, found, strict=False))
        for name in ("bias", "remainder", "target")
    }
    total = sum(float(of_pass.sum()) for of_pass in scores)
    said = [model.tokenizer.decode(each.answer) for each in found]
    return Attribution(
        tokens=(*names[0], *(names[1][asked_units:] if len(names) > 1 else ())),
        scores=np.concatenate([whole, *(part[asked_units:] for part in parts)]),
        **sums,
        what=f"{_SUMMED[AnswerMeasure(target.measure)]} " + " minus that of ".join(map(repr, said)),
        error=abs(total + sums["bias"] + sums["remainder"] - sums["target"]) / max(size, np.finfo(float).tiny),
        sides=dict(
            zip(
                ("prompt", "answer", "against"),
                [asked_units, *(len(each) - asked_units for each in names)],
                strict=False,
            )
        ),
        matrix=matrix,
        spans=None if owners is None else sums_of_spans(of_prompt, owners),
    )


def _numbers(batch: Batch) -> Int[np.ndarray, " token"]:
    """The number of each token of a batch of one, or of its word if these are measured."""
    if batch.units is None:
        return np.arange(batch.input_ids.shape[1])
    numbers: np.ndarray = batch.units[0].cpu().numpy()
    return numbers


def _of_units(scores: Float[np.ndarray, " token"], *sides: Batch) -> Float[np.ndarray, " unit"]:
    """The scores of the tokens of batches of one, added up over words if these are measured."""
    added, start = [], 0
    for side in sides:
        of_side = scores[start : start + side.input_ids.shape[1]]
        start += len(of_side)
        added.append(of_side if side.units is None else np.bincount(side.units[0].cpu().numpy(), of_side))
    return np.concatenate(added)


def _next_of_translation(
    model: LoadedModel, text: object, target: object, bias: ValueBias, level: Level
) -> Attribution:
    if not isinstance(target, NextToken):
        raise InputError(f"target: expected a NextToken of a translation, got {describe_type(target)}")
    if bias is not ValueBias.token:
        raise InputError("bias=decompx is not defined for translations; use bias=token")
    head = model.translator
    if head is None:
        raise InputError(
            f"target=NextToken: {model.name} has no weights of a translator; load a checkpoint that has them"
        )
    batch = single_text(model, text, "attribute", level)
    assert batch.source is not None
    number = token_number(model, target.token)
    with frozen_translation(head, batch.model_inputs()) as passed:
        logits = passed.logits[0, -1]
        best = int(logits.argmax()) if number is None else number
        parts = attribute_translation(passed, logits[best][None])
    source, tokens = texts_of(model, batch.source), texts_of(model, batch)
    return Attribution(
        tokens=(*source, *tokens),
        scores=_of_units(parts.scores[0].cpu().numpy(), batch.source, batch),
        bias=float(parts.bias),
        remainder=0.0,
        target=float(parts.target),
        what=f"logit of {model.tokenizer.convert_ids_to_tokens(best)!r} as the next token",
        error=float(parts.error),
        sides={"source": len(source), "target": len(tokens)},
    )
