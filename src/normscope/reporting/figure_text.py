"""Text in figures: a user's words and names are drawn as they are, never read as mathematics."""

import re
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation

# A figure can be 65,536 pixels wide: a word of a corpus may be longer.
_LONGEST_LABEL = 40


def word_label(word: str) -> str:
    """A word as a label: what XML does not allow in an SVG is replaced."""
    label = "".join(character if character.isprintable() else "\ufffd" for character in word)
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


_SUPERSCRIPTS = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class _PowerFormatter(LogFormatterSciNotation):
    """Powers of ten in plain characters: text is never read as mathematics, as it may be a user's."""

    def __call__(self, x: float, pos: Any = None) -> str:
        formula = str(super().__call__(x, pos))
        plain = formula.removeprefix(r"$\mathdefault{").removesuffix("}$").replace(r"\times", "×")
        return re.sub(r"\^\{([^{}]*)\}", lambda power: power[1].translate(_SUPERSCRIPTS), plain)


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with labels such as 10⁻³."""
    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_formatter(_PowerFormatter())
    axis.set_minor_formatter(_PowerFormatter(labelOnlyBase=False))
