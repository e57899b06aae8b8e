"""The papers' names of token categories, for sentences and figures."""

from normscope.results.codes import SPECIAL_TOKENS as SPECIAL_TOKENS


def category_name(category: str) -> str:
    """A category of tokens in a sentence: `[CLS]`; categories of other tokens keep their names."""
    return SPECIAL_TOKENS.get(category, category)
