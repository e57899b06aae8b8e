"""Chat templates, rendered by transformers in jinja's sandbox, where they can neither call Python nor read files."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateSyntaxError
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import InputError, printable

_ADDED = 1_000_000
"""Characters that a template may add to the messages."""


class RejectedError(Exception):
    """A template rejects a conversation; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A chat template."""

    text: str
    tokenizer: PreTrainedTokenizerBase
    """Whose special tokens it may write."""
    name: str
    """The model's name, for messages."""
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Variables that it is given besides the messages; among them may be whether an answer is asked for."""

    def rendered(self, conversations: Sequence[Sequence[Mapping[str, str]]], *, prompt: bool = False) -> list[str]:
        """The text of each conversation: a list of messages with a role and a content.

        Args:
            prompt: Whether to add what the template writes before an answer.

        Raises:
            RejectedError: If the template raises an error or writes too much.
            InputError: If it is not a template.
        """
        given = [list(map(dict, messages)) for messages in conversations]
        try:
            variables = {"add_generation_prompt": prompt, **self.variables}
            texts: list[str] = self.tokenizer.apply_chat_template(
                given, chat_template=self.text, tokenize=False, **variables
            )
        except TemplateSyntaxError as error:
            reason = printable(str(error), 200)
            raise InputError(
                f"dataset.chat_template=true: the chat template of {self.name} cannot be read: {reason}"
            ) from error
        except Exception as error:  # a template is a program, and may fail in any way
            raise RejectedError(self._reason(error)) from error
        if any(
            len(text) > _ADDED + sum(len(message["content"]) for message in messages)
            for text, messages in zip(texts, conversations, strict=True)
        ):
            raise RejectedError(f"it adds more than {_ADDED:,} characters")
        return texts

    def _reason(self, error: Exception) -> str:
        """What the template says, if it says so in these words: otherwise every conversation could have its own reason."""
        said = " ".join(str(error).split())
        return printable(said, 200) if said and said in " ".join(self.text.split()) else type(error).__name__
