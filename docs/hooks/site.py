"""The hook that MkDocs calls: it adds the generated pages, the list of analyses, the captions of pictures and the tables of
measurements, and turns formulas into MathML, so that no page needs a script."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.hooks import (
    captions,
    citations,
    config_keys,
    gallery,
    measurements,
    models,
    outputs,
    python_reference,
    questions,
)

_CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def _contributing() -> str:
    """The text of CONTRIBUTING.md, with links relative to the documentation's folder."""
    return _CONTRIBUTING.read_text().replace("](docs/", "](")


PAGES: dict[str, Callable[[], str]] = {
    "gallery.md": gallery.page,
    "reference/keys.md": config_keys.page,
    "reference/tables.md": outputs.page,
    "reference/models.md": models.page,
    "reference/python.md": python_reference.page,
    "guides/papers.md": citations.page,
    "contributing.md": _contributing,
}

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.S)


def on_config(config: Any) -> None:
    """Add the pages of the analyses to the navigation."""
    questions.add_pages(config.nav)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages, some of which replace a template of the same name."""
    for name, page in PAGES.items():
        template = files.get_file_from_path(name)
        if template is not None:
            files.remove(template)
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Add the captions of pictures, the tables of measurements and that of the analyses."""
    text = measurements.with_tables(captions.with_captions(markdown))
    return questions.with_questions(text, page.file.src_uri)


def on_page_content(content: str, **_: Any) -> str:
    """Turn TeX formulas into MathML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(formula: re.Match[str]) -> str:
    element, bracket, tex = formula.groups()
    mathml = convert(html.unescape(tex), display="block" if bracket == "[" else "inline")
    return f'<{element} class="formula">{mathml}</{element}>'
