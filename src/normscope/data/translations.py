"""Source–target pairs as inputs of an encoder–decoder."""

import copy
from collections.abc import Sequence

import numpy as np

from normscope.data.examples import Example
from normscope.data.token_sequence import ReadsTokens, Segmenter, TokenSequence
from normscope.data.words import token_words
from normscope.errors import InputError


class Translations:
    """Turns source–target pairs into inputs of the encoder and the decoder.

    Args:
        model: Provides the tokenizer and the decoder's inputs.
        longest: Maximum number of tokens on each side.
        segmenter: Splits texts into words, if tokens must be assigned to words.
    """

    def __init__(self, model: ReadsTokens, longest: int | None, segmenter: Segmenter | None) -> None:
        assert model.decoder_inputs is not None
        self._tokenizer, self._decoder_inputs, self._name = model.tokenizer, model.decoder_inputs, model.name
        self._longest, self._segmenter, self._cuts_words = longest, segmenter, False

    def cut_to(self, longest: int) -> "Translations":
        """The same without words and with another maximum length."""
        copied = copy.copy(self)
        copied._longest, copied._segmenter = longest, None
        return copied

    def in_words(self, segmenter: Segmenter) -> "Translations":
        """The same with the word of each token; sides that are too long are truncated, since no links refer to the rest."""
        copied = copy.copy(self)
        copied._segmenter, copied._cuts_words = segmenter, True
        return copied

    def encode(self, examples: Sequence[Example]) -> list[TokenSequence]:
        """Token sequences of pairs; sides that are too long are truncated.

        Raises:
            InputError: If a side is too long and tokens are assigned to words: links could refer to missing words.
        """
        if self._segmenter is not None:
            return [self._with_words(example, self._segmenter) for example in examples]
        return [self._cut(example) for example in examples]

    def _cut(self, example: Example) -> TokenSequence:
        source = self._tokenizer(example.text, verbose=False)["input_ids"]
        target = self._tokenizer(text_target=example.text_pair, verbose=False)["input_ids"]
        longest = self._longest or max(len(source), len(target))
        cut = example.shortened or max(len(source), len(target)) > longest
        if len(source) > longest:
            source = self._tokenizer(example.text, truncation=True, max_length=longest)["input_ids"]
        if len(target) > longest:
            target = self._tokenizer(text_target=example.text_pair, truncation=True, max_length=longest)["input_ids"]
        ids = np.asarray(self._decoder_inputs(target), dtype=np.int64)
        return TokenSequence(ids, cut=cut, source_ids=np.asarray(source, dtype=np.int64))

    def _with_words(self, example: Example, segmenter: Segmenter) -> TokenSequence:
        assert example.text_pair is not None
        longest = self._longest if self._cuts_words else None
        if example.shortened and not self._cuts_words:
            raise InputError(
                f"dataset.path: row {example.row}: expected at most {self._longest} tokens per side for {self._name} "
                "(dataset.max_length), got far more; remove the pair and its line of links"
            )
        source, source_words, _ = token_words(self._tokenizer, example.text, segmenter(example.text), longest=longest)
        target, words, _ = token_words(
            self._tokenizer, example.text_pair, segmenter(example.text_pair), target=True, longest=longest
        )
        for side, tokens in (("source", source), ("target", target)):
            if self._longest is not None and len(tokens) > self._longest:
                raise InputError(
                    f"dataset.path: row {example.row}: the {side} has {len(tokens)} tokens, expected at most "
                    f"{self._longest} for {self._name} (dataset.max_length); remove the pair and its line of links"
                )
        return TokenSequence(
            np.asarray(self._decoder_inputs(target), dtype=np.int64),
            source_ids=np.asarray(source, dtype=np.int64),
            words=words,
            source_words=source_words,
            row=example.row,
        )
