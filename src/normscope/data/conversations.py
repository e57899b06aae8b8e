"""Conversations written in a tokenizer's own chat template, and the part of the conversation that each token belongs to."""

import bisect
import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.chat_templates import ChatTemplate, RejectedError
from normscope.data.encoders import ExampleEncoder
from normscope.data.examples import CorpusCounts, Example, Message
from normscope.data.legibility import NOT_TEXT, why_not_text
from normscope.data.token_sequence import TokenSequence
from normscope.errors import InputError, one_line, printable

_TODAY = datetime.datetime(2024, 7, 26)
"""The date that templates are given as today's, to keep runs repeatable: the default in Llama's own template."""

# The macro is followed by an expression, because a newline right after a block would be dropped.
_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('%{letter}', '{_TODAY.strftime(f'%{letter}')}')" for letter in "aAbBdHIjmMpSUwWyY")
    + " }}{% endmacro %}{{ '' }}"
)

PART_OF_ROLE = {"system": "system", "developer": "system", "user": "user", "tool": "user", "assistant": "assistant"}
"""Instructions of developers count as `system`, outputs of tools as `user`."""

REWRITTEN = "messages that the chat template changes (dataset.chat_template)"
LEFT_OUT = "read without {part} of messages: only roles and texts are read (dataset.chat_template)"
REJECTED = "messages that the chat template rejects: {reason} (dataset.chat_template)"


class Conversation(NamedTuple):
    """A conversation as a template writes it."""

    text: str
    starts: tuple[int, ...]
    """Where each part of the text begins, in order; the first begins at 0."""
    parts: tuple[str, ...]
    """The name of each part."""

    def part_of(self, start: int, end: int) -> int:
        """The number of the part that a span of characters belongs to; a message, if it reaches into one."""
        touched = range(bisect.bisect(self.starts, start) - 1, bisect.bisect_left(self.starts, max(end, start + 1)))
        return next((number for number in touched if self.parts[number] != "template"), touched[0])


def messages_of(cell: Any, place: str) -> tuple[Message, ...] | str:
    """The messages in a cell, or the reason why they are skipped.

    Args:
        cell: A list of mappings, each with a role and a content.
        place: The row, for error messages.

    Raises:
        InputError: If the cell is something else, or names an unknown role.
    """
    if cell is None or cell == []:
        return "empty"
    messages = []
    for message in cell if isinstance(cell, list) else [cell]:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(role, str) or role not in PART_OF_ROLE:
            raise InputError(
                f"dataset.chat_template=true: {place}: expected a list of messages with a role of {', '.join(PART_OF_ROLE)} "
                f"and a content, got {printable(repr(message), 60)}"
            )
        content, others = _content(message.get("content"))
        if content is None:
            return NOT_TEXT
        if content.strip() and (reason := why_not_text(content.strip())) is not None:
            return reason
        fields = [
            f"the field {printable(str(name), 40)}"
            for name, value in message.items()
            if name not in ("role", "content") and value not in (None, "", [], {})
        ]
        messages.append(Message(role, content, (*others, *fields)))
    if any(message.content.strip() for message in messages):
        return tuple(messages)
    return NOT_TEXT if any(message.others for message in messages) else "empty"


def _content(content: Any) -> tuple[str | None, tuple[str, ...]]:
    """What a message says, None if it is no text, and its parts that are none.

    Content may be a list of parts, as for models that also read images. Templates write the texts among them one after the
    other.
    """
    if isinstance(content, str) or content is None:
        return content, ()
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None, ()
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        return None, ()
    kinds = {printable(str(part.get("type")), 40): None for part in content if part.get("type") != "text"}
    return "".join(map(str, texts)), tuple(f"the parts of type {kind}" for kind in kinds)


def template_of(tokenizer: PreTrainedTokenizerBase, name: str) -> ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        name: The model's name, for error messages.

    Raises:
        InputError: If the tokenizer cannot write conversations, or does not say which characters its tokens come from.
    """
    if not tokenizer.chat_template:
        raise InputError(
            f"dataset.chat_template=true: the tokenizer of {name} has no chat template; set model.name to a model tuned "
            "for chat, or model.tokenizer to its tokenizer"
        )
    if not tokenizer.is_fast:
        raise InputError(f"dataset.chat_template=true: expected a fast tokenizer, which {name} does not have")
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, none of them the default
        raise InputError(f"dataset.chat_template=true: the tokenizer of {name}: {one_line(error)}") from error
    # transformers passes only its own functions to templates, so the date is a macro in the template itself.
    dated = _DATE + template if "strftime_now" in template else template
    return ChatTemplate(dated, tokenizer, name)


def conversation(template: ChatTemplate, messages: Sequence[Message], *, prompt: bool = False) -> Conversation | str:
    """Messages in a chat template, or the reason why they are skipped.

    Messages are located by rendering placeholders in their place, so they may repeat words of the template.

    Args:
        prompt: Whether to add what the template writes before an answer.

    Raises:
        InputError: If the template cannot be used at all.
    """
    marks = [f"\ue000{number}\ue001" for number in range(len(messages))]
    placeholders = [Message(each.role, mark) for each, mark in zip(messages, marks, strict=True)]
    try:
        both = [[{"role": each.role, "content": each.content} for each in given] for given in (messages, placeholders)]
        text, pattern = template.rendered(both, prompt=prompt)
    except RejectedError as error:
        return REJECTED.format(reason=error)
    starts, parts, place, rest = [0], ["template"], 0, pattern
    for message, mark in zip(messages, marks, strict=True):
        around, found, rest = rest.partition(mark)
        if not found or not text.startswith(around, place):
            return REWRITTEN
        place += len(around)
        # Many templates strip messages.
        content = next(
            (said for said in (message.content, message.content.strip()) if text.startswith(said, place)), None
        )
        if content is None:
            return REWRITTEN
        starts += [place, place + len(content)]
        parts += [PART_OF_ROLE[message.role], "template"]
        place += len(content)
    return Conversation(text, tuple(starts), tuple(parts)) if text[place:] == rest else REWRITTEN


def awaits_answer(messages: Sequence[Message]) -> bool:
    """Whether the assistant has not said the last word."""
    return not messages or messages[-1].role != "assistant"


class Tokens(NamedTuple):
    """The tokens of a conversation."""

    ids: list[int]
    parts: list[str]
    """The name of the part that each belongs to."""
    spans: list[tuple[int, int]]
    """The first character of each, and the one after its last."""


def tokens_of(tokenizer: PreTrainedTokenizerBase, written: Conversation) -> Tokens:
    """The tokens of a conversation. The template writes all special tokens, so none are added."""
    encoded = tokenizer(written.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans = [(start, end) for start, end in encoded["offset_mapping"]]
    return Tokens(list(encoded["input_ids"]), [written.parts[written.part_of(*span)] for span in spans], spans)


@dataclasses.dataclass(frozen=True)
class Conversations(ExampleEncoder):
    """Conversations in the tokenizer's chat template, with the part of each token as its category."""

    template: ChatTemplate
    asks: bool = False
    """Whether what the template writes before an answer follows a conversation that the assistant does not end."""

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Sequences of the conversations that the template accepts."""
        return self.sequences.with_text(self._written(examples, counts), counts)

    def _written(self, examples: Sequence[Example], counts: CorpusCounts) -> Iterator[list[TokenSequence]]:
        names, longest = self.sequences.categories.names, self.sequences.max_length
        for example in examples:
            messages = example.messages or ()
            written = conversation(self.template, messages, prompt=self.asks and awaits_answer(messages))
            if isinstance(written, str):
                counts.skipped[written] += 1
                continue
            ids, parts, _ = tokens_of(self.sequences.tokenizer, written)
            cut = longest is not None and len(ids) > longest
            sequence = self.sequences.of_one_text(list(self.sequences.kept(ids)), cut=cut)
            for part in {part for message in messages for part in message.others}:
                counts.remarks[LEFT_OUT.format(part=part)] += 1
            inherited = np.array([names.index(part) for part in self.sequences.kept(parts)], dtype=np.int64)
            yield [dataclasses.replace(sequence, inherited=inherited)]
