"""How the tokens of a vocabulary are shown to people.

A byte-level vocabulary writes bytes as characters (`åĮĹ` is 北), and SentencePiece writes those outside its vocabulary by
number (`<0xE5>`). Here both are text again. The marks of words (`Ġ`, `▁`, `##`) stay. Residues of a protein have their places.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from functools import cached_property

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

# How byte-level tokenizers write bytes: printable ones of Latin-1 as they are, the others as characters from 256 on.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {chr(byte): bytes([byte]) for byte in _PRINTABLE} | {
    chr(256 + number): bytes([byte]) for number, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
"""The byte that each character of a byte-level vocabulary stands for."""
_CHARACTERS = {byte[0]: character for character, byte in BYTES.items()}
_SPACE = _CHARACTERS[ord(" ")]

_BRACKETED = re.compile(r"<.+>|\[.+\]")
"""Special tokens that a tokenizer does not declare, such as `<null_1>` or `[unused1]`."""
_FEWEST_RESIDUES = 4
"""The bases of nucleic acids."""

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_STRAY = re.compile("[\udc80-\udcff]+")
"""Bytes that are no whole character, as Python decodes them."""
_SHOWN = re.compile(r"⟨((?:[0-9A-F]{2} ?)+)⟩|\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|([␀-␟␡])")
_PICTURES = {**{code: chr(0x2400 + code) for code in range(32)}, 127: "␡"}
"""Unicode's pictures of control characters."""


class TokenTexts:
    """The shown form of a tokenizer's tokens.

    Characters that are not printable are escaped, and control characters have Unicode's pictures (`␊` is a line break). Bytes
    that are no whole character are shown as numbers (`⟨E5 8C⟩`).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)
        self._added = tokenizer.get_added_vocab()

    def of(self, ids: Iterable[int]) -> list[str]:
        """The shown form of each token."""
        return [self.shown(str(token)) for token in self._tokenizer.convert_ids_to_tokens([int(each) for each in ids])]

    def of_sequence(self, ids: Iterable[int]) -> list[str]:
        """The shown form of each token of a sequence; residues have their places, as biologists name them: `V3`, `K12`."""
        ids = [int(each) for each in ids]
        shown = self.of(ids)
        if not self._residues:
            return shown
        place, labels = 0, []
        for identifier, label in zip(ids, shown, strict=True):
            is_residue = identifier in self._residues
            # Special tokens are between chains; a masked residue keeps its place.
            place = place + 1 if is_residue or identifier == self._tokenizer.mask_token_id else 0
            labels.append(f"{label}{place}" if is_residue else label)
        return labels

    @cached_property
    def _residues(self) -> frozenset[int]:
        """The tokens of a vocabulary of residues or bases: one capital each, and nothing else but marks and special tokens.

        A vocabulary of text has small letters, or tokens of several characters.
        """
        special = set(self._tokenizer.all_special_ids)
        ordinary = {
            token: number
            for token, number in self._tokenizer.get_vocab().items()
            if number not in special and not _BRACKETED.fullmatch(token)
        }
        letters = {token: number for token, number in ordinary.items() if token.isalpha()}
        is_of_residues = (
            len(letters) >= _FEWEST_RESIDUES
            and all(len(token) == 1 for token in ordinary)
            and all(token.isascii() and token.isupper() for token in letters)
        )
        return frozenset(letters.values()) if is_of_residues else frozenset()

    def shown(self, token: str) -> str:
        """The shown form of one token of the vocabulary."""
        if token in self._added:
            return _printable(token)
        if self._byte_level:
            return _printable(_bytes_of(token).decode(errors="surrogateescape").replace(" ", _SPACE))
        if (byte := _FALLBACK.fullmatch(token)) is not None:
            return _printable(bytes.fromhex(byte[1]).decode(errors="surrogateescape"))
        return _printable(token)

    def token(self, shown: str) -> str | None:
        """The token of the vocabulary whose shown form this is; None if there is none."""
        vocabulary = self._tokenizer.get_vocab()
        if self._byte_level and shown not in self._added:
            data = _unescaped(shown).replace(_SPACE, " ").encode(errors="surrogateescape")
            # A letter of a text is not the byte that a vocabulary writes with it.
            named = [] if _STRAY.search(_bytes_of(shown).decode(errors="surrogateescape")) else [shown]
            candidates = ["".join(_CHARACTERS[byte] for byte in data), *named]
        else:
            data = _unescaped(shown).encode(errors="surrogateescape")
            candidates = [shown, _unescaped(shown), *([f"<0x{data[0]:02X}>"] if len(data) == 1 else [])]
        return next((each for each in candidates if each in vocabulary), None)


def _bytes_of(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for."""
    return b"".join(BYTES.get(character) or character.encode(errors="surrogateescape") for character in token)


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    if not tokenizer.is_fast:
        return hasattr(tokenizer, "byte_decoder")
    backend = tokenizer.backend_tokenizer
    return any("ByteLevel(" in repr(part) for part in (backend.decoder, backend.pre_tokenizer))


def _printable(text: str) -> str:
    """Text whose every character can be seen, on one line."""
    text = _STRAY.sub(lambda stray: f"⟨{stray[0].encode(errors='surrogateescape').hex(' ').upper()}⟩", text)
    return "".join(
        character if character.isprintable() else _PICTURES.get(ord(character)) or ascii(character)[1:-1]
        for character in text
    )


def _unescaped(shown: str) -> str:
    """The inverse of `_printable`."""

    def original(match: re.Match[str]) -> str:
        stray, *numbers, picture = match.groups()
        if stray:
            return bytes.fromhex(stray).decode(errors="surrogateescape")
        if picture:
            return chr(127 if picture == "␡" else ord(picture) - 0x2400)
        return chr(int(next(filter(None, numbers)), 16))

    return _SHOWN.sub(original, shown)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens of a run, by id."""

    size: int = 0
    """Number of tokens that the tokenizer and the model both know."""
    special: frozenset[int] = frozenset()
    """The special tokens."""
    mask: int | None = None
    """The mask token; None if there is none."""
    first: int | None = None
    """The token that begins a sequence (`bos` or `cls`); None if there is neither."""
    text: Callable[[int], str] = str
    """Returns the text of a token."""
