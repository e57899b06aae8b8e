"""Assigns tokens to words, with tokenizers that give offsets and those that do not."""

import difflib
import itertools
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.token_texts import BYTES, TokenTexts

Span = tuple[int, int]
"""Start and end offset in characters."""

NO_WORD = -1
"""The word of special tokens: language codes, the end of the sentence."""

# Marks with which tokenizers show that a token starts, continues or ends a word.
_MARKS = ("▁", "Ġ", "##", "", "</w>")

_APOSTROPHES = "'’"

_JOINER = "\u200d"
"""Joins what stands on both sides, as in emoji."""
_ZERO_WIDTH_SPACE = "\u200b"


class WordTokens(NamedTuple):
    """The tokens of a text and the words that they spell."""

    input_ids: list[int]
    """Special tokens included."""
    words: np.ndarray
    """The word of each token, or NO_WORD."""
    owners: list[int]
    """For each word, the word whose tokens spell it: the word itself; another one if the tokenizer does not tell the two apart;
    NO_WORD if the tokenizer dropped it."""


def token_words(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    words: Sequence[Span],
    *,
    target: bool = False,
    longest: int | None = None,
) -> WordTokens:
    """The tokens of a text and the word of each.

    Args:
        tokenizer: If it has no offsets, characters of tokens and words are matched.
        words: The spans of its words.
        target: Whether to tokenise it as the target of a translation.
        longest: Maximum number of tokens; None if unlimited.
    """
    arguments: dict[str, Any] = {"text_target" if target else "text": text, "verbose": False}
    if longest is not None:
        arguments |= {"truncation": True, "max_length": longest}
    if tokenizer.is_fast:
        encoded = tokenizer(**arguments, return_offsets_mapping=True, return_special_tokens_mask=True)
        ordinary = [not special for special in encoded["special_tokens_mask"]]
        spans = [span for span, kept in zip(encoded["offset_mapping"], ordinary, strict=True) if kept]
        of_ordinary = _by_offsets(spans, words)
        owners = _owners(of_ordinary, words, spans)
        input_ids = encoded["input_ids"]
    else:
        input_ids = tokenizer(**arguments)["input_ids"]
        # The unknown token stands for a word.
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        ordinary = [token not in special for token in input_ids]
        pieces = tokenizer.convert_ids_to_tokens(list(itertools.compress(input_ids, ordinary)))
        surfaces = ["" if piece == tokenizer.unk_token else _surface(piece) for piece in pieces]
        distinct = list(dict.fromkeys(words))
        places = [words.index(span) for span in distinct]
        of_distinct = _by_characters(surfaces, [text[start:end] for start, end in distinct])
        of_ordinary = [NO_WORD if word == NO_WORD else places[word] for word in of_distinct]
        owners = _owners(of_ordinary, words, ())
    word_of_token = np.full(len(input_ids), NO_WORD, dtype=np.int64)
    word_of_token[np.flatnonzero(ordinary)] = of_ordinary
    return WordTokens(list(input_ids), word_of_token, owners)


def unit_numbers(words: Sequence[int]) -> np.ndarray:
    """The unit of each token, from 0 in the order of the text: its word, or the token itself where it has NO_WORD."""
    numbers: list[int] = []
    of_word: dict[int, int] = {}
    count = 0
    for word in words:
        number = count if word == NO_WORD else of_word.setdefault(word, count)
        numbers.append(number)
        count += number == count
    return np.asarray(numbers, dtype=np.int64)


def unit_texts(
    tokenizer: PreTrainedTokenizerBase, input_ids: Sequence[int], units: Sequence[int] | None
) -> tuple[str, ...]:
    """What each unit spells, without the tokenizer's marks; without units, the tokens as people read them.

    Args:
        input_ids: The tokens of a sequence.
        units: The unit of each, if words are measured.
    """
    texts = TokenTexts(tokenizer)
    if units is None:
        return tuple(texts.of(input_ids))
    special = set(map(str, tokenizer.all_special_tokens))
    members: list[list[str]] = [[] for _ in range(max(units) + 1)]
    for unit, token in zip(units, tokenizer.convert_ids_to_tokens(list(input_ids)), strict=True):
        members[unit].append(str(token))
    return tuple(
        ("" if special & set(pieces) else _joined_pieces(tokenizer, pieces)) or "".join(map(texts.shown, pieces))
        for pieces in members
    )


def _joined_pieces(tokenizer: PreTrainedTokenizerBase, pieces: list[str]) -> str:
    """What tokens spell together, without white space; empty if that is no text, as with bytes that are no whole character."""
    text = "".join(tokenizer.convert_tokens_to_string(pieces).split())
    return "" if "\ufffd" in text else text


def written_words(encoding: Encoding, texts: Sequence[str]) -> np.ndarray:
    """The word of each token of a fast tokenizer, or NO_WORD.

    Words are the tokenizer's own, except that they end at white space, that punctuation is no part of them unless it is an
    apostrophe between letters (`don't`), that neighbouring digits are one number, and that a mark belongs to the letter before
    it. Characters that the tokenizer drops, such as the accents that an uncased one strips, end no word.

    Args:
        encoding: The tokens.
        texts: The text, or both texts of a pair.
    """
    words = np.full(len(encoding), NO_WORD, dtype=np.int64)
    before: int | None = None
    count = 0
    for token, (owner, side, special) in enumerate(
        zip(encoding.word_ids, encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    ):
        if special or side is None:
            before = None
            continue
        joined = (
            before is not None
            and encoding.sequence_ids[before] == side
            and _joined(
                texts[side],
                encoding.offsets[before],
                encoding.offsets[token],
                same=owner is not None and owner == encoding.word_ids[before],
            )
        )
        count += not joined
        words[token] = count - 1
        before = token
    return words


def _joined(text: str, one: Span, other: Span, *, same: bool) -> bool:
    """Whether two tokens, one after the other, belong to one word.

    Args:
        one: The span of the first.
        other: The span of the second.
        same: Whether they belong to one word of the tokenizer.
    """
    (first, end), (start, stop) = _trimmed(text, one), _trimmed(text, other)
    if first == end or start == stop:
        return first == end  # white space alone belongs to the next word
    if start < end:  # bytes of one character
        return True
    gap = text[end:start]  # characters that the tokenizer dropped
    if any(map(str.isspace, gap)) or not (same or all(map(extends, gap))):
        return False
    next_, beside = text[start], text[start - 1]
    if extends(next_) or beside == _JOINER:
        return True
    last = _before(text, end)
    if not last:
        return same
    if last in _APOSTROPHES or next_ in _APOSTROPHES:
        return _between_letters(text, end if last in _APOSTROPHES else start + 1)
    if last.isdigit() and next_.isdigit():
        return True
    # A tokenizer that does not count marks as letters splits a word around each.
    around_mark = extends(beside) and _alphabetic(last) and _alphabetic(next_)
    return around_mark or (same and last.isalnum() == next_.isalnum())


def _before(text: str, place: int) -> str:
    """The character before a place, apart from what extends it; empty if there is none."""
    while place and extends(text[place - 1]):
        place -= 1
    return text[place - 1 : place]


def _between_letters(text: str, after: int) -> bool:
    """Whether an apostrophe, with the place after it and its marks, stands between letters."""
    while after < len(text) and extends(text[after]):
        after += 1
    place = after - 1
    while extends(text[place]):
        place -= 1
    return _before(text, place).isalpha() and text[after : after + 1].isalpha()


def extends(character: str) -> bool:
    """Whether a character belongs to the one before it and neither begins nor ends a word: a mark on a letter, a variation
    selector, a joiner, a soft hyphen.

    Source: rule WB4 of Unicode's UAX 29. A zero-width space separates words.
    """
    category = unicodedata.category(character)
    return category.startswith("M") or (category == "Cf" and character != _ZERO_WIDTH_SPACE)


def _alphabetic(character: str) -> bool:
    """Whether a character is a letter of a script that spells words with several; ideographs are words by themselves."""
    return character.isalpha() and not unicodedata.name(character, "").startswith("CJK")


def _trimmed(text: str, span: Span) -> Span:
    """A span without white space at its ends."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def marked_words(tokens: Sequence[str], special: Collection[str], mark: str) -> np.ndarray:
    """The word of each token, or NO_WORD, by the marks of a tokenizer that does not tell where its tokens stand.

    Within what the tokenizer marks as one word, the rules of `written_words` apply.

    Args:
        special: Those that are special.
        mark: What the tokenizer marks; see `mark_of`.
    """
    text, spans = _byte_level(tokens, special) if mark == "Ġ" else _marked(tokens, special, mark)
    words = np.full(len(tokens), NO_WORD, dtype=np.int64)
    count, before = 0, None
    for position, span in spans.items():
        joined = before is not None and before[1] >= span[0] and _joined(text, before, span, same=True)
        count += not joined
        words[position], before = count - 1, span
    return words


def _marked(tokens: Sequence[str], special: Collection[str], mark: str) -> tuple[str, dict[int, Span]]:
    """What tokens spell, and the span of each that is not special."""
    text, ended = "", True
    spans: dict[int, Span] = {}
    for position, token in enumerate(tokens):
        if token in special:
            ended = True
            continue
        starts = not token.startswith(mark) if mark == "##" else ended if mark == "</w>" else token.startswith(mark)
        text += " " if starts or ended else ""
        spans[position] = len(text), len(text) + len(surface := _surface(token))
        text += surface
        ended = mark == "</w>" and token.endswith(mark)
    return text, spans


def _byte_level(tokens: Sequence[str], special: Collection[str]) -> tuple[str, dict[int, Span]]:
    """The same for tokens whose characters stand for bytes. The tokens of one character, which may be several, share it."""
    data = bytearray()
    places: dict[int, Span] = {}
    for position, token in enumerate(tokens):
        if token in special:
            data += b" "
            continue
        start = len(data)
        data += b"".join(BYTES.get(character) or character.encode() for character in token)
        places[position] = start, len(data)
    text = data.decode(errors="surrogateescape")
    numbers = [number for number, character in enumerate(text) for _ in character.encode(errors="surrogateescape")]
    spans = {position: (numbers[start], numbers[end - 1] + 1) for position, (start, end) in places.items()}
    # Bytes that are no character, such as those of one that was cut off, count as letters.
    return "".join("x" if "\udc80" <= character <= "\udcff" else character for character in text), spans


def words_of_tokens(tokens: Sequence[str], special: Collection[str]) -> tuple[int, ...] | None:
    """The word that each token is part of, by the marks of its tokenizer; every special token is a word of its own.

    Returns:
        Numbers from 0, or None if there are no marks, or no word has two tokens.
    """
    if any(token.startswith("##") for token in tokens):
        starts = [not token.startswith("##") for token in tokens]
    elif any(token.startswith(("▁", "Ġ")) for token in tokens):
        starts = [token.startswith(("▁", "Ġ")) for token in tokens]
    else:
        return None
    words: list[int] = []
    for position, token in enumerate(tokens):
        begins = starts[position] or token in special or position == 0 or tokens[position - 1] in special
        words.append((words[-1] if words else -1) + begins)
    return tuple(words) if words[-1] + 1 < len(words) else None


def mark_of(vocabulary: Iterable[str]) -> str | None:
    """How a vocabulary marks words: `##` for tokens that continue one, `▁` or `Ġ` for those that start one, `</w>` for those
    that end one; None if it does not."""
    for token in vocabulary:
        for mark in ("##", "▁", "Ġ"):
            if token.startswith(mark) and token != mark:
                return mark
        if token.endswith("</w>"):
            return "</w>"
    return None


def _owners(of_token: Sequence[int], words: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """The word whose tokens spell each word. Without the spans of tokens, only words of the same span share theirs."""
    spelt = set(of_token)
    first = {span: index for index, span in reversed(list(enumerate(words))) if index in spelt}
    owners = []
    for index, (start, end) in enumerate(words):
        if index in spelt:
            owners.append(index)
            continue
        common = [min(end, last) - max(start, begin) for begin, last in spans]
        best = int(np.argmax(common)) if common else 0
        owners.append(of_token[best] if common and common[best] > 0 else first.get((start, end), NO_WORD))
    return owners


def _by_offsets(spans: Sequence[Span], words: Sequence[Span]) -> list[int]:
    """The word that each token shares most characters with. A token of spaces alone belongs to the next word."""
    word_of_token = []
    begin = 0  # words before this one end before the token starts
    for start, end in spans:
        while begin < len(words) and words[begin][1] <= start:
            begin += 1
        best, most = NO_WORD, 0
        for index in range(begin, len(words)):
            first, last = words[index]
            if first >= end:
                if best == NO_WORD:
                    best = index
                break
            if (common := min(end, last) - max(start, first)) > most:
                best, most = index, common
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
