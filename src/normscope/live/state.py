"""The state of a live page: what its address says of texts and models, parsed and checked once."""

import dataclasses
import re
from collections.abc import Callable, Mapping

from normscope.data.options import Level
from normscope.errors import InputError, printable

LONGEST_TEXT = 100_000
"""Characters."""
_LONGEST_VALUE = 200

VIEW = ("sentence", "layer", "head", "measure", "minus", "scale", "token", "log", "hideSelf", "words")
"""What the explorer keeps in the address. The page alone reads it."""


@dataclasses.dataclass(frozen=True)
class Side:
    """A text in a model, as one half of a comparison."""

    text: str
    model: int
    """From 1."""
    chat: bool = False
    """Whether the text is a conversation; see `normscope.live.texts`."""


@dataclasses.dataclass(frozen=True)
class State:
    """What is on screen."""

    text: str = ""
    before: str | None = None
    """The text that it is compared with; None for the same text."""
    model: int = 1
    compare: int | None = None
    """The model that it is compared with; None for the same model."""
    chat: bool = False
    """Whether texts are conversations."""
    level: Level = Level.token
    through: bool = False
    """Whether to add maps from the input up to each layer."""
    target: str = ""
    """The answer that is attributed; empty for the most likely one."""
    against: str = ""
    """The answer that is subtracted; empty for none."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """What is shown, and what it is compared with, if that is anything else."""
        now = Side(self.text, self.model, self.chat)
        other = Side(
            self.text if self.before is None else self.before,
            self.model if self.compare is None else self.compare,
            self.chat,
        )
        return (now,) if now == other else (now, other)


def parse(given: object, models: int) -> State:
    """A state from the values in an address, by name.

    Args:
        given: What a request has for it.
        models: Number of models.

    Raises:
        InputError: If a name is unknown, or a value invalid.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"state: expected an object with the values of the address, got {type(given).__name__}")
    read: dict[str, object] = {}
    for name, value in given.items():
        if not isinstance(value, str):
            raise InputError(f"state: expected a text for {printable(str(name), 40)}, got {type(value).__name__}")
        if name in VIEW:
            _short(name, value)  # the page's own
        elif name in _READERS:
            read[name] = _READERS[name](name, value)
        else:
            raise InputError(
                f"state: unknown name {printable(str(name), 40)!r}; expected some of {', '.join((*_READERS, *VIEW))}"
            )
    state = State(**read)  # type: ignore[arg-type]
    for name, number in (("model", state.model), ("compare", state.compare)):
        if number is not None and not 1 <= number <= models:
            raise InputError(f"{name}={number}: expected a model from 1 to {models}")
    if state.against and not state.target:
        raise InputError(f"against={state.against!r}: expected a target as well")
    return state


def _text(name: str, value: str) -> str:
    if len(value) > LONGEST_TEXT:
        raise InputError(f"{name}: expected at most {LONGEST_TEXT:,} characters, got {len(value):,}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: expected text, got a character that no text has") from error
    return value


def _short(name: str, value: str) -> str:
    if len(value) > _LONGEST_VALUE:
        raise InputError(f"{name}: expected at most {_LONGEST_VALUE} characters, got {len(value):,}")
    return _text(name, value)


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", value):
        raise InputError(f"{name}={printable(value, 40)!r}: expected a whole number")
    return int(value)


def _level(name: str, value: str) -> Level:
    if value not in [*Level]:
        raise InputError(f"{name}={printable(value, 40)!r}: expected one of {', '.join(Level)}")
    return Level(value)


def _flag(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise InputError(f"{name}={printable(value, 40)!r}: expected 0 or 1")
    return value == "1"


_READERS: Mapping[str, Callable[[str, str], object]] = {
    "text": _text,
    "before": _text,
    "model": _number,
    "compare": _number,
    "chat": _flag,
    "level": _level,
    "through": _flag,
    "target": _short,
    "against": _short,
}
