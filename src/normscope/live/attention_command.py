"""`normscope attention TEXT`: what tokens and regions of a text receive from others, in the terminal, as files and a page."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.api.attention_values import attention
from normscope.live.texts import as_given, require_kind
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import load
from normscope.reporting.options import Verbosity
from normscope.reporting.page import report
from normscope.results.result import Result
from normscope.running.options import RunOptions
from normscope.running.progress import Phase, Phases

PAGE = "attention.html"

_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")


def show_attention(options: RunOptions, text: str, asked: Mapping[str, Any], folder: Path) -> Path:
    """Print what tokens and regions of a text receive from others, and write the result and its page.

    Args:
        options: The model, the device, `layers` and `dataset.chat_template`; all other options are ignored.
        text: The text, or two texts with ` ||| ` between them; with `dataset.chat_template`, a conversation (see
            `live.texts`).
        asked: `queries`, `keys`, `heads`, `measure`, `reduce` and `top` as Hydra reads them; see `normscope.attention`. A slice
            is a text such as `0:5`.
        folder: The folder to write to, created if needed.

    Raises:
        InputError: If the text is empty or too long, or does not have the requested parts.
    """
    with Phases([Phase.MODEL, Phase.TEXT], shown=options.verbosity is not Verbosity.quiet) as phases:
        model = load(options.model, options.device)
        require_kind(model, text)
        phases.begin(Phase.TEXT)
        with phases.layers():
            found = _found(options, model, text, asked)
    print(f"\n{found}\n")
    return report.write_page(folder, PAGE, lambda: report.page(found), found)


def _found(options: RunOptions, model: LoadedModel, text: str, asked: Mapping[str, Any]) -> Result:
    return attention(
        model,
        as_given(model, text, chat=options.dataset.chat_template),
        queries=_parts(asked.get("queries", "last")),
        keys=_parts(asked.get("keys", "words" if model.reader is None else "tokens")),
        layers=_numbers(options.layers),
        heads=_numbers(asked.get("heads", "all")),
        measure=asked.get("measure", "weight"),
        reduce=asked.get("reduce"),
        top=asked.get("top"),
    )


def _parts(asked: Any) -> list[Any]:
    """Tokens and regions: `last`, `3`, `0:5`, or several."""

    def part(item: Any) -> Any:
        found = _SLICE.fullmatch(item) if isinstance(item, str) else None
        return item if found is None else slice(*(None if end is None else int(end) for end in found.groups()))

    return [part(item) for item in (asked if isinstance(asked, list) else [asked])]


def _numbers(asked: Any) -> list[Any] | None:
    """Numbers of layers or heads; None for all."""
    return None if asked == "all" else asked if isinstance(asked, list) else [asked]
