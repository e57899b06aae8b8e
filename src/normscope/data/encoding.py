"""Examples to token ids, optionally with some of them masked."""

import copy
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from transformers.tokenization_utils_base import BatchEncoding

from normscope.data.categories import TokenCategories
from normscope.data.chat_templates import ChatTemplate
from normscope.data.conversations import PARTS, conversation, template_of, tokens_of
from normscope.data.corpus_memory import SequenceMemory
from normscope.data.examples import Annotation, CorpusCounts, Example
from normscope.data.options import Compat, DatasetOptions, Level, Segmentation, Segments
from normscope.data.token_sequence import AnnotatedSentence, ReadsTokens, Segmenter, TokenSequence
from normscope.data.translations import Translations
from normscope.data.words import mark_of, marked_words, token_words, unit_numbers, written_words
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
    ) -> None:
        self.tokenizer, self._name = model.tokenizer, model.name
        self.level = level
        """Whether sequences come with the word of each token."""
        self._column = options.categories if isinstance(options.categories, str) else None
        self._template = _template(model, separate=separate) if options.chat_template else None
        self.categories = TokenCategories.of(
            model.tokenizer,
            model.vocabulary,
            None if self._column is not None else options.categories,
            causal=model.causal,
            column=PARTS if options.chat_template else values,
        )
        self.max_length = options.max_length or model.max_length
        if model.max_length is not None and self.max_length is not None and self.max_length > model.max_length:
            raise InputError(
                f"dataset.max_length={options.max_length}: expected at most {model.max_length}, the maximum of "
                f"{model.name}"
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
        self.is_cross_attention = model.is_cross_attention
        """Whether queries attend to the source."""
        self._translates = model.translates
        self._translations = None if model.decoder_inputs is None else Translations(model, self.max_length, words)
        self.separate = separate
        """Whether the texts of a pair are sequences of their own."""
        if separate and options.segmentation is Segmentation.window:
            raise InputError(
                "dataset.segmentation=window: expected whole texts, since an analysis compares the texts of pairs; leave it out"
            )
        self._mask_fraction = options.mask_fraction
        self._seed = options.seed
        self._segments = model.takes_segments
        self._official = options.compat is Compat.official
        self._stride = options.stride if options.segmentation is Segmentation.window else None
        if self._stride is not None:
            self._check_windows(model, options)
        # WikiText writes unknown words as <unk>; they become the tokenizer's unknown token.
        self._unknown = str(model.tokenizer.unk_token or "") if options.wikitext else None
        self._second_segment = 1 if options.segments is Segments.pair else 0
        self.memory: SequenceMemory | None = None
        """Token sequences of the same corpus that an earlier encoder of this identity has made."""

    @property
    def first_token(self) -> int | None:
        """Id of the token that begins a sequence, whether or not the tokenizer adds it; None if it has none.

        A decoder that follows an encoder begins with a token of its own, which is no different from the others here.
        """
        if self._translations is not None:
            return None
        tokenizer = self.tokenizer
        first: int | None = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        return first

    @property
    def identity(self) -> tuple[object, ...] | None:
        """What token sequences depend on besides the options of the data set; None if that is not known.

        Two encoders of one identity encode examples alike. Slow tokenizers have no description that could be compared.
        """
        tokenizer = self.tokenizer
        if not tokenizer.is_fast or self._translations is not None:
            return None
        own = (self.max_length, self._segments, self._translates, self.separate, self.level)
        names = tuple(self.categories.names)
        special = tuple(sorted(tokenizer.special_tokens_map.items(), key=str))
        return *own, names, str(special), str(tokenizer.chat_template), tokenizer.backend_tokenizer.to_str()

    def unmasked(self) -> "Encoder":
        """The same encoder without masking."""
        copied = copy.copy(self)
        copied.memory = None
        copied._mask_fraction = 0.0
        return copied

    def windowed(self, length: int) -> "Encoder":
        """The same encoder without masking, windows or words, which truncates every text to `length` tokens."""
        copied = self.unmasked()
        copied.max_length = length if self.max_length is None else min(length, self.max_length)
        copied._stride = None
        if self._translations is not None:
            copied._translations = self._translations.cut_to(copied.max_length)
        return copied

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Token sequences of examples, in order. Truncated examples are counted, and skipped ones by reason."""
        if self.memory is not None:
            return self.memory.encoded(examples, counts, self._encoded)
        return self._encoded(examples, counts)

    def _encoded(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        if self._unknown is not None:
            examples = [self._with_unknown(example, self._unknown) for example in examples]
        examples = [self._shortened(example) for example in examples]
        sequences = self._pairs(examples, counts) if self.separate else self._sequences(examples, counts)
        return sequences if self.level is Level.token else [self.with_units(sequence) for sequence in sequences]

    def _sequences(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Token sequences of texts, pairs in one sequence, conversations and translations."""
        if any(example.messages is not None for example in examples):
            return self._with_text(self._conversations(examples, counts), counts)
        if self._translations is not None:
            translated = [example for example in examples if example.text_pair is not None]
            if len(translated) < len(examples):
                counts.skipped["without a target text (dataset.pair_column)"] += len(examples) - len(translated)
            return self._with_text([[sequence] for sequence in self._translations.encode(translated)], counts)
        if self._translates:
            examples = [dataclasses.replace(example, text_pair=None, tokens=None, links=None) for example in examples]
        sequences: dict[int, list[TokenSequence]] = {
            index: [self._annotated(example, example.annotation)]
            for index, example in enumerate(examples)
            if example.annotation is not None and example.text_pair is None and self._stride is None
        }
        # A tokenizer takes a batch of single texts or a batch of pairs, not a mixture.
        for paired in (False, True):
            positions = [
                index
                for index, example in enumerate(examples)
                if (example.text_pair is not None) == paired and index not in sequences
            ]
            if positions:
                encoded = self._tokenize([examples[index] for index in positions], paired)
                sequences.update(zip(positions, encoded, strict=True))
        return self._with_text([sequences[index] for index in range(len(examples))], counts)

    @staticmethod
    def _with_unknown(example: Example, unknown: str) -> Example:
        pair = example.text_pair and example.text_pair.replace("<unk>", unknown)
        return dataclasses.replace(example, text=example.text.replace("<unk>", unknown), text_pair=pair)

    def _shortened(self, example: Example) -> Example:
        """The example, with texts cut that are far too long: a tokenizer needs half a minute for ten megabytes."""
        if self.max_length is None or (self._stride is not None and example.text_pair is None):
            return example
        longest = self.max_length * _CHARACTERS_PER_TOKEN
        if max(len(example.text), len(example.text_pair or "")) <= longest:
            return example
        pair = None if example.text_pair is None else example.text_pair[:longest]
        return dataclasses.replace(example, text=example.text[:longest], text_pair=pair, shortened=True)

    def _pairs(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """The first texts of pairs, each with the second; a pair without a token of text on either side is skipped."""
        pairs = [example for example in examples if example.text_pair is not None]
        if len(pairs) < len(examples):
            counts.skipped["without a second text (dataset.pair_column)"] += len(examples) - len(pairs)
        if not pairs:
            return []
        firsts = self._tokenize([dataclasses.replace(pair, tokens=None) for pair in pairs], paired=False)
        seconds = self._tokenize(
            [dataclasses.replace(pair, text=pair.text_pair or "", tokens=None) for pair in pairs], paired=False
        )
        kept: list[TokenSequence] = []
        for pair, [first], [second] in zip(pairs, firsts, seconds, strict=True):
            if not (self._has_text([first.input_ids]) and self._has_text([second.input_ids])):
                counts.skipped["special tokens only"] += 1
                continue
            counts.cut += first.cut or second.cut
            second = dataclasses.replace(second, last=False, row=pair.row)
            kept.append(dataclasses.replace(first, second=second, score=pair.score, row=pair.row))
        return kept

    def with_units(self, sequence: TokenSequence) -> TokenSequence:
        """A sequence with the unit of each token.

        Raises:
            InputError: If the tokenizer does not show where words begin.
        """
        source = sequence.source_ids
        return dataclasses.replace(
            sequence,
            units=self._units(sequence.input_ids) if sequence.units is None else sequence.units,
            source_units=None if source is None else self._units(source),
            second=None if sequence.second is None else self.with_units(sequence.second),
        )

    def _units(self, ids: np.ndarray) -> np.ndarray:
        """The unit of each token, by the marks of the tokenizer."""
        if self._mark is None:
            raise InputError(
                f"level=word: the tokenizer of {self._name} does not show where words begin; set level=token, or use a "
                "corpus of annotated words (dataset=conllu)"
            )
        unknown = str(self.tokenizer.unk_token)
        tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids.tolist())]
        tokens = ["x" if token == unknown else token for token in tokens]  # counts as a letter
        special = set(map(str, self.tokenizer.all_special_tokens)) - {unknown}
        return unit_numbers(marked_words(tokens, special, self._mark).tolist())

    @cached_property
    def _mark(self) -> str | None:
        return mark_of(self._vocabulary)

    def _written(self, encoding: BatchEncoding, index: int, texts: Sequence[str]) -> np.ndarray | None:
        """The unit of each token of a text or pair that was just tokenized; None if tokens are measured, or it is not known."""
        if self.level is Level.token or not self.tokenizer.is_fast:
            return None
        return unit_numbers(written_words(encoding.encodings[index], texts).tolist())

    def _with_text(self, encoded: Iterable[Sequence[TokenSequence]], counts: CorpusCounts) -> list[TokenSequence]:
        """The sequences of all examples that contain text; the others are counted as skipped."""
        kept: list[TokenSequence] = []
        for sequences in encoded:
            sides = [sequence.input_ids for sequence in sequences]
            sources = [sequence.source_ids for sequence in sequences if sequence.source_ids is not None]
            if self._has_text(sides) and (not sources or self._has_text(sources)):
                kept += sequences
                counts.cut += any(sequence.cut for sequence in sequences)
            else:
                counts.skipped["special tokens only" if all(map(len, [*sides, *sources])) else "no tokens"] += 1
        return kept

    def _has_text(self, sides: Iterable[np.ndarray]) -> bool:
        return any(not self._without_text.issuperset(side.tolist()) for side in sides)

    @cached_property
    def _without_text(self) -> frozenset[int]:
        """Ids of special tokens that never stand for a word."""
        tokenizer = self.tokenizer
        others = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
        unknown = tokenizer.unk_token_id
        # The mask and the unknown token stand for words, unless the tokenizer also marks the ends of a text with the latter.
        return self.categories.special - {tokenizer.mask_token_id} - ({unknown} if unknown not in others else set())

    def _conversations(self, examples: Sequence[Example], counts: CorpusCounts) -> Iterator[list[TokenSequence]]:
        """Conversations in the tokenizer's chat template, with the part of each token as its category."""
        for example in examples:
            assert self._template is not None
            written = conversation(self._template, example.messages or ())
            if isinstance(written, str):
                counts.skipped[written] += 1
                continue
            ids, parts = tokens_of(self.tokenizer, written)
            cut = self.max_length is not None and len(ids) > self.max_length
            ids, parts = ids[: self.max_length], parts[: self.max_length]
            sequence = self._sequence(ids, [0] * len(ids) if self._segments else None, cut=cut)
            inherited = np.array([self.categories.names.index(part) for part in parts], dtype=np.int64)
            yield [dataclasses.replace(sequence, inherited=inherited)]

    def _annotated(self, example: Example, annotation: Annotation) -> TokenSequence:
        """A text with the word of each token."""
        encoded = token_words(self.tokenizer, example.text, annotation.spans)
        cut = example.shortened
        if self.max_length is not None and len(encoded.input_ids) > self.max_length:
            encoded, cut = token_words(self.tokenizer, example.text, annotation.spans, longest=self.max_length), True
        ids, words, owners = encoded
        sequence = self._sequence(ids, [0] * len(ids) if self._segments else None, cut=cut)
        return dataclasses.replace(
            sequence,
            words=words,
            units=unit_numbers(words.tolist()) if self.level is Level.word else None,
            row=example.row,
            inherited=None
            if self._column is None
            else self.categories.of_words(words, annotation.columns[self._column]),
            sentence=AnnotatedSentence(annotation, tuple(owners)),
        )

    def _tokenize(self, examples: Sequence[Example], paired: bool) -> list[list[TokenSequence]]:
        texts = [[example.text for example in examples]]
        if paired:
            texts.append([example.text_pair or "" for example in examples])
        whole = self.tokenizer(*texts, verbose=False)
        sequences = []
        for index, input_ids in enumerate(whole["input_ids"]):
            segments = whole["token_type_ids"][index] if self._segments else None
            of_pair = [column[index] for column in texts]
            given = self._given_tokens(examples[index])
            if given is not None:
                input_ids, segments = given, self._segments_of(given) if self._segments else None
            if self.max_length is None or len(input_ids) <= self.max_length:
                units = self._written(whole, index, of_pair) if given is None else None
                shortened = examples[index].shortened and given is None
                sequences.append([self._sequence(input_ids, segments, units, cut=shortened)])
                continue
            if self._stride is not None and not paired:
                sequences.append(self._windows(examples[index].text))
                continue
            if given is not None:
                segments = segments and segments[: self.max_length]
                sequences.append([self._sequence(given[: self.max_length], segments, cut=True)])
                continue
            # Only texts that are too long are tokenised twice; this detects truncation with any tokenizer.
            beginnings = self._beginnings(whole, index, of_pair)
            cut = self.tokenizer(*beginnings, truncation="longest_first", max_length=self.max_length)
            segments = cut["token_type_ids"] if self._segments else None
            sequences.append([self._sequence(cut["input_ids"], segments, self._written(cut, 0, beginnings), cut=True)])
        return sequences

    def _beginnings(self, whole: BatchEncoding, index: int, texts: Sequence[str]) -> Sequence[str]:
        """The beginnings of the texts, long enough not to change the tokens that remain after truncation.

        Fast tokenizers build every pair of windows of two texts and drop all but the first, in time quadratic in their length.
        Twice the maximum length is enough to leave the remaining tokens unchanged. The longer text must stay the longer one,
        since that decides which of the two keeps an odd token.
        """
        if len(texts) == 1 or not self.tokenizer.is_fast:
            return texts
        assert self.max_length is not None
        owners = whole.sequence_ids(index)
        positions = [[position for position, owner in enumerate(owners) if owner == side] for side in range(len(texts))]
        shortest = min(map(len, positions))
        beginnings = []
        for text, tokens in zip(texts, positions, strict=True):
            kept = (3 if len(tokens) > shortest else 2) * self.max_length
            end = whole.token_to_chars(index, tokens[kept]) if len(tokens) > kept else None
            beginnings.append(text if end is None else text[: end.start])
        return beginnings

    def _windows(self, text: str) -> list[TokenSequence]:
        """Windows of the maximum length, each overlapping the one before by `stride` tokens."""
        cut = self.tokenizer(
            text, truncation=True, max_length=self.max_length, stride=self._stride, return_overflowing_tokens=True
        )
        windows = [
            self._sequence(
                ids,
                cut["token_type_ids"][number] if self._segments else None,
                self._written(cut, number, [text]),
                last=False,
            )
            for number, ids in enumerate(cut["input_ids"])
        ]
        return [*windows[:-1], dataclasses.replace(windows[-1], last=True)]

    def _sequence(
        self,
        input_ids: list[int],
        segments: list[int] | None,
        units: np.ndarray | None = None,
        *,
        last: bool = True,
        cut: bool = False,
    ) -> TokenSequence:
        return TokenSequence(
            self.masked(np.asarray(input_ids, dtype=np.int64), self._mask_fraction),
            None if segments is None else np.asarray(segments, dtype=np.int64) * self._second_segment,
            units=units,
            last=last,
            cut=cut,
        )

    def _given_tokens(self, example: Example) -> list[int] | None:
        """The ids of the tokens that the corpus comes with, if they are to be used and the tokenizer knows them all."""
        if example.tokens is None or not self._official:
            return None
        vocabulary = self._vocabulary
        known = [vocabulary[token] for token in example.tokens if token in vocabulary]
        return known if len(known) == len(example.tokens) else None

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return dict(self.tokenizer.get_vocab())

    def _segments_of(self, input_ids: list[int]) -> list[int]:
        """0 up to the first separator, 1 after it."""
        separator = self.tokenizer.sep_token_id
        end = input_ids.index(separator) + 1 if separator in input_ids else len(input_ids)
        return [0] * end + [1] * (len(input_ids) - end)

    def _check_windows(self, model: ReadsTokens, options: DatasetOptions) -> None:
        if self.max_length is None:
            raise InputError(f"dataset.segmentation=window: {model.name} has no maximum length; set dataset.max_length")
        added = len(self.tokenizer("")["input_ids"])
        if not 0 <= options.stride < self.max_length - added:
            raise InputError(
                f"dataset.stride={options.stride}: expected 0 to {self.max_length - added - 1}, less than a window's tokens"
            )
        if not self.tokenizer.is_fast:
            raise InputError(
                f"dataset.segmentation=window: expected a fast tokenizer, which {model.name} does not have"
            )

    def masked(self, input_ids: np.ndarray, fraction: float) -> np.ndarray:
        """The ids with a fraction of the ordinary ones, at least one, replaced by the mask token.

        The choice depends on the seed and the sequence alone, not on the order of examples, batches or processes.
        """
        if fraction == 0:
            return input_ids
        ordinary = np.flatnonzero(~np.isin(input_ids, list(self.categories.special)))
        if len(ordinary) == 0:
            return input_ids
        generator = np.random.default_rng([self._seed, fingerprint(input_ids)])
        count = max(1, round(fraction * len(ordinary)))
        masked = input_ids.copy()
        masked[generator.choice(ordinary, size=count, replace=False)] = self.tokenizer.mask_token_id
        return masked


def _template(model: ReadsTokens, *, separate: bool) -> ChatTemplate:
    """The chat template of the model's tokenizer."""
    if separate or model.decoder_inputs is not None:
        raise InputError(
            "dataset.chat_template=true: expected analyses of single texts, got one that compares the texts of pairs or the "
            "decoder of an encoder–decoder; leave one of the two out"
        )
    return template_of(model.tokenizer, model.name)


def fingerprint(input_ids: np.ndarray) -> int:
    """A 128-bit number that depends on a sequence's tokens alone and is the same on every machine."""
    return int.from_bytes(hashlib.sha256(input_ids.astype("<i8").tobytes()).digest()[:16], "little")
