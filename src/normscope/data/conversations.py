"""Conversations written in a tokenizer's own chat template, and the part of the conversation that each token belongs to."""

import dataclasses
import datetime
import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.categories import IMAGE
from normscope.data.chat_templates import ChatTemplate, RejectedError
from normscope.data.encoders import ExampleEncoder
from normscope.data.examples import CorpusCounts, Example, Message
from normscope.data.legibility import NOT_TEXT, why_not_text
from normscope.data.token_sequence import OwnInput, ReadsImageTexts, TokenSequence
from normscope.data.tokenization import Span, encoded, owners_of, places_of
from normscope.errors import InputError, one_line, printable

_TODAY = datetime.datetime(2024, 7, 26)
"""The date that templates are given as today's, to keep runs repeatable: the default in Llama's own template."""

# The macro is followed by an expression, because a newline right after a block would be dropped.
_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('%{letter}', '{_TODAY.strftime(f'%{letter}')}')" for letter in "aAbBdHIjmMpSUwWyY")
    + " }}{% endmacro %}{{ '' }}"
)

PART_OF_ROLE = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    **dict.fromkeys(("user", "tool", "query", "document"), "user"),
}
"""Instructions of developers count as `system`; outputs of tools, and what rerankers read, as `user`."""

PARTS = "the parts of type "
IMAGES = f"{PARTS}{IMAGE}"
REWRITTEN = "messages that the chat template changes (dataset.chat_template)"
UNREAD = "messages with {parts}, but only text and images are read (dataset.chat_template)"
LEFT_OUT = "read without {part} of messages: only roles and texts are read (dataset.chat_template)"
TOO_LONG = "longer than {longest} tokens, images included (dataset.max_length)"
REJECTED = "messages that the chat template rejects: {reason} (dataset.chat_template)"


class Conversation(NamedTuple):
    """A conversation as a template writes it."""

    text: str
    messages: tuple[Span, ...]
    """Where each message lies; of one with images, each of its texts."""
    parts: tuple[str, ...]
    """Which part of the conversation each is."""

    def part_of(self, message: int | None) -> str:
        """The part that a message is; None stands for what the template adds."""
        return "template" if message is None else self.parts[message]


def messages_of(cell: Any, place: str, folder: Path | None = None) -> tuple[Message, ...] | str:
    """The messages in a cell, or the reason why they are skipped.

    Args:
        cell: A list of mappings, each with a role and a content.
        place: The row, for error messages.
        folder: Where files of images are, if their names say no folder.

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
        content, others, parts = _content(message.get("content"), folder or Path())
        if content is None:
            return NOT_TEXT
        if content.strip() and (reason := why_not_text(content.strip())) is not None:
            return reason
        fields = [
            f"the field {printable(str(name), 40)}"
            for name, value in message.items()
            if name not in ("role", "content") and value not in (None, "", [], {})
        ]
        messages.append(Message(role, content, (*others, *fields), parts))
    if any(message.content.strip() or any(each is not None for each in message.images) for message in messages):
        return tuple(messages)
    return NOT_TEXT if any(message.others for message in messages) else "empty"


def _content(content: Any, folder: Path) -> tuple[str | None, tuple[str, ...], tuple[Any, ...]]:
    """What a message says, None if it is no text; its parts that are none; and, if it has images, its texts and images.

    Content may be a list of parts, as for models that also read images. Templates write the texts among them one after the
    other.
    """
    if isinstance(content, str) or content is None:
        return content, (), ()
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None, (), ()
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        return None, (), ()
    kinds = {printable(str(part.get("type")), 40): None for part in content if part.get("type") != "text"}
    parts: tuple[Any, ...] = ()
    if IMAGE in kinds:
        read = [part for part in content if part.get("type") in ("text", IMAGE)]
        parts = tuple(part["text"] if part["type"] == "text" else _image(part, folder) for part in read)
    return "".join(map(str, texts)), tuple(f"{PARTS}{kind}" for kind in kinds), parts


def _image(part: Mapping[str, Any], folder: Path) -> Any:
    """The image of a part, or its file."""
    given = part.get("image", part.get("path"))
    return folder / given if isinstance(given, str | Path) else given


def template_of(
    tokenizer: PreTrainedTokenizerBase, name: str, variables: Mapping[str, Any] | None = None
) -> ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        name: The model's name, for error messages.
        variables: Those of a model that writes all its texts in the template; see `TextRule`.

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
    own = {} if variables is None else {"add_generation_prompt": False, **variables}
    return ChatTemplate(dated, tokenizer, name, own)


def conversation(
    template: ChatTemplate, messages: Sequence[Message], *, prompt: bool = False, in_parts: bool = False
) -> Conversation | str:
    """Messages in a chat template, or the reason why they are skipped.

    Messages are located by rendering placeholders in their place, so they may repeat words of the template.

    Args:
        prompt: Whether to add what the template writes before an answer.
        in_parts: Whether the template reads contents as lists of parts, as those of models that read images do.

    Raises:
        InputError: If the template cannot be used at all.
    """
    texts = [(each.role, said) for each in messages for said in (each.texts if in_parts else [each.content])]
    marks = [f"\ue000{number}\ue001" for number in range(len(texts))]
    try:
        both = [
            [{"role": each.role, "content": _content_of(each, given, in_parts)} for each in messages]
            for given in (iter([said for _, said in texts]), iter(marks))
        ]
        text, pattern = template.rendered(both, prompt=prompt)
    except RejectedError as error:
        return REJECTED.format(reason=error)
    spans: list[Span] = []
    place, rest = 0, pattern
    for (_, said), mark in zip(texts, marks, strict=True):
        around, found, rest = rest.partition(mark)
        if not found or not text.startswith(around, place):
            return REWRITTEN
        place += len(around)
        # Many templates strip messages.
        content = next((each for each in (said, said.strip()) if text.startswith(each, place)), None)
        if content is None:
            return REWRITTEN
        spans.append((place, place + len(content)))
        place += len(content)
    parts = tuple(PART_OF_ROLE[role] for role, _ in texts)
    return Conversation(text, tuple(spans), parts) if text[place:] == rest else REWRITTEN


def _content_of(message: Message, texts: Iterator[str], in_parts: bool) -> Any:
    """The content of a message as a template takes it.

    Args:
        texts: Its next texts.
        in_parts: Whether it is a list of parts.
    """
    if not in_parts:
        return next(texts)
    parts = message.parts or (message.content,)
    return [{"type": "text", "text": next(texts)} if isinstance(part, str) else {"type": IMAGE} for part in parts]


def awaits_answer(messages: Sequence[Message]) -> bool:
    """Whether the assistant has not said the last word."""
    return not messages or messages[-1].role != "assistant"


class Tokens(NamedTuple):
    """The tokens of a conversation."""

    ids: list[int]
    messages: list[int | None]
    """The number of the message that each belongs to; None for those of the template."""
    segments: list[int] | None
    """Segment ids, if they are wanted."""


def tokens_of(tokenizer: PreTrainedTokenizerBase, written: Conversation, *, segments: bool = False) -> Tokens:
    """The tokens of a conversation. The template writes all special tokens, so none are added."""
    encoding = encoded(tokenizer, written.text, special=False, segments=segments)
    spans = [(0, 0) if place is None else place[1:] for place in places_of(encoding.encodings[0], [written.text])]
    types = encoding["token_type_ids"] if segments else None
    return Tokens(list(encoding["input_ids"]), owners_of(spans, written.messages), types)


@dataclasses.dataclass(frozen=True)
class Conversations(ExampleEncoder):
    """Conversations in the tokenizer's chat template, with the part of each token as its category."""

    template: ChatTemplate | None
    """None for a model that reads a question about an image and has no template."""
    asks: bool = False
    """Whether what the template writes before an answer follows a conversation that the assistant does not end."""
    reader: ReadsImageTexts | None = None
    """Reads conversations with images; None for a model that reads texts alone."""

    def encode(self, examples: Sequence[Example], counts: CorpusCounts) -> list[TokenSequence]:
        """Sequences of the conversations that the template accepts."""
        return self.sequences.with_text(self._written(examples, counts), counts)

    def _written(self, examples: Sequence[Example], counts: CorpusCounts) -> Iterator[list[TokenSequence]]:
        names, longest = self.sequences.categories.names, self.sequences.max_length
        for example in examples:
            messages = example.messages or ()
            is_said = any(message.content.strip() for message in messages)
            written = self._conversation(messages) if is_said or self.reader is not None else NOT_TEXT
            if isinstance(written, str):
                counts.skipped[written] += 1
                continue
            left_out = {part for message in messages for part in message.others}
            if self.reader is not None:
                left_out -= {IMAGES}
                if unread := sorted(part for part in left_out if part.startswith(PARTS)):
                    counts.skipped[UNREAD.format(parts=" and ".join(unread))] += 1
                    continue
            images = [image for message in messages for image in message.images]
            tokens = tokens_of(self.sequences.tokenizer, written, segments=self.sequences.segments)
            own = None
            if self.reader is not None and (images or self.reader.alone):
                tokens, own = _with_images(self.reader, tokens, written, images, messages)
            cut = longest is not None and len(tokens.ids) > longest
            if own is not None and cut:  # an image cannot be cut
                counts.skipped[TOO_LONG.format(longest=longest)] += 1
                continue
            segments = None if tokens.segments is None else self.sequences.kept(tokens.segments)
            sequence = self.sequences.made(self.sequences.kept(tokens.ids), segments, cut=cut)
            for part in left_out:
                counts.remarks[LEFT_OUT.format(part=part)] += 1
            parts = map(written.part_of, self.sequences.kept(tokens.messages))
            inherited = np.array([names.index(part) for part in parts], dtype=np.int64)
            for image in () if own is None else own.images:
                inherited[[*image.places]] = names.index(IMAGE)
            yield [dataclasses.replace(sequence, inherited=inherited, own=own)]

    def _conversation(self, messages: Sequence[Message]) -> Conversation | str:
        """A conversation as the template writes it, or the reason why it is skipped."""
        if self.template is not None:
            prompt = self.asks and awaits_answer(messages)
            return conversation(self.template, messages, prompt=prompt, in_parts=self.reader is not None)
        assert self.reader is not None
        said = "".join(message.content for message in messages)
        text = self.reader.marked(said, sum(len(message.images) for message in messages))
        return Conversation(text, ((len(text) - len(said), len(text)),), ("user",))


def _with_images(
    reader: ReadsImageTexts, tokens: Tokens, written: Conversation, images: Sequence[Any], messages: Sequence[Message]
) -> tuple[Tokens, OwnInput]:
    """The tokens of a conversation with images, which are what its text alone has and more for each image."""
    title = " ".join(message.content.strip() for message in messages)
    ids, own = reader.read(written.text, images, title)
    owners: list[int | None] = [None] * len(ids)
    for start, other, size in difflib.SequenceMatcher(None, tokens.ids, ids, autojunk=False).get_matching_blocks():
        owners[other : other + size] = tokens.messages[start : start + size]
    return Tokens(ids, owners, None), own
