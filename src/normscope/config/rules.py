"""What the values of options must satisfy beyond their types: metadata of the options' fields.

`tokens: int = field(default=64, metadata=between(8, 512, "tokens"))` is checked before a model is loaded, named on the page of
config keys, and violated by a generated test.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable
from types import MappingProxyType
from typing import Any

from normscope.errors import InputError

Metadata = MappingProxyType[str, Any]

RUNS_CODE: Metadata = MappingProxyType({"runs_code": True})
"""Metadata of a field whose value lets third-party code run: `field(default=False, metadata=RUNS_CODE)`. The config of an
earlier run, which may come from anyone, cannot set such a key; only the user can."""

IS_PATH: Metadata = MappingProxyType({"is_path": True})
"""Metadata of a field that holds a path."""

FREE_FORM: Metadata = MappingProxyType({"free_form": True})
"""Metadata of a mapping that users fill in with keys of their own."""

MAY_BE_BLANK: Metadata = MappingProxyType({"may_be_blank": True})
"""Metadata of a field for which white space is a value."""

_LARGEST_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on one value. Null always passes: only keys whose type allows it can be null."""

    expected: str
    """What the value should be, as in a message: 'at least 3 tokens'."""
    holds: Callable[[Any], object]
    wrong: tuple[Any, ...]
    """Values of the right type that break it, the nearest ones first."""
    shown: Callable[[Any], str] = str
    """How a message shows a wrong value."""

    def check(self, key: str, value: Any) -> None:
        """Check a value.

        Raises:
            InputError: If the rule does not hold for it.
        """
        if value is not None and not self.holds(value):
            raise InputError(f"{key}={self.shown(value)}: expected {self.expected}")


def rule(
    expected: str, holds: Callable[[Any], object], wrong: Collection[Any], shown: Callable[[Any], str] = str
) -> Metadata:
    """Metadata for a field with its own rule; see `Rule`."""
    return MappingProxyType({"rules": (Rule(expected, holds, tuple(wrong), shown),)})


def both(first: Metadata, second: Metadata) -> Metadata:
    """Two rules for one value, checked in this order."""
    return MappingProxyType({"rules": (*first["rules"], *second["rules"])})


def at_least(minimum: int, what: str = "a whole number of at least {}") -> Metadata:
    """A number with a minimum, which is named where `what` has braces."""
    return rule(what.format(minimum), lambda number: number >= minimum, (minimum - 1, -(2**31)))


ABOVE_ZERO: Metadata = rule("a number above 0", lambda number: number > 0, (0.0, -1.0, float("nan")))

RANDOM_SETS = at_least(0, "a number of random sets, {} for none")


def between(lowest: float, highest: float, what: str) -> Metadata:
    """A number in a closed interval, in units of `what`."""
    return rule(
        f"{lowest} to {highest:,} {what}",
        lambda number: lowest <= number <= highest,
        (lowest - 1, highest + 1, -lowest - 1),
    )


def share(of: str = "") -> Metadata:
    """A share from 0 to 1, without 1."""
    return rule(
        f"a share{of and f' of {of}'} in [0, 1)", lambda number: 0 <= number < 1, (1.0, -0.1, 2.0, float("nan"))
    )


def some_of(names: Iterable[object]) -> Metadata:
    """A list of some of a few names, each of them once."""
    *first, last = map(str, names)
    return rule(
        f"one or more of {', '.join(first)} and {last}, each once",
        lambda given: len(given) > 0 and len(set(given)) == len(given),
        ([], [last, last]),
        listed,
    )


def each(of: Metadata) -> Metadata:
    """A list whose items satisfy a rule."""
    return MappingProxyType({"rules_of_items": of["rules"]})


def listed(items: Collection[Any]) -> str:
    """A list as on the command line."""
    return f"[{','.join(map(str, items))}]"


def _is_seed(seed: int | str) -> bool:
    # A string is a reference to the run's seed, in options that no config has resolved.
    return isinstance(seed, str) or 0 <= seed <= _LARGEST_SEED


SEED: Metadata = rule("a whole number from 0 to 2^63 − 1", _is_seed, (-1, _LARGEST_SEED + 1))


def check_rules(section: Any, prefix: str = "") -> None:
    """Check the values of options by the rules in their metadata: those of a section before those of the sections in it.

    Args:
        section: A dataclass of options.
        prefix: Its name and a dot; empty for the root.
    """
    fields = dataclasses.fields(section)
    for name, value, rules in ((field.name, getattr(section, field.name), field.metadata) for field in fields):
        for each_rule in rules.get("rules", ()):
            each_rule.check(f"{prefix}{name}", value)
        for each_rule in rules.get("rules_of_items", ()):
            for item in value:
                each_rule.check(f"{prefix}{name}", item)
    for name, value in ((field.name, getattr(section, field.name)) for field in fields):
        if dataclasses.is_dataclass(value):
            check_rules(value, f"{prefix}{name}.")


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")


def is_size(text: str) -> bool:
    """Whether a text is a size of memory, such as `20GiB` or `500MB`."""
    return _SIZE.fullmatch(text.strip()) is not None


def size_in_bytes(key: str, size: str) -> int:
    """A size of memory, such as `20GiB` or `500MB`, in bytes."""
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise InputError(f"{key}={size}: expected a size such as 20GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])
