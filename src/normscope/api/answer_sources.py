"""Which passages of a prompt an answer comes from, sentence by sentence, confirmed by removing them."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from typing_extensions import TypeAliasType

from normscope.api.answers import before_answer, predicting, runner_up, values_of_answer, with_answer
from normscope.api.arguments import exclusive, single_text
from normscope.api.first_position import neutral_tokens, of_position, with_first
from normscope.api.one_text import described
from normscope.api.prompt_sources import Source, found_sources
from normscope.api.removed_sources import answer_without, why_not_removed
from normscope.api.sourced_answer import SourcedAnswer, result_of
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
        Expected(
            "'chat', 'paragraphs', 'sentences' or 'words', a list of passages, or a dict with their names as keys"
        ),
    ],
)
"""Passages of a prompt, by name or in order, or what a string stands for."""

RUNNER_UP = "runner-up"
"""What an answer is compared with: the one that begins with the most likely other token."""

GENERATED = "generated"
"""The model's own answer."""

_LONG = 4096
"""Tokens from which passes take minutes on a processor."""
_SENTENCES, _SENTENCES_OF_LONG = 8, 2
"""Parts of an answer that are told apart at most, each by a backward pass."""
_REMOVED, _REMOVED_OF_LONG = 3, 2
"""How many of the sources that add most are removed, and as many others, each by a forward pass."""
_FIRST_TOLD_APART = 512
"""Longest text, in tokens, whose first token's own part is told from its position's, at twice the cost of all other parts."""


class SourcesCall(NamedTuple):
    """The arguments of `sources`, but for the model and the prompt."""

    passages: Mapping[str, str] | Sequence[str] | str | None = None
    answer: str | list[int] | None = None
    against: str | list[int] | None = None
    check: Removed = Removed.top
    sentences: int | None = None
    tokens: int = 40
    seed: int = 0


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
            `paragraphs` (with blank lines between them), `sentences` or `words`. By default, the messages of a conversation;
            otherwise the paragraphs of a text if there are three or more, else its sentences, or the words of a single one.
        answer: A text, including any leading space, or token ids; by default, the model's own answer.
        against: Another answer, whose log-probability is subtracted: parts then say why this answer and not that one. Or
            `runner-up`, the answer that begins with the most likely other token; or `generated`, the model's own.
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

    Examples:
        >>> import normscope
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> tokenizer = normscope.load().tokenizer
        >>> tiny = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4)
        >>> model = normscope.wrap(GPT2LMHeadModel(tiny).eval(), tokenizer)  # random weights; load a model instead
        >>> passages = {"harbour": "Ines built the harbour.", "market": "Otto built the market."}
        >>> prompt = "Ines built the harbour. Otto built the market. Who built the market?"
        >>> found = normscope.sources(model, prompt, passages, answer="Otto", check="all")
        >>> sorted(found.table["source"]), bool(found.table["removal"].notna().all())
        (['harbour', 'market'], True)

    Raises:
        InputError: If the model predicts no tokens, a passage does not occur in the prompt or shares tokens with another, or
            prompt and answer are too long.

    Sources: Modarressi et al. 2023, DecompX (arXiv:2306.02873), for the parts; Cohen-Wang et al. 2024, ContextCite
    (arXiv:2409.00729), for removal.
    """
    asked = SourcesCall(passages, answer, against, Removed(check), sentences, tokens, seed)
    return sources_with_progress(model, prompt, asked, no_bar)


def gives_answers(model: LoadedModel) -> bool:
    """Whether a model has answers whose sources can be found: whether it is a causal language model."""
    return model.next_token_head is not None and not model.facts.reads_target


@exclusive
def sources_with_progress(model: LoadedModel, prompt: object, asked: SourcesCall, progress: Progress) -> Result:
    """See `sources`.

    Args:
        progress: Shows how many passes have run.
    """
    if not gives_answers(model):
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
    _ = model.verification
    answers = [with_answer(model, prompt, batch, Answer(answer, asked.tokens), Level.token)]
    if asked.against is not None:
        answers.append(with_answer(model, prompt, batch, _other(model, batch, answers[0][1], asked), Level.token))
        if answers[0][1] == answers[1][1]:
            raise InputError(f"against: expected another answer, got the answer itself, {asked.against!r:.80}")
    sides = [_side(model, *each, most, progress) for each in answers]
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


def _other(model: LoadedModel, prompt: Batch, answer: Sequence[int], asked: SourcesCall) -> Answer:
    """The answer that the first one is compared with."""
    if asked.against == GENERATED:
        return Answer(None, asked.tokens)
    return Answer(runner_up(model, prompt, answer) if asked.against == RUNNER_UP else asked.against)


def _without_answer(prompt: object, asked: SourcesCall) -> tuple[object, str | list[int] | None]:
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
    """An answer behind the prompt, and what its sentences come from."""

    batch: Batch
    """The prompt and all tokens of the answer but the last."""
    answer: tuple[int, ...]
    pieces: Sequence[tuple[int, int]]
    """The sentences: the numbers of their first token in the answer and of the one after their last."""
    untouched: Float[np.ndarray, " piece"]
    """The log-probability of each, by the untouched model."""
    scores: Float[np.ndarray, "piece token"]
    """What each token adds to each."""
    constants: Float[np.ndarray, " piece"]
    """With what rounding leaves, so that everything adds up to the untouched model's log-probabilities."""
    rounding: Float[np.ndarray, " piece"]
    """How much that is."""
    first: str
    """What of the first token is among the constants, in words."""
    passes: int
    """How many times as many operations as a forward pass of the untouched model it took, about."""

    def texts(self, model: LoadedModel) -> list[str]:
        """The sentences."""
        return [str(model.tokenizer.decode(self.answer[slice(*piece)])) for piece in self.pieces]

    def falls(self, model: LoadedModel, removed: Sequence[int]) -> Float[np.ndarray, " piece"]:
        """By how much each log-probability falls without some tokens."""
        return self.untouched - _sums(answer_without(model, self.batch, self.answer, removed), self.pieces)


def _sums(values: Float[torch.Tensor, " answer"], pieces: Sequence[tuple[int, int]]) -> Float[np.ndarray, " piece"]:
    return np.array([float(values[slice(*piece)].sum()) for piece in pieces])


def _side(model: LoadedModel, batch: Batch, answer: tuple[int, ...], most: int | None, progress: Progress) -> _Side:
    """An answer behind the prompt, and what its sentences come from.

    Args:
        batch: The prompt and all tokens of the answer but the last.
        most: How many sentences are told apart; by default, what its length allows.
    """
    tokens = batch.input_ids.shape[1]
    pieces = _pieces(model, answer, most or (_SENTENCES_OF_LONG if tokens > _LONG else _SENTENCES))
    untouched = _sums(answer_without(model, batch, answer), pieces)
    own = int(batch.input_ids[0, 0])
    is_word = own not in model.tokenizer.all_special_ids
    neutral = neutral_tokens(model) if is_word and tokens <= _FIRST_TOLD_APART else []
    head = model.next_token_head
    assert head is not None
    inputs = predicting(head, with_first(batch.model_inputs(), [own, *neutral]), len(answer))
    passed = held_pass(model.model, model.facts, inputs, head)
    found = []
    with torch.inference_mode(False), torch.enable_grad():
        values = values_of_answer(passed, answer, AnswerMeasure.log_probability)
        for piece in progress(pieces, len(pieces), "sentences of the answer"):
            parts = attribute_scalars(passed, values[:, slice(*piece)].sum(dim=1))
            found.append((parts.scores.cpu().numpy(), float((parts.bias + parts.remainder)[0])))
    scores = np.stack([of_texts[0] for of_texts, _ in found])
    constants = np.array([constant for _, constant in found])
    rounding = untouched - scores.sum(axis=1) - constants
    sizes = np.abs(scores).sum(axis=1) + np.abs(constants)
    passed.check.require("the parts of the log-probability", torch.from_numpy(np.abs(rounding) / sizes))
    others = np.stack([of_texts[1:, 0] if neutral else of_texts[:, 0] for of_texts, _ in found])
    first = of_position(scores[:, 0], others)
    scores[:, 0] -= first
    marks = " or ".join(repr(model.tokenizer.decode([each])) for each in neutral)
    return _Side(
        batch,
        answer,
        pieces,
        untouched,
        scores,
        constants=constants + first + rounding,
        rounding=rounding,
        first=f"what {marks} would add as the first token" if neutral else "all that the first token adds",
        passes=(1 + len(neutral)) * (1 + 2 * len(pieces)),
    )


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
    model: LoadedModel, found: Sequence[Source], sides: Sequence[_Side], asked: SourcesCall, progress: Progress
) -> SourcedAnswer:
    """The parts of an answer, less those of the answer that it is compared with."""
    side, others = sides[0], sides[1:]
    length = side.scores.shape[1] + 1 - len(side.answer)
    in_prompt = _difference([each.scores[:, :length] for each in sides])
    of_sources = np.column_stack([in_prompt[:, source.tokens].sum(axis=1) for source in found])
    rest = in_prompt.sum(axis=1) - of_sources.sum(axis=1)
    # The last token of an answer predicts nothing, and adds nothing.
    own = [side.scores[:, length + start : length + stop].sum(axis=1) for start, stop in side.pieces]
    against = [-each.scores[:, length:].sum(axis=1) for each in others]
    falls, controls = _removals(model, found, of_sources.sum(axis=0), sides, asked, progress)
    return SourcedAnswer(
        sources=found,
        sentences=side.texts(model),
        lengths=[stop - start for start, stop in side.pieces],
        against="".join(text for each in others for text in each.texts(model)),
        parts=np.column_stack([of_sources, rest, *own, *against, _difference([each.constants for each in sides])]),
        log_probability=_difference([each.untouched for each in sides]),
        error=max(float((np.abs(each.rounding) / np.maximum(np.abs(each.untouched), 1)).max()) for each in sides),
        instructions={
            (number, said): float(in_prompt[:, places].sum())
            for number, source in enumerate(found)
            for said, places in source.instructions.items()
        },
        falls=falls,
        controls=controls,
        not_removed=why_not_removed(model),
        first=side.first,
        passes=sum(each.passes + 1 + int((~np.isnan(falls[0])).sum()) for each in sides),
        tokens=side.batch.input_ids.shape[1],
    )


def _difference(values: Sequence[np.ndarray]) -> np.ndarray:
    """What an answer has, less what the other one has."""
    first, *others = values
    return first - sum(others)


def _removals(
    model: LoadedModel,
    found: Sequence[Source],
    adds: Float[np.ndarray, " source"],
    sides: Sequence[_Side],
    asked: SourcesCall,
    progress: Progress,
) -> tuple[Float[np.ndarray, "piece source"], list[int]]:
    """By how much each sentence's log-probability falls without a source, NaN if it is not removed; and the sources that are
    removed for comparison.

    Args:
        adds: What each source adds to the answer.
    """
    falls = np.full((len(sides[0].pieces), len(found)), np.nan)
    if asked.check is Removed.none or why_not_removed(model):
        return falls, []
    order = np.argsort(-adds, kind="stable").tolist()
    most = _REMOVED_OF_LONG if sides[0].scores.shape[1] > _LONG else _REMOVED
    others = order[most:]
    if asked.check is Removed.top:
        others = np.random.default_rng(asked.seed).permutation(others)[:most].tolist()
    chosen = [*order[:most], *others]
    for number in progress(chosen, len(chosen), "sources removed"):
        falls[:, number] = _difference([each.falls(model, found[number].tokens) for each in sides])
    return falls, others
