"""The category of every token of a vocabulary."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.tokenization import encoded
from normscope.data.words import NO_WORD
from normscope.errors import InputError, one_line
from normscope.untrusted.plain_data import MIB, text

CATEGORIES = ("cls", "sep", "mask", "punctuation", "other")
"""The categories of every run. Each token is in exactly one."""

CONVERSATION_PARTS = ("system", "user", "assistant", "template")
"""The categories of conversations. What the template adds around the messages, the names of roles included, is `template`."""

IMAGE = "image"
"""The category of the tokens that stand for an image within a text."""

ALL = "all"
"""The union of the categories, reported alongside them."""

# Comma and period, including Chinese and Japanese ones; each counts in any language.
PUNCTUATION = (",", ".", "、", "。", "，")


_LONGEST_FILE = 64 * MIB

FIRST = "first"
"""The first token of a sequence in causal models: every token can attend to it, and it acts as an attention sink."""


@dataclasses.dataclass(frozen=True)
class TokenCategories:
    """The category of every token id."""

    of_token: np.ndarray
    """For every token id, an index into `names`."""
    special: frozenset[int]
    """Ids of the tokenizer's special tokens, which are never masked."""
    names: tuple[str, ...] = CATEGORIES
    """The names of the categories. Each token is in exactly one."""

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: int,
        custom: Mapping[str, Any] | None = None,
        *,
        causal: bool = False,
        column: Sequence[str] = (),
    ) -> "TokenCategories":
        """The categories of a tokenizer's vocabulary.

        Args:
            tokenizer: Its special tokens define `cls`, `sep` and `mask`.
            vocabulary: Number of token ids.
            custom: User-defined categories by name: a list of tokens, `re:` and a regular expression, or `file:` and a file
                with one token per line. `punctuation` replaces the comma and period.
            causal: Whether the first token of a sequence is a category by itself.
            column: The values of a column of annotated words. Each is a category, to which the tokens of its words belong
                unless the tokens alone put them into a category other than `other`. Commas and periods belong to the column's
                own category of punctuation (`PUNCT`, `punct`), if it has one.

        Raises:
            InputError: If a definition is invalid or matches no token, or if two categories share a token.
        """
        custom = custom or {}
        names = (*CATEGORIES, *([FIRST] if causal else []), *(name for name in custom if name not in CATEGORIES))
        for value in column:
            if value in (*CATEGORIES[:-1], ALL, FIRST):
                raise InputError(
                    f"dataset.categories: {value!r} is a value of the column, but also a category of every run"
                )
        names = (*names, *(value for value in column if value not in names))
        of_token = np.full(vocabulary, CATEGORIES.index("other"), dtype=np.int64)
        # A column that has its own punctuation (PUNCT, punct) needs no second category for it.
        if "punctuation" not in custom and not any(value.lower() == "punct" for value in column):
            of_token[_punctuation_ids(tokenizer)] = CATEGORIES.index("punctuation")
        for name, tokens in _custom_tokens(tokenizer, vocabulary, custom).items():
            of_token[tokens] = names.index(name)
        for category in ("cls", "sep", "mask"):
            token_id = getattr(tokenizer, f"{category}_token_id")
            if token_id is not None:
                of_token[token_id] = CATEGORIES.index(category)
        return cls(of_token, frozenset(tokenizer.all_special_ids), names)

    @property
    def impossible(self) -> frozenset[str]:
        """The categories of every run without a token of the vocabulary: many language models have no [CLS] and no [SEP]."""
        return frozenset(name for number, name in enumerate(CATEGORIES) if not (self.of_token == number).any())

    def of_sequence(self, input_ids: np.ndarray, inherited: np.ndarray | None = None) -> np.ndarray:
        """The categories of a sequence's tokens.

        Args:
            input_ids: The tokens.
            inherited: Categories for tokens that would otherwise be `other`; see `TokenSequence.inherited`.
        """
        categories: np.ndarray = self.of_token[input_ids].astype(np.int64)
        if FIRST in self.names and len(categories):
            categories[0] = self.names.index(FIRST)
        if inherited is None:
            return categories
        return np.where((categories == self.names.index("other")) & (inherited >= 0), inherited, categories)

    def of_words(self, words: np.ndarray, values: Sequence[str]) -> np.ndarray:
        """The categories that tokens inherit from annotated words; −1 for tokens without a word.

        Args:
            words: The word of each token, or NO_WORD.
            values: The value of each word in the column whose values are categories.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        of_word = np.array([*(numbers.get(value, numbers["other"]) for value in values), -1], dtype=np.int64)
        inherited: np.ndarray = of_word[np.where(words == NO_WORD, -1, words)]
        return inherited


def _custom_tokens(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, custom: Mapping[str, Any]
) -> dict[str, list[int]]:
    """Token ids of every user-defined category."""
    if not custom:
        return {}
    texts = [text.strip() for text in tokenizer.batch_decode([[token] for token in range(vocabulary)])]
    special = frozenset(tokenizer.all_special_ids)
    owners: dict[int, str] = {}
    members: dict[str, list[int]] = {}
    for name, words in custom.items():
        if name in ("cls", "sep", "mask", "other", ALL, FIRST) or not name.isidentifier():
            raise InputError(
                f"dataset.categories.{name}: expected a name of letters, digits and _, other than cls, sep, mask, other, "
                f"{FIRST} and {ALL}"
            )
        matches = _matcher(name, words)
        members[name] = [token for token, text in enumerate(texts) if token not in special and matches(text)]
        if not members[name]:
            raise InputError(
                f"dataset.categories.{name}={words}: expected tokens of the vocabulary; it has none of these"
            )
        for token in members[name]:
            if token in owners:
                raise InputError(
                    f"dataset.categories: {texts[token]!r} is in both {owners[token]} and {name}; expected each token in one "
                    "category"
                )
            owners[token] = name
    return members


def _matcher(name: str, words: Any) -> Callable[[str], bool]:
    key = f"dataset.categories.{name}"
    if isinstance(words, str) and words.startswith("re:"):
        try:
            pattern = re.compile(words.removeprefix("re:"))
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"{key}={words}: not a regular expression: {error}") from error
        return lambda text: pattern.fullmatch(text) is not None
    if isinstance(words, str) and words.startswith("file:"):
        words = _lines(key, words.removeprefix("file:"))
    listed = words if isinstance(words, list) else [words]
    if not all(isinstance(word, str | int | float) for word in listed):
        raise InputError(f"{key}={words}: expected a list of tokens, re:EXPRESSION or file:PATH")
    tokens = {str(word).strip() for word in listed} - {""}
    return lambda text: text in tokens


def _lines(key: str, given: str) -> list[str]:
    try:
        path = Path(given).expanduser()
        content = text(path, _LONGEST_FILE) if path.is_file() else None
    except (InputError, OSError, ValueError, RuntimeError) as error:  # the home directory of nobody is a RuntimeError
        raise InputError(f"{key}=file:{given}: cannot be read: {one_line(error)}") from error
    if content is None:
        raise InputError(f"{key}=file:{given}: no such file")
    return content.removeprefix("\ufeff").split("\n")


def _punctuation_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that consist of a comma or period alone, at the start of a word or after one.

    A vocabulary may hold one mark in several forms (`,` `Ġ,` `▁,`); the tokenizer itself gives all of them.
    """
    ids = set()
    for mark in PUNCTUATION:
        for context in (mark, f"a{mark}", f"a {mark}"):
            for token_id in encoded(tokenizer, context, special=False)["input_ids"]:
                if str(tokenizer.decode([token_id])).strip() == mark:
                    ids.add(token_id)
    return sorted(ids)
