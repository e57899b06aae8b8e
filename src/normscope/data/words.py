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
from normscope.data.tokenization import Place, Span, encoded, owners_of, places_of, visible

NO_WORD = -1
"""The word of special tokens (language codes, the end of the sentence) and of white space between words."""

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
    segments: list[int] | None
    """Segment ids, if they are wanted."""


def token_words(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    words: Sequence[Span],
    *,
    target: bool = False,
    segments: bool = False,
    longest: int | None = None,
) -> WordTokens:
    """The tokens of a text and the word of each.

    Args:
        tokenizer: If it has no offsets, characters of tokens and words are matched.
        words: The spans of its words.
        target: Whether to tokenise it as the target of a translation.
        segments: Whether segment ids are wanted.
        longest: Maximum number of tokens; None if unlimited.
    """
    arguments: dict[str, Any] = {} if longest is None else {"truncation": True, "max_length": longest}
    encoding = encoded(tokenizer, text, target=target, segments=segments, **arguments)
    input_ids, types = list(encoding["input_ids"]), encoding["token_type_ids"] if segments else None
    if encoding.encodings is not None:
        spans = [None if place is None else place[1:] for place in places_of(encoding.encodings[0], [text])]
        of_tokens = np.array([NO_WORD if word is None else word for word in owners_of(spans, words)], dtype=np.int64)
        return WordTokens(input_ids, of_tokens, _owners(of_tokens.tolist(), words, spans), types)
    # The unknown token stands for a word; a mark alone stands for white space.
    special, unknown = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}, tokenizer.unk_token
    pieces = tokenizer.convert_ids_to_tokens(input_ids)
    surfaces = {
        at: "" if piece == unknown else _surface(piece)
        for at, (token, piece) in enumerate(zip(input_ids, pieces, strict=True))
        if token not in special and (piece == unknown or _surface(piece))
    }
    distinct = list(dict.fromkeys(words))
    places = [words.index(span) for span in distinct]
    of_distinct = _by_characters([*surfaces.values()], [text[start:end] for start, end in distinct])
    of_tokens = np.full(len(input_ids), NO_WORD, dtype=np.int64)
    of_tokens[[*surfaces]] = [NO_WORD if word == NO_WORD else places[word] for word in of_distinct]
    return WordTokens(input_ids, of_tokens, _owners(of_tokens.tolist(), words, ()), types)


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
        return tuple(texts.of_sequence(input_ids))
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

    Words are the tokenizer's own, except that they end at white space, which is part of none, that punctuation is no part of
    them unless it is an apostrophe between letters (`don't`), that neighbouring digits are one number, and that a mark belongs
    to the letter before it. Characters that the tokenizer drops, such as the accents that an uncased one strips, end no word.

    Args:
        encoding: The tokens.
        texts: The text, or both texts of a pair.
    """
    words = np.full(len(encoding), NO_WORD, dtype=np.int64)
    before: tuple[Place, int | None] | None = None
    count = 0
    for token, (owner, place) in enumerate(zip(encoding.word_ids, places_of(encoding, texts), strict=True)):
        if place is None:
            before = None
            continue
        text = texts[place[0]]
        if not text[slice(*place[1:])].strip():
            continue
        joined = (
            before is not None
            and before[0][0] == place[0]
            and _joined(text, before[0][1:], place[1:], same=owner is not None and owner == before[1])
        )
        count += not joined
        words[token] = count - 1
        before = place, owner
    return words


def _joined(text: str, one: Span, other: Span, *, same: bool) -> bool:
    """Whether two tokens, one after the other, belong to one word.

    Args:
        one: The span of the first, without white space around it.
        other: That of the second.
        same: Whether they belong to one word of the tokenizer.
    """
    (_, end), (start, _) = one, other
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
    for position, whole in spans.items():
        span = visible(text, whole)
        if not text[slice(*span)].strip():
            continue
        joined = before is not None and before[1] >= whole[0] and _joined(text, before, span, same=True)
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
    mark = mark_of(token for token in tokens if token not in special)
    if mark is None:
        return None
    words = tuple(unit_numbers(marked_words(tokens, special, mark).tolist()).tolist())
    return words if words[-1] + 1 < len(words) else None


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


def _owners(of_token: Sequence[int], words: Sequence[Span], spans: Sequence[Span | None]) -> list[int]:
    """The word whose tokens spell each word. Without the spans of tokens, only words of the same span share theirs."""
    spelt = set(of_token)
    first = {span: index for index, span in reversed(list(enumerate(words))) if index in spelt}
    owners = []
    for index, (start, end) in enumerate(words):
        if index in spelt:
            owners.append(index)
            continue
        common = [0 if span is None else min(end, span[1]) - max(start, span[0]) for span in spans]
        best = int(np.argmax(common)) if common else 0
        owners.append(of_token[best] if common and common[best] > 0 else first.get((start, end), NO_WORD))
    return owners


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
