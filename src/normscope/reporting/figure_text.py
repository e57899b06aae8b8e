"""Text in figures. Tokens and names are drawn literally, never parsed as mathematics."""

import re
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation

# A figure can be at most 65,536 pixels wide, and a corpus may contain words longer than that.
_LONGEST_LABEL = 40


def word_label(word: str) -> str:
    """A word as a label, shortened if long; characters that XML forbids in an SVG are replaced."""
    label = "".join(character if character.isprintable() else "\ufffd" for character in word)
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


_SUPERSCRIPTS = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class _PowerFormatter(LogFormatterSciNotation):
    """Powers of ten in plain characters, since parsing of mathematics is switched off."""

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
