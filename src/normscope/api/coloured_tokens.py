"""Texts for notebooks, with each token coloured by how much it adds or subtracts."""

import html
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from normscope.rounding import number

_MORE, _LESS = (230, 97, 1), (94, 60, 153)

LEGEND = (
    '<p style="color:#5a5f66;font-size:90%;margin:0">'
    "orange raises the value, purple lowers it; hover over a token to see its part</p>"
)


def coloured(tokens: Sequence[str], values: Float[np.ndarray, " token"], largest: float) -> str:
    """Render a text as HTML, with the value of each token as its tooltip.

    Args:
        values: How much each adds.
        largest: The value with the strongest colour.
    """
    words = "".join(_word(token, float(value), largest or 1.0) for token, value in zip(tokens, values, strict=True))
    return f'<p style="line-height:2.4;margin:0">{words}</p>'


def _word(token: str, value: float, largest: float) -> str:
    red, green, blue = _MORE if value > 0 else _LESS
    # At most 60% of the full colour, so that dark text stays readable.
    strength = 0.6 * min(1.0, abs(value) / largest)
    style = f"background:rgba({red},{green},{blue},{strength:.3f});color:#1a1a1a;padding:.25em;margin:0 1px;border-radius:3px"
    return f'<span style="{style}" title="{number(value)}">{html.escape(token)}</span> '
