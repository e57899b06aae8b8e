"""The tokens and regions of a text along one axis of attention: rows, columns, spans, words, sentences, messages, images."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.data.batching import Batch
from normscope.data.segmentation import spans_of_sentences
from normscope.data.token_sequence import ImageTokens
from normscope.data.tokenization import Place, owners_of
from normscope.errors import InputError, describe_type, printable
from normscope.maths.partition import Partition
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import (
    is_ids,
    is_messages,
    messages_in,
    places_of_tokens,
    plain_ids,
    roles_of,
)

REST = "rest"
"""The tokens that are in no span."""

PAIR = "first text", "second text"
"""The spans of a pair of texts."""

OTHER_PAIR = "first text of the other", "second text of the other"
"""The spans of the pair that it is compared with, where their texts differ."""


def spans_of(
    model: LoadedModel, text: object, batch: Batch, spans: Mapping[str, tuple[int, int]] | str | None
) -> Partition | None:
    """The spans of a text: what was asked for, a conversation's roles, or the texts of a pair; and the rest, last.

    Args:
        text: A text, a pair of texts, a conversation, or a list of token ids.
        batch: The same as a batch of one.
        spans: See `attribute`.

    Returns:
        The spans, in the order of the text; None without spans.

    Raises:
        InputError: If a span is empty, leaves the text or overlaps another, or its tokens cannot be found.
    """
    if batch.own is not None and batch.own.images:
        if spans is not None:
            raise InputError("spans: the spans of a text with images are its images and its text; leave out spans")
        return _named_by_token(_images_and_text(batch.own.images, batch.input_ids.shape[1]))
    if is_messages(text):
        if spans is not None:
            raise InputError("spans: a conversation's spans are its roles; leave out spans")
        return _named_by_token(roles_of(model, text))
    if spans is None:
        texts = _texts_of_pair(model, text, batch)
        return None if texts is None else _named_by_token(texts)
    if not (isinstance(text, str) or is_ids(text)):
        raise InputError(f"spans: expected a single text, or a list of token ids, got {describe_type(text)}")
    if not isinstance(spans, str):
        _check_spans(spans)
    tokens = dataclasses.replace(batch, units=None).unit_texts(model.tokenizer)
    regions = regions_of("spans", spans, ReadSide(model, text, batch, tokens, ()))
    # Sentences may repeat, and spans have one name each.
    names = [f"{n}. {name}" for n, name in enumerate(regions.names, 1)] if isinstance(spans, str) else regions.names
    return _named_by_token([REST if owner < 0 else names[owner] for owner in regions.of_token[0].tolist()])


def _check_spans(spans: Mapping[str, tuple[int, int]]) -> None:
    if REST in spans:
        raise InputError(f"spans: {REST!r} is the name for tokens outside all spans; choose another")
    for name, span in spans.items():
        if not _is_span(span):
            raise InputError(f"spans: expected (start, end) for {name!r}, got {str(span)[:80]}")


def _named_by_token(owners: Sequence[str]) -> Partition:
    """Tokens in spans of these names."""
    names = sorted(dict.fromkeys(owners), key=lambda name: name == REST)
    return Partition.of(torch.tensor([[names.index(owner) for owner in owners]]), len(names), names)


def _images_and_text(images: Sequence[ImageTokens], tokens: int) -> list[str]:
    """The image that each token belongs to, or the text."""
    owners = ["text"] * tokens
    for number, image in enumerate(images, start=1):
        for place in image.places:
            owners[place] = f"image {number}" if len(images) > 1 else "image"
    return owners


def _texts_of_pair(model: LoadedModel, text: object, batch: Batch) -> list[str] | None:
    """The text of a pair that each token belongs to; None for anything else, or if the tokenizer does not tell."""
    places = places_of_tokens(model, text, batch.input_ids[0].tolist()) if isinstance(text, tuple) else None
    return None if places is None else [REST if place is None else PAIR[place[0]] for place in places]


def sums_of_spans(scores: Float[np.ndarray, " token"], spans: Partition) -> dict[str, float]:
    """The sum of the scores in each span, in the order of the text.

    Args:
        scores: Those of the first tokens.
        spans: Spans that none of these tokens belongs to are left out.
    """
    some = Partition.of(spans.of_token[:, : len(scores)], spans.count)
    sums = some.sums(torch.from_numpy(scores)[None])[0].tolist()
    return dict(itertools.compress(zip(spans.names, sums, strict=True), some.exists[0].tolist()))


NAMED = ("last", "tokens", "words", "sentences", "texts", "messages", "prompt", "answer", "images")
"""What a string stands for."""

_LONGEST_NAME = 30
"""Characters of a sentence that its name keeps."""

_IMAGE = ("image_token_id", "image_token_index")
"""Where configs and tokenizers store the id of the tokens that stand for an image."""


class ReadSide(NamedTuple):
    """The text that one side of attention reads, as the model's tokens."""

    model: LoadedModel
    text: object
    """The text as given; None if only its tokens are known."""
    batch: Batch
    """The text as a batch of one, in CPU memory; with the word of each token if words are requested."""
    tokens: Sequence[str]
    words: Sequence[str]
    """The words; empty unless words are requested."""


def asks_for_words(asked: object) -> bool:
    """Whether words are among the requested regions."""
    several = asked if isinstance(asked, list | tuple) else asked.values() if isinstance(asked, Mapping) else (asked,)
    return any(isinstance(each, str) and each == "words" for each in several)


def regions_of(argument: str, asked: object, read: ReadSide) -> Partition:
    """The requested regions, in the requested order; a single token is also a region.

    Args:
        argument: The name of the argument, for messages.
        asked: See `normscope.attention`.
        read: The text of this side.

    Raises:
        InputError: If regions overlap, are empty or lie outside the text, or the text has no such part.
    """
    count = read.batch.input_ids.shape[1]
    if asked is None or (isinstance(asked, str) and asked == "tokens"):
        return Partition.tokens(read.batch.token_mask, names=read.tokens)
    found: list[tuple[str, list[int]]] = []
    spans: dict[str, tuple[int, int]] = {}
    for name, each in _named(argument, asked):
        if isinstance(each, tuple):
            spans[name or ":".join(map(str, each))[:40]] = each
            found.append((list(spans)[-1], []))
        else:
            found += _places(argument, name, each, read)
    if spans:
        of_spans = _tokens_of_spans(argument, spans, read)
        found = [(name, of_spans[name] if name in spans else places) for name, places in found]
    return _without_overlap(argument, found, count)


def _named(argument: str, asked: object) -> Iterable[tuple[str | None, Any]]:
    """The requested items one by one, with their names if they have any."""
    if isinstance(asked, Mapping) and asked:
        return [(str(name), each) for name, each in asked.items()]
    asked = asked.tolist() if isinstance(asked, Tensor | np.ndarray) else asked
    if isinstance(asked, str | slice) or not isinstance(asked, Iterable) or _is_span(asked):
        return [(None, asked)]
    several = list(asked)
    if not several:
        raise InputError(f"{argument}: expected at least one token or region, got none")
    return [(None, each) for each in several]


def _is_span(asked: object) -> bool:
    return isinstance(asked, tuple) and len(asked) == 2 and all(type(end) is int for end in asked)


def _places(argument: str, name: str | None, asked: object, read: ReadSide) -> list[tuple[str, list[int]]]:
    """The tokens of a requested item: one region, or all regions of a kind."""
    count = len(read.tokens)
    if isinstance(asked, str):
        parts = _parts(argument, asked, read)
        if name is None:
            return parts
        return [(name, list(itertools.chain.from_iterable(places for _, places in parts)))]
    if isinstance(asked, slice | range):
        return [_of_range(argument, name, asked, count)]
    if isinstance(asked, int | np.integer) and not isinstance(asked, bool):
        if not -count <= asked < count:
            raise InputError(f"{argument}: expected tokens from 0 to {count - 1}, or from −{count} to −1, got {asked}")
        place = int(asked) % count
        return [(name or read.tokens[place], [place])]
    if isinstance(asked, list) and asked and name is not None:  # a region with gaps
        return [
            (name, [place for each in asked for _, places in _places(argument, name, each, read) for place in places])
        ]
    raise InputError(
        f"{argument}: expected token positions, spans (start, end), slices of tokens, or one of {', '.join(NAMED)}; got "
        f"{printable(repr(asked), 60)}"
    )


def _of_range(argument: str, name: str | None, asked: slice | range, count: int) -> tuple[str, list[int]]:
    """A slice of tokens as one region. Unlike a Python slice, it must lie within the text."""
    if asked.step not in (None, 1):
        raise InputError(f"{argument}: expected consecutive tokens, got a step of {asked.step}")
    ends = (0 if asked.start is None else asked.start, count if asked.stop is None else asked.stop)
    start, stop = (end + count if end < 0 else end for end in ends)
    shown = f"{ends[0]}:{ends[1]}"
    if not 0 <= start <= count or not 0 <= stop <= count:
        raise InputError(f"{argument}={shown}: expected tokens within a text of {count}; choose a part of 0:{count}")
    if start >= stop:
        raise InputError(f"{argument}={shown}: expected at least one token, got an empty region")
    return name or shown, list(range(start, stop))


def _parts(argument: str, kind: str, read: ReadSide) -> list[tuple[str, list[int]]]:
    """All regions of a kind, with their tokens."""
    count = len(read.tokens)
    match kind:
        case "last":
            return [(read.tokens[-1], [count - 1])]
        case "tokens":
            return [(token, [place]) for place, token in enumerate(read.tokens)]
        case "words":
            assert read.batch.units is not None
            return _grouped(read.batch.units[0].tolist(), read.words)
        case "sentences":
            return _sentences(argument, read)
        case "texts":
            owners = _texts_of_pair(read.model, read.text, read.batch) or ()
            found = [(name, _where(owners, name)) for name in PAIR if name in owners]
            return found or _refuse(argument, kind, "a pair of texts, (first, second), and a fast tokenizer")
        case "messages" | "prompt" | "answer":
            return _of_conversation(argument, kind, read)
        case "images" if read.batch.own is not None and read.batch.own.images:
            images = read.batch.own.images
            return [(f"image {number}", [*each.places]) for number, each in enumerate(images, start=1)]
        case "images":
            image = _image_token(read.model.model.config, read.model.tokenizer)
            found = _images(read.batch.input_ids[0].tolist(), image)
            return found or _refuse(argument, kind, "a text that contains image tokens")
        case _:
            raise InputError(f"{argument}={kind[:60]!r}: expected one of {', '.join(NAMED)}")


def _sentences(argument: str, read: ReadSide) -> list[tuple[str, list[int]]]:
    """The sentences of a text, of both texts of a pair, or of the messages of a conversation. They begin as they are called."""
    text: Any = read.text
    if is_messages(text):
        texts: Sequence[str] = [message.content for message in messages_in(text)]
    elif isinstance(text, str | tuple):
        texts = text if isinstance(text, tuple) else (text,)
    else:
        _refuse(argument, "sentences", "a text given as characters, not as token ids")
    places = _places_in_text(argument, read)
    found = []
    for number, part in enumerate(texts):
        spans = spans_of_sentences(part)
        owners = owners_of([place[1:] if place and place[0] == number else None for place in places], spans)
        found += [(printable(part[slice(*span)], _LONGEST_NAME), _where(owners, at)) for at, span in enumerate(spans)]
    found = [(name, tokens) for name, tokens in found if tokens]
    return found or _refuse(argument, "sentences", "a text with at least one sentence")


def _of_conversation(argument: str, kind: str, read: ReadSide) -> list[tuple[str, list[int]]]:
    """The messages of a conversation, its last answer, or all before that; in a pair of texts, the second is the answer."""
    if isinstance(read.text, tuple) and kind != "messages":
        (_, first), (_, second) = _parts(argument, "texts", read)
        return [(kind, second if kind == "answer" else first)]
    text: Any = read.text
    if not is_messages(text):
        _refuse(argument, kind, "a conversation, as a list of messages" + ("" if kind == "messages" else ", or a pair"))
    roles = [message.role for message in messages_in(text)]
    places = places_of_tokens(read.model, text, read.batch.input_ids[0].tolist()) or ()
    owners = [None if place is None else place[0] for place in places]
    parts = [(f"{role} {number + 1}", _where(owners, number)) for number, role in enumerate(roles)]
    if kind == "messages":
        return [(name, places) for name, places in parts if places]
    answers = [places for role, (_, places) in zip(roles, parts, strict=True) if role == "assistant" and places]
    if not answers:
        _refuse(argument, kind, "a conversation with an answer, that is, a message with the role assistant")
    return [(kind, answers[-1] if kind == "answer" else list(range(answers[-1][0])))]


def _refuse(argument: str, kind: str, expected: str) -> Any:
    raise InputError(f"{argument}={kind!r}: expected {expected}; choose other tokens or spans")


def _where(owners: Sequence[object], owner: object) -> list[int]:
    return [place for place, each in enumerate(owners) if each == owner]


def _grouped(owners: Sequence[int], names: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Regions by number, with their tokens."""
    places: list[list[int]] = [[] for _ in names]
    for place, owner in enumerate(owners):
        if owner >= 0:
            places[owner].append(place)
    return list(zip(names, places, strict=True))


def _image_token(config: Any, tokenizer: Any) -> int | None:
    """The id of the tokens that stand for an image; None if the model has none."""
    known = (getattr(of, name, None) for of in (config, tokenizer) for name in _IMAGE)
    return next((int(each) for each in known if isinstance(each, int)), None)


def _images(ids: Sequence[int], image: int | None) -> list[tuple[str, list[int]]]:
    """The tokens of each image, which are consecutive."""
    runs = [[*run] for found, run in itertools.groupby(range(len(ids)), lambda at: ids[at] == image) if found]
    return [(f"image {number}", run) for number, run in enumerate(runs, start=1)]


def _tokens_of_spans(argument: str, spans: Mapping[str, tuple[int, int]], read: ReadSide) -> dict[str, list[int]]:
    """The tokens of spans, which are spans of characters in a text, and of tokens in ids or where only tokens are known."""
    text = plain_ids(read.text)
    count = len(read.tokens)
    if isinstance(text, str):
        places = [None if place is None else place[1:] for place in _places_in_text(argument, read)]
    else:
        places = [(at, at + 1) for at in range(count)]
    length = len(text) if isinstance(text, str) else count
    found = {}
    for name, (start, end) in spans.items():
        if not 0 <= start < end <= length:
            raise InputError(f"{argument}: expected {name!r} to lie between 0 and {length}, got {start} to {end}")
        found[name] = _where(owners_of(places, [(start, end)]), 0)
        if not found[name]:
            raise InputError(
                f"{argument}: no token has at least half of its characters in {name!r}; extend it to whole words"
            )
    return found


def _places_in_text(argument: str, read: ReadSide) -> list[Place | None]:
    """Where each token lies in what was given; None for special tokens."""
    if not read.model.tokenizer.is_fast:
        raise InputError(
            f"{argument}: expected a fast tokenizer, because only these know where their tokens are in the text"
        )
    places = places_of_tokens(read.model, plain_ids(read.text), read.batch.input_ids[0].tolist())
    if places is None:
        raise InputError(
            f"{argument}: the model's tokenizer does not read this text the way it was tokenized here; pass a plain text"
        )
    return places


def _without_overlap(argument: str, found: Sequence[tuple[str, list[int]]], count: int) -> Partition:
    """The regions by token.

    Raises:
        InputError: If two of them share a token.
    """
    owners = torch.full((count,), -1)
    for number, (name, places) in enumerate(found):
        taken = owners[places]
        if (taken >= 0).any():
            other = found[int(taken.max())][0]
            place = places[int((taken >= 0).nonzero()[0])]
            raise InputError(
                f"{argument}: {printable(other, 40)!r} and {printable(name, 40)!r} overlap at token {place}; expected regions "
                "that share no token"
            )
        owners[places] = number
    return Partition.of(owners[None], len(found), [name for name, _ in found])
