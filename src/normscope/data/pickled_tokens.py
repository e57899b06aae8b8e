"""The released pickle of Clark et al. 2019, which Kobayashi et al. used, as a corpus."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from normscope.data.examples import Corpus, Example
from normscope.data.pickles import load
from normscope.errors import InputError

_LONGEST_ROW = 100_000
"""Characters of a sequence; BERT's have 512 tokens at most."""


@dataclasses.dataclass(frozen=True)
class PickledTokens(Corpus):
    """A list of dicts whose `tokens` are BERT's own, special tokens among them."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise InputError(f"dataset.path={self.path}: no such file")

    @property
    def total(self) -> int | None:
        """Not known before the file is read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Examples in the file's order: tokens, and the text that they are of."""
        rows = load(self.path)
        if not isinstance(rows, list):
            raise InputError(f"dataset.path={self.path}: expected a list of examples, got {type(rows).__name__}")
        for row in rows:
            tokens = row.get("tokens") if isinstance(row, dict) else None
            if isinstance(tokens, list | tuple) and len(tokens) > _LONGEST_ROW:
                yield "too long"
            elif not isinstance(tokens, list | tuple) or not all(isinstance(token, str) for token in tokens):
                yield "without tokens"
            elif not tokens:
                yield "empty"
            elif not _encodable(tokens):
                yield "not text"
            elif sum(map(len, tokens)) > _LONGEST_ROW:
                yield "too long"
            else:
                yield _example(tuple(tokens))


def _encodable(tokens: Sequence[str]) -> bool:
    """Whether tokens are Unicode: a pickle can hold half a character."""
    return all(token.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in token) for token in tokens)


def _example(tokens: tuple[str, ...]) -> Example:
    """The texts between the special tokens, in lower case as the tokens are, word pieces put together."""
    texts: list[list[str]] = [[]]
    for token in tokens:
        if token == "[SEP]":
            texts.append([])
        elif token != "[CLS]":
            texts[-1].append(token)
    words = [" ".join(text).replace(" ##", "") for text in texts if text]
    return Example(words[0] if words else "", words[1] if len(words) > 1 else None, tokens)
