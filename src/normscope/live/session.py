"""One page's models and results: what a request asks for, who waits for it, and what all answers share."""

import contextlib
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlencode

from normscope.errors import InputError, message, printable
from normscope.live.answers import CARRIED, CHAINED, Answers
from normscope.live.engine import Ask, Compute, Engine
from normscope.live.state import Side, State, parse
from normscope.live.texts import Limit, opening
from normscope.maths.choices import AttentionRule
from normscope.models.loaded import LoadedModel
from normscope.reporting.page.explorer import about_measures
from normscope.reporting.page.live_page import live_page
from normscope.results.codes import METHODS

_TAB = re.compile(r"[A-Za-z0-9-]{0,40}")


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request for a part of the page."""

    state: State
    part: str
    side: int
    """0 for what is shown, 1 for what it is compared with."""
    ask: Ask

    @property
    def shown(self) -> Side:
        """The text and the model that are asked about."""
        return self.state.sides[self.side]


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

    def saved_page(self, state: object, when: str = "", title: str = "") -> str:
        """The page as it shows a state, in one file that asks nobody.

        Args:
            state: The values of the address.
            when: The date, if the page is to show it.
            title: The title of the page, if not that of a live page.

        Raises:
            InputError: If they are invalid.
        """
        return live_page(self.about(), self.saved(state) | {"when": when}, title)

    def saved(self, state: object) -> dict[str, Any]:
        """A state, and the answers that the page shows for it as JSON, by part and side.

        Raises:
            InputError: If it is invalid.
        """
        sides = parse(state, len(self.models)).sides
        assert isinstance(state, Mapping)
        answers: dict[str, str] = {}

        def add(part: str, side: int, **changes: str) -> Any:
            found = self.answer({"part": part, "side": side, "state": {**state, **changes}}).result()
            answers[f"{part} {side}"] = json.dumps(found)
            return found

        predicted = add("prediction", 0)
        aimed = {name: predicted[name] for name in ("target", "against") if "scores" in predicted and predicted[name]}
        for number in range(len(sides)):
            maps = add("maps", number)["maps"]
            if number:
                with contextlib.suppress(InputError):  # as on the page, what a model has not is left out
                    add("prediction", number, **aimed)
            if state.get("through") == "1" and maps is not None:
                add("chained", number)
                add("carried", number)
        for part in ("heads", "pair"):
            with contextlib.suppress(InputError):
                add(part, 0)
        return {"state": urlencode(state), "answers": answers}

    def answer(self, body: object) -> "Future[Any]":
        """The answer to a request, once it is computed.

        Args:
            body: The request, as parsed from JSON.

        Raises:
            InputError: If the request is invalid, or too many wait.
        """
        asked = self.read(body)
        depends, compute = PARTS[asked.part](self, asked)
        return self.engine.submit(asked.ask, (asked.part, depends) if self._keeps else object(), compute)

    def read(self, body: object) -> Asked:
        """A request, checked.

        Raises:
            InputError: If it is invalid.
        """
        if not isinstance(body, Mapping):
            raise InputError(f"request: expected an object, got {type(body).__name__}")
        part = body.get("part")
        if not isinstance(part, str) or part not in PARTS:
            raise InputError(f"part={printable(repr(part), 40)}: expected one of {', '.join(PARTS)}")
        tab, number, side = body.get("tab", ""), body.get("number", 0), body.get("side", 0)
        if not isinstance(tab, str) or not _TAB.fullmatch(tab):
            raise InputError(f"tab={printable(repr(tab), 40)}: expected at most 40 letters and digits")
        if type(number) is not int or not 0 <= number < 2**53:
            raise InputError(f"number={printable(repr(number), 40)}: expected a whole number")
        state = parse(body.get("state"), len(self.models))
        if type(side) is not int or not 0 <= side < len(state.sides):
            raise InputError(f"side={printable(repr(side), 40)}: expected a number below {len(state.sides)}")
        return Asked(state, part, side, Ask(tab or None, number))

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


def _about(model: LoadedModel) -> dict[str, Any]:
    shown = repr(model).removeprefix("LoadedModel(").removesuffix(")")
    name, _, facts = shown.partition(": ")
    return {
        "name": name,
        "facts": facts,
        "layers": model.layers,
        "heads": model.layout.heads,
        "mask": model.tokenizer.mask_token,
        "two": model.layout.reads_target,
        "chats": bool(model.tokenizer.chat_template) and model.tokenizer.is_fast,
        "opening": opening(model),
    }


Part = tuple[Hashable, Compute]
"""What a part of the page depends on, and how it is computed."""


def _maps(session: Session, asked: Asked) -> Part:
    return _in_turn(session.answers.maps, asked.shown, asked.state.level)


def _chained(session: Session, asked: Asked) -> Part:
    return _called(session.answers.through, asked.shown, asked.state.level, CHAINED)


def _carried(session: Session, asked: Asked) -> Part:
    return _called(session.answers.through, asked.shown, asked.state.level, CARRIED)


def _prediction(session: Session, asked: Asked) -> Part:
    state = asked.state
    return _in_turn(session.answers.prediction, asked.shown, state.target, state.against, state.level)


def _heads(session: Session, asked: Asked) -> Part:
    return _called(session.answers.heads, asked.shown, asked.state.target, asked.state.against)


def _pair(session: Session, asked: Asked) -> Part:
    now, *others = asked.state.sides
    if not others or others[0].model != now.model:
        raise InputError("part=pair: expected another text in the same model (before)")
    return _in_turn(session.answers.pair, now, others[0].text)


def _in_turn(function: Callable[..., Any], *depends: Hashable) -> Part:
    """A part that may share what it computes with others of its turn."""
    return depends, functools.partial(function, *depends)


def _called(function: Callable[..., Any], *depends: Hashable) -> Part:
    return depends, lambda _: function(*depends)


PARTS: Mapping[str, Callable[[Session, Asked], Part]] = {
    "maps": _maps,
    "chained": _chained,
    "carried": _carried,
    "prediction": _prediction,
    "heads": _heads,
    "pair": _pair,
}
"""All parts of the page."""
