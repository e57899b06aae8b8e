"""Captions of pictures, as text: each is in a file beside its picture, as `figures.caption=false` writes it."""

import re
from pathlib import Path

from docs.hooks.markdown import ROOT

IMAGES = ROOT / "docs" / "images"

_ALONE = re.compile(r"^!\[[^\]]*\]\((?:\.\./)?images/([\w-]+)\.png\)$(?!\n\n\*[^*])", re.M)
"""A picture in a paragraph of its own, unless a caption of the page's own, in italics, follows."""


def caption(picture: Path) -> str:
    """The caption of a picture in Markdown, in italics; empty if there is none."""
    written = picture.with_suffix(".txt")
    return f"*{_plain(written.read_text())}*" if written.is_file() else ""


def with_captions(page: str) -> str:
    """A page in Markdown, with the caption below each picture of `docs/images` that has one."""
    return _ALONE.sub(lambda found: f"{found[0]}\n\n{caption(IMAGES / f'{found[1]}.png')}".rstrip(), page)


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join(text.split()))
