"""Which category every token of a vocabulary is in."""

import dataclasses

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

CATEGORIES = ("cls", "sep", "mask", "punctuation", "other")
"""Every token is in exactly one."""

ALL = "all"
"""The union of the categories, reported beside them."""

# Comma and period of the languages that write them otherwise too: each counts wherever it occurs.
PUNCTUATION = (",", ".", "、", "。", "，")


@dataclasses.dataclass(frozen=True)
class TokenCategories:
    """The category of every token, by its number."""

    of_token: np.ndarray
    """Index into CATEGORIES for every token id."""
    special: frozenset[int]
    """Ids of the tokenizer's special tokens, which are never replaced by the mask."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> "TokenCategories":
        """The categories of a tokenizer's vocabulary.

        Args:
            tokenizer: Its special tokens are `cls`, `sep` and `mask`.
            vocabulary: Number of token ids that can occur.
        """
        of_token = np.full(vocabulary, CATEGORIES.index("other"), dtype=np.int8)
        of_token[_punctuation_ids(tokenizer)] = CATEGORIES.index("punctuation")
        for category in ("cls", "sep", "mask"):
            token_id = getattr(tokenizer, f"{category}_token_id")
            if token_id is not None:
                of_token[token_id] = CATEGORIES.index(category)
        return cls(of_token, frozenset(tokenizer.all_special_ids))


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
