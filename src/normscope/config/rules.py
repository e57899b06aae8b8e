"""Rules for single config values, shared by the options of several analyses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from normscope.errors import InputError

RUNS_CODE: Mapping[str, Any] = MappingProxyType({"runs_code": True})
"""Metadata of a field whose value lets third-party code run: `field(default=False, metadata=RUNS_CODE)`. The config of an
earlier run, which may come from anyone, cannot set such a key; only the user can."""


def at_least(minimum: int, key: str, value: int) -> None:
    """Check a whole number.

    Raises:
        InputError: If it is below the minimum.
    """
    if value < minimum:
        raise InputError(f"{key}={value}: expected a whole number of at least {minimum}")


def pair_budget(key: str, value: int) -> None:
    """Check the number of pairs kept for an exact rank correlation.

    Raises:
        InputError: If it is negative.
    """
    if value < 0:
        raise InputError(f"{key}={value}: expected a number of pairs of at least 0; 0 estimates")
