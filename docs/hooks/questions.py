"""What the analyses ask: their table, where a page says `<!-- questions -->`, and their pages in the navigation."""

from collections.abc import Sequence
from typing import Any

from docs.hooks.markdown import code, table
from normscope.analyses.registry import analyses, plug_ins

BUILT_IN = [info for info in analyses().values() if info not in plug_ins()]
FOLDER = "measures/"


def with_questions(page: str, name: str) -> str:
    """A page in Markdown, with the table of all analyses if it asks for it.

    Args:
        page: Its text.
        name: Its path in the documentation's folder.
    """
    folder = "" if name.startswith(FOLDER) else FOLDER
    rows = [(f"[{info.title}]({folder}{info.name}.md)", code(info.name), info.question) for info in BUILT_IN]
    return page.replace("<!-- questions -->", table(("page", "`analysis=`", "question"), rows))


def add_pages(navigation: Sequence[Any]) -> None:
    """Add the page of each analysis to the section of measures."""
    (measures,) = (entry["Measures"] for entry in navigation if "Measures" in entry)
    measures += [f"{FOLDER}{info.name}.md" for info in BUILT_IN]
