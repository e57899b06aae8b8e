"""Chat templates, rendered in a separate process with limits.

A template is a program from whoever made the checkpoint. jinja's sandbox keeps it from calling Python and from reading files,
but it may still run for days (nested loops over `range(99999)`) or fill the memory (`'x' * 10**9`). Nothing in the same process
could stop a single operation on strings; the system reliably stops another process.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from normscope.data import template_process
from normscope.errors import InputError, printable

_MOST_EXHAUSTED = 3
_MOST_SECONDS = 60.0
"""Time for an answer, for a machine that is very busy; the limit on processor time is much lower."""
_GLANCE_SECONDS = 0.05

_EXHAUSTED = {
    "time": f"it takes more than {template_process.SECONDS} s",
    "memory": f"it needs more than {template_process.MEMORY // 2**20} MiB",
    "length": f"it adds more than {template_process.ADDED:,} characters",
}
"""Limits that a template can exceed, as reasons."""


class Renderer:
    """A process that renders templates (`template_process.py`). After a template has ended it, it starts again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, unless it runs; it takes about a second to get ready, which other work need not wait for."""
        with self._lock:
            self._started()

    def answer(self, request: Mapping[str, object]) -> dict[str, Any]:
        """The answer of the process; if the process was ended, the limit that it exceeded is the error.

        Raises:
            RuntimeError: If it ends for another reason.
        """
        with self._lock:
            process = self._started()
            _send(process, request)
            line, limit = _line(process)
            if line.endswith("\n"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            self._end()
            self._process = None
        if limit or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return {"error": limit or "time"}
        raise RuntimeError(f"{template_process.__file__} ended with status {process.returncode}")

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            # Not `-m`: this process may have found our package in another way.
            self._process = subprocess.Popen(
                [sys.executable, "-P", template_process.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                text=True,
                start_new_session=True,  # an interrupt is for us, and the batch that is still finished may need a template
            )
            self._end = weakref.finalize(self, _end, self._process)
            _send(self._process, sys.path)
        return self._process


def _send(process: "subprocess.Popen[str]", value: object) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, and will not answer
        process.stdin.write(json.dumps(value) + "\n")
        process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """The next line of a process, or the limit for which it must be ended; neither if it has ended itself."""
    assert process.stdout is not None
    deadline = time.monotonic() + _MOST_SECONDS
    while not select.select([process.stdout], [], [], _GLANCE_SECONDS)[0]:
        if time.monotonic() > deadline:
            return "", "time"
        with contextlib.suppress(psutil.Error):  # it has just ended
            # For systems that do not limit the memory themselves.
            if psutil.Process(process.pid).memory_info().rss > 2 * template_process.MEMORY:
                return "", "memory"
    return process.stdout.readline(), ""


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process and close what leads to it."""
    with contextlib.suppress(BrokenPipeError), process:
        process.kill()


_RENDERER = Renderer()
"""Of all templates in this process."""


class RejectedError(Exception):
    """A template rejects a conversation; the message is the reason."""


class ChatTemplate:
    """A chat template.

    Args:
        variables: What it can use, besides the messages.
        name: The model's name, for messages.
        renderer: Renders it.
    """

    def __init__(self, template: str, variables: Mapping[str, str], name: str, renderer: Renderer = _RENDERER) -> None:
        self._template, self._variables, self._name = template, dict(variables), name
        self._renderer = renderer
        self._exhausted = 0
        """How many requests in a row have exceeded a limit."""
        renderer.start()

    def rendered(self, conversations: Sequence[Sequence[Mapping[str, str]]], *, prompt: bool = False) -> list[str]:
        """The text of each conversation: a list of messages with a role and a content.

        Args:
            prompt: Whether to add what the template writes before an answer.

        Raises:
            RejectedError: If the template raises an error or exceeds a limit.
            InputError: If it is not a template, or exceeds a limit again and again.
        """
        request = {
            "template": self._template,
            "variables": self._variables,
            "conversations": conversations,
            "prompt": prompt,
        }
        answer = self._renderer.answer(request)
        error = answer.get("error", "")
        self._exhausted = self._exhausted + 1 if error in _EXHAUSTED else 0
        if error == "TemplateSyntaxError":
            reason = printable(answer["message"], 200)
            raise InputError(f"dataset.chat_template=true: the chat template of {self._name} cannot be read: {reason}")
        if self._exhausted >= _MOST_EXHAUSTED:
            raise InputError(
                f"dataset.chat_template=true: the chat template of {self._name} cannot be used: {_EXHAUSTED[error]}, for "
                f"{self._exhausted} conversations in a row; set model.tokenizer to a tokenizer with another template"
            )
        if error:
            raise RejectedError(_EXHAUSTED.get(error) or self._reason(error, answer["message"]))
        texts: list[str] = answer["texts"]
        return texts

    def _reason(self, error: str, message: str) -> str:
        """What the template says, if it says so in these words: otherwise every conversation could have its own reason."""
        said = " ".join(message.split())
        return printable(said, 200) if said and said in " ".join(self._template.split()) else error
