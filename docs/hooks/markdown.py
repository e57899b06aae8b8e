"""Small pieces of Markdown."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """A text as the content of a table's cell."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def code(text: object) -> str:
    """A text as inline code."""
    return f"`{text}`"
