"""The pickle released with Clark et al. 2019 and used by Kobayashi et al., as a corpus."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from normscope.data.examples import Corpus, Example
from normscope.data.pickles import load
from normscope.errors import InputError

_MAX_CHARACTERS = 100_000
"""Longest sequence, in characters; BERT takes at most 512 tokens."""


@dataclasses.dataclass(frozen=True)
class PickledTokens(Corpus):
    """A list of dicts whose `tokens` are BERT tokens, special tokens included."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise InputError(f"dataset.path={self.path}: no such file")

    @property
    def total(self) -> int | None:
        """Unknown before the file is read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Examples in the order of the file, with their tokens and the text that these spell."""
        rows = load(self.path)
        if not isinstance(rows, list):
            raise InputError(f"dataset.path={self.path}: expected a list of examples, got {type(rows).__name__}")
        for row in rows:
            tokens = row.get("tokens") if isinstance(row, dict) else None
            if isinstance(tokens, list | tuple) and len(tokens) > _MAX_CHARACTERS:
                yield "too long"
            elif not isinstance(tokens, list | tuple) or not all(isinstance(token, str) for token in tokens):
                yield "without tokens"
            elif not tokens:
                yield "empty"
            elif not _encodable(tokens):
                yield "not text"
            elif sum(map(len, tokens)) > _MAX_CHARACTERS:
                yield "too long"
            else:
                yield _example(tuple(tokens))


def _encodable(tokens: Sequence[str]) -> bool:
    """Whether tokens are valid Unicode: a pickle can hold half a surrogate pair."""
    return all(token.isascii() or not any("\ud800" <= character <= "\udfff" for character in token) for token in tokens)


def _example(tokens: tuple[str, ...]) -> Example:
    """The texts between special tokens, with word pieces joined; lower case, as the tokens are."""
    texts: list[list[str]] = [[]]
    for token in tokens:
        if token == "[SEP]":
            texts.append([])
        elif token != "[CLS]":
            texts[-1].append(token)
    words = [" ".join(text).replace(" ##", "") for text in texts if text]
    return Example(words[0] if words else "", words[1] if len(words) > 1 else None, tokens)
