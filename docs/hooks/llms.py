"""The documentation for programs that read text: `llms.txt` lists all pages, `llms-full.txt` has their text (llmstxt.org)."""

import importlib
import inspect
import re
from collections.abc import Iterable
from typing import NamedTuple

from docs.hooks.markdown import ROOT

_SNIPPET = re.compile(r'^--8<-- "([^":]+)(?::([\w-]+))?"$', re.MULTILINE)
_OBJECT = re.compile(r"^::: ([\w.]+)\n(?:^(?: {4}.*)?\n)*", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PROSE = re.compile(r"(?:[A-Za-z\[‖α]|\*{1,2}[A-Za-z]|`)")
"""How a paragraph begins, unlike headings, lists, tables, pictures and formulas."""


class Text(NamedTuple):
    """A page of the documentation."""

    section: str
    """Where the navigation has it; empty at the top."""
    title: str
    url: str
    markdown: str


def overview(name: str, description: str, pages: Iterable[Text]) -> str:
    """The content of llms.txt: what the project is, and a link and a sentence for every page, by section."""
    lines = [f"# {name}", "", f"> {description}"]
    section = None
    for page in pages:
        if page.section != section:
            section = page.section
            lines += ["", f"## {section or ('About' if len(lines) > 3 else 'Overview')}", ""]
        sentence = _first_sentence(page.markdown)
        lines.append(f"- [{page.title}]({page.url}){f': {sentence}' if sentence else ''}")
    return "\n".join([*lines, ""])


def whole(pages: Iterable[Text]) -> str:
    """The content of llms-full.txt: the text of all pages, with signatures and docstrings of what they document."""
    return "\n\n".join(f"<!-- {page.url} -->\n\n{resolved(page.markdown).strip()}" for page in pages) + "\n"


def resolved(markdown: str) -> str:
    """A page with the files that it includes, and with the docstrings of the objects that it names."""
    return _OBJECT.sub(lambda found: f"{_documented(found[1])}\n", _SNIPPET.sub(_included, markdown))


def _included(snippet: re.Match[str]) -> str:
    text = (ROOT / snippet[1]).read_text()
    if snippet[2] is not None:
        text = text.split(f"--8<-- [start:{snippet[2]}]")[1].split(f"--8<-- [end:{snippet[2]}]")[0]
    return "\n".join(line for line in text.splitlines() if "--8<--" not in line and line.strip() not in ("<!--", "-->"))


def _documented(name: str) -> str:
    """A heading with the signature, and the docstring; of modules and classes, those of their public functions as well."""
    value = _found(name)
    parts = [f"### `{name}{_signature(value)}`", inspect.getdoc(value) or ""]
    if inspect.ismodule(value) or inspect.isclass(value):
        for member, own in vars(value).items():
            ours = getattr(own, "__module__", None) == (value.__name__ if inspect.ismodule(value) else value.__module__)
            if not member.startswith("_") and ours and callable(own) and inspect.getdoc(own):
                parts += [f"#### `{member}{_signature(own)}`", inspect.getdoc(own) or ""]
    return "\n\n".join(part for part in parts if part) + "\n"


def _found(name: str) -> object:
    module, members = name, list[str]()
    while True:
        try:
            value: object = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            members.insert(0, last)
    for member in members:
        value = getattr(value, member)
    return value


def _signature(value: object) -> str:
    if not callable(value):
        return ""
    try:
        return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def _first_sentence(markdown: str) -> str:
    """What a page is about: the first sentence of its prose, as plain text."""
    paragraphs = re.split(r"\n\s*\n", _FENCED.sub("", resolved(markdown)))
    found = next(
        (part.strip() for part in paragraphs if _PROSE.match(part.strip()) and "·" not in part), ""
    )  # dots: links
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(found.split()))
    return re.split(r"(?<=[.!?:]) (?=[A-Z`*])", text.replace("**", ""))[0].rstrip(":,")
