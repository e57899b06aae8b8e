"""Codes that stand in tables and names of numbers, and how people read them. Nothing here imports torch or pandas."""

import re

METHODS = {
    "attn_w": "Attn-W: weights",
    "attn_n": "Attn-N: vectors",
    "attnres_w": "AttnRes-W: weights + residual",
    "attnres_n": "AttnRes-N: vectors + residual",
    "attnresln_n": "AttnResLn-N: the attention block",
}
"""Titles of the five methods of mixing ratios."""

SPECIAL_TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""The papers' names of categories of special tokens."""

STEPS = {
    "ff": "FF: the network",
    "res": "RES: its residual connection",
    "ln": "LN: its normalisation",
    "ff+res": "FF and RES",
    "ff+res+ln": "FF, RES and LN",
}
"""Titles of the steps after the attention block."""

_SYMBOLS = {
    "alpha": "α",
    "f": "‖f(x)‖",
    "alpha_f": "‖αf(x)‖",
    "cv": "coefficient of variation",
    "max_cv": "largest coefficient of variation",
    "min_cv": "smallest coefficient of variation",
}

_QUOTED = re.compile(r"`([^`]*)`")
_CODES = METHODS | SPECIAL_TOKENS | _SYMBOLS | STEPS


def category_name(category: str) -> str:
    """A category of tokens in a sentence or figure: `[CLS]`; categories of other tokens keep their names."""
    return SPECIAL_TOKENS.get(category, category)


def in_words(code: str) -> str:
    """What people read for the name of a column, or for a value that stands for something: `[CLS]`, `controls mean`."""
    return _CODES.get(code, code.replace("_", " "))


def in_prose(text: str) -> str:
    """A declaration's text with words for the codes that it quotes."""
    return _QUOTED.sub(lambda code: in_words(code[1]), text)


def panel_title(panel: str) -> str:
    """The title of a panel, with the category that may end it as papers write it: `α, summed over keys, [CLS]`."""
    start, comma, category = panel.rpartition(", ")
    return f"{start}{comma}{category_name(category)}"
