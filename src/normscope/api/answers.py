"""Attributed of a whole answer: the sum of what a causal language model gives each of its tokens."""

import dataclasses
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import BatchEncoding
from transformers.modeling_utils import PreTrainedModel

from normscope.api.arguments import single_text
from normscope.api.attribution import Attributed, table_of_effects
from normscope.api.regions import sums_of_spans
from normscope.api.targets import Against, Answer, Targets, check_linear, required
from normscope.api.types import Spans
from normscope.attribution.passes import Effects, HeldPass, held_pass
from normscope.attribution.scalars import ScalarAttribution, attribute_scalars
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.data.token_sequence import OwnInput
from normscope.data.token_texts import TokenTexts
from normscope.errors import InputError, printable
from normscope.maths.choices import AnswerMeasure, ValueBias
from normscope.maths.log_probabilities import log_probabilities
from normscope.maths.partition import Partition
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head
from normscope.models.load.text_batches import say_once, tokens_after
from normscope.models.observe.cancelling import check_cancelled
from normscope.rounding import counted
from normscope.running.token_maps import patched_image

_SUMMED = {
    AnswerMeasure.logit: "logit of",
    AnswerMeasure.log_probability: "log-probability (the remainder is minus the entropy of the predictions) of",
}
"""What is said of the number that an answer's tokens add up to."""


class AttributionCall(NamedTuple):
    """The arguments of a call of `attribute`, but for the model and the text."""

    target: Targets
    against: Against | None
    spans: Spans | None
    columns: tuple[str, ...] | None
    """Those of the table of effects; None without one."""
    direct: bool
    level: Level
    bias: ValueBias
    through: bool
    """Whether attention weights are followed as well."""


def attributed_answer(
    model: LoadedModel,
    text: object,
    prompt: Batch,
    target: Answer,
    asked: AttributionCall,
    spans: Partition | None,
) -> Attributed:
    """Attribute an answer, or the difference between two answers to the same prompt.

    Args:
        text: What the answers follow, as it is given.
        prompt: The same as a batch.
        target: The answer.
        asked: What it is compared with, and how; its target is left aside.
        spans: Those of the prompt, if there are any.
    """
    against = asked.against
    assert not isinstance(against, tuple)
    if isinstance(against, int):
        raise InputError(f"against={against}: expected another answer, as a text or a list of token ids")
    _ = model.verification
    # An answer comes before the special tokens that the tokenizer puts behind a text, as a next token does.
    prompt = before_answer(model, prompt)
    length = prompt.input_ids.shape[1]
    found = [_attribute(model, text, prompt, target, asked)]
    if against is not None:
        other = dataclasses.replace(target, answer=against, matrix=False)
        found.append(_attribute(model, text, prompt, other, asked))
    names = [each.batch.unit_texts(model.tokenizer) for each in found]
    numbers = [each.batch.unit_numbers for each in found]
    asked_units = len({*numbers[0][:length].tolist()})
    signed = [sign * each.parts.scores[0].cpu().numpy() for sign, each in zip((1, -1), found, strict=False)]
    of_units = [np.bincount(units, scores) for units, scores in zip(numbers, signed, strict=True)]
    in_prompt = np.sum([scores[:length] for scores in signed], axis=0)
    if AnswerMeasure(target.measure) is AnswerMeasure.logit and not asked.through:
        for each in found:
            size = float(each.parts.scores.abs().sum())
            check_linear("the logit of the answer", float(each.parts.remainder), size, model.dtype)
    said = " minus that of ".join(repr(model.tokenizer.decode(each.answer)) for each in found)
    counts = [asked_units, *(len(each) - asked_units for each in names)]
    return Attributed(
        tokens=(*names[0], *itertools.chain.from_iterable(each[asked_units:] for each in names[1:])),
        scores=np.concatenate(
            [
                np.sum([scores[:asked_units] for scores in of_units], axis=0),
                *(scores[asked_units:] for scores in of_units),
            ]
        ),
        bias=_difference(found, "bias"),
        remainder=_difference(found, "remainder"),
        target=_difference(found, "target"),
        what=f"{_SUMMED[AnswerMeasure(target.measure)]} {said}",
        error=max(float(each.parts.error) for each in found),
        sides=dict(zip(("prompt", "answer", "against"), counts, strict=False)),
        matrix=_matrix(model, found[0], names[0]),
        spans=None if spans is None else sums_of_spans(in_prompt, spans),
        effects=None if asked.columns is None else _effects(found, names, numbers, asked_units),
        image=patched_image(model, prompt),
    )


def _effects(
    found: "Sequence[_Found]", names: Sequence[Sequence[str]], numbers: Sequence[np.ndarray], prompt: int
) -> pd.DataFrame:
    """The effects on an answer, less those on the answer that it is compared with, whose tokens come last.

    Args:
        names: The tokens or words of each answer with its prompt.
        numbers: The token or word that each token belongs to.
        prompt: Number of tokens or words of the prompt, which both share.
    """
    tables = []
    for at, each in enumerate(found):
        assert each.effects is not None
        table = table_of_effects(each.effects, names[at], numbers[at])
        if at:
            of_answer = (table["position"] >= prompt).fillna(False)
            # Each answer may end the prompt's last word in its own way.
            table["token"] = [
                names[0][place] if pd.notna(place) and place < prompt else token
                for place, token in zip(table["position"], table["token"], strict=True)
            ]
            table["position"] = table["position"].mask(of_answer, table["position"] + len(names[0]) - prompt)
            table["value"] = -table["value"]
        tables.append(table)
    if len(tables) == 1:
        return tables[0]
    keys = [column for column in tables[0] if column != "value"]
    return pd.concat(tables).groupby(keys, sort=False, dropna=False)["value"].sum().reset_index()


def _matrix(model: LoadedModel, found: "_Found", names: Sequence[str]) -> pd.DataFrame | None:
    """The scores of tokens or words for each token of the answer; None unless they were asked for."""
    if found.by_token is None:
        return None
    numbers, rows = found.batch.unit_numbers, TokenTexts(model.tokenizer).of(found.answer)
    return pd.DataFrame([np.bincount(numbers, row) for row in found.by_token.cpu().numpy()], rows, list(names))


def _difference(found: "Sequence[_Found]", part: str) -> float:
    """A part of an answer, less that of the answer that it is compared with."""
    return sum(sign * float(getattr(each.parts, part)) for sign, each in zip((1, -1), found, strict=False))


class _Found(NamedTuple):
    """An answer, and what its tokens come from."""

    batch: Batch
    """The prompt and all tokens of the answer but the last, which no prediction reads."""
    answer: tuple[int, ...]
    """The tokens of the answer."""
    parts: ScalarAttribution
    """Those of the sum."""
    by_token: Float[Tensor, "answer token"] | None
    """The scores for each token of the answer; None unless `Answer.matrix`."""
    effects: Effects | None
    """What the parts of the model add to the sum; None unless asked for."""


def _extended(model: LoadedModel, prompt: Batch, ids: Sequence[int], level: Level) -> Batch:
    """A text with these tokens, which begin or continue those of a prompt and have its segment ids."""
    fields = {"input_ids": [list(ids)], "attention_mask": [[1] * len(ids)]}
    if prompt.token_type_ids is not None:
        types = prompt.token_type_ids[0].tolist()
        fields["token_type_ids"] = [(types + types[-1:] * len(ids))[: len(ids)]]
    batch = single_text(model, BatchEncoding(fields), "attribute", level)
    return (
        batch if prompt.own is None else dataclasses.replace(batch, own=_lengthened(prompt, batch.input_ids.shape[1]))
    )


def _lengthened(prompt: Batch, length: int) -> OwnInput:
    """What else the model is given with a prompt that has images, for more or fewer tokens: more are text, as the last one."""
    assert prompt.own is not None
    tokens = prompt.own.tokens

    def change(given: Tensor) -> Tensor:
        if given.shape[:2] != (1, tokens):
            return given
        return torch.cat([given, given[:, -1:].expand(-1, max(0, length - given.shape[1]))], dim=1)[:, :length]

    return prompt.own.each(change)


def _attribute(model: LoadedModel, text: object, prompt: Batch, target: Answer, asked: AttributionCall) -> _Found:
    """Attribute an answer, in one pass over the prompt and the answer.

    Args:
        text: What the answer follows, as it is given.
        prompt: The same as a batch.
    """
    head = _language_model(model)
    measure = AnswerMeasure(target.measure)
    batch, answer = with_answer(model, text, prompt, target, asked.level)
    by_part = asked.columns is not None
    inputs = predicting(head, batch.model_inputs(), len(answer))
    passed = held_pass(model.model, model.facts, inputs, head, parts=by_part, through=asked.through)
    by_token, effects = None, None
    with torch.inference_mode(False), torch.enable_grad():
        values = values_of_answer(passed, answer, measure)[0]
        if target.matrix:
            by_token = attribute_scalars(passed, values, asked.bias)
            parts = by_token.sum
        else:
            parts = attribute_scalars(passed, values.sum()[None], asked.bias)
        if by_part:
            effects = passed.effects(values.sum(), direct=asked.direct)
    return _Found(batch, answer, parts, None if by_token is None else by_token.scores, effects)


def before_answer(model: LoadedModel, prompt: Batch) -> Batch:
    """A prompt without the special tokens that the tokenizer puts behind a text, as a batch of one."""
    return _extended(model, prompt, model.without_ending(prompt.input_ids[0].tolist()), Level.token)


def with_answer(
    model: LoadedModel, text: object, prompt: Batch, target: Answer, level: Level
) -> tuple[Batch, tuple[int, ...]]:
    """The prompt with all tokens of an answer but the last, which no prediction reads; and the tokens of the answer.

    Args:
        text: What the answer follows, as it is given.
        prompt: The same as a batch; see `before_answer`.
        target: The answer.

    Raises:
        InputError: If there is no answer, or it is too long for the model.
    """
    before: list[int] = prompt.input_ids[0].tolist()
    if target.answer is None:
        answer = _continued(model, _language_model(model), prompt, target.tokens)
    else:
        answer = _given(model, text if prompt.own is None else None, before, target.answer)
    ids = [*before, *answer[:-1]]
    if model.max_length is not None and len(ids) > model.max_length:
        raise InputError(
            f"answer: the text ({counted(len(before), 'token')}) and the answer ({len(answer)}) exceed {model.max_length} "
            f"tokens, the limit of {model.name}"
        )
    return _extended(model, prompt, ids, level), answer


def runner_up(model: LoadedModel, prompt: Batch, answer: Sequence[int]) -> list[int]:
    """The answer that begins with the most likely token other than an answer's first, at most as long.

    Args:
        prompt: See `before_answer`.
    """
    head = _language_model(model)
    with torch.inference_mode():
        best = head(**predicting(head, prompt.model_inputs(), 1)).logits[0, -1].topk(2).indices.tolist()
    first = best[best[0] == answer[0]]
    if len(answer) == 1:
        return [first]
    begun = _extended(model, prompt, [*prompt.input_ids[0].tolist(), first], Level.token)
    return [first, *_continued(model, head, begun, len(answer) - 1)]


def predicting(head: PreTrainedModel, inputs: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The inputs of a pass, so that a model which can do without the logits of other tokens gives those of the last ones only.

    All those of a long text are the largest tensors of a pass.
    """
    fewer = {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(head.forward).parameters else {}
    return {**inputs, **fewer}


def values_of_answer(passed: HeldPass, answer: Sequence[int], measure: AnswerMeasure) -> Float[Tensor, "batch answer"]:
    """What is attributed, for each token of an answer that ends the text.

    A log-probability is linearised where it is, with the probabilities p of all tokens held:

        log p_t = ℓ_t − Σ_v p_v ℓ_v − H(p)

    so that the remainder is −H(p), the entropy of the prediction, and everything else adds up to ℓ_t − Σ_v p_v ℓ_v.

    Returns:
        Log-probabilities in float64; logits in the model's precision.
    """
    logits = passed.output.logits[:, -len(answer) :]
    numbers = torch.tensor(answer, device=logits.device).expand(len(logits), -1)
    if measure is AnswerMeasure.log_probability:
        return log_probabilities(logits, numbers)
    return logits.gather(-1, numbers[..., None])[..., 0]


def _given(model: LoadedModel, text: object, before: Sequence[int], answer: str | list[int]) -> tuple[int, ...]:
    if isinstance(answer, str):
        answer = tokens_after(model, text, before, answer)
    if not answer:
        raise InputError("answer: expected at least one token, got none")
    if not all(0 <= number < model.vocabulary for number in answer):
        raise InputError(f"answer: expected token ids from 0 to {model.vocabulary - 1}, got {str(answer)[:80]}")
    return tuple(answer)


_OBEYED = re.compile(
    "_.*|(bos|eos|pad|.*start)_token_id|max_(length|new_tokens)|transformers_version|.*cache.*|output_.*"
)
"""Settings of generation that an answer obeys, that `Answer.tokens` replaces, or that change no token."""
_OF_SAMPLING = re.compile(_OBEYED.pattern + "|temperature|top_.|.*_p|.*_cutoff")
"""The same with those that only sampling reads."""


def _continued(model: LoadedModel, head: PreTrainedModel, prompt: Batch, longest: int) -> tuple[int, ...]:
    """The most likely token after the prompt, and so on, up to a token that ends the text."""
    if longest < 1:
        raise InputError(f"tokens={longest}: expected at least 1")
    config = head.generation_config
    settings = {} if config is None else config.to_diff_dict()
    obeyed = _OBEYED if settings.get("do_sample") else _OF_SAMPLING
    left = ", ".join(f"{name}={value}" for name, value in settings.items() if not obeyed.fullmatch(name))
    if left:
        say_once(
            f"Answer(): the most likely token at each step, without {printable(left, 200)} of {model.name}'s generation config"
        )
    length = prompt.input_ids.shape[1]
    limit = longest if model.max_length is None else min(longest, model.max_length - length + 1)
    ends = model.tokenizer.eos_token_id if config is None else config.eos_token_id
    last = set(ends) if isinstance(ends, list) else {ends}
    whole, following = dict(prompt.model_inputs()), None
    cached = {"use_cache": True} if prompt.own is None and _keeps_keys(head) else {}
    answer: list[int] = []
    with torch.inference_mode():
        while len(answer) < limit and (not answer or answer[-1] not in last):
            check_cancelled()
            output = head(**predicting(head, following or whole, 1), **cached)
            answer.append(int(output.logits[0, -1].argmax()))
            whole = _followed(whole, answer[-1])
            if cached and (kept := getattr(output, _KEPT, None)) is not None:
                one = {name: each[:, -1:] for name, each in whole.items() if name != "attention_mask"}
                following = {**one, "attention_mask": whole["attention_mask"], _KEPT: kept}
    return tuple(answer)


_KEPT = "past_key_values"
"""Keys and values of the tokens that a model has read."""


def _keeps_keys(head: PreTrainedModel) -> bool:
    """Whether a model can read the next token alone."""
    return {_KEPT, "use_cache"} <= inspect.signature(head.forward).parameters.keys()


def _followed(inputs: Mapping[str, Tensor], token: int) -> dict[str, Tensor]:
    """A model's inputs with one more token, and whatever else there is of each token once more."""
    added, shape = {"input_ids": inputs["input_ids"].new_tensor([[token]])}, inputs["input_ids"].shape
    return {
        name: torch.cat([values, added.get(name, values[:, -1:])], dim=1) if values.shape == shape else values
        for name, values in inputs.items()
    }


def _language_model(model: LoadedModel) -> PreTrainedModel:
    """The model that an answer is read with.

    Raises:
        InputError: If there is none, or an answer's tokens would see those that come after them.
    """
    if model.prefix_head is not None:
        raise InputError(
            f"target=Answer: the tokens that {model.name} reads see later ones, so an answer's tokens cannot be read behind "
            "one another; use NextToken"
        )
    return required(model, Head.NEXT_TOKEN, "Answer").model
