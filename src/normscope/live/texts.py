"""Texts as they are typed: those that are too long, and where their tokens lie."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normscope.data.options import Level
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import batch_from_texts, places_in_messages, roles_of
from normscope.rounding import counted
from normscope.typed_texts import SEPARATOR, as_given, messages_of

_CHARACTERS = 16
"""Of a token, at most, in a text that is looked at as a whole."""


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
        chat: Whether it is a conversation; see `normscope.typed_texts`.

    Raises:
        InputError: If it is empty, the model reads two texts and gets one, or it has no chat template, or one that rejects this
            conversation or that alone is too long.
    """
    given = as_given(model, text, chat=chat)
    longest = limit.tokens if model.max_length is None else min(limit.tokens, model.max_length)
    which = limit.name if longest == limit.tokens else f"the limit of {model.name}"
    if chat:
        if len(roles_of(model, given)) <= longest:
            return Read(text, given, "", chat)
        cut = _cut(text, lambda part: _conversation_fits(model, part, longest))
        if not cut:
            raise InputError(
                f"text: the chat template of {model.name} alone takes more than {counted(longest, 'token')} ({which})"
            )
    else:
        first, separator, second = text.partition(SEPARATOR)
        if _fits(model, (first, second) if separator else (first,), longest):
            return Read(text, given, "", chat)
        half = longest // 2 if separator else longest
        cut = _cut(first, lambda part: _fits(model, (part,), half))
        if separator:
            before = cut
            cut += SEPARATOR + _cut(second, lambda part: _fits(model, (before, part), longest))
    note = f"The text is cut to at most {counted(longest, 'token')} ({which})."
    return Read(cut, as_given(model, cut, chat=chat), note, chat)


def count_of(model: LoadedModel, given: Any) -> int:
    """The number of tokens of a text; for a source and its translation, of the longer one.

    Raises:
        InputError: If it is empty or too long, or the model cannot read it.
    """
    batch = model.exclusively(lambda: batch_from_texts(model, given))
    return max(batch.input_ids.shape[1], batch.keys.input_ids.shape[1])


def _fits(model: LoadedModel, texts: Sequence[str], longest: int) -> bool:
    if model.layout.reads_target and len(texts) > 1:
        return all(_fits(model, (text,), longest) for text in texts)
    # The beginning alone tells of most texts that are much too long.
    for shown in ([text[: (longest + 1) * _CHARACTERS] for text in texts], texts):
        if len(model.tokenizer(*shown, verbose=False)["input_ids"]) > longest:
            return False
    return True


def _conversation_fits(model: LoadedModel, text: str, longest: int) -> bool:
    try:
        return len(roles_of(model, as_given(model, text, chat=True))) <= longest
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
    if typed.chat:
        found = _of_messages(model, typed)
        roles: list[str] | None = roles_of(model, typed.given)
    else:
        found, roles = _of_text(model, typed, batch.input_ids[0].tolist()), None
    numbers = batch.unit_numbers.tolist()
    places: list[tuple[int, int] | None] = [None] * (max(numbers) + 1)
    for number, place in zip(numbers, found, strict=False):
        if place is None:
            continue
        start, end = place
        start += len(typed.text[start:end]) - len(typed.text[start:end].lstrip())
        known = places[number]
        places[number] = (start if known is None else known[0], end)
    first = {number: at for at, number in reversed([*enumerate(numbers)])}
    return Units(places if found else [], roles and [roles[first[number]] for number in range(len(places))])


def _of_text(model: LoadedModel, typed: Read, ids: list[int]) -> list[tuple[int, int] | None]:
    """The place of each token; an empty list if the tokenizer does not say."""
    if not getattr(model.tokenizer, "is_fast", False) or model.layout.reads_target:
        return []
    sides = typed.given if isinstance(typed.given, tuple) else (typed.given,)
    encoding = model.tokenizer(*sides, return_offsets_mapping=True, verbose=False)
    if ids != list(encoding["input_ids"]):
        return []
    places: list[tuple[int, int] | None] = []
    for side, (start, end) in zip(encoding.sequence_ids(0), encoding["offset_mapping"], strict=True):
        shift = len(sides[0]) + len(SEPARATOR) if side else 0
        places.append(None if side is None or start == end else (start + shift, end + shift))
    return places


def _of_messages(model: LoadedModel, typed: Read) -> list[tuple[int, int] | None]:
    messages = messages_of(typed.text)
    places: list[tuple[int, int] | None] = []
    for place in places_in_messages(model, typed.given):
        if place is None:
            places.append(None)
        else:
            number, start, end = place
            places.append((messages[number].start + start, messages[number].start + end))
    return places
