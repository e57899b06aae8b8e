"""Texts as they are typed: pairs, texts that are too long, and where their tokens lie."""

from collections.abc import Sequence
from typing import Any

from normscope.data.options import Level
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import batch_from_texts
from normscope.rounding import counted
from normscope.running.token_maps import numbers_of

SEPARATOR = " ||| "
"""Between the two texts of a pair, as in `normscope explain`."""
_CHARACTERS = 16
"""Of a token, at most, in a text that is looked at as a whole."""


def as_given(model: LoadedModel, text: str) -> Any:
    """A text, or two with ` ||| ` between them, as the Python interface takes it.

    Raises:
        InputError: If it is empty, or the model reads two texts and gets one.
    """
    if not text.strip():
        raise InputError("text: expected a text, got an empty one")
    first, separator, second = text.partition(SEPARATOR)
    if separator:
        return first, second
    if model.layout.reads_target:
        raise InputError(f"text: {model.name} reads two texts: write `source{SEPARATOR}translation`")
    return text


def fitted(model: LoadedModel, text: str, tokens: int) -> tuple[str, str]:
    """A text cut to a number of tokens, and a note that says so; the whole text and an empty note if it is short enough."""
    longest = tokens if model.max_length is None else min(tokens, model.max_length)
    first, separator, second = text.partition(SEPARATOR)
    if _fits(model, (first, second) if separator else (first,), longest):
        return text, ""
    cut = _cut(model, first, (), longest // 2 if separator else longest)
    if separator:
        cut += SEPARATOR + _cut(model, second, (cut,), longest)
    limit = "report.tokens" if longest == tokens else f"the limit of {model.name}"
    return cut, f"The text is cut to at most {counted(longest, 'token')} ({limit})."


def _fits(model: LoadedModel, texts: Sequence[str], longest: int) -> bool:
    # The beginning alone tells of most texts that are much too long.
    for shown in ([text[: (longest + 1) * _CHARACTERS] for text in texts], texts):
        if len(model.tokenizer(*shown, verbose=False)["input_ids"]) > longest:
            return False
    return True


def _cut(model: LoadedModel, text: str, before: Sequence[str], longest: int) -> str:
    """The beginning of a text that fits, to the end of a word if one is near."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(model, (*before, text[:middle]), longest):
            low = middle
        else:
            high = middle - 1
    if low == len(text) or text[low].isspace():
        return text[:low]
    start, space, _ = text[:low].rpartition(" ")
    return start if space and low - len(start) <= _CHARACTERS else text[:low]


def places_of(model: LoadedModel, text: str, level: Level) -> list[tuple[int, int] | None]:
    """The first character of each token (or word) in a text and the one after its last; None for special tokens.

    Returns:
        An empty list if the tokenizer does not say.
    """
    if not getattr(model.tokenizer, "is_fast", False) or model.layout.reads_target:
        return []
    first, separator, second = text.partition(SEPARATOR)
    given = (first, second) if separator else (first,)
    encoding = model.tokenizer(*given, return_offsets_mapping=True, verbose=False)
    batch = batch_from_texts(model, given if separator else first, level)
    if batch.input_ids[0].tolist() != list(encoding["input_ids"]):
        return []
    sides = encoding.sequence_ids(0)
    numbers = numbers_of(batch).tolist()
    places: list[tuple[int, int] | None] = [None] * (max(numbers) + 1)
    for number, side, (start, end) in zip(numbers, sides, encoding["offset_mapping"], strict=True):
        if side is None or start == end:
            continue
        shift = len(first) + len(SEPARATOR) if side else 0
        start += shift + len(given[side][start:end]) - len(given[side][start:end].lstrip())
        known = places[number]
        places[number] = (start if known is None else known[0], end + shift)
    return places
