"""Texts typed into a box or on the command line: reading them, truncating long ones, and locating their tokens."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from normscope.data.options import Level
from normscope.errors import InputError, printable
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import Predictor
from normscope.models.load.task_heads import Head
from normscope.models.load.text_batches import (
    batch_from_texts,
    is_messages,
    messages_in,
    number_of_tokens,
    parts_of,
    places_of_tokens,
    roles_of,
)
from normscope.rounding import counted
from normscope.untrusted.images import is_image
from normscope.untrusted.sounds import is_sound

SEPARATOR = " ||| "
"""Between the two texts of a pair."""
_ROLE = re.compile(r"^(system|developer|user|tool|assistant):", re.MULTILINE)
_CHARACTERS = 16
"""Of a token, at most, in a text that is looked at as a whole."""


def typed(text: Any) -> tuple[str, bool]:
    """A text, a pair or a conversation as it is typed, and whether it is a conversation.

    Raises:
        InputError: If it is anything else, or would be read as something else.
    """
    if is_messages(text):
        written = "\n".join(f"{each.role}: {each.content}" for each in messages_in(text))
        if [each[:2] for each in messages_of(written)] != [each[:2] for each in messages_in(text)]:
            raise InputError(
                "text: a line of a message begins with a role, such as `user:`, and would be read as another message"
            )
        return written, True
    parts = parts_of(text)
    if any(SEPARATOR in part for part in parts):
        raise InputError(f"text: expected no `{SEPARATOR}`, which separates the two texts of a pair")
    return SEPARATOR.join(parts), False


class TypedMessage(NamedTuple):
    """A message of a conversation that was typed."""

    role: str
    content: str
    start: int
    """Where the content begins in what was typed."""


def messages_of(text: str) -> list[TypedMessage]:
    """The messages of a conversation, each of which begins with its role at the beginning of a line: `user: Hello!`.

    What comes before the first role is what a user says. The space behind a role and the line break before one are no part of
    messages.
    """
    roles = [*_ROLE.finditer(text)]
    parts = [("user", 0), *((found[1], found.end()) for found in roles)]
    ends = [*(found.start() for found in roles), len(text)]
    messages = []
    for number, ((role, start), end) in enumerate(zip(parts, ends, strict=True)):
        start += bool(number) and text[start:end].startswith(" ")
        if number or text[:end].strip():
            messages.append(TypedMessage(role, text[start:end].removesuffix("\n" if end < len(text) else ""), start))
    return messages


_LONGEST_NAME = 256
"""Characters of the name of an image's or a sound's file."""


def require_kind(model: LoadedModel, text: str, question: str = "") -> None:
    """Check that the file of an image or a sound is for a model of such, and a text beside it for one that reads both.

    Raises:
        InputError: If the model reads texts, or there is a question too many or too few.
    """
    of_image = is_image(text)
    if model.retrieves and not (of_image and question):
        raise InputError(
            f'explain: {model.name} compares a page with a query: normscope explain page.png "What is this?" model=…'
        )
    if question and model.image_texts is None and model.reader is not None and model.of_tower is None:
        raise InputError(f"explain: {model.name} reads only images; leave out {question!r}")
    if of_image and model.image_texts is not None and not question:
        raise InputError(
            f'explain: {model.name} reads images with a text: normscope explain {text} "What is this?" model=…'
        )
    if model.reader is None and model.image_texts is None and of_image:
        raise InputError(f"{text}: {model.name} reads texts, not images; set model.name to a model of images")
    if model.reader is not None and not (len(text) < _LONGEST_NAME and Path(text).suffix and "\n" not in text):
        raise InputError(
            f"{model.name} reads {model.reader.nouns.inputs}: expected the name of a file, got {printable(text, 60)!r}"
        )
    if model.reader is None and is_sound(text):
        raise InputError(f"{text}: {model.name} reads texts, not sounds; set model.name to a model of audio")


def as_given(model: LoadedModel, text: str, *, chat: bool = False) -> Any:
    """A text, a pair of texts with ` ||| ` between them, a conversation or an image's file, as the Python interface takes it.

    Args:
        chat: Whether the text is a conversation; see `messages_of`.

    Raises:
        InputError: If it is empty, or the model reads two texts and gets one.
    """
    if not text.strip():
        raise InputError("text: expected a text, got an empty one")
    if model.reader is not None:
        return Path(text)
    if chat:
        return [{"role": each.role, "content": each.content} for each in messages_of(text)]
    first, separator, second = text.partition(SEPARATOR)
    if separator:
        return first, second
    if model.facts.reads_target:
        raise InputError(f"text: {model.name} reads two texts: write `source{SEPARATOR}translation`")
    return text


class Read(NamedTuple):
    """A text as a model reads it."""

    text: str
    """What was typed, cut to what the model reads."""
    given: Any
    """The same as the Python interface takes it."""
    note: str
    """That it is cut; empty if it is not."""
    chat: bool
    """Whether it is a conversation."""


class Limit(NamedTuple):
    """The longest text."""

    tokens: int
    name: str = "report.tokens"
    """What sets it."""


def read(model: LoadedModel, text: str, limit: Limit, *, chat: bool = False) -> Read:
    """A text that was typed, cut to a number of tokens.

    Args:
        chat: Whether it is a conversation; see `normscope.live.texts`.

    Raises:
        InputError: If it is empty, the model reads two texts and gets one, or it has no chat template, or one that rejects this
            conversation or that alone is too long.
    """
    given = as_given(model, text, chat=chat)
    longest = limit.tokens if model.max_length is None else min(limit.tokens, model.max_length)
    which = limit.name if longest == limit.tokens else f"the limit of {model.name}"
    if _fits(model, given, longest):
        return Read(text, given, "", chat)
    if chat:
        cut = _cut(text, lambda part: _conversation_fits(model, part, longest))
        if not cut:
            raise InputError(
                f"text: the chat template of {model.name} alone takes more than {counted(longest, 'token')} ({which})"
            )
    else:
        first, separator, second = text.partition(SEPARATOR)
        half = longest // 2 if separator else longest
        cut = _cut(first, lambda part: _fits(model, part, half))
        if separator:
            before = cut
            cut += SEPARATOR + _cut(second, lambda part: _fits(model, (before, part), longest))
    note = f"The text is truncated to at most {counted(longest, 'token')} ({which})."
    return Read(cut, as_given(model, cut, chat=chat), note, chat)


def count_of(model: LoadedModel, given: Any) -> int:
    """The number of tokens of a text; for a source and its translation, of the longer one.

    Raises:
        InputError: If it is empty or too long, or the model cannot read it.
    """
    batch = model.exclusively(lambda: batch_from_texts(model, given))
    return max(batch.input_ids.shape[1], batch.keys.input_ids.shape[1])


def _fits(model: LoadedModel, given: Any, longest: int) -> bool:
    if isinstance(given, tuple) and model.facts.reads_target:
        return all(_fits(model, text, longest) for text in given)
    most = (longest + 1) * _CHARACTERS
    beginning = tuple(text[:most] for text in given) if isinstance(given, tuple) else given[:most]
    # The beginning alone tells of most texts that are much too long.
    return all(number_of_tokens(model, text) <= longest for text in (beginning, given))


def _conversation_fits(model: LoadedModel, text: str, longest: int) -> bool:
    try:
        return _fits(model, as_given(model, text, chat=True), longest)
    except InputError:  # of nothing, for instance
        return False


def _cut(text: str, fits: Callable[[str], bool]) -> str:
    """The beginning of a text that fits, to the end of a word if one is near."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle]):
            low = middle
        else:
            high = middle - 1
    if low == len(text) or text[low].isspace():
        return text[:low]
    start, space, _ = text[:low].rpartition(" ")
    return start if space and low - len(start) <= _CHARACTERS else text[:low]


@dataclasses.dataclass(frozen=True)
class Units:
    """Where the tokens (or words) of a text lie in what was typed, and who says them."""

    places: list[tuple[int, int] | None]
    """The first character of each and the one after its last, counted as Python does (`sliced` in dom.js); None for special
    tokens. Empty if the tokenizer does not say."""
    roles: list[str] | None = None
    """The role of each in a conversation, or `template`; None of other texts."""


def units_of(model: LoadedModel, typed: Read, level: Level) -> Units:
    """Where the tokens (or words) of a text lie in what was typed, and who says them."""
    batch = batch_from_texts(model, typed.given, level)
    roles = roles_of(model, typed.given) if typed.chat else None
    # The tokens of a translation are the target's alone.
    known = not model.facts.reads_target and places_of_tokens(model, typed.given, batch.input_ids[0].tolist())
    begins = _begins(typed)
    numbers = batch.unit_numbers.tolist()
    places: list[tuple[int, int] | None] = [None] * (max(numbers) + 1)
    for number, place in zip(numbers, known or (), strict=False):
        if place is None:
            continue
        start, end = (begins[place[0]] + at for at in place[1:])
        before = places[number]
        places[number] = (start if before is None else before[0], end)
    first = {number: at for at, number in reversed([*enumerate(numbers)])}
    return Units(places if known else [], roles and [roles[first[number]] for number in range(len(places))])


def _begins(typed: Read) -> list[int]:
    """Where each text of a pair, or message of a conversation, begins in what was typed."""
    if typed.chat:
        return [message.start for message in messages_of(typed.text)]
    return [0, len(typed.given[0]) + len(SEPARATOR)] if isinstance(typed.given, tuple) else [0]


def opening(model: LoadedModel) -> Mapping[str, str]:
    """The values of the address that the page opens with, by what the model's checkpoint computes.

    A classifier gets a review, a causal language model the beginning of a sentence, a masked one a sentence with a mask, a
    translation model a text and its translation; an encoder two texts, whose similarity has reasons.
    """
    if model.facts.reads_target:
        return {"text": f"The old bridge was closed.{SEPARATOR}Die alte Brücke war gesperrt."}
    with contextlib.suppress(InputError):  # the page says so where the prediction is attributed
        predictor = Predictor.of(model)
        match predictor and predictor.kind:
            case Head.CLASS:
                return {"text": "The film was long, but I was never bored."}
            case Head.NEXT_TOKEN:
                return {"text": "The capital of France is"}
            case Head.MASKED_TOKEN if model.tokenizer.mask_token:
                return {"text": f"The capital of France is {model.tokenizer.mask_token}."}
    return {"text": "The old bridge was closed, so we crossed the river.", "before": "A ferry took us over the water."}
