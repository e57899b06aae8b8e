"""Texts from a Python caller as a batch: types are never guessed, and nothing is truncated or dropped."""

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from transformers import BatchEncoding

from normscope.data.batching import Batch, collate
from normscope.data.encoders import prompt_length
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example, Message
from normscope.data.input_files import FORMAT, recording
from normscope.data.options import DatasetKind, DatasetOptions, Level
from normscope.data.token_sequence import TokenSequence
from normscope.data.tokenization import Place, continuation, encoded, owners_of, places_of
from normscope.data.words import NO_WORD, unit_numbers
from normscope.errors import InputError, describe_type, one_line, printable
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.tokenizer_loading import TokenNames
from normscope.rounding import counted
from normscope.untrusted.images import is_image

if TYPE_CHECKING:
    from normscope.data.conversations import Conversation

log = logging.getLogger("normscope")

TEXTS = (
    "a str, a pair (a tuple of two str), a conversation (a list of dicts with role and content), token ids, a list of "
    "these, or a tokenizer's BatchEncoding"
)
"""What texts may be, in words."""

_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})

# Fields of a BatchEncoding that models do not read.
_IGNORED_FIELDS = frozenset({"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"})


def batch_from_texts(model: LoadedModel, texts: object, level: Level = Level.token, *, as_given: bool = False) -> Batch:
    """Tokenize texts into one batch for a model.

    A conversation is written in the tokenizer's chat template, with what precedes an answer unless the assistant's ends it.

    Args:
        model: See `normscope.load`.
        texts: A text (see `normscope.decompose`), a list of these, or a BatchEncoding from the model's tokenizer. An array
            or a tensor of ids may have a row for each text.
        level: Whether the batch comes with the word of each token. Those of a BatchEncoding are its `word_ids`, if it has any.
        as_given: Whether the model's own prompt is left out, because the caller has put one before the texts.

    Raises:
        InputError: If they are anything else, or too long for the model.
    """
    model.require_current()
    if model.reader is not None:
        encoder = Encoder(model, DatasetOptions(kind=model.reader.kind, seed=0), level=level)
        inputs = texts if isinstance(texts, list) else [texts]
        return collate(encoder.encode([example_of(model, each) for each in inputs], CorpusCounts()), encoder)
    texts = texts if model.retrieves else _encoding_of_ids(model, texts)
    if isinstance(texts, BatchEncoding) and not model.retrieves:
        encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0), level=level)
        sequences = _sequences(model, encoder, texts)
        for sequence in sequences:
            if remark := encoder.remark_on(sequence.input_ids):
                say_once(f"texts {remark}")
        return collate(sequences if level is Level.token else _with_units(encoder, texts, sequences), encoder)
    texts = [texts] if is_single(texts) else texts
    if not isinstance(texts, list) or not texts:
        raise InputError("expected at least one text, got none")
    chats = sum(model.retrieves or is_messages(text) or is_image_text(model, text) for text in texts)
    if chats not in (0, len(texts)):
        raise InputError("texts: expected all of them to be conversations, or none; got both")
    examples = [example_of(model, text) for text in texts]
    counts = CorpusCounts()
    options = DatasetOptions(kind=DatasetKind.text, seed=0, chat_template=bool(chats))
    with _in_terms_of_messages():
        encoder = Encoder(model, options, level=level, asks=True, as_given=as_given)
        sequences = encoder.encode(examples, counts)
        if counts.skipped and (chats or model.rule.chat is not None):
            raise InputError(f"messages: {next(iter(counts.skipped))}")
    if counts.cut:
        raise InputError(
            f"{counted(counts.cut, 'text is', 'texts are')} longer than {encoder.max_length} tokens, the limit of {model.name}"
        )
    if len(sequences) != len(examples):
        which = (
            "the text is" if len(examples) == 1 else f"{len(examples) - len(sequences)} of {len(examples)} texts are"
        )
        raise InputError(f"{which} empty after tokenisation")
    _check_images(model, sequences)
    for remark in (model.segments_note, *map("texts {}".format, counts.remarks)):
        say_once(remark)
    return collate(sequences, encoder)


@functools.cache
def say_once(remark: str) -> None:
    """Say what is unusual about texts and how they are read, once."""
    if remark:
        log.warning("%s", remark)


def _with_units(encoder: Encoder, encoding: BatchEncoding, sequences: Sequence[TokenSequence]) -> list[TokenSequence]:
    """The sequences of a BatchEncoding with the unit of each token."""
    masks = _rows(encoding, "attention_mask") if "attention_mask" in encoding else [None] * len(sequences)
    marked = []
    for row, (sequence, mask) in enumerate(zip(sequences, masks, strict=True)):
        units = None
        if encoding.is_fast:
            sides = encoding.sequence_ids(row)
            numbers: dict[tuple[int | None, int], int] = {}
            words = [
                NO_WORD if word is None else numbers.setdefault((side, word), len(numbers))
                for side, word in zip(sides, encoding.word_ids(row), strict=True)
            ]
            units = unit_numbers(words if mask is None else list(itertools.compress(words, mask)))
        marked.append(encoder.with_units(dataclasses.replace(sequence, units=units)))
    return marked


def example_of(model: LoadedModel, text: object) -> Example:
    """One text or one pair as an example.

    Raises:
        InputError: If it is anything else, even if it looks like one.
    """
    if model.reader is not None:
        return _input_of(model, text)
    if model.retrieves:
        return _page_or_query(model, text)
    if is_messages(text):
        return Example("", messages=messages_in(text))
    if is_image_text(model, text):
        messages = messages_in(_asked(text))
        return Example(messages[0].content, messages=messages)
    text = plain_ids(text)
    if model.image_texts is not None and not isinstance(text, str) and is_image(text):
        raise InputError(f"{model.name} reads an image with a text: expected (image, text), got only the image")
    if is_ids(text):
        if not isinstance(model.tokenizer, TokenNames):
            raise InputError(
                "texts: expected texts, because the model has a tokenizer, got token ids; pass texts or a BatchEncoding"
            )
        text = model.tokenizer.text_of([int(each) for each in text])
    first, *second = parts_of(text)
    if not second and model.facts.reads_target:
        raise InputError(f"{model.name} needs a source and a target: pass a pair (tuple) of texts; got one text")
    if second and model.translates and not model.facts.reads_target:
        raise InputError(f"the encoder of {model.name} reads one text, not a pair; leave the translation out")
    return Example(first, second[0] if second else None)


def _page_or_query(model: LoadedModel, given: Any) -> Example:
    """The image of a page, or a query, as what a user says."""
    if not isinstance(given, str) and not is_image(given):
        raise InputError(
            f"{model.name} reads a page (an image) or a query (a text) by itself, got {describe_type(given)}; "
            "normscope.similarity compares the two"
        )
    page = is_image(given)
    if not page:
        require_unicode(given)
        if not given.strip():
            raise InputError("expected a query with at least one word, got an empty text")
    said = Message("user", "" if page else given, (), (given,) if page else ())
    return Example(said.content, messages=(said,))


def _input_of(model: LoadedModel, given: object) -> Example:
    """An image or a sound as an example; for a decoder that reads texts, with its transcript."""
    if not model.facts.reads_target:
        return Example("input", given=given)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str) and given[1].strip():
        return Example("input", given[1], given=given[0])
    if isinstance(given, dict):
        return recording(given, "texts")
    raise InputError(
        f"texts: {model.name} needs a recording and its transcript: pass a pair (tuple), or a dict such as {FORMAT}; got "
        f"{describe_type(given)}"
    )


def is_single(text: object) -> bool:
    """Whether a value stands for one text, and not for a list of texts."""
    text = plain_ids(text)
    return not isinstance(text, list) or is_ids(text) or is_messages(text)


def plain_ids(texts: object) -> object:
    """Arrays and tensors of ids as lists: of one text, or of several if there are several rows; anything else as it is."""
    if isinstance(texts, list) and any(isinstance(each, Tensor | np.ndarray) for each in texts):
        return [plain_ids(each) for each in texts]
    if not isinstance(texts, Tensor | np.ndarray):
        return texts
    whole = texts.dtype in _WHOLE if isinstance(texts, Tensor) else texts.dtype.kind in "iu"
    if not whole or texts.ndim not in (1, 2):
        return texts
    rows: list[Any] = texts.tolist()
    return rows[0] if texts.ndim == 2 and len(rows) == 1 else rows


def _encoding_of_ids(model: LoadedModel, texts: object) -> object:
    """Token ids for a model with a tokenizer as a BatchEncoding; anything else as it is.

    Raises:
        InputError: If some of the ids may be padding, which only an attention mask can tell.
    """
    texts = plain_ids(texts)
    rows: list[Any] = [texts] if is_ids(texts) else texts if isinstance(texts, list) else []
    if isinstance(model.tokenizer, TokenNames) or not rows or not all(map(is_ids, rows)):
        return texts
    padding = model.tokenizer.pad_token_id
    if padding is not None and any(row[-1] == padding for row in rows) and padding != model.tokenizer.eos_token_id:
        raise InputError(
            f"texts: the ids end in padding ({printable(str(model.tokenizer.pad_token), 40)}); pass the tokenizer's "
            "BatchEncoding, whose attention_mask says which tokens are padding, or ids without it"
        )
    return BatchEncoding({"input_ids": rows})


def is_image_text(model: LoadedModel, text: object) -> bool:
    """Whether a text is given as a pair of an image, or a list of images, and a question.

    Raises:
        InputError: If it is, and the model reads texts alone.
    """
    of_texts = model.reader is None or model.image_texts is not None
    if not of_texts or not isinstance(text, tuple) or len(text) != 2 or not isinstance(text[1], str):
        return False
    images = text[0] if isinstance(text[0], list) else [text[0]]
    if not images or not all(map(is_image, images)):
        return False
    if all(isinstance(image, str) for image in images) and model.image_texts is None:  # a pair of texts
        return False
    if model.image_texts is None:
        raise InputError(
            f"{model.name} reads texts, not images; wrap a vision–language model with its processor, or load its folder with "
            "preprocessor_config.json"
        )
    return True


def _asked(text: Any) -> list[dict[str, Any]]:
    """A pair of an image, or several, and a question as a conversation."""
    images, question = text
    images = images if isinstance(images, list) else [images]
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]


def _check_images(model: LoadedModel, sequences: Sequence[TokenSequence]) -> None:
    """Check that no text has a token that stands for an image but no image."""
    tokens = frozenset[int]() if model.image_texts is None else model.image_texts.tokens
    for sequence in sequences:
        alone = sorted(tokens.intersection(sequence.input_ids.tolist()))
        if alone and sequence.own is None:
            token = model.tokenizer.convert_ids_to_tokens(alone)[0]
            raise InputError(
                f"the text has {token}, which stands for an image, but there is no image; pass (image, text)"
            )


def is_messages(text: object) -> TypeGuard[list[dict[str, str]]]:
    """Whether a text is given as the messages of a conversation."""
    return isinstance(text, list) and bool(text) and all(isinstance(each, dict) for each in text)


def messages_in(text: list[dict[str, str]]) -> tuple[Message, ...]:
    """The messages of a conversation.

    Raises:
        InputError: If one is anything but a role and a content, or all are empty.
    """
    from normscope.data.conversations import messages_of

    with _in_terms_of_messages():
        messages = messages_of(text, "a conversation")
    if isinstance(messages, str):
        raise InputError(f"messages: expected text in each of them, got: {messages}")
    return messages


def roles_of(model: LoadedModel, text: list[dict[str, str]]) -> list[str]:
    """The role that says each token of a conversation, as `batch_from_texts` writes it, or `template`."""
    from normscope.data.conversations import tokens_of

    written = _written(model, _as_written(model, text))
    return [written.part_of(message) for message in tokens_of(model.tokenizer, written).messages]


def places_of_tokens(model: LoadedModel, text: Any, ids: Sequence[int]) -> list[Place | None] | None:
    """Where each token of a text lies; None for special tokens, and those of a prompt or a template.

    Args:
        text: A text, a pair of texts, or a conversation.
        ids: Its tokens.

    Returns:
        None if the tokenizer does not know where tokens are, or reads the text in another way than it was tokenized.
    """
    encoding, texts, parts = _read(model, text)
    if encoding.encodings is None or encoding["input_ids"] != list(ids):
        return None
    places: list[Place | None] = [None] * len(ids)
    found = places_of(encoding.encodings[0], texts)
    for number, (side, start, end, lead) in enumerate(parts):
        spans = [None if place is None or place[0] != side else place[1:] for place in found]
        for at, owner in enumerate(owners_of(spans, [(start, end)])):
            span = spans[at]
            if owner is not None and span is not None:
                places[at] = number, max(span[0] - start, 0) + lead, min(span[1], end) - start + lead
    return places


def tokens_after(model: LoadedModel, text: Any, ids: Sequence[int], answer: str) -> list[int]:
    """The tokens of an answer that follows a text: those that both have together, without those of the text.

    If the tokenizer writes the text's own tokens differently with the answer behind it, or the text is not known, those that
    the answer has behind other texts.

    Args:
        text: As in `places_of_tokens`.
        ids: The tokens that the answer follows.
    """
    require_unicode(answer)
    if isinstance(text, str | tuple) or is_messages(text):
        whole = list(_read(model, text, behind=answer)[0]["input_ids"])
        whole = whole if is_messages(text) or model.rule.chat is not None else model.without_ending(whole)
        if whole[: len(ids)] == list(ids):
            return whole[len(ids) :]
        say_once(
            "an answer follows a text whose last token the tokenizer would join with the answer's first characters; it is read "
            "behind the text's own tokens. An answer usually begins with a space, and the text before it ends with none"
        )
    return continuation(model.tokenizer, answer)


def tokens_of_prompt(model: LoadedModel, ids: Sequence[int]) -> int:
    """How many tokens the model's own prompt takes at the beginning of a text; 0 of tokens that were given without it.

    The prompt's last token may be joined with the text's first one.
    """
    length = prompt_length(model.tokenizer, model.rule.prompt)
    begins = encoded(model.tokenizer, model.rule.prompt)["input_ids"][: length - 1] if length else [NO_WORD]
    return length if list(ids[: len(begins)]) == begins else 0


def number_of_tokens(model: LoadedModel, text: Any) -> int:
    """The number of tokens of a text, a pair or a conversation, however long it is."""
    return len(_read(model, text)[0]["input_ids"])


def _read(
    model: LoadedModel, text: Any, behind: str = ""
) -> tuple[BatchEncoding, list[str], list[tuple[int, int, int, int]]]:
    """A text, a pair or a conversation as a tokenizer reads it, with more text behind it.

    Returns:
        The tokens; the texts that the tokenizer has read; and where what was given lies in these: in which text, between which
        characters, and how many characters a template has stripped before it.
    """
    example = _as_written(model, text)
    if example.messages is not None:
        written = _written(model, example)
        parts = [
            (0, start, end, (len(said) - len(said.lstrip())) * (end - start < len(said)))
            for (start, end), said in zip(written.messages, [each.content for each in example.messages], strict=True)
        ]
        given = len(text) if isinstance(text, list | tuple) else 1  # without what the system says to a reranker
        texts = [written.text + behind]
        return encoded(model.tokenizer, *texts, special=False), texts, parts[-given:]
    texts = [example.text] if example.text_pair is None else [example.text, example.text_pair]
    before = len(example.text) - len(text if isinstance(text, str) else text[0])
    parts = [(side, 0 if side else before, len(each), 0) for side, each in enumerate(texts)]
    texts[-1] += behind
    return encoded(model.tokenizer, *texts), texts, parts


def _as_written(model: LoadedModel, text: Any) -> Example:
    """A text, a pair or a conversation as the model's own rule writes it."""
    if is_image_text(model, text):
        text = _asked(text)
    if is_messages(text):
        return model.rule.applied(Example("", messages=messages_in(text)))
    first, *second = parts_of(text)
    return model.rule.applied(Example(first, second[0] if second else None))


def _written(model: LoadedModel, example: Example) -> "Conversation":
    """A conversation in its template."""
    from normscope.data.conversations import awaits_answer, conversation, template_of

    messages = [message._replace(parts=()) for message in example.messages or ()]
    with _in_terms_of_messages():
        template = template_of(model.tokenizer, model.name, model.rule.chat)
        in_parts = model.image_texts is not None
        written = conversation(template, messages, prompt=awaits_answer(messages), in_parts=in_parts)
    if isinstance(written, str):
        raise InputError(f"messages: {written}")
    return written


@contextlib.contextmanager
def _in_terms_of_messages() -> Iterator[None]:
    """Errors that name the argument instead of the key of conversations in a corpus."""
    try:
        yield
    except InputError as error:
        told = str(error).replace("dataset.chat_template=true", "messages")
        raise InputError(told.replace(" (dataset.chat_template)", "")) from error.__cause__


def is_ids(text: object) -> TypeGuard[list[int]]:
    """Whether a text is given as a list of token ids."""
    return (
        isinstance(text, list)
        and bool(text)
        and all(issubclass(kind, int | np.integer) and kind is not bool for kind in {*map(type, text)})
    )


def parts_of(text: object) -> tuple[str, ...]:
    """The text, or the two texts of a pair.

    Raises:
        InputError: If it is neither, even if it looks like one.
    """
    pair = text if isinstance(text, tuple) else (text,)
    if len(pair) != (2 if isinstance(text, tuple) else 1) or not all(isinstance(part, str) for part in pair):
        raise InputError(f"expected {TEXTS}; got {describe_type(text)}")
    for part in pair:
        require_unicode(part)
    return pair


def require_unicode(text: str) -> None:
    """Check that tokenizers can read a text.

    Raises:
        InputError: If it has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"expected valid Unicode, got a text with a lone surrogate: {one_line(error)}") from error


def _sequences(model: LoadedModel, encoder: Encoder, encoding: BatchEncoding) -> list[TokenSequence]:
    """The sequences of a BatchEncoding, without their padding."""
    if model.facts.reads_target:
        raise InputError(
            f"{model.name} needs source and target, but a BatchEncoding has no target; pass pairs of texts"
        )
    unknown = sorted(set(encoding) - _IGNORED_FIELDS - {"input_ids", "attention_mask", "token_type_ids"})
    if unknown or "input_ids" not in encoding:
        fault = f"has {unknown[0]}" if unknown else "has no input_ids"
        raise InputError(
            f"the BatchEncoding {fault}; expected input_ids and, optionally, attention_mask and token_type_ids"
        )
    ids = _rows(encoding, "input_ids")
    token_mask = _rows(encoding, "attention_mask") if "attention_mask" in encoding else [[1] * len(row) for row in ids]
    types = _rows(encoding, "token_type_ids") if "token_type_ids" in encoding else [[0] * len(row) for row in ids]
    for name, rows in (("attention_mask", token_mask), ("token_type_ids", types)):
        if [len(row) for row in rows] != [len(row) for row in ids]:
            raise InputError(f"expected the BatchEncoding's {name} to have the shape of its input_ids")
    sequences = []
    for row_ids, row_mask, row_types in zip(ids, token_mask, types, strict=True):
        tokens = np.asarray(row_ids, dtype=np.int64)[np.asarray(row_mask, dtype=bool)]
        if not len(tokens):
            raise InputError("expected at least one token per text, got a BatchEncoding with a text that has none")
        if not set(row_mask) <= {0, 1} or 0 in row_mask[row_mask.index(1) : len(row_mask) - row_mask[::-1].index(1)]:
            raise InputError(
                "expected the BatchEncoding's attention_mask to be 0 at padding, before or behind a text, and 1 at its tokens; "
                "to leave out tokens inside it, pass the text without them"
            )
        if encoder.max_length is not None and len(tokens) > encoder.max_length:
            raise InputError(f"a text is longer than {encoder.max_length} tokens, the limit of {model.name}")
        if tokens.min() < 0 or tokens.max() >= model.vocabulary:
            raise InputError(
                f"the BatchEncoding's input_ids are from another tokenizer: expected 0 to {model.vocabulary - 1}, got "
                f"{tokens.min()} to {tokens.max()}"
            )
        of_tokens = np.asarray(row_types, dtype=np.int64)[np.asarray(row_mask, dtype=bool)]
        sequences.append(TokenSequence(tokens, _token_types(model, of_tokens, given="token_type_ids" in encoding)))
    if not sequences:
        raise InputError("expected at least one text, got none")
    return sequences


def _token_types(model: LoadedModel, types: np.ndarray, *, given: bool) -> np.ndarray | None:
    """The `token_type_ids` of a text that the model reads: those that were given, whatever it makes of them; zeros if it has a
    table of segments and none were given; None if it takes none.

    Raises:
        InputError: If the model cannot look up those that were given.
    """
    known = model.token_types
    if known is None or not (given or known.segments):
        return None
    if known.number is not None and not 0 <= types.min() <= types.max() < known.number:
        raise InputError(
            f"the BatchEncoding's token_type_ids: expected 0 to {known.number - 1}, got {types.min()} to {types.max()}"
        )
    return types


def _rows(encoding: BatchEncoding, name: str) -> list[list[int]]:
    """A field of a BatchEncoding as one list per text, from a list, array or tensor of one text or several."""
    try:
        rows = [np.asarray(row) for row in encoding[name]]
        rows = [np.stack(rows)] if rows and rows[0].ndim == 0 else rows
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"expected the BatchEncoding's {name} to be lists of integers: {one_line(error)}") from error
    if any(row.ndim != 1 or (row.size and row.dtype.kind not in "iub") for row in rows):
        raise InputError(f"expected the BatchEncoding's {name} to be lists of integers, one list per text")
    return [row.tolist() for row in rows]
