"""Which category every token of a vocabulary is in."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import InputError

CATEGORIES = ("cls", "sep", "mask", "punctuation", "other")
"""Those that every run has; a token is in exactly one."""

ALL = "all"
"""The union of the categories, reported beside them."""

# Comma and period of the languages that write them otherwise too: each counts wherever it occurs.
PUNCTUATION = (",", ".", "、", "。", "，")


FIRST = "first"
"""The first token of a sequence where tokens see only those before them: every token sees it, and attention sinks into it."""


@dataclasses.dataclass(frozen=True)
class TokenCategories:
    """The category of every token, by its number."""

    of_token: np.ndarray
    """Index into `names` for every token id."""
    special: frozenset[int]
    """Ids of the tokenizer's special tokens, which are never replaced by the mask."""
    names: tuple[str, ...] = CATEGORIES
    """The categories; every token is in exactly one."""

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: int,
        own: Mapping[str, Any] | None = None,
        *,
        causal: bool = False,
    ) -> "TokenCategories":
        """The categories of a tokenizer's vocabulary.

        Args:
            tokenizer: Its special tokens are `cls`, `sep` and `mask`.
            vocabulary: Number of token ids that can occur.
            own: Categories of the user's, by name: a list of tokens, or `re:` and a regular expression, or `file:` and a file
                of one token a line. `punctuation` replaces the comma and period.
            causal: Whether the first token of a sequence is a category by itself.

        Raises:
            InputError: If a category cannot be made of what was given, or two have a token in common.
        """
        own = own or {}
        names = (*CATEGORIES, *([FIRST] if causal else []), *(name for name in own if name not in CATEGORIES))
        of_token = np.full(vocabulary, CATEGORIES.index("other"), dtype=np.int64)
        if "punctuation" not in own:
            of_token[_punctuation_ids(tokenizer)] = CATEGORIES.index("punctuation")
        for name, tokens in _own_tokens(tokenizer, vocabulary, own).items():
            of_token[tokens] = names.index(name)
        for category in ("cls", "sep", "mask"):
            token_id = getattr(tokenizer, f"{category}_token_id")
            if token_id is not None:
                of_token[token_id] = CATEGORIES.index(category)
        return cls(of_token, frozenset(tokenizer.all_special_ids), names)

    def of_sequence(self, input_ids: np.ndarray) -> np.ndarray:
        """The categories of a sequence's tokens."""
        categories: np.ndarray = self.of_token[input_ids].astype(np.int64)
        if FIRST in self.names and len(categories):
            categories[0] = self.names.index(FIRST)
        return categories


def _own_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary: int, own: Mapping[str, Any]) -> dict[str, list[int]]:
    """Token ids of every category of the user's."""
    if not own:
        return {}
    texts = [text.strip() for text in tokenizer.batch_decode([[token] for token in range(vocabulary)])]
    special = frozenset(tokenizer.all_special_ids)
    owners: dict[int, str] = {}
    found: dict[str, list[int]] = {}
    for name, words in own.items():
        if name in ("cls", "sep", "mask", "other", ALL, FIRST) or not name.isidentifier():
            raise InputError(
                f"dataset.categories.{name}: expected a name of letters that is none of cls, sep, mask, other, {FIRST}, {ALL}"
            )
        matches = _matcher(name, words)
        found[name] = [token for token, text in enumerate(texts) if token not in special and matches(text)]
        if not found[name]:
            raise InputError(f"dataset.categories.{name}={words}: no token of the vocabulary is one of these")
        for token in found[name]:
            if token in owners:
                raise InputError(
                    f"dataset.categories: {texts[token]!r} is in {owners[token]} and in {name}; every token is in one category"
                )
            owners[token] = name
    return found


def _matcher(name: str, words: Any) -> Callable[[str], bool]:
    key = f"dataset.categories.{name}"
    if isinstance(words, str) and words.startswith("re:"):
        try:
            pattern = re.compile(words.removeprefix("re:"))
        except re.error as error:
            raise InputError(f"{key}={words}: not a regular expression: {error}") from error
        return lambda text: pattern.fullmatch(text) is not None
    if isinstance(words, str) and words.startswith("file:"):
        path = Path(words.removeprefix("file:")).expanduser()
        try:
            words = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{key}: {path} cannot be read: {error}") from error
    listed = words if isinstance(words, list) else [words]
    if not all(isinstance(word, str | int | float) for word in listed):
        raise InputError(f"{key}={words}: expected a list of tokens, re:EXPRESSION or file:PATH")
    chosen = {str(word).strip() for word in listed} - {""}
    return lambda text: text in chosen


def _punctuation_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that are a comma or period and nothing else, at the start of a word or after one.

    Vocabularies write one sign in several ways (`,` `Ġ,` `▁,`), so each way is asked of the tokenizer itself.
    """
    found = set()
    for sign in PUNCTUATION:
        for context in (sign, f"a{sign}", f"a {sign}"):
            for token_id in tokenizer(context, add_special_tokens=False)["input_ids"]:
                if str(tokenizer.decode([token_id])).strip() == sign:
                    found.add(token_id)
    return sorted(found)
