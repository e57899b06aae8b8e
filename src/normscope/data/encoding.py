"""Examples to token ids, with the mask token in the place of some where that is asked for."""

import copy
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from transformers.tokenization_utils_base import BatchEncoding

from normscope.config.schema import Compat, DatasetOptions, Segmentation, Segments
from normscope.data.categories import TokenCategories
from normscope.data.examples import CorpusCounts, Example
from normscope.data.token_sequence import ReadsTokens, Segmenter, TokenSequence
from normscope.data.translations import Translations
from normscope.errors import InputError

# More than any token of a text that somebody wrote is long on average.
_LETTERS_OF_A_TOKEN = 1000


class Encoder:
    """Turns examples into token sequences.

    Args:
        model: Whose tokenizer is used and whose maximal length holds.
        options: Maximal length and masking.
        words: Finds the words of translations, where it must be known which token is of which word.

    Raises:
        InputError: If an option does not fit the model.
    """

    def __init__(self, model: ReadsTokens, options: DatasetOptions, words: Segmenter | None = None) -> None:
        self.tokenizer = model.tokenizer
        self.categories = TokenCategories.of(model.tokenizer, model.vocabulary, options.categories, causal=model.causal)
        self.max_length = options.max_length or model.max_length
        if model.max_length is not None and self.max_length is not None and self.max_length > model.max_length:
            raise InputError(
                f"dataset.max_length={options.max_length}: expected at most {model.max_length}, which is what "
                f"{model.name} takes"
            )
        if options.mask_fraction > 0 and model.tokenizer.mask_token_id is None:
            raise InputError(
                f"dataset.mask_fraction={options.mask_fraction}: the tokenizer of {model.name} has no mask token"
            )
        if options.mask_fraction > 0 and model.decoder_inputs is not None:
            raise InputError("dataset.mask_fraction is for encoders; leave it out with model.stack=decoder or cross")
        self.is_cross_attention = model.is_cross_attention
        """Whether attention falls on the source."""
        self._translates = model.translates
        self._translations = None if model.decoder_inputs is None else Translations(model, self.max_length, words)
        self._mask_fraction = options.mask_fraction
        self._seed = options.seed
        self._segments = model.takes_segments
        self._official = options.compat is Compat.official
        self._stride = options.stride if options.segmentation is Segmentation.window else None
        if self._stride is not None:
            self._check_windows(model, options)
        # WikiText writes its unknown words so, whatever the tokenizer's are.
        self._unknown = str(model.tokenizer.unk_token or "") if options.wikitext else None
        self._second_segment = 1 if options.segments is Segments.pair else 0

    def unmasked(self) -> "Encoder":
        """The same encoder without masking."""
        copied = copy.copy(self)
        copied._mask_fraction = 0.0
        return copied

    def windowed(self, length: int) -> "Encoder":
        """The same encoder, which cuts every text to its first tokens, neither masking them nor aligning their words."""
        copied = self.unmasked()
        copied.max_length = length if self.max_length is None else min(length, self.max_length)
        copied._stride = None
        if self._translations is not None:
            copied._translations = self._translations.cut_to(copied.max_length)
        return copied

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Token sequences of examples, in their order. Cut ones are counted, and those that are skipped, with the reason."""
        if self._unknown is not None:
            examples = [self._with_unknown(example, self._unknown) for example in examples]
        examples = [self._shortened(example) for example in examples]
        if self._translations is not None:
            translated = [example for example in examples if example.text_pair is not None]
            if len(translated) < len(examples):
                counts.skipped["without a target text (dataset.pair_column)"] += len(examples) - len(translated)
            return self._with_text([[sequence] for sequence in self._translations.encode(translated)], counts)
        if self._translates:
            examples = [Example(example.text, shortened=example.shortened) for example in examples]
        sequences: dict[int, list[TokenSequence]] = {}
        # Tokenizers take many singles or many pairs at a time, not a mixture.
        for paired in (False, True):
            chosen = [index for index, example in enumerate(examples) if (example.text_pair is not None) == paired]
            if chosen:
                encoded = self._tokenize([examples[index] for index in chosen], paired)
                sequences.update(zip(chosen, encoded, strict=True))
        return self._with_text([sequences[index] for index in range(len(examples))], counts)

    @staticmethod
    def _with_unknown(example: Example, unknown: str) -> Example:
        pair = example.text_pair and example.text_pair.replace("<unk>", unknown)
        return dataclasses.replace(example, text=example.text.replace("<unk>", unknown), text_pair=pair)

    def _shortened(self, example: Example) -> Example:
        """The example, its texts cut where they are far too long: a tokenizer needs half a minute for ten megabytes."""
        if self.max_length is None or (self._stride is not None and example.text_pair is None):
            return example
        longest = self.max_length * _LETTERS_OF_A_TOKEN
        if max(len(example.text), len(example.text_pair or "")) <= longest:
            return example
        pair = None if example.text_pair is None else example.text_pair[:longest]
        return dataclasses.replace(example, text=example.text[:longest], text_pair=pair, shortened=True)

    def _with_text(self, encoded: Iterable[Sequence[TokenSequence]], counts: CorpusCounts) -> list[TokenSequence]:
        """The sequences of all examples that have tokens of a text; the others are counted as skipped."""
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
        """Ids of special tokens that no word becomes."""
        tokenizer = self.tokenizer
        others = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
        unknown = tokenizer.unk_token_id
        # A word that is masked, or that the tokenizer does not know, is a word all the same. Some tokenizers have one token for
        # unknown words and for the ends.
        return self.categories.special - {tokenizer.mask_token_id} - ({unknown} if unknown not in others else set())

    def _tokenize(self, examples: Sequence[Example], paired: bool) -> list[list[TokenSequence]]:
        texts = [[example.text for example in examples]]
        if paired:
            texts.append([example.text_pair or "" for example in examples])
        whole = self.tokenizer(*texts, verbose=False)
        sequences = []
        for index, input_ids in enumerate(whole["input_ids"]):
            segments = whole["token_type_ids"][index] if self._segments else None
            own = self._own_tokens(examples[index])
            if own is not None:
                input_ids, segments = own, self._segments_of(own) if self._segments else None
            if self.max_length is None or len(input_ids) <= self.max_length:
                sequences.append([self._sequence(input_ids, segments, cut=examples[index].shortened and own is None)])
                continue
            if self._stride is not None and not paired:
                sequences.append(self._windows(examples[index].text))
                continue
            if own is not None:
                segments = segments and segments[: self.max_length]
                sequences.append([self._sequence(own[: self.max_length], segments, cut=True)])
                continue
            # Only what is too long is tokenised twice; this way the cut is noticed with any tokenizer.
            given = self._beginnings(whole, index, [column[index] for column in texts])
            cut = self.tokenizer(*given, truncation="longest_first", max_length=self.max_length)
            segments = cut["token_type_ids"] if self._segments else None
            sequences.append([self._sequence(cut["input_ids"], segments, cut=True)])
        return sequences

    def _beginnings(self, whole: BatchEncoding, index: int, texts: Sequence[str]) -> Sequence[str]:
        """The texts as far as they can matter after the cut.

        Fast tokenizers make every pair of windows of two texts and drop all but the first, which takes the square of their
        length. Twice the tokens that remain at most are enough for the end not to change the tokens before it. The longer
        text stays the longer one: which of the two keeps an odd token depends on that.
        """
        if len(texts) == 1 or not self.tokenizer.is_fast:
            return texts
        assert self.max_length is not None
        owners = whole.sequence_ids(index)
        places = [[place for place, owner in enumerate(owners) if owner == side] for side in range(len(texts))]
        shortest = min(map(len, places))
        beginnings = []
        for text, own in zip(texts, places, strict=True):
            kept = (3 if len(own) > shortest else 2) * self.max_length
            end = whole.token_to_chars(index, own[kept]) if len(own) > kept else None
            beginnings.append(text if end is None else text[: end.start])
        return beginnings

    def _windows(self, text: str) -> list[TokenSequence]:
        """Windows of the maximal length, each beginning `stride` tokens before the end of the one before."""
        cut = self.tokenizer(
            text, truncation=True, max_length=self.max_length, stride=self._stride, return_overflowing_tokens=True
        )
        windows = [
            self._sequence(ids, cut["token_type_ids"][number] if self._segments else None, last=False)
            for number, ids in enumerate(cut["input_ids"])
        ]
        return [*windows[:-1], dataclasses.replace(windows[-1], last=True)]

    def _sequence(
        self, input_ids: list[int], segments: list[int] | None, *, last: bool = True, cut: bool = False
    ) -> TokenSequence:
        return TokenSequence(
            self.masked(np.asarray(input_ids, dtype=np.int64), self._mask_fraction),
            None if segments is None else np.asarray(segments, dtype=np.int64) * self._second_segment,
            last=last,
            cut=cut,
        )

    def _own_tokens(self, example: Example) -> list[int] | None:
        """The numbers of the tokens that a corpus comes with, if they are to be used and this tokenizer knows them all."""
        if example.tokens is None or not self._official:
            return None
        vocabulary = self._vocabulary
        numbers = [vocabulary.get(token) for token in example.tokens]
        known = [number for number in numbers if number is not None]
        return known if len(known) == len(numbers) else None

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
            raise InputError(f"dataset.segmentation=window: {model.name} has no longest length; set dataset.max_length")
        added = len(self.tokenizer("")["input_ids"])
        if not 0 <= options.stride < self.max_length - added:
            raise InputError(
                f"dataset.stride={options.stride}: expected 0 to {self.max_length - added - 1}, less than a window holds"
            )
        if not self.tokenizer.is_fast:
            raise InputError(f"dataset.segmentation=window: the tokenizer of {model.name} is none of the fast ones")

    def masked(self, input_ids: np.ndarray, fraction: float) -> np.ndarray:
        """The ids with a share of the ordinary ones replaced by the mask token, at least one of them.

        Which ones follows from the seed and the sequence itself, so neither the order of examples nor the way they are
        batched or split over processes can change it.
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


def fingerprint(input_ids: np.ndarray) -> int:
    """A number of 128 bits that follows from a sequence's tokens alone, on every machine."""
    return int.from_bytes(hashlib.sha256(input_ids.astype("<i8").tobytes()).digest()[:16], "little")
