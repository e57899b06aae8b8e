"""The passages of a prompt in files: a folder of texts, a text with blank lines between them, or questions with documents."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from normscope.data.segmentation import spans_of_paragraphs
from normscope.errors import InputError, printable
from normscope.rounding import counted
from normscope.untrusted.plain_data import parsed_json, text_in

KINDS = ("chat", "paragraphs", "sentences", "words")
"""What needs no file: the messages of a conversation, or the paragraphs, sentences or words of the prompt."""
PLACE = "{sources}"
"""Where a prompt has its passages."""
QUESTION = "{question}"
"""Where a prompt has its question, if that is from a file."""
PROMPT = f"{PLACE}\n\nQuestion: {QUESTION}\nAnswer:"
"""The prompt of a question with documents, if no other is given."""

_NAME = 40


class PromptFile(NamedTuple):
    """What files say of a prompt."""

    passages: Mapping[str, str]
    """By name, in order."""
    question: str | None = None
    answer: str | None = None
    rows: int = 1
    """How many questions the file has."""

    def filled(self, prompt: str) -> str:
        """A prompt with the passages and the question in their places."""
        passages = "\n\n".join(passage.strip() for passage in self.passages.values())
        return prompt.replace(QUESTION, self.question or QUESTION).replace(PLACE, passages)


def read_sources(path: Path, row: int = 1) -> PromptFile:
    """The passages in a file or folder.

    Args:
        path: A folder, each of whose files is a passage; a .jsonl file, each of whose rows has a `question`, its `documents` (a
            list of texts, or of objects with a `text` and perhaps a `title`) and perhaps an `answer`; or any other text, whose
            passages are separated by blank lines.
        row: Which question of a .jsonl file, from 1.

    Raises:
        InputError: If there are none, or a file cannot be read.
    """
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        found = PromptFile({each.name: text_in(each, f"sources={each}") for each in files})
    elif path.suffix == ".jsonl":
        found = _row(path, row)
    elif path.is_file():
        text = text_in(path, f"sources={path}")
        parts = [text[slice(*span)] for span in spans_of_paragraphs(text)]
        found = PromptFile({f"{number} {beginning(part)}": part for number, part in enumerate(parts, start=1)})
    else:
        raise InputError(
            f"sources={path}: expected a file, a folder, or one of {', '.join(KINDS)}; there is no such file"
        )
    if not any(passage.strip() for passage in found.passages.values()):
        raise InputError(f"sources={path}: expected at least one passage, got none")
    return found


def beginning(passage: str) -> str:
    """What names a passage that has no other name."""
    return printable(" ".join(passage.split()), _NAME)


def _row(path: Path, row: int) -> PromptFile:
    lines = [line for line in text_in(path, f"sources={path}").split("\n") if line.strip()]
    if not 1 <= row <= len(lines):
        raise InputError(
            f"row={row}: expected a row from 1 to {len(lines)}, as {path} has {counted(len(lines), 'row')}"
        )
    where = f"sources={path}: row {row}"
    try:
        content = parsed_json(lines[row - 1], finite=False)
    except ValueError as error:
        raise InputError(f"{where}: expected an object with a question and documents: {error}") from error
    documents = content.get("documents")
    if not isinstance(content.get("question"), str) or not isinstance(documents, list) or not documents:
        keys = printable(json.dumps(sorted(content)), 80)
        raise InputError(f"{where}: expected a `question` (a text) and `documents` (a list), got the keys {keys}")
    answer = content.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise InputError(f"{where}: expected `answer` to be a text, got {printable(json.dumps(answer), 60)}")
    passages = dict(_document(where, number, each) for number, each in enumerate(documents, start=1))
    return PromptFile(passages, content["question"], answer, len(lines))


def _document(where: str, number: int, document: Any) -> tuple[str, str]:
    """The name and the text of a document."""
    title, text = "", document
    if isinstance(document, dict):
        title, text = str(document.get("title") or ""), document.get("text")
    if not isinstance(text, str):
        raise InputError(f"{where}: expected document {number} to be a text, or an object with a `text`")
    return f"{number} {printable(title, _NAME) if title else beginning(text)}", text
