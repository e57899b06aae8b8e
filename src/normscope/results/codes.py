"""Codes that stand in tables and names of numbers, and how people read them. Nothing here imports torch or pandas."""

import re

METHODS = {
    "attn_w": "attention weights (Attn-W)",
    "attn_n": "weighted vectors (Attn-N)",
    "attnres_w": "weights + residual (AttnRes-W)",
    "attnres_n": "vectors + residual (AttnRes-N)",
    "attnresln_n": "attention block (AttnResLn-N)",
}
"""Titles of the five methods of mixing ratios: in plain words, with the paper's names in brackets."""

SPECIAL_TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""The papers' names of categories of special tokens."""

STEPS = {
    "ff": "feed-forward network (FF)",
    "res": "residual connection (RES)",
    "ln": "normalisation (LN)",
    "ff+res": "network and residual (FF, RES)",
    "ff+res+ln": "network, residual and normalisation (FF, RES, LN)",
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

_IN_PAPER = re.compile(r" \(([^()]*)\)")
_QUOTED = re.compile(r"`([^`]*)`")
_CODES = METHODS | SPECIAL_TOKENS | _SYMBOLS | STEPS


def category_name(category: str) -> str:
    """A category of tokens in a sentence or figure: `[CLS]`; categories of other tokens keep their names."""
    return SPECIAL_TOKENS.get(category, category)


def plain(title: str) -> str:
    """A method's title without its paper's name: `attention block`."""
    return _IN_PAPER.sub("", title)


def bracketed(title: str) -> str:
    """A method's title in brackets, of which there is one pair: `(attention block, AttnResLn-N)`."""
    flat = _IN_PAPER.sub(r", \1", title)
    return f"({flat})"


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
