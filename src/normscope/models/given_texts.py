"""Texts that a Python user gives, as a batch: nothing is guessed, and nothing is left out."""

import numpy as np
from transformers import BatchEncoding

from normscope.config.schema import DatasetKind, DatasetOptions
from normscope.data.batching import Batch, collate
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.token_sequence import TokenSequence
from normscope.errors import InputError, one_line
from normscope.models.loaded import LoadedModel

Text = str | tuple[str, str]

_EXPECTED = "expected a str, a pair (tuple) of two str, a list of these, or a tokenizer's BatchEncoding"

# What tokenizers say of their tokens that models do not read.
_NOT_READ = frozenset({"special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"})


def batch_of(model: LoadedModel, texts: object) -> Batch:
    """The batch that a model reads of some texts.

    Args:
        model: See `decomposition.load`.
        texts: A str, a pair (tuple) of two, a list of these, or a BatchEncoding of the model's tokenizer.

    Raises:
        InputError: If it is anything else, or the model cannot read all of it.
    """
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0))
    if isinstance(texts, BatchEncoding):
        return collate(_sequences(model, encoder, texts), encoder)
    listed = texts if isinstance(texts, list) else [texts]
    if not listed:
        raise InputError("no text was given")
    examples = [_example(model, text) for text in listed]
    counts = CorpusCounts()
    sequences = encoder.encode(examples, counts)
    if counts.cut:
        raise InputError(f"{counts.cut} texts are longer than the {encoder.max_length} tokens that {model.name} takes")
    if len(sequences) != len(examples):
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.skipped.items())
        raise InputError(f"{len(examples) - len(sequences)} of {len(examples)} texts cannot be read: {reasons}")
    return collate(sequences, encoder)


def described(given: object) -> str:
    """What was given, for messages."""
    if isinstance(given, tuple | list):
        kinds = ", ".join(type(part).__name__ for part in given[:3])
        return f"a {type(given).__name__} of {len(given)} ({kinds}{', ...' if len(given) > 3 else ''})"
    return f"{type(given).__name__}"


def _example(model: LoadedModel, text: object) -> Example:
    """One text or one pair, and nothing that merely looks like it."""
    pair = text if isinstance(text, tuple) else (text,)
    if len(pair) not in (1, 2) or (len(pair) == 1 and isinstance(text, tuple)):
        raise InputError(f"{_EXPECTED}; got {described(text)}")
    for part in pair:
        if not isinstance(part, str):
            raise InputError(f"{_EXPECTED}; got {described(text)}")
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"a text holds a character that is half of one: {one_line(error)}") from error
    if len(pair) == 2 and model.translates and not model.layout.reads_target:
        raise InputError(f"what is observed of {model.name} reads one text, not a pair: leave the translation out")
    return Example(*pair)


def _sequences(model: LoadedModel, encoder: Encoder, encoding: BatchEncoding) -> list[TokenSequence]:
    """The sequences of a BatchEncoding, without their padding."""
    if model.layout.reads_target:
        raise InputError(f"a BatchEncoding holds no target for {model.name}: give pairs of texts")
    unknown = sorted(set(encoding) - _NOT_READ - {"input_ids", "attention_mask", "token_type_ids"})
    if unknown or "input_ids" not in encoding:
        wrong = f"has {unknown[0]}" if unknown else "has no input_ids"
        raise InputError(
            f"the BatchEncoding {wrong}; expected input_ids, and attention_mask and token_type_ids at most"
        )
    ids = _rows(encoding, "input_ids")
    token_mask = _rows(encoding, "attention_mask") if "attention_mask" in encoding else [[1] * len(row) for row in ids]
    segments = _rows(encoding, "token_type_ids") if "token_type_ids" in encoding else [[0] * len(row) for row in ids]
    for name, rows in (("attention_mask", token_mask), ("token_type_ids", segments)):
        if [len(row) for row in rows] != [len(row) for row in ids]:
            raise InputError(f"the BatchEncoding's {name} is of another shape than its input_ids")
    sequences = []
    for row_ids, row_real, row_segments in zip(ids, token_mask, segments, strict=True):
        tokens = np.asarray(row_ids, dtype=np.int64)[np.asarray(row_real, dtype=bool)]
        if not len(tokens):
            raise InputError("the BatchEncoding has a text without tokens")
        if encoder.max_length is not None and len(tokens) > encoder.max_length:
            raise InputError(f"a text is longer than the {encoder.max_length} tokens that {model.name} takes")
        if tokens.min() < 0 or tokens.max() >= model.vocabulary:
            raise InputError(
                f"the BatchEncoding's input_ids are of another tokenizer: expected 0 to {model.vocabulary - 1}, got "
                f"{tokens.min()} to {tokens.max()}"
            )
        kinds = np.asarray(row_segments, dtype=np.int64)[np.asarray(row_real, dtype=bool)]
        sequences.append(TokenSequence(tokens, kinds if model.takes_segments else None))
    if not sequences:
        raise InputError("no text was given")
    return sequences


def _rows(encoding: BatchEncoding, name: str) -> list[list[int]]:
    """A field of a BatchEncoding as rows, whether it is of one text or of several, a list, an array or a tensor."""
    try:
        rows = [np.asarray(row) for row in encoding[name]]
        rows = [np.stack(rows)] if rows and rows[0].ndim == 0 else rows
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"the BatchEncoding's {name} are no lists of numbers: {one_line(error)}") from error
    if any(row.ndim != 1 or (row.size and row.dtype.kind not in "iub") for row in rows):
        raise InputError(f"the BatchEncoding's {name} are no lists of whole numbers, one for each text")
    return [row.tolist() for row in rows]
