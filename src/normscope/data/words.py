"""Assigns tokens to words, with tokenizers that give offsets and those that do not."""

import difflib
import itertools
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Start and end offset in characters."""

NO_WORD = -1
"""The word of special tokens: language codes, the end of the sentence."""

# Marks with which tokenizers show that a token starts, continues or ends a word.
_MARKS = ("▁", "Ġ", "##", "", "</w>")


def token_words(
    tokenizer: PreTrainedTokenizerBase, text: str, words: Sequence[Span], *, target: bool = False
) -> tuple[list[int], np.ndarray]:
    """The tokens of a text and the word of each.

    Args:
        tokenizer: If it has no offsets, characters of tokens and words are matched.
        text: The text.
        words: The spans of its words.
        target: Whether to tokenise it as the target of a translation.

    Returns:
        Token ids, special tokens included, and for each the index of its word, or NO_WORD.
    """
    argument = {"text_target" if target else "text": text}
    if tokenizer.is_fast:
        encoded = tokenizer(**argument, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        ordinary = [not special for special in encoded["special_tokens_mask"]]
        of_ordinary = _by_offsets(
            [span for span, kept in zip(encoded["offset_mapping"], ordinary, strict=True) if kept], words
        )
        input_ids = encoded["input_ids"]
    else:
        input_ids = tokenizer(**argument, verbose=False)["input_ids"]
        # The unknown token stands for a word.
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        ordinary = [token not in special for token in input_ids]
        pieces = tokenizer.convert_ids_to_tokens(list(itertools.compress(input_ids, ordinary)))
        surfaces = ["" if piece == tokenizer.unk_token else _surface(piece) for piece in pieces]
        of_ordinary = _by_characters(surfaces, [text[start:end] for start, end in words])
    word_of_token = np.full(len(input_ids), NO_WORD, dtype=np.int64)
    word_of_token[np.flatnonzero(ordinary)] = of_ordinary
    return list(input_ids), word_of_token


def _by_offsets(spans: Sequence[Span], words: Sequence[Span]) -> list[int]:
    """The word that each token shares most characters with. A token of spaces alone belongs to the next word."""
    word_of_token = []
    for start, end in spans:
        common = [min(end, last) - max(start, first) for first, last in words]
        best = int(np.argmax(common)) if common else NO_WORD
        if common and common[best] <= 0:
            best = next((index for index, (first, _) in enumerate(words) if first >= end), NO_WORD)
        word_of_token.append(best)
    return word_of_token


def _by_characters(pieces: Sequence[str], words: Sequence[str]) -> list[int]:
    """The word of each piece, by matching the characters of both in order.

    Pieces without a matching character (unknown ones, characters that the tokenizer normalised) are spread in order over the
    words whose unmatched characters lie between those of the neighbouring pieces.
    """
    written, spelt = [_normal(word) for word in words], [_normal(piece) for piece in pieces]
    owners = [index for index, word in enumerate(written) for _ in word]
    piece_of_character = [index for index, piece in enumerate(spelt) for _ in piece]
    matched: list[list[int]] = [[] for _ in pieces]
    for piece_at, word_at, length in _matching("".join(spelt), "".join(written)):
        for offset in range(length):
            matched[piece_of_character[piece_at + offset]].append(word_at + offset)
    word_of_piece = [_most_common([owners[at] for at in characters]) for characters in matched]
    for run in _unassigned_runs(word_of_piece):
        start = matched[run.start - 1][-1] + 1 if run.start else 0
        stop = matched[run.stop][0] if run.stop < len(word_of_piece) else len(owners)
        # If no character is unmatched, the piece belongs to the word before it, or else to the word after it.
        candidates = (
            list(dict.fromkeys(owners[start:stop])) or owners[max(0, start - 1) : start] or owners[stop : stop + 1]
        )
        for position, index in enumerate(run):
            share = min(position * len(candidates) // len(run), len(candidates) - 1)
            word_of_piece[index] = candidates[share] if candidates else NO_WORD
    return word_of_piece


def _most_common(words: Sequence[int]) -> int:
    return max(dict.fromkeys(words), key=words.count) if words else NO_WORD


def _matching(pieces: str, words: str) -> Iterator[tuple[int, int, int]]:
    if pieces == words:
        yield 0, 0, len(words)
        return
    yield from difflib.SequenceMatcher(None, pieces, words, autojunk=False).get_matching_blocks()


def _unassigned_runs(words: Sequence[int]) -> Iterator[range]:
    start = 0
    for missing, run in itertools.groupby(words, key=lambda word: word == NO_WORD):
        length = len(list(run))
        if missing:
            yield range(start, start + length)
        start += length


def _surface(piece: str) -> str:
    for mark in _MARKS:
        piece = piece.replace(mark, "")
    return piece


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace(" ", "")
