"""A separate program that renders chat templates with limits; see `chat_templates.py`.

It reads lines of JSON: first where modules are, then one request after another. It answers each with a line. A template that
takes too much processor time ends the process.
"""

import json
import resource
import sys
from collections.abc import Mapping
from typing import Any

SECONDS = 2
"""Processor time for the conversations of a request, rounded up."""
MEMORY = 2**29
"""Bytes of memory, in addition to what the process starts with."""
ADDED = 1_000_000
"""Characters that a template may add to the messages."""


def main() -> None:
    """Answer until there are no more lines."""
    sys.path[:] = json.loads(sys.stdin.readline())
    from transformers.utils.chat_template_utils import render_jinja_template  # which does not import torch

    _limit_memory()
    for line in sys.stdin:
        _limit_time()
        print(json.dumps(_answer(render_jinja_template, json.loads(line))), flush=True)


def _answer(render: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        texts, _ = render(
            request["conversations"],
            chat_template=request["template"],
            add_generation_prompt=request["prompt"],
            **request["variables"],
        )
        for text, messages in zip(texts, request["conversations"], strict=True):
            if len(text) > ADDED + sum(len(message["content"]) for message in messages):
                return {"error": "length"}
        return {"texts": texts}
    except MemoryError:
        return {"error": "memory"}
    except Exception as error:  # a template is a program, and may fail in any way
        return {"error": type(error).__name__, "message": str(error)[:1000]}


def _limit_memory() -> None:
    """Limit the address space, on systems that say how large it is."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_at_most(used + MEMORY, hard), hard))
    except (OSError, ValueError):
        return


def _limit_time() -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (_at_most(int(usage.ru_utime + usage.ru_stime) + SECONDS + 1, hard), hard))


def _at_most(limit: int, hard: int) -> int:
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


if __name__ == "__main__":
    main()
