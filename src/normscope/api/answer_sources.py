"""Which passages of a prompt an answer comes from, sentence by sentence, confirmed by removing them."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from typing_extensions import TypeAliasType

from normscope.api.answers import before_answer, runner_up, values_of_answer, with_answer
from normscope.api.arguments import exclusive, single_text
from normscope.api.first_position import neutral_tokens
from normscope.api.one_text import described
from normscope.api.prompt_sources import Source, found_sources
from normscope.api.removed_sources import answer_without, why_not_removed
from normscope.api.sourced_answer import Removal, SourcedAnswer, result_of
from normscope.api.targets import Answer
from normscope.api.types import Model, Text
from normscope.attribution.methods import check_followed
from normscope.attribution.passes import held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.config.calls import Choice, checked
from normscope.config.rules import Expected
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.data.segmentation import spans_of_sentences
from normscope.errors import InputError
from normscope.maths.choices import AnswerMeasure, Removed
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import is_messages
from normscope.results.result import Result
from normscope.streams import Progress, no_bar

Passages = TypeAliasType(
    "Passages",
    Annotated[
        str | list[str] | Mapping[str, str],
        Expected("'chat', 'sentences' or 'words', a list of passages, or a dict with their names as keys"),
    ],
)
"""Passages of a prompt, by name or in order, or what a string stands for."""

RUNNER_UP = "runner-up"
"""What an answer is compared with: the one that begins with the most likely other token."""

_LONG = 4096
"""Tokens from which passes take minutes on a processor."""
_SENTENCES, _SENTENCES_OF_LONG = 8, 2
"""Parts of an answer that are told apart at most, each by a backward pass."""
_REMOVED, _REMOVED_OF_LONG = 3, 2
"""How many of the sources that add most are removed, and as many others, each by a forward pass."""
_FIRST_TOLD_APART = 512
"""Longest text, in tokens, whose first token's own part is told from its position's, at twice the cost of all other parts."""


class Asked(NamedTuple):
    """The arguments of `sources`, but for the model and the prompt."""

    passages: Mapping[str, str] | Sequence[str] | str | None
    answer: str | list[int] | None
    against: str | list[int] | None
    check: Removed
    sentences: int | None
    tokens: int
    seed: int


@checked
def sources(
    model: Model,
    prompt: Text,
    passages: Passages | None = None,
    *,
    answer: str | list[int] | None = None,
    against: str | list[int] | None = None,
    check: Choice[Removed] = "top",
    sentences: int | None = None,
    tokens: int = 40,
    seed: int = 0,
) -> Result:
    """Find which passages of a prompt an answer comes from, and confirm it by removing them.

    What is attributed is the log-probability of the answer, with everything held fixed that is not linear, the probabilities
    of the predictions included: log p_t = ℓ_t − Σ_v p_v ℓ_v − H(p). Parts are signed, and those of all sources, of the rest of
    the prompt, of the answer's own words and the constants add up to the untouched model's log-probability. Among the
    constants is what the first position adds whatever token it has.

    A removed passage is masked out of attention, while all other tokens keep their positions.

    Args:
        model: A causal language model; see `load`.
        prompt: A text, or a conversation. If the assistant says its last message, that is the answer.
        passages: Texts that occur in the prompt, as a list or by name; or `chat` for the messages of a conversation,
            `sentences` or `words`. By default, the messages of a conversation; otherwise the sentences of a text, or the words
            of a single one.
        answer: A text, including any leading space, or token ids; by default, the model's own answer.
        against: Another answer, whose log-probability is subtracted: parts then say why this answer and not that one. Or
            `runner-up`: the answer that begins with the most likely other token.
        check: Which passages are removed: `top`, the three that add most and as many others at random (of texts of more than
            4,096 tokens: two); `all`; or `none`.
        sentences: Maximum number of parts of the answer that are told apart, each by one backward pass; neighbouring sentences
            are joined. By default 8; of texts of more than 4,096 tokens, 2.
        tokens: Maximum length of the model's own answer, in tokens.
        seed: Seed of the draw of removed passages.

    Returns:
        A result: `.table` has a row per passage, with its `part`, what it adds directly and through the answer's own earlier
        sentences (`handed_on`), and the `removal`: by how much the log-probability falls without it; `parts` has the parts of
        each sentence; `sentences` the sentences. `.metrics["rank_correlation"]` is that of parts and removals. All values are
        in nats.

    Raises:
        InputError: If the model predicts no tokens, a passage does not occur in the prompt or shares tokens with another, or
            prompt and answer are too long.

    Sources: Modarressi et al. 2023, DecompX (arXiv:2306.02873), for the parts; Cohen-Wang et al. 2024, ContextCite
    (arXiv:2409.00729), for removal.
    """
    asked = Asked(passages, answer, against, Removed(check), sentences, tokens, seed)
    return sources_with_progress(model, prompt, asked, no_bar)


@exclusive
def sources_with_progress(model: LoadedModel, prompt: object, asked: Asked, progress: Progress) -> Result:
    """See `sources`.

    Args:
        progress: Shows how many passes have run.
    """
    if model.next_token_head is None or model.facts.reads_target:
        raise InputError(
            f"answer: {model.name} predicts no next token, so it gives no answer; set model.name to a causal language model, "
            "such as gpt2"
        )
    check_followed(model.facts)
    prompt, answer = _without_answer(prompt, asked)
    whole = single_text(model, prompt, "sources")
    found = found_sources(model, prompt, whole.input_ids[0].tolist(), asked.passages)
    batch = before_answer(model, whole)
    most = 1 if asked.against is not None else asked.sentences
    sides = [_side(model, prompt, batch, Answer(answer, asked.tokens), most)]
    if asked.against is not None:
        other = runner_up(model, batch, sides[0].answer) if asked.against == RUNNER_UP else asked.against
        sides.append(_side(model, prompt, batch, Answer(other), 1))
    sourced = _sourced(model, found, sides, asked, progress)
    about = described(
        model,
        "sources",
        [model.tokenizer.decode(batch.input_ids[0])],
        answer="".join(sourced.sentences),
        against=sourced.against or None,
        check=asked.check,
        seed=asked.seed,
    )
    return dataclasses.replace(result_of(sourced), **about)


def _without_answer(prompt: object, asked: Asked) -> tuple[object, str | list[int] | None]:
    """The prompt, and the answer if the assistant has said it in the conversation."""
    if not is_messages(prompt) or prompt[-1].get("role") != "assistant":
        return prompt, asked.answer
    if asked.answer is not None:
        raise InputError(
            "answer: the template cannot hold a second answer: the conversation ends with a message of the assistant, which is "
            "taken for the answer; leave out one of the two"
        )
    if len(prompt) == 1:
        raise InputError("answer: expected a prompt before the message of the assistant, got that alone")
    return prompt[:-1], prompt[-1]["content"]


class _Side(NamedTuple):
    """An answer behind the prompt."""

    batch: Batch
    """The prompt and all tokens of the answer but the last."""
    length: int
    """Number of tokens of the prompt."""
    answer: tuple[int, ...]
    pieces: Sequence[tuple[int, int]]
    """The sentences: the numbers of their first token in the answer and of the one after their last."""
    untouched: Float[np.ndarray, " piece"]
    """The log-probability of each, by the untouched model."""

    @property
    def is_long(self) -> bool:
        """Whether passes take minutes on a processor."""
        return self.batch.input_ids.shape[1] > _LONG

    def texts(self, model: LoadedModel) -> list[str]:
        """The sentences."""
        return [str(model.tokenizer.decode(self.answer[slice(*piece)])) for piece in self.pieces]

    def sums(self, values: torch.Tensor) -> Float[np.ndarray, " piece"]:
        """Sums over the tokens of each sentence."""
        return np.array([float(values[slice(*piece)].sum()) for piece in self.pieces])


def _side(model: LoadedModel, text: object, prompt: Batch, target: Answer, most: int | None) -> _Side:
    """An answer behind the prompt.

    Args:
        most: How many sentences are told apart; by default, what its length allows.
    """
    batch, answer = with_answer(model, text, prompt, target, Level.token)
    side = _Side(batch, prompt.input_ids.shape[1], answer, [(0, len(answer))], np.zeros(1))
    pieces = _pieces(model, answer, most or (_SENTENCES_OF_LONG if side.is_long else _SENTENCES))
    side = side._replace(pieces=pieces)
    return side._replace(untouched=side.sums(answer_without(model, batch, answer)))


def _pieces(model: LoadedModel, answer: Sequence[int], most: int) -> list[tuple[int, int]]:
    """The sentences of an answer, as the numbers of their first token and of the one after their last.

    Neighbours are joined if there are more than `most`. A token that two sentences share belongs to the first.
    """

    def characters(count: int) -> int:
        return len(model.tokenizer.decode(answer[:count], skip_special_tokens=True))

    counts = range(len(answer) + 1)
    sentences = spans_of_sentences(model.tokenizer.decode(answer, skip_special_tokens=True))
    cuts = sorted({bisect.bisect_left(counts, end, key=characters) for _, end in sentences[:-1]} - {0, len(answer)})
    if len(cuts) >= most:  # those nearest to the ends of equal parts
        even = [len(answer) * part / most for part in range(1, most)]
        cuts = sorted({min(cuts, key=lambda cut: abs(cut - at)) for at in even})
    return list(zip([0, *cuts], [*cuts, len(answer)], strict=True))


def _sourced(
    model: LoadedModel, found: Sequence[Source], sides: Sequence[_Side], asked: Asked, progress: Progress
) -> SourcedAnswer:
    """The parts of an answer, less those of the answer that it is compared with."""
    side, parts = sides[0], [_parts(model, each, progress) for each in sides]
    values, untouched, own = _columns(found, side, parts[0]), side.untouched, len(found) + 1
    scores = parts[0].scores[:, : side.length].sum(axis=0)
    if len(sides) > 1:
        # What the other answer's own words add to it is a column of its own.
        other = _columns(found, sides[1], parts[1])
        prompt, words = values[:, :own] - other[:, :own], [values[:, own:-1], -other[:, own:-1]]
        values = np.concatenate([prompt, *words, values[:, -1:] - other[:, -1:]], axis=1)
        untouched = untouched - sides[1].untouched
        scores = scores - parts[1].scores[:, : side.length].sum(axis=0)
    removals = _removals(model, found, values, sides, asked, progress)
    return SourcedAnswer(
        sources=found,
        sentences=side.texts(model),
        lengths=[stop - start for start, stop in side.pieces],
        against="".join(sides[1].texts(model)) if len(sides) > 1 else "",
        parts=values,
        log_probability=untouched,
        instructions={
            (number, said): float(scores[list(places)].sum())
            for number, source in enumerate(found)
            for said, places in source.instructions.items()
        },
        removals=removals,
        not_removed=why_not_removed(model),
        first=parts[0].first,
        passes=sum(each.passes for each in parts) + len(sides) * (1 + len(removals)),
        tokens=side.batch.input_ids.shape[1],
    )


class _Parts(NamedTuple):
    """What tokens and constants add to each part of an answer."""

    scores: Float[np.ndarray, "piece token"]
    constants: Float[np.ndarray, " piece"]
    first: str
    """What of the first token is among the constants, in words."""
    passes: int
    """How many times as many operations as a forward pass of the untouched model it took, about."""


def _parts(model: LoadedModel, side: _Side, progress: Progress) -> _Parts:
    _ = model.verification
    scores, constants = _attributed(model, side, None, progress)
    first, what = scores[:, 0].copy(), "all that the first token adds"
    passes = 1 + 2 * len(side.pieces)
    is_special = int(side.batch.input_ids[0, 0]) in model.tokenizer.all_special_ids
    neutral = neutral_tokens(model)
    if not is_special and neutral and scores.shape[1] <= _FIRST_TOLD_APART:
        found, _ = _attributed(model, side, neutral, progress)
        # What a word adds is known to within what neutral tokens differ by; a word among them is as good as one.
        among = (found.min(axis=1) <= first) & (first <= found.max(axis=1))
        first = np.where(among, first, found.mean(axis=1))
        passes += len(neutral) * (1 + 2 * len(side.pieces))
        what = (
            f"what {' or '.join(repr(model.tokenizer.decode([each])) for each in neutral)} would add as the first token"
        )
    scores[:, 0] -= first
    return _Parts(scores, constants + first, what, passes)


def _attributed(
    model: LoadedModel, side: _Side, neutral: Sequence[int] | None, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """What each token, and all constants, add to the sentences of an answer.

    Args:
        neutral: Tokens that take the place of the first one, each in a text of its own; None for the text as it is.

    Returns:
        Scores (sentence, token), and constants (sentence); with neutral tokens, scores of these (sentence, text).
    """
    inputs = dict(side.batch.model_inputs())
    if neutral is not None:
        inputs = {name: values.repeat(len(neutral), 1) for name, values in inputs.items()}
        inputs["input_ids"][:, 0] = torch.tensor(neutral, device=model.device)
    passed = held_pass(model.model, model.facts, inputs, model.next_token_head)
    scores, constants = [], []
    with torch.inference_mode(False), torch.enable_grad():
        values = values_of_answer(passed, side.length, side.answer, AnswerMeasure.log_probability)
        for piece in progress(side.pieces, len(side.pieces), "sentences of the answer"):
            parts = attribute_scalars(passed, values[:, slice(*piece)].sum(dim=1))
            scores.append((parts.scores[0] if neutral is None else parts.scores[:, 0]).cpu().numpy())
            constants.append(float((parts.bias + parts.remainder).sum()))
    return np.stack(scores), np.array(constants)


def _columns(found: Sequence[Source], side: _Side, parts: _Parts) -> Float[np.ndarray, "piece column"]:
    """What the sources, the rest of the prompt, each sentence of the answer and the constants add to each sentence."""
    owners = np.full(parts.scores.shape[1], len(found))
    for number, source in enumerate(found):
        owners[list(source.tokens)] = number
    for number, (start, stop) in enumerate(side.pieces):
        owners[side.length + start : side.length + stop] = len(found) + 1 + number
    count = len(found) + 1 + len(side.pieces)
    sums = np.stack([np.bincount(owners, row, minlength=count) for row in parts.scores])
    return np.concatenate([sums, parts.constants[:, None]], axis=1)


def _removals(
    model: LoadedModel,
    found: Sequence[Source],
    values: Float[np.ndarray, "piece column"],
    sides: Sequence[_Side],
    asked: Asked,
    progress: Progress,
) -> dict[int, Removal]:
    """By how much each sentence's log-probability falls without a source, by its number."""
    if asked.check is Removed.none or why_not_removed(model):
        return {}
    order = np.argsort(-values[:, : len(found)].sum(axis=0), kind="stable").tolist()
    most = _REMOVED_OF_LONG if sides[0].is_long else _REMOVED
    others = order[most:]
    if asked.check is Removed.top:
        others = np.random.default_rng(asked.seed).permutation(others)[:most].tolist()
    removals = {}
    chosen = [*order[:most], *others]
    for number in progress(chosen, len(chosen), "sources removed"):
        removed = found[number].tokens
        falls = [each.untouched - each.sums(answer_without(model, each.batch, each.answer, removed)) for each in sides]
        removals[number] = Removal(falls[0] - sum(falls[1:]), is_control=number in others)
    return removals
