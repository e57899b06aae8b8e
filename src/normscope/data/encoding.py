"""Examples to token sequences, as the options of the data set say."""

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np

from normscope.data.categories import CONVERSATION_PARTS, IMAGE, TokenCategories
from normscope.data.encoders import (
    NO_PROMPTS,
    ComparedPairs,
    ExampleEncoder,
    OwnInputs,
    Prompts,
    Texts,
    Transcripts,
    TranslatedTexts,
)
from normscope.data.examples import AS_GIVEN, CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions, Level, Segmentation, Segments
from normscope.data.token_sequence import Batching, ReadsTokens, Segmenter, Sequences, TokenSequence
from normscope.data.tokenization import encoded
from normscope.data.units import Units
from normscope.data.words import token_words
from normscope.errors import InputError

# More characters than the tokens of any natural text have on average.
_CHARACTERS_PER_TOKEN = 1000


class Encoder:
    """Turns examples into token sequences.

    Args:
        model: Provides the tokenizer and the default maximum length.
        options: Maximum length, masking, windows and categories.
        words: Splits translations into words, if tokens must be assigned to words.
        values: The values of the column that `dataset.categories` names, if it does; see `annotation.column_values`.
        separate: Whether the texts of a pair are sequences of their own, instead of one sequence.
        level: Whether sequences come with the word of each token, so that words can be measured.
        asks: See `Conversations`.
        prompts: What is put before the texts of a pair, if these are sequences of their own.
        as_given: Whether nothing is put before texts, whatever the model's rule is.

    Raises:
        InputError: If an option is invalid for the model.
    """

    def __init__(
        self,
        model: ReadsTokens,
        options: DatasetOptions,
        words: Segmenter | None = None,
        values: Sequence[str] = (),
        *,
        separate: bool = False,
        level: Level = Level.token,
        asks: bool = False,
        prompts: Prompts = NO_PROMPTS,
        as_given: bool = False,
    ) -> None:
        self.tokenizer = model.tokenizer
        chat = options.chat_template or (not (separate or as_given) and model.rule.chat is not None)
        with_images = chat and model.image_texts is not None
        self.batching = Batching.SINGLE if with_images else model.batching
        """Which texts may be in one batch."""
        self.level = level
        """Whether sequences come with the word of each token."""
        self._rule = AS_GIVEN if separate or as_given else model.rule
        column = options.categories if isinstance(options.categories, str) else None
        of_tokens = values if model.reader is None else model.reader.categories
        self.categories = TokenCategories.of(
            model.tokenizer,
            model.vocabulary,
            None if isinstance(options.categories, str) else options.categories,
            causal=model.causal,
            column=(*CONVERSATION_PARTS, *([IMAGE] if with_images else [])) if chat else of_tokens,
        )
        if with_images and model.image_texts is not None:  # no text has these tokens, so none is masked or erased
            special = self.categories.special | model.image_texts.tokens
            self.categories = dataclasses.replace(self.categories, special=special)
        longest = options.max_length or model.max_length
        _check(model, options, longest, separate=separate)
        self.is_cross_attention = model.is_cross_attention
        """Whether queries attend to the source."""
        self.separate = separate
        """Whether the texts of a pair are sequences of their own."""
        self._prompts = prompts
        self._decodes = model.decoder_inputs is not None
        self._windows = options.segmentation is Segmentation.window
        # WikiText writes unknown words as <unk>; they become the tokenizer's unknown token.
        self._unknown = str(model.tokenizer.unk_token or "") if options.wikitext else None
        self._sequences = Sequences(
            model.tokenizer,
            self.categories,
            longest,
            options.mask_fraction,
            options.seed,
            segments=model.takes_segments,
            second_segment=1 if options.segments is Segments.pair else 0,
        )
        self._units = Units(model.tokenizer, model.name)
        self._kind = self._conversations(model, asks) if chat else self._of_kind(model, options, words, column)

    def _conversations(self, model: ReadsTokens, asks: bool) -> ExampleEncoder:
        if self.separate or self._decodes:
            raise InputError(
                "dataset.chat_template=true: expected analyses of single texts, got one that compares the texts of pairs "
                "or the decoder of an encoder–decoder; leave one of the two out"
            )
        from normscope.data.conversations import Conversations, template_of

        reader = model.image_texts
        needs_template = reader is None or (model.tokenizer.chat_template and not reader.alone)
        template = template_of(model.tokenizer, model.name, self._rule.chat) if needs_template else None
        return Conversations(self._sequences, template, asks, reader)

    def _of_kind(
        self, model: ReadsTokens, options: DatasetOptions, words: Segmenter | None, column: str | None
    ) -> ExampleEncoder:
        sequences, in_words = self._sequences, self.level is Level.word
        if model.reader is not None and model.decoder_inputs is not None:
            return Transcripts(sequences, model.reader, model.decoder_inputs)
        if model.reader is not None:
            return OwnInputs(sequences, model.reader)
        if model.decoder_inputs is not None and not self.separate:
            return TranslatedTexts(sequences, model.decoder_inputs, model.name, words)
        units, stride = self._units if in_words else None, options.stride if self._windows else None
        if self.separate:
            return ComparedPairs(sequences, units, column, stride, model.translates, self._prompts)
        return Texts(sequences, units, column, stride, model.translates)

    def categories_of(self, sequence: TokenSequence) -> np.ndarray:
        """The category of each token of one side of a sequence. Frames that a decoder attends to have no ids of its texts."""
        if sequence.own is not None and sequence.inherited is not None and self._decodes:
            return sequence.inherited
        return self.categories.of_sequence(sequence.input_ids, sequence.inherited)

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens in a sequence; None if unlimited."""
        return self._sequences.max_length

    @property
    def token_kinds(self) -> np.ndarray:
        """See `Sequences.token_kinds`."""
        return self._sequences.token_kinds

    def remark_on(self, input_ids: np.ndarray) -> str:
        """See `Sequences.repeated_end`."""
        return self._sequences.repeated_end(input_ids)

    @property
    def first_token(self) -> int | None:
        """Id of the token that begins a sequence, whether or not the tokenizer adds it; None if it has none.

        A decoder that follows an encoder begins with a token of its own, which is no different from the others here.
        """
        if self._decodes:
            return None
        tokenizer = self.tokenizer
        first: int | None = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        return first

    def unmasked(self) -> "Encoder":
        """The same encoder without masking."""
        copied = self._copied(mask_fraction=0.0)
        copied._kind = self._kind.changed(copied._sequences)
        return copied

    def in_words(self, segmenter: Segmenter) -> "Encoder":
        """The same encoder of translations, which also gives the word of each token; sides that are too long are truncated."""
        assert isinstance(self._kind, TranslatedTexts)
        copied = self._copied()
        copied._kind = self._kind.in_words(segmenter)
        return copied

    def answered(self, pair: Example) -> tuple[TokenSequence, int] | None:
        """A text and its answer, joined by a space, with the number of the answer's tokens; no token follows the answer.

        None if either has no tokens, or together they are too long.
        """
        text = f"{pair.text} {pair.text_pair}"
        spans = [(0, len(pair.text)), (len(pair.text) + 1, len(text))]
        ids, words, _, segments = token_words(self.tokenizer, text, spans, segments=self._sequences.segments)
        places = np.flatnonzero(words == 1)
        if not len(places) or places[0] == 0 or (self.max_length is not None and places[-1] >= self.max_length):
            return None
        end = places[-1] + 1
        sequence = self._sequences.made(ids[:end], None if segments is None else segments[:end])
        if self.level is Level.word:
            sequence = self._units.completed(sequence)
        return sequence, int(places[-1] - places[0]) + 1

    def windowed(self, length: int) -> "Encoder":
        """The same encoder without masking, windows or words, which truncates every text to `length` tokens."""
        longest = length if self.max_length is None else min(length, self.max_length)
        copied = self._copied(mask_fraction=0.0, max_length=longest)
        copied._kind, copied._windows = self._kind.whole(copied._sequences), False
        return copied

    def _copied(self, **changes: object) -> "Encoder":
        copied = copy.copy(self)
        copied._sequences = dataclasses.replace(self._sequences, **changes)  # type: ignore[arg-type]
        return copied

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Token sequences of examples, in order. Truncated examples are counted, and skipped ones by reason."""
        if self._unknown is not None:
            examples = [_with_unknown(example, self._unknown) for example in examples]
        examples = [self._rule.applied(example) for example in examples]
        sequences = self._kind.encode([self._shortened(example) for example in examples], counts)
        return sequences if self.level is Level.token else [self._units.completed(sequence) for sequence in sequences]

    def with_units(self, sequence: TokenSequence) -> TokenSequence:
        """A sequence with the unit of each token.

        Raises:
            InputError: If the tokenizer does not show where words begin.
        """
        return self._units.completed(sequence)

    def masked(self, input_ids: np.ndarray, fraction: float) -> np.ndarray:
        """See `Sequences.masked`."""
        return self._sequences.masked(input_ids, fraction)

    def _shortened(self, example: Example) -> Example:
        """The example, with texts cut that are far too long: a tokenizer needs half a minute for ten megabytes."""
        if self.max_length is None or (self._windows and example.text_pair is None):
            return example
        longest = self.max_length * _CHARACTERS_PER_TOKEN
        if max(len(example.text), len(example.text_pair or "")) <= longest:
            return example
        texts = (example.text, example.text_pair or "")
        # The longer text of a pair stays the longer one, since that decides which of the two keeps an odd token.
        shorter = longest if example.text_pair is None or len(texts[0]) == len(texts[1]) else longest * 2 // 3
        lengths = [longest if len(text) == max(map(len, texts)) else shorter for text in texts]
        parts = [
            text[-length:] if self._sequences.cuts_beginnings else text[:length]
            for text, length in zip(texts, lengths, strict=True)
        ]
        pair = None if example.text_pair is None else parts[1]
        return dataclasses.replace(example, text=parts[0], text_pair=pair, shortened=True)


def _with_unknown(example: Example, unknown: str) -> Example:
    pair = example.text_pair and example.text_pair.replace("<unk>", unknown)
    return dataclasses.replace(example, text=example.text.replace("<unk>", unknown), text_pair=pair)


def _check(model: ReadsTokens, options: DatasetOptions, longest: int | None, *, separate: bool) -> None:
    given = options.kind if options.kind in (DatasetKind.images, DatasetKind.audio) else None
    if given is not (None if model.reader is None else model.reader.kind):
        reads, expected = ("texts", "text") if model.reader is None else (model.reader.kind, model.reader.kind)
        other = "" if model.tower is None else f", or model.tower={'image' if given is DatasetKind.images else 'text'}"
        raise InputError(
            f"dataset={options.kind}: {model.name} reads {reads}; set dataset={expected} and dataset.path{other}"
        )
    if model.max_length is not None and longest is not None and longest > model.max_length:
        raise InputError(
            f"dataset.max_length={options.max_length}: expected at most {model.max_length}, the maximum of {model.name}"
        )
    if options.mask_fraction > 0 and model.tokenizer.mask_token_id is None:
        raise InputError(
            f"dataset.mask_fraction={options.mask_fraction}: the tokenizer of {model.name} has no mask token"
        )
    if options.mask_fraction > 0 and model.decoder_inputs is not None:
        raise InputError(
            f"dataset.mask_fraction={options.mask_fraction}: expected an encoder; leave it out with "
            "model.stack=decoder or cross"
        )
    if separate and options.segmentation is Segmentation.window:
        raise InputError(
            "dataset.segmentation=window: expected whole texts, since an analysis compares the texts of pairs; leave it out"
        )
    if options.segmentation is Segmentation.window:
        _check_windows(model, options, longest)


def _check_windows(model: ReadsTokens, options: DatasetOptions, longest: int | None) -> None:
    if longest is None:
        raise InputError(f"dataset.segmentation=window: {model.name} has no maximum length; set dataset.max_length")
    added = len(encoded(model.tokenizer, "")["input_ids"])
    if not 0 <= options.stride < longest - added:
        raise InputError(
            f"dataset.stride={options.stride}: expected 0 to {longest - added - 1}, less than a window's tokens"
        )
    if not model.tokenizer.is_fast:
        raise InputError(f"dataset.segmentation=window: expected a fast tokenizer, which {model.name} does not have")
