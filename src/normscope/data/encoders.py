"""One encoder for each kind of example: texts, pairs and annotated sentences; compared pairs; translations.

That of conversations is in `conversations`, which only they need.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from transformers.tokenization_utils_base import BatchEncoding, PreTrainedTokenizerBase

from normscope.data.examples import Annotation, CorpusCounts, Example
from normscope.data.token_sequence import AnnotatedSentence, ReadsInputs, Segmenter, Sequences, TokenSequence
from normscope.data.tokenization import encoded
from normscope.data.units import Units
from normscope.data.words import WordTokens, token_words, unit_numbers
from normscope.errors import InputError


@dataclasses.dataclass(frozen=True)
class ExampleEncoder(abc.ABC):
    """Encodes one kind of example."""

    sequences: Sequences

    @abc.abstractmethod
    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Token sequences of examples, in order. Truncated examples are counted, and skipped ones by reason."""

    def changed(self, sequences: Sequences) -> Self:
        """The same with another masking."""
        return dataclasses.replace(self, sequences=sequences)

    def whole(self, sequences: Sequences) -> Self:
        """The same with another maximum length, and without windows and words."""
        return self.changed(sequences)


@dataclasses.dataclass(frozen=True)
class Texts(ExampleEncoder):
    """Texts, and pairs in one sequence; annotated sentences among them have the words of their tokens."""

    units: Units | None
    """Assigns tokens to words, if words are measured."""
    column: str | None
    """The column of annotated words that gives tokens their categories, if one does."""
    stride: int | None
    """Overlap of windows; None truncates texts that are too long."""
    first_alone: bool
    """Whether only the first text of a pair is read: the source, by the encoder of an encoder–decoder."""

    def whole(self, sequences: Sequences) -> Self:
        """The same with another maximum length, and without windows."""
        return dataclasses.replace(self.changed(sequences), stride=None)

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Sequences of the examples that contain text."""
        if self.first_alone:
            pairs = sum(example.text_pair is not None for example in examples)
            counts.remarks.update(
                {"read without the second text, which is no input of the encoder": pairs} if pairs else {}
            )
            examples = [dataclasses.replace(example, text_pair=None, links=None) for example in examples]
        sequences: dict[int, list[TokenSequence]] = {
            index: [self._annotated(example, example.annotation)]
            for index, example in enumerate(examples)
            if example.annotation is not None and example.text_pair is None and self.stride is None
        }
        # A tokenizer takes a batch of single texts or a batch of pairs, not a mixture.
        for paired in (False, True):
            positions = [
                index
                for index, example in enumerate(examples)
                if (example.text_pair is not None) == paired and index not in sequences
            ]
            if positions:
                found = self.tokenized([examples[index] for index in positions], paired)
                sequences.update(zip(positions, found, strict=True))
        return self.sequences.with_text([sequences[index] for index in range(len(examples))], counts)

    def _annotated(self, example: Example, annotation: Annotation) -> TokenSequence:
        """A sentence whose words are annotated: each token has the word that it spells."""
        tokenizer, longest = self.sequences.tokenizer, self.sequences.max_length
        (ids, words, owners, segments), cut = _within(
            longest, tokenizer, example.text, annotation.spans, segments=self.sequences.segments
        )
        inherited = None
        if self.column is not None:
            inherited = self.sequences.categories.of_words(words, annotation.columns[self.column])
        return dataclasses.replace(
            self.sequences.made(ids, segments, cut=cut or example.shortened),
            words=words,
            units=None if self.units is None else unit_numbers(words.tolist()),
            row=example.row,
            inherited=inherited,
            sentence=AnnotatedSentence(annotation, tuple(owners)),
        )

    def tokenized(self, examples: Sequence[Example], paired: bool) -> list[list[TokenSequence]]:
        """The sequences of each example, whether or not they contain text: texts alone, or all in pairs."""
        texts = [[example.text for example in examples]]
        if paired:
            texts.append([example.text_pair or "" for example in examples])
        whole = self._read(*texts)
        sequences = []
        for index, input_ids in enumerate(whole["input_ids"]):
            segments = whole["token_type_ids"][index] if self.sequences.segments else None
            of_pair = [column[index] for column in texts]
            if self.sequences.max_length is None or len(input_ids) <= self.sequences.max_length:
                units = self._written(whole, index, of_pair)
                sequences.append([self.sequences.made(input_ids, segments, units, cut=examples[index].shortened)])
                continue
            if self.stride is not None and not paired:
                sequences.append(self._windows(examples[index].text))
                continue
            # Only texts that are too long are tokenised twice; this detects truncation with any tokenizer.
            parts = self._long_enough(whole, index, of_pair)
            cut = self._read(*parts, truncation="longest_first", max_length=self.sequences.max_length)
            segments = cut["token_type_ids"] if self.sequences.segments else None
            sequences.append([self.sequences.made(cut["input_ids"], segments, self._written(cut, 0, parts), cut=True)])
        return sequences

    def _read(self, *texts: Any, **arguments: Any) -> BatchEncoding:
        """What the tokenizer makes of texts, with segment ids if the model takes any."""
        return encoded(self.sequences.tokenizer, *texts, segments=self.sequences.segments, **arguments)

    def _long_enough(self, whole: BatchEncoding, index: int, texts: Sequence[str]) -> Sequence[str]:
        """The parts of both texts of a pair that remain after truncation, with more around them.

        Fast tokenizers build every pair of windows of two texts and drop all but the first, in time quadratic in their length.
        Twice the maximum length is enough to leave the remaining tokens unchanged. The longer text must stay the longer one,
        since that decides which of the two keeps an odd token.
        """
        if len(texts) == 1 or not self.sequences.tokenizer.is_fast:
            return texts
        assert self.sequences.max_length is not None
        owners = whole.sequence_ids(index)
        positions = [[position for position, owner in enumerate(owners) if owner == side] for side in range(len(texts))]
        shortest = min(map(len, positions))
        parts = []
        for text, tokens in zip(texts, positions, strict=True):
            kept = (3 if len(tokens) > shortest else 2) * self.sequences.max_length
            if len(tokens) <= kept:
                parts.append(text)
            elif self.sequences.cuts_beginnings:
                start = whole.token_to_chars(index, tokens[-kept])
                parts.append(text if start is None else text[start.start :])
            else:
                end = whole.token_to_chars(index, tokens[kept])
                parts.append(text if end is None else text[: end.start])
        return parts

    def _windows(self, text: str) -> list[TokenSequence]:
        """Windows of the maximum length, each overlapping the one before by `stride` tokens."""
        cut = self._read(
            text,
            truncation=True,
            max_length=self.sequences.max_length,
            stride=self.stride,
            return_overflowing_tokens=True,
        )
        windows = [
            self.sequences.made(
                ids,
                cut["token_type_ids"][number] if self.sequences.segments else None,
                self._written(cut, number, [text]),
                last=False,
            )
            for number, ids in enumerate(cut["input_ids"])
        ]
        return [*windows[:-1], dataclasses.replace(windows[-1], last=True)]

    def _written(self, encoding: BatchEncoding, index: int, texts: Sequence[str]) -> np.ndarray | None:
        return None if self.units is None else self.units.written(encoding, index, texts)


@dataclasses.dataclass(frozen=True)
class Prompts:
    """What is put before the texts that are compared."""

    pairs: tuple[str, str] = ("", "")
    """Before the first and the second text of a pair."""
    rankings: tuple[str, str] = ("", "")
    """Before a query and each of its documents."""

    @property
    def each(self) -> set[str]:
        """All prompts."""
        return {*self.pairs, *self.rankings}

    def of(self, example: Example) -> tuple[str, str]:
        """What is put before each text of a pair."""
        return self.rankings if example.document else self.pairs


NO_PROMPTS = Prompts()


def _within(longest: int | None, *text: Any, **options: Any) -> tuple[WordTokens, bool]:
    """What `token_words` makes of a text, truncated to a number of tokens if it has more; and whether it is."""
    whole = token_words(*text, **options)
    cut = longest is not None and len(whole.input_ids) > longest
    return (token_words(*text, **options, longest=longest) if cut else whole), cut


def prompt_length(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """The number of tokens at the start of a text that a prompt takes, as sentence-transformers counts them."""
    ids = encoded(tokenizer, prompt)["input_ids"] if prompt else []
    return len(ids) - (bool(ids) and ids[-1] in tokenizer.all_special_ids)


@dataclasses.dataclass(frozen=True)
class ComparedPairs(Texts):
    """The first texts of pairs, each with the second, as sequences of their own."""

    prompts: Prompts

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """The pairs with a token of text on either side."""
        pairs = [example for example in examples if example.text_pair is not None]
        if len(pairs) < len(examples):
            counts.skipped["without a second text (dataset.pair_column)"] += len(examples) - len(pairs)
        if not pairs:
            return []
        firsts, seconds = (
            self.tokenized(
                [
                    dataclasses.replace(pair, text=self.prompts.of(pair)[side] + text)
                    for pair, text in zip(pairs, texts, strict=True)
                ],
                paired=False,
            )
            for side, texts in enumerate([[pair.text for pair in pairs], [pair.text_pair or "" for pair in pairs]])
        )
        lengths = {prompt: prompt_length(self.sequences.tokenizer, prompt) for prompt in self.prompts.each}
        kept: list[TokenSequence] = []
        for pair, [first], [second] in zip(pairs, firsts, seconds, strict=True):
            if not (self.sequences.has_text([first.input_ids]) and self.sequences.has_text([second.input_ids])):
                counts.skipped["special tokens only"] += 1
                continue
            counts.cut += first.cut or second.cut
            counts.remarks.update(
                filter(None, {self.sequences.repeated_end(side.input_ids) for side in (first, second)})
            )
            before, behind = (lengths[prompt] for prompt in self.prompts.of(pair))
            second = dataclasses.replace(second, last=False, row=pair.row, prompt=behind)
            gold = (pair.score, pair.query, pair.document)
            kept.append(dataclasses.replace(first, second=second, gold=gold, row=pair.row, prompt=before))
        return kept


@dataclasses.dataclass(frozen=True)
class OwnInputs(ExampleEncoder):
    """Images and other inputs of a model that reads no token ids."""

    reader: ReadsInputs

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """The sequences of the examples; the category of a token depends on its input."""
        return [self.read(example, counts) for example in examples]

    def read(self, example: Example, counts: CorpusCounts) -> TokenSequence:
        """The tokens of one input; what was done to a sound's samples is a remark."""
        own = self.reader.read(example.given)
        counts.remarks.update(sound.remark for sound in own.sounds if sound.remark)
        ids, kinds = self.reader.tokens(own)
        inherited = self.sequences.categories.of_words(np.arange(len(ids)), kinds)
        return TokenSequence(np.asarray(ids), own=own, row=example.row, inherited=inherited)


@dataclasses.dataclass(frozen=True)
class Transcripts(OwnInputs):
    """Recordings, which an encoder reads, with what is said in them, which a decoder reads. Nothing is masked.

    The decoder is given what the model itself begins with: the tokens that its tokenizer puts before a text (the start of a
    transcript, its language, the task), and a space before the first word.
    """

    decoder_inputs: Callable[[list[int]], list[int]]
    """Turns the tokens of a transcript into those that the decoder reads."""

    def whole(self, _sequences: Sequences) -> Self:
        """The same: what is said in a recording cannot be cut as the recording is not."""
        return self

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Sequences of the recordings with a transcript.

        Raises:
            InputError: If a transcript has more tokens than the decoder reads.
        """
        if missing := sum(example.text_pair is None for example in examples):
            counts.skipped["without a transcript (text)"] += missing
        return [self._transcribed(example, counts) for example in examples if example.text_pair is not None]

    def _transcribed(self, example: Example, counts: CorpusCounts) -> TokenSequence:
        annotation = Annotation(()) if example.annotation is None else example.annotation
        spans = [(start, 1 + end) for start, end in annotation.spans]  # a word has the space before it
        ids, words, owners, _ = token_words(self.sequences.tokenizer, f" {example.text_pair}", spans)
        first = int(self.decoder_inputs(ids)[:1] == ids[:1])  # some tokenizers write what others leave to the model
        most = self.sequences.max_length
        if most is not None and len(ids) - first > most:
            raise InputError(
                f"dataset.path: row {example.row}: the transcript of {example.text} has {len(ids) - first} tokens, expected at "
                f"most {most}; split the recording"
            )
        heard = self.read(example, counts)
        return dataclasses.replace(
            heard,
            input_ids=np.asarray(self.decoder_inputs(ids[first:]), dtype=np.int64),
            source_ids=heard.input_ids,
            words=words[first:],
            sentence=AnnotatedSentence(annotation, tuple(owners)),
        )


@dataclasses.dataclass(frozen=True)
class TranslatedTexts(ExampleEncoder):
    """Sources and targets, for the decoder or the cross-attention of an encoder–decoder. Nothing is masked."""

    decoder_inputs: Callable[[list[int]], list[int]]
    """Turns the tokens of a target into those that the decoder reads."""
    model: str
    """The model's name, for messages."""
    segmenter: Segmenter | None
    """Splits texts into words, if tokens must be assigned to words."""
    cuts_words: bool = False
    """Whether sides that are too long are truncated even with words, because no links refer to the rest."""

    def whole(self, sequences: Sequences) -> Self:
        """The same with another maximum length, and without words."""
        return dataclasses.replace(self, sequences=sequences, segmenter=None)

    def in_words(self, segmenter: Segmenter) -> Self:
        """The same with the word of each token; sides that are too long are truncated."""
        return dataclasses.replace(self, segmenter=segmenter, cuts_words=True)

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Sequences of the examples with a target.

        Raises:
            InputError: If a side is too long and tokens are assigned to words: links could refer to missing words.
        """
        if missing := sum(example.text_pair is None for example in examples):
            counts.skipped["without a target text (dataset.pair_column)"] += missing
        found = (
            [
                self._cut(example, example.text_pair)
                if self.segmenter is None
                else self._with_words(example, example.text_pair, self.segmenter)
            ]
            for example in examples
            if example.text_pair is not None
        )
        return self.sequences.with_text(found, counts)

    def _cut(self, example: Example, translation: str) -> TokenSequence:
        """The tokens of both sides; one that is too long is truncated."""
        tokenizer, longest = self.sequences.tokenizer, self.sequences.max_length
        (source, *_), source_cut = _within(longest, tokenizer, example.text, ())
        (target, *_), target_cut = _within(longest, tokenizer, translation, (), target=True)
        cut = example.shortened or source_cut or target_cut
        ids = np.asarray(self.decoder_inputs(target), dtype=np.int64)
        return TokenSequence(ids, cut=cut, source_ids=np.asarray(source, dtype=np.int64))

    def _with_words(self, example: Example, translation: str, segmenter: Segmenter) -> TokenSequence:
        """The tokens of both sides with the word of each."""
        tokenizer, most = self.sequences.tokenizer, self.sequences.max_length
        if example.shortened and not self.cuts_words:
            raise InputError(
                f"dataset.path: row {example.row}: expected at most {most} tokens per side for {self.model} "
                "(dataset.max_length), got far more; remove the pair and its line of links"
            )
        longest = most if self.cuts_words else None
        source, source_words, *_ = token_words(tokenizer, example.text, segmenter(example.text), longest=longest)
        target, words, *_ = token_words(tokenizer, translation, segmenter(translation), target=True, longest=longest)
        for side, tokens in (("source", source), ("target", target)):
            if most is not None and len(tokens) > most:
                raise InputError(
                    f"dataset.path: row {example.row}: the {side} has {len(tokens)} tokens, expected at most {most} for "
                    f"{self.model} (dataset.max_length); remove the pair and its line of links"
                )
        return TokenSequence(
            np.asarray(self.decoder_inputs(target), dtype=np.int64),
            source_ids=np.asarray(source, dtype=np.int64),
            words=words,
            source_words=source_words,
            row=example.row,
        )
