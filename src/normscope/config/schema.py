"""Whether values fit the options that they are for: one line says which key to change, and what it expects."""

import dataclasses
import difflib
import enum
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import MISSING
from pydantic import ValidationError

from normscope.config.keys import Key, adapter, keys_of, shown
from normscope.errors import InputError, printable

INCIDENTAL = (
    *("resume", "reproduce"),
    *("output_dir", "verbosity", "tracking", "report", "figures", "checkpoint", "recipe", "live"),
)
"""Keys that no number depends on: where results go, and how they are shown. Only they may change when a run is resumed or
reproduced, and they do not distinguish runs."""


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config with dotted keys, as on the command line."""
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        dotted |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return dotted


def lasting(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a nested config that numbers depend on, dotted."""
    return {key: value for key, value in flat(config).items() if key.split(".")[0] not in INCIDENTAL}


def difference(before: Mapping[str, Any], now: Mapping[str, Any], when: str) -> str:
    """The first key whose values differ, and how many more: `layers was 'all' then and is [1] now`; empty if none.

    Args:
        before: Values by key.
        now: The same, later.
        when: When the first values applied, in words: `then`.
    """
    different = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if not different:
        return ""
    key, *others = different
    more = f", and {len(others)} more differ" if others else ""
    return f"{key} was {before.get(key)!r} {when} and is {now.get(key)!r} now{more}"


def nested(key: str, value: Any) -> dict[str, Any]:
    """A config with one key: the opposite of `flat`."""
    above, _, last = key.rpartition(".")
    return nested(above, {last: value}) if above else {last: value}


def plain(options: Any) -> dict[str, Any]:
    """A config, or a group of one, as strings, numbers, lists and dicts, ready for any file format."""

    def simplified(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {field.name: simplified(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {key: simplified(item) for key, item in value.items()}
        if isinstance(value, list):
            return [simplified(item) for item in value]
        return str(value) if isinstance(value, enum.Enum) else value

    content: dict[str, Any] = simplified(options)
    return content


_ALIKE, _LAST_ALIKE = 0.6, 0.85
"""How alike two keys, or the last parts of two keys of any groups, are if one may be a misspelling of the other."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that no text and no name of a file has."""


def check_options(section: Any, prefix: str = "") -> None:
    """Check the values of a dataclass of options.

    Args:
        section: The options.
        prefix: The name of the section and a dot; empty for the root.

    Raises:
        InputError: If a value is not what its annotation says; the message names the key.
    """
    check_values(type(section), plain(section), prefix)


def check_values(options: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Check values for a dataclass of options, all of them or some, nested as in a config file; see `check_options`."""
    try:
        adapter(options).validate_python(values)
    except ValidationError as error:
        found = [each for each in error.errors(include_url=False) if not _is_open(each["input"])]
        if found:
            # Keys of a section come before those of the sections in it, whose values may refer to them.
            first = min(found, key=lambda each: len(each["loc"]))
            raise InputError(_line(first, keys_of(options), values, prefix)) from error
    for key, value in flat(values).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and _NO_TEXT.search(text):
                raise InputError(
                    f"{prefix}{key}={shown(value)}: expected text, got a character that no text or file name has"
                )


def read_values(options: type, given: object, what: str) -> Any:
    """A dataclass from values that anyone may have sent.

    Args:
        given: The values by name.
        what: What they are, for messages.

    Raises:
        InputError: If there are no values, or one is missing, unknown, or not what its annotation says.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"{what}={shown(given)}: expected values by name")
    try:
        return adapter(options).validate_python(given)
    except ValidationError as error:
        raise InputError(_line(error.errors(include_url=False)[0], keys_of(options), given, "")) from error


def _is_open(value: Any) -> bool:
    """Whether a value is not there yet: a config that is composed sets it, or takes that of another key."""
    return isinstance(value, str) and (value == MISSING or value.startswith("${"))


def _line(error: Mapping[str, Any], keys: Mapping[str, Key], values: Mapping[str, Any], prefix: str) -> str:
    """What pydantic found, in one line."""
    # Invalid keys, which may have no place, are not even text.
    if error["type"] in ("unexpected_keyword_argument", "invalid_key") or not error["loc"]:
        name = ".".join(map(str, error["loc"])) or next(str(key) for key in values if key not in keys)
        return f"unknown key {prefix}{printable(name, 300)}{suggestion(name, keys, prefix)}"
    if error["type"] == "missing":
        (name,) = error["loc"]
        return f"{prefix}{name}: expected {keys[name].expected}, got nothing"
    name, value = "", values
    for part in error["loc"]:
        if name in keys or not isinstance(value, Mapping):
            break
        name, value = f"{name}.{part}".lstrip("."), value[part]
    reason = str(error.get("ctx", {}).get("error", "")) or what_is_expected(name, value, keys, prefix)
    return f"{prefix}{name}={shown(value)}: {reason}"


def what_is_expected(name: str, value: Any, keys: Mapping[str, Key], prefix: str = "") -> str:
    """The end of a message about a wrong value of a key or a section."""
    if name not in keys:
        below = [f"{prefix}{key}" for key in keys if key.startswith(f"{name}.")]
        return f"expected keys such as {below[0]}"
    texts = value if isinstance(value, list) else [value]
    is_empty = any(isinstance(text, str) and not text.strip() for text in texts)
    return f"expected {keys[name].expected}" + (f", got an empty text; leave {prefix}{name} out" if is_empty else "")


def _with_sections(keys: Iterable[str]) -> list[str]:
    """Keys and the sections that they are in."""
    parts = (itertools.accumulate(key.split("."), lambda above, name: f"{above}.{name}") for key in keys)
    return list(dict.fromkeys(itertools.chain.from_iterable(parts)))


def suggestion(key: str, keys: Iterable[str], prefix: str = "") -> str:
    """The end of a message that suggests the closest known key; empty if none is close.

    What a key is called counts most: to `model.dtype`, `device.dtype` is closer than `model.toy`.
    """

    def alike(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one, other).ratio()

    def last(name: str) -> str:
        return name.rpartition(".")[2]

    scores = {name: (alike(last(name), last(key)), alike(name, key)) for name in _with_sections(keys)}
    close = {
        name: of_last + of_all / 2
        for name, (of_last, of_all) in scores.items()
        if of_last >= _LAST_ALIKE or of_all >= _ALIKE
    }
    return f"; did you mean {prefix}{max(close, key=lambda name: close[name])}?" if close else ""


class Schema:
    """All keys of a config.

    Args:
        root: The dataclass of the whole config, all of whose fields have defaults.
    """

    def __init__(self, root: type) -> None:
        self._root = root

    @property
    def keys(self) -> Mapping[str, Key]:
        """Every key by name."""
        return keys_of(self._root)

    @property
    def names(self) -> list[str]:
        """Every key and section."""
        return _with_sections(self.keys)

    def check(self, values: Mapping[str, Any]) -> None:
        """Check values as in a config file, all of them or some; see `check_values`."""
        check_values(self._root, values)

    def accepts(self, key: str, value: Any) -> bool:
        """Whether a key may have a value."""
        try:
            self.check(nested(key, value))
        except InputError:
            return False
        return True

    def knows(self, key: str) -> bool:
        """Whether this is a key or a section, or a key that Hydra reads itself."""
        own = key in self.names or self.is_free_form(key)
        return own or key == "experiment" or key.startswith("hydra.")

    def is_free_form(self, key: str) -> bool:
        """Whether a key is, or lies in, a mapping that users fill in with keys of their own."""
        return any(
            isinstance(own.default, dict) and f"{key}.".startswith(f"{name}.") for name, own in self.keys.items()
        )

    @property
    def keys_that_run_code(self) -> Mapping[str, Any]:
        """The default of every key that lets third-party code run, those of plug-ins included; see `RUNS_CODE`."""
        return {name: key.default for name, key in self.keys.items() if key.runs_code}

    @property
    def own_keys(self) -> Sequence[str]:
        """The keys that decide where data go or which files are read, those of plug-ins included; see `OWN`."""
        return [name for name, key in self.keys.items() if key.own]

    def is_own(self, name: str) -> bool:
        """Whether a key, or the group of a preset, is one of them or has none but them."""
        below = [key.own for key_name, key in self.keys.items() if f"{key_name}.".startswith(f"{name}.")]
        return all(below) and (bool(below) or any(f"{name}.".startswith(f"{own}.") for own in self.own_keys))
