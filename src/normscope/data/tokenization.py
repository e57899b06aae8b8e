"""One way from text to tokens, and one way back: every text that a model reads passes through here."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Encoding
from transformers.tokenization_utils_base import BatchEncoding, PreTrainedTokenizerBase

Span = tuple[int, int]
"""Start and end offset in characters."""

Place = tuple[int, int, int]
"""Where a token lies: in which text of a pair, or message of a conversation; its first character there, and the one after its
last."""


def encoded(
    tokenizer: PreTrainedTokenizerBase,
    *texts: Any,
    special: bool = True,
    target: bool = False,
    segments: bool = False,
    **arguments: Any,
) -> BatchEncoding:
    """What a tokenizer makes of a text, of both texts of a pair, or of lists of these.

    Args:
        special: Whether it adds its special tokens.
        target: Whether the text is the target of a translation.
        segments: Whether segment ids are wanted, for which some tokenizers must be asked.
        arguments: More arguments of the tokenizer.
    """
    if segments:
        arguments["return_token_type_ids"] = True
    given = dict(zip(["text_target"] if target else ["text", "text_pair"], texts, strict=False))
    return tokenizer(**given, add_special_tokens=special, verbose=False, **arguments)


def continuation(tokenizer: PreTrainedTokenizerBase, text: str, *, target: bool = False) -> list[int]:
    """The tokens of a text that follows others. By itself, SentencePiece would write it with a space before its first word.

    Args:
        target: Whether it belongs to the target of a translation.
    """
    # A line break joins no letter, and a full stop no white space; where line breaks are dropped, words begin as in a new text.
    for before in ("\n", *("." * text[:1].isspace())):
        context, whole = (
            list(encoded(tokenizer, each, special=False, target=target)["input_ids"])
            for each in (before, before + text)
        )
        if whole[: len(context)] == context:
            return whole[len(context) :]
    return list(encoded(tokenizer, text, special=False, target=target)["input_ids"])


def places_of(encoding: Encoding, texts: Sequence[str]) -> list[Place | None]:
    """Where each token of a fast tokenizer lies. White space around the characters that a token spells is not counted.

    Args:
        encoding: The tokens.
        texts: The text, or both texts of a pair.

    Returns:
        None for the special tokens that the tokenizer adds.
    """
    places: list[Place | None] = []
    ends = [0] * len(texts)
    for side, special, (start, end) in zip(
        encoding.sequence_ids, encoding.special_tokens_mask, encoding.offsets, strict=True
    ):
        if side is None or special:
            places.append(None)
            continue
        text = texts[side]
        if start == end:  # a space that the tokenizer has trimmed away
            start = end = ends[side]
            while end < len(text) and text[end].isspace():
                end += 1
        ends[side] = max(ends[side], end)
        places.append((side, *visible(text, (start, end))))
    return places


def owners_of(tokens: Sequence[Span | None], spans: Sequence[Span]) -> list[int | None]:
    """The span that each token belongs to: the one in which most of its characters lie, in a tie the first.

    Args:
        tokens: Where each token lies.
        spans: In the order of the text.

    Returns:
        Indices of spans; None for tokens with more characters outside all spans, such as white space between words.
    """
    owners: list[int | None] = []
    begin = 0  # spans before this one end before the token starts
    for token in tokens:
        owner, most, outside = None, 0, 0
        if token is not None:
            start, end = token
            outside = end - start
            while begin < len(spans) and spans[begin][1] <= start:
                begin += 1
            for index in range(begin, len(spans)):
                first, last = spans[index]
                if first >= end:
                    break
                common = min(end, last) - max(start, first)
                outside -= max(0, common)
                if common > most:
                    owner, most = index, common
        owners.append(owner if most >= outside else None)
    return owners


def visible(text: str, span: Span) -> Span:
    """A span without white space at its ends; white space alone as it is."""
    start, end = span
    inside = text[start:end]
    if not inside.strip():
        return span
    return end - len(inside.lstrip()), start + len(inside.rstrip())
