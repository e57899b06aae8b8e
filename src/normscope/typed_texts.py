"""Texts as they are typed into a box or on the command line: one text, a pair, or a conversation."""

import re
from typing import Any, NamedTuple

from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import is_messages, messages_in, parts_of

SEPARATOR = " ||| "
"""Between the two texts of a pair."""
_ROLE = re.compile(r"^(system|developer|user|tool|assistant):", re.MULTILINE)


def typed(text: Any) -> tuple[str, bool]:
    """A text, a pair or a conversation as it is typed, and whether it is a conversation.

    Raises:
        InputError: If it is anything else, or would be read as something else.
    """
    if is_messages(text):
        written = "\n".join(f"{each.role}: {each.content}" for each in messages_in(text))
        if [(each.role, each.content) for each in messages_of(written)] != [
            (each.role, each.content.strip()) for each in messages_in(text)
        ]:
            raise InputError(
                "text: a line of a message begins with a role, such as `user:`, and would be read as another message"
            )
        return written, True
    parts = parts_of(text)
    if any(SEPARATOR in part for part in parts):
        raise InputError(f"text: expected no `{SEPARATOR}`, which separates the two texts of a pair")
    return SEPARATOR.join(parts), False


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
