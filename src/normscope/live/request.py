"""Requests of a page: a part of it, and the state in its address."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from normscope.config.rules import Expected
from normscope.config.schema import read_values
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.engine import Ask

LONGEST_TEXT = 100_000
"""Characters."""
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Short = Annotated[str, Field(max_length=200)]

SHOWN = ("sentence", "layer", "head", "measure", "minus", "scale", "token", "log", "hideSelf", "words", "said")
"""What the explorer, and the answer with its sources (`said`), keep in the address. The page alone reads it."""
_Shown = dataclasses.make_dataclass("_Shown", [(name, Text, "") for name in SHOWN])

Part = Literal["maps", "chained", "carried", "prediction", "heads", "pair", "sources"]
PARTS: Mapping[Part, tuple[str, ...]] = {
    "maps": ("level",),
    "chained": ("level",),
    "carried": ("level",),
    "prediction": ("target", "against", "level"),
    "heads": ("target", "against"),
    "pair": ("before", "compare"),
    "sources": (),
}
"""All parts of the page, and what each depends on besides the text and the model: fields of `State`."""


@dataclasses.dataclass(frozen=True)
class Side:
    """A text in a model, as one half of a comparison."""

    text: str
    model: int
    """From 1."""
    chat: bool = False
    """Whether the text is a conversation; see `live.texts`."""


@dataclasses.dataclass(frozen=True)
class State:
    """What is on screen."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    text: Text = ""
    before: Text | None = None
    """The text that it is compared with; None for the same text."""
    model: int = 1
    compare: int | None = None
    """The model that it is compared with; None for the same model."""
    chat: bool = False
    """Whether texts are conversations."""
    level: Level = Level.token
    through: bool = False
    """Whether to add maps from the input up to each layer."""
    sources: bool = False
    """Whether to add the model's answer to the text, and its sources."""
    target: Short = ""
    """The answer that is attributed; empty for the most likely one."""
    against: Short = ""
    """The answer that is subtracted; empty for the likeliest other one, where one answer excludes the others."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """What is shown, and what it is compared with if the two differ."""
        now = Side(self.text, self.model, self.chat)
        other = Side(
            self.text if self.before is None else self.before,
            self.model if self.compare is None else self.compare,
            self.chat,
        )
        return (now,) if now == other else (now, other)


@dataclasses.dataclass(frozen=True)
class Request:
    """A part of the page that a tab asks for."""

    part: Part
    state: dict[str, Any]
    """The values of the address; see `read_state`."""
    side: Annotated[int, Field(strict=True)] = 0
    """0 for what is shown, 1 for what it is compared with."""
    tab: Annotated[str, Field(pattern="^[A-Za-z0-9-]{0,40}$"), Expected("at most 40 letters, digits and hyphens")] = ""
    number: Annotated[int, Field(strict=True, ge=0, lt=2**53)] = 0
    """Higher for newer requests from the tab."""

    @property
    def ask(self) -> Ask:
        """The tab that asks, and the number of its request."""
        return Ask(self.tab or None, self.number)


def read_request(given: object, models: int) -> tuple[Request, State]:
    """A request and its state.

    Args:
        given: The request, as parsed from JSON.
        models: Number of models.

    Raises:
        InputError: If it is invalid.
    """
    request: Request = read_values(Request, given, "request")
    state = read_state(request.state, models)
    if not 0 <= request.side < len(state.sides):
        raise InputError(f"side={request.side}: expected a number below {len(state.sides)}")
    return request, state


def read_state(given: object, models: int) -> State:
    """A state from the values in an address, by name.

    Args:
        given: What a request has for it.
        models: Number of models.

    Raises:
        InputError: If a name is unknown, or a value invalid.
    """
    if isinstance(given, Mapping):
        read_values(_Shown, {name: value for name, value in given.items() if name in SHOWN}, "state")
        given = {name: value for name, value in given.items() if name not in SHOWN}
    state: State = read_values(State, given, "state")
    for name, number in (("model", state.model), ("compare", state.compare)):
        if number is not None and not 1 <= number <= models:
            raise InputError(f"{name}={number}: expected a model from 1 to {models}")
    if state.against and not state.target:
        raise InputError(f"against={state.against!r}: expected a target as well")
    return state
