"""Which word each token of a text is of, with tokenizers that give offsets and those that do not."""

import difflib
import itertools
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

Span = tuple[int, int]
"""First character, and the one after the last."""

NO_WORD = -1
"""The word of special tokens: language codes, the end of the sentence."""

# How tokenizers write that a word begins, or goes on, with this token.
_MARKS = ("▁", "Ġ", "##", "", "</w>")


def token_words(
    tokenizer: PreTrainedTokenizerBase, text: str, words: Sequence[Span], *, target: bool = False
) -> tuple[list[int], np.ndarray]:
    """A text's tokens, and the word that each of them is of.

    Args:
        tokenizer: Any tokenizer. Offsets are used where it has them; else characters of tokens and words are matched.
        text: The text.
        words: Where its words are.
        target: Whether it is tokenised as what a decoder writes.

    Returns:
        Token ids with special tokens; and for each the index of its word, or NO_WORD.
    """
    given = {"text_target" if target else "text": text}
    if tokenizer.is_fast:
        encoded = tokenizer(**given, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
        ordinary = [not special for special in encoded["special_tokens_mask"]]
        of_ordinary = _by_offsets(
            [span for span, kept in zip(encoded["offset_mapping"], ordinary, strict=True) if kept], words
        )
        input_ids = encoded["input_ids"]
    else:
        input_ids = tokenizer(**given, verbose=False)["input_ids"]
        # A word that the tokenizer does not know is a word all the same.
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        ordinary = [token not in special for token in input_ids]
        pieces = tokenizer.convert_ids_to_tokens(list(itertools.compress(input_ids, ordinary)))
        surfaces = ["" if piece == tokenizer.unk_token else _surface(piece) for piece in pieces]
        of_ordinary = _by_characters(surfaces, [text[start:end] for start, end in words])
    found = np.full(len(input_ids), NO_WORD, dtype=np.int64)
    found[np.flatnonzero(ordinary)] = of_ordinary
    return list(input_ids), found


def _by_offsets(spans: Sequence[Span], words: Sequence[Span]) -> list[int]:
    """The word with which a token has most characters in common; a token of spaces alone belongs to the word after it."""
    found = []
    for start, end in spans:
        common = [min(end, last) - max(start, first) for first, last in words]
        best = int(np.argmax(common)) if common else NO_WORD
        if common and common[best] <= 0:
            best = next((index for index, (first, _) in enumerate(words) if first >= end), NO_WORD)
        found.append(best)
    return found


def _by_characters(pieces: Sequence[str], words: Sequence[str]) -> list[int]:
    """The word of each piece, by matching the characters of both in order.

    Pieces without a character that matches (unknown ones, signs that the tokenizer has normalised) share out, in order, the
    words whose characters lie unmatched between those of their neighbours.
    """
    written, spelt = [_normal(word) for word in words], [_normal(piece) for piece in pieces]
    owners = [index for index, word in enumerate(written) for _ in word]
    places = [index for index, piece in enumerate(spelt) for _ in piece]
    matched: list[list[int]] = [[] for _ in pieces]
    for piece_at, word_at, length in _matching("".join(spelt), "".join(written)):
        for offset in range(length):
            matched[places[piece_at + offset]].append(word_at + offset)
    found = [_most([owners[at] for at in characters]) for characters in matched]
    for run in _runs_without(found):
        start = matched[run.start - 1][-1] + 1 if run.start else 0
        stop = matched[run.stop][0] if run.stop < len(found) else len(owners)
        # Where nothing is left over, the piece is a part of the word before it, or at the start of the one after it.
        choice = list(dict.fromkeys(owners[start:stop])) or owners[max(0, start - 1) : start] or owners[stop : stop + 1]
        for position, index in enumerate(run):
            found[index] = choice[min(position * len(choice) // len(run), len(choice) - 1)] if choice else NO_WORD
    return found


def _most(words: Sequence[int]) -> int:
    return max(dict.fromkeys(words), key=words.count) if words else NO_WORD


def _matching(pieces: str, words: str) -> Iterator[tuple[int, int, int]]:
    if pieces == words:
        yield 0, 0, len(words)
        return
    yield from difflib.SequenceMatcher(None, pieces, words, autojunk=False).get_matching_blocks()


def _runs_without(found: Sequence[int]) -> Iterator[range]:
    start = 0
    for missing, run in itertools.groupby(found, key=lambda word: word == NO_WORD):
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
