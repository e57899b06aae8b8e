"""Token frequencies, counted over a corpus or read from a file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.categories import CATEGORIES
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.lines import Malformed, lines
from normscope.data.token_texts import TokenTexts
from normscope.errors import InputError, one_line

EXCLUDED = 0
"""Rank of excluded tokens."""

# Enough for any count, and few enough for Python to parse.
_MAX_DIGITS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class TokenFrequencies:
    """Rank and count of every token of a vocabulary."""

    rank: np.ndarray
    """1 is the most frequent; equally frequent tokens share a rank; EXCLUDED for excluded tokens."""
    count: np.ndarray
    """Occurrences in the corpus or file."""


class TokenCounter:
    """Counts tokens, special ones included, without masking.

    Args:
        encoder: Turns examples into tokens.
        vocabulary: Number of token ids.
    """

    def __init__(self, encoder: Encoder, vocabulary: int) -> None:
        self._encoder = encoder.unmasked()
        self.counts = np.zeros(vocabulary, dtype=np.int64)
        """Occurrences of every token so far."""

    def update(self, examples: Sequence[Example | str]) -> None:
        """Count the tokens of examples; a string is the reason why one was skipped."""
        usable = [example for example in examples if isinstance(example, Example)]
        for sequence in self._encoder.encode(usable, CorpusCounts()):
            self.counts += np.bincount(sequence.input_ids, minlength=len(self.counts))

    def compute(self) -> TokenFrequencies:
        """The frequencies."""
        ordered = np.sort(self.counts)[::-1]
        # One more than the number of more frequent tokens.
        rank = 1 + np.searchsorted(-ordered, -self.counts, side="left")
        return TokenFrequencies(rank, self.counts.copy())


def read(path: Path, vocabulary: int, key: str) -> TokenFrequencies:
    """Frequencies from a file of `rank count token_id` lines; tokens missing from it share the rank after the last.

    Raises:
        InputError: If a line is invalid; the message names its number.
    """
    rank, count = np.zeros(vocabulary, dtype=np.int64), np.zeros(vocabulary, dtype=np.int64)
    try:
        if not path.is_file():  # a pipe would never end
            raise InputError(f"{key}={path}: no such file")
        for number, line in enumerate(lines(path), start=1):
            fields = line.split()
            if not fields:
                continue
            if (
                len(fields) != 3
                or not all(field.isdecimal() and len(field) <= _MAX_DIGITS for field in fields)
                or not 1 <= int(fields[0]) < 2**31
            ):
                raise InputError(
                    f"{key}={path}: line {number}: expected `rank count token_id`, got {line.strip()[:80]!r}"
                )
            token = int(fields[2])
            if token >= vocabulary:
                raise InputError(f"{key}={path}: line {number}: token {token} is not one of the model's {vocabulary}")
            rank[token], count[token] = int(fields[0]), min(int(fields[1]), 2**62)
    except (OSError, Malformed) as error:
        raise InputError(f"{key}={path}: cannot be read: {one_line(error)}") from error
    if not rank.any():
        raise InputError(f"{key}={path}: expected lines of `rank count token_id`, got none")
    rank[rank == 0] = rank.max() + 1
    return TokenFrequencies(rank, count)


def conventional(frequencies: TokenFrequencies, encoder: Encoder) -> TokenFrequencies:
    """K20's rule: [CLS], [SEP], period and comma are the four most frequent; other special tokens and single characters are
    excluded.

    How often special tokens occur depends on how the corpus is cut into sequences; the rule ranks them as they would rank in
    the training data.

    Source: Kobayashi et al. 2020, footnote 5.
    """
    of_token = encoder.categories.of_token
    rank = frequencies.rank + 4
    rank[[token for token in encoder.categories.special if token < len(rank)]] = EXCLUDED
    rank[_single_characters(encoder.tokenizer, len(rank))] = EXCLUDED
    for place, (category, text) in enumerate(
        [("cls", None), ("sep", None), ("punctuation", "."), ("punctuation", ",")], start=1
    ):
        tokens = np.flatnonzero(of_token[: len(rank)] == CATEGORIES.index(category))
        rank[[token for token in tokens if text in (None, str(encoder.tokenizer.decode([int(token)])).strip())]] = place
    return TokenFrequencies(rank, frequencies.count)


def _single_characters(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> list[int]:
    """The tokens that are one character, or bytes of one."""
    tokens = TokenTexts(tokenizer).of(range(min(vocabulary, len(tokenizer))))
    texts = [token.lstrip("Ġ▁").removeprefix("##") for token in tokens]
    return [index for index, text in enumerate(texts) if len(text) == 1 or text.startswith("⟨")]
