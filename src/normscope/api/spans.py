"""Named parts of a text, whose scores are added up."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import describe_type, is_ids, is_messages, roles_of

REST = "rest"
"""The tokens that are in no span."""

PAIR = "first text", "second text"
"""The spans of a pair of texts."""

OTHER_PAIR = "first text of the other", "second text of the other"
"""The spans of the pair that it is compared with, where their texts differ."""


def owners_of_tokens(
    model: LoadedModel, text: object, batch: Batch, spans: Mapping[str, tuple[int, int]] | None
) -> list[str] | None:
    """The span of every token of a text: what was asked for, a conversation's role, or a text of a pair.

    Args:
        text: A text, a pair of texts, a conversation, or a list of token ids.
        batch: The same as a batch of one.
        spans: See `attribute`.

    Returns:
        Names of spans, or `REST`; None without spans.

    Raises:
        InputError: If a span is empty, leaves the text or overlaps another, or its tokens cannot be found.
    """
    if is_messages(text):
        if spans is not None:
            raise InputError("spans: a conversation's spans are its roles; leave out spans")
        return roles_of(model, text)
    if spans is None:
        return _texts_of_pair(model, text, batch)
    return span_of_tokens(model, text, batch, spans)


def _texts_of_pair(model: LoadedModel, text: object, batch: Batch) -> list[str] | None:
    """The text of a pair that each token belongs to; None for anything else, or if the tokenizer does not tell."""
    if not isinstance(text, tuple) or not model.tokenizer.is_fast:
        return None
    encoding = model.tokenizer(*text)
    if list(encoding["input_ids"]) != batch.input_ids[0].tolist():
        return None
    return [REST if place is None else PAIR[place] for place in encoding.sequence_ids()]


def span_of_tokens(model: LoadedModel, text: object, batch: Batch, spans: Mapping[str, tuple[int, int]]) -> list[str]:
    """The span of every token of a text, or `REST`.

    Args:
        text: A text, or a list of token ids.
        batch: The same as a batch of one.
        spans: See `attribute`.

    Raises:
        InputError: If a span is empty, leaves the text or overlaps another, or its tokens cannot be found.
    """
    length = _length(text)
    for name, span in spans.items():
        if not (isinstance(span, tuple | list) and len(span) == 2 and all(type(end) is int for end in span)):
            raise InputError(f"spans: expected a start and an end for {name!r}, got {str(span)[:80]}")
    ordered = sorted((start, end, name) for name, (start, end) in spans.items())
    for start, end, name in ordered:
        if not 0 <= start < end <= length:
            raise InputError(f"spans: expected {name!r} to lie between 0 and {length}, got {start} to {end}")
    for (_, end, name), (start, _, other) in itertools.pairwise(ordered):
        if start < end:
            raise InputError(f"spans: {name!r} and {other!r} overlap at {start}; expected spans that do not overlap")
    if REST in spans:
        raise InputError(f"spans: {REST!r} is the name for tokens outside all spans; choose another")
    owners = [
        next((name for start, end, name in ordered if place is not None and start <= place < end), REST)
        for place in _places(model, text, batch)
    ]
    empty = [name for name in spans if name not in owners]
    if empty:
        raise InputError(f"spans: no token starts in {empty[0]!r}; extend it to whole words")
    return owners


def sums_of_spans(scores: Float[np.ndarray, " token"], owners: Sequence[str]) -> dict[str, float]:
    """The sum of the scores in each span, in the order of the text, and last in the rest, if there is one."""
    names = sorted(dict.fromkeys(owners), key=lambda name: name == REST)
    return {
        name: float(sum(score for score, owner in zip(scores, owners, strict=True) if owner == name)) for name in names
    }


def _length(text: object) -> int:
    if isinstance(text, str) or is_ids(text):
        return len(text)
    raise InputError(f"spans: expected a single text, or a list of token ids, got {describe_type(text)}")


def _places(model: LoadedModel, text: object, batch: Batch) -> list[int | None]:
    """The character at which each token begins; None for special tokens. For a text of ids, the number of the token."""
    ids = batch.input_ids[0].tolist()
    if not isinstance(text, str):
        return list(range(len(ids)))
    if not model.tokenizer.is_fast:
        raise InputError("spans: expected a fast tokenizer, because only these know where their tokens are in the text")
    encoding = model.tokenizer(text, return_offsets_mapping=True)
    if list(encoding["input_ids"]) != ids:
        raise InputError(
            "spans: the model's tokenizer does not read this text the way it was tokenized here; pass a plain text"
        )
    return [
        None if start == end else start + len(text[start:end]) - len(text[start:end].lstrip())
        for start, end in encoding["offset_mapping"]
    ]
