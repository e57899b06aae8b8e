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


def head_comment(path: Path) -> tuple[str, str]:
    """The command in the first comment of a preset, and the sentences in the lines after it."""
    comments = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    commands = [line for line in comments if line.startswith("python run.py")]
    sentences = [line for line in comments if not line.startswith(("python run.py", "@package"))]
    return commands[0].replace("python run.py", "normscope", 1), " ".join(sentences)
