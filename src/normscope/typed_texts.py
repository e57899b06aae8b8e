"""Texts as they are typed into a box or on the command line: one text, a pair, or a conversation."""

import re
from typing import Any, NamedTuple

from normscope.errors import InputError
from normscope.models.loaded import LoadedModel

SEPARATOR = " ||| "
"""Between the two texts of a pair."""
_ROLE = re.compile(r"^(system|developer|user|tool|assistant):", re.MULTILINE)


class TypedMessage(NamedTuple):
    """A message of a conversation that was typed."""

    role: str
    content: str
    start: int
    """Where the content begins in what was typed."""


def messages_of(text: str) -> list[TypedMessage]:
    """The messages of a conversation, each of which begins with its role at the beginning of a line: `user: Hello!`.

    What comes before the first role is what a user says.
    """
    roles = [*_ROLE.finditer(text)]
    parts = [("user", 0), *((found[1], found.end()) for found in roles)]
    ends = [*(found.start() for found in roles), len(text)]
    messages = []
    for number, ((role, start), end) in enumerate(zip(parts, ends, strict=True)):
        content = text[start:end]
        if number or content.strip():
            messages.append(TypedMessage(role, content.strip(), start + len(content) - len(content.lstrip())))
    return messages


def as_given(model: LoadedModel, text: str, *, chat: bool = False) -> Any:
    """A text, a pair of texts with ` ||| ` between them, or a conversation, as the Python interface takes it.

    Args:
        chat: Whether the text is a conversation; see `messages_of`.

    Raises:
        InputError: If it is empty, or the model reads two texts and gets one.
    """
    if not text.strip():
        raise InputError("text: expected a text, got an empty one")
    if chat:
        return [{"role": each.role, "content": each.content} for each in messages_of(text)]
    first, separator, second = text.partition(SEPARATOR)
    if separator:
        return first, second
    if model.layout.reads_target:
        raise InputError(f"text: {model.name} reads two texts: write `source{SEPARATOR}translation`")
    return text
