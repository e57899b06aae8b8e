"""One page's models and results: pending requests, and what all answers share."""

import contextlib
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from normscope.api.answer_sources import gives_answers
from normscope.errors import InputError, cut, message
from normscope.live.answers import Answers, image_explained
from normscope.live.engine import Ask, Engine
from normscope.live.request import PARTS, read_request, read_state
from normscope.live.texts import Limit, opening
from normscope.maths.choices import AttentionRule
from normscope.models.load.input_reading import opened
from normscope.models.load.loaded import LoadedModel
from normscope.reporting.page import report
from normscope.reporting.page.explorer import about_measures
from normscope.reporting.page.live_page import live_page, live_page_of_images
from normscope.results.codes import METHODS
from normscope.streams import Progress, no_bar

_NAME = 80
"""Characters of the name of a file that are shown."""


class Session:
    """What is served: models, the engine that runs them, and the parts of the page.

    Args:
        models: The models; the first is shown at first.
        limit: The longest text, in tokens.
        keeps: Whether results are kept. Models in the memory of somebody who may change their weights at any time, in ways that
            leave no trace (`parameter.data`), need new ones each time.
        attention: What scores do with attention weights; see `attribute`.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        limit: int | Limit,
        *,
        keeps: bool = False,
        attention: AttentionRule = AttentionRule.held,
    ) -> None:
        self.models = models
        self.answers = Answers(models, Limit(limit) if isinstance(limit, int) else limit, attention)
        self._keeps = keeps
        self.engine = Engine() if keeps else Engine(kept=0)
        self._said = ""
        self._said_once: set[str] = set()

    def about(self) -> dict[str, Any]:
        """What the page's scripts need to know before they ask."""
        return {"models": [_about(model) for model in self.models], "methods": METHODS, **about_measures()}

    def page(self) -> str:
        """The page that is served."""
        model = self.models[0]
        if model.reader is None:
            return live_page(self.about())
        return live_page_of_images(*_named(model), compares=model.of_tower is not None)

    def image(self, content: bytes, name: str, text: str) -> "Future[str]":
        """The page of an image, once it is computed.

        Args:
            content: The file.
            name: Its name.
            text: What the image is compared with; empty for nothing.

        Raises:
            InputError: If the model reads texts, or too many requests wait.
        """
        model = self.models[0]
        if model.reader is None:
            raise InputError(f"image: expected a text, which {model.name} reads")

        def compute(_turn: object) -> str:
            opened_image, _ = opened(content)
            opened_image.filename = cut(Path(name).name, _NAME)
            return report.page(image_explained(model, opened_image, text))

        return self.engine.submit(Ask(None, 0), object(), compute)

    def saved_page(self, state: object, when: str = "") -> str:
        """The page as it shows a state, in one file that needs no server.

        Args:
            state: The values of the address.
            when: The date, if the page is to show it; its title is then the text.

        Raises:
            InputError: If they are invalid.
        """
        saved = self.saved(state) | {"when": when}
        return live_page(self.about(), saved, str(state["text"]) if when and isinstance(state, Mapping) else "")

    def saved(self, state: object, progress: Progress = no_bar) -> dict[str, Any]:
        """A state, and the answers that the page shows for it as JSON, by part and side.

        Raises:
            InputError: If it is invalid.
        """
        sides = len(read_state(state, len(self.models)).sides)
        assert isinstance(state, Mapping)
        parts = [("prediction", 0)]
        for side in range(sides):
            parts += [("maps", side), *([("prediction", side)] if side else [])]
            parts += [("chained", side), ("carried", side)] if state.get("through") == "1" else []
        parts += [("heads", 0), ("pair", 0), *([("sources", 0)] if state.get("sources") == "1" else [])]
        found: dict[tuple[str, int], Any] = {}
        for part, side in progress(parts, len(parts), "parts of the page"):
            if part in ("chained", "carried") and found["maps", side]["maps"] is None:
                continue
            first = found.get(("prediction", 0), {}) if part == "prediction" else {}
            aimed = {name: first[name] for name in ("target", "against") if "scores" in first and first[name]}
            optional = part in ("heads", "pair", "sources") or (part == "prediction" and side > 0)
            # As on the page, what a model has not is left out.
            with contextlib.suppress(*([InputError] if optional else [])):
                found[part, side] = self.answer({"part": part, "side": side, "state": {**state, **aimed}}).result()
        answers = {f"{part} {side}": json.dumps(answer) for (part, side), answer in found.items()}
        return {"state": urlencode(state), "answers": answers}

    def answer(self, body: object) -> "Future[Any]":
        """The answer to a request, once it is computed.

        Args:
            body: The request, as parsed from JSON.

        Raises:
            InputError: If the request is invalid, or too many wait.
        """
        request, state = read_request(body, len(self.models))
        depends = (state.sides[request.side], *(getattr(state, name) for name in PARTS[request.part]))
        compute = functools.partial(getattr(self.answers, request.part), *depends)
        return self.engine.submit(request.ask, (request.part, *depends) if self._keeps else object(), compute)

    def report(self, error: BaseException) -> None:
        """Print an error, unless it was the last one that was printed: a page asks again with every letter."""
        line = message(error)
        if line != self._said:
            print(line, file=sys.stderr, flush=True)
        self._said = line

    def report_once(self, kind: str, line: str) -> None:
        """Print a line about requests that are not answered, for the first one of its kind."""
        if kind not in self._said_once:
            self._said_once.add(kind)
            print(f"{message(InputError(line))} (printed once)", file=sys.stderr, flush=True)


def _named(model: LoadedModel) -> tuple[str, str]:
    """A model's name, and what it is."""
    name, _, facts = repr(model).removeprefix("LoadedModel(").removesuffix(")").partition(": ")
    return name, facts


def _about(model: LoadedModel) -> dict[str, Any]:
    name, facts = _named(model)
    return {
        "name": name,
        "facts": facts,
        "layers": model.layers,
        "heads": model.facts.heads,
        "mask": model.tokenizer.mask_token,
        "two": model.facts.reads_target,
        "answers": gives_answers(model),
        "chats": bool(model.tokenizer.chat_template) and model.tokenizer.is_fast,
        "opening": opening(model),
    }
