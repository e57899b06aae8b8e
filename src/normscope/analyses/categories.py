"""The papers' names of token categories, for sentences and figures."""

SPECIAL_TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""Names of categories of special tokens."""


def category_name(category: str) -> str:
    """A category of tokens in a sentence: `[CLS]`; categories of other tokens keep their names."""
    return SPECIAL_TOKENS.get(category, category)
