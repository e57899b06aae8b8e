"""Tokens as people read them: in maps, lists, figures and sentences.

Results keep tokens with the marks of their vocabulary (see `data.token_texts`): `Ġ` and `▁` begin a word, `##` continues one,
`</w>` ends one. Whatever shows a token to a reader asks here; the exact token is in tooltips and tables.
"""

import re
from collections.abc import Sequence

_SPACES = "Ġ▁"
"""What stands for the space before a word."""
_PIECE = re.compile("##(?=[^#])")
"""What a token begins with that continues a word. A text may have number signs of its own, as in `###`."""
_END = "</w>"


_INSTEAD = " → "
"""Between two tokens, one of which stands in place of the other."""


def label(token: str) -> str:
    """A token without the marks of its vocabulary. One that is nothing but spaces has an open box for each."""
    if _INSTEAD in token:
        return _INSTEAD.join(map(label, token.split(_INSTEAD)))
    text = token.lstrip(_SPACES)
    if not text:
        return "␣" * len(token)
    text = _PIECE.sub("", text, count=1) if _PIECE.match(text) else text
    text = text if text == _END else text.removesuffix(_END)
    return re.sub(f"[{_SPACES}]", " ", text).replace("␊", "⏎")  # which more fonts have


def labels(tokens: Sequence[str]) -> list[str]:
    """The label of each token."""
    return [label(token) for token in tokens]


def continues(tokens: Sequence[str]) -> list[bool]:
    """Which tokens of a text continue the word of the token before them, by the marks of their vocabulary."""
    if any(token.startswith(tuple(_SPACES)) for token in tokens):
        found = [not token.startswith(tuple(_SPACES)) for token in tokens]
    elif any(token.endswith(_END) for token in tokens):
        found = [False, *(not token.endswith(_END) for token in tokens[:-1])]
    else:
        found = [_PIECE.match(token) is not None for token in tokens]
    return [place > 0 and joined for place, joined in enumerate(found)]


def as_text(tokens: Sequence[str]) -> str:
    """Tokens as running text, with a space before each that does not continue a word."""
    pairs = zip(labels(tokens), continues(tokens), strict=True)
    return "".join(text if joined else f" {text}" for text, joined in pairs).strip()
