"""Refuses torch and transformers that are too old, before anything imports them."""

import functools
import re
from importlib import metadata

from normscope.errors import InputError

OLDEST = {"torch": "2.10", "transformers": "5.21"}
"""The lower bounds of pyproject.toml."""


@functools.cache
def refuse_old_versions() -> None:
    """Check the installed versions of torch and transformers by their metadata, which imports neither.

    Raises:
        InputError: If one of them is older than the oldest that works.
    """
    for name, oldest in OLDEST.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:  # importing it says so, or finds one without metadata
            continue
        if _release(installed) < _release(oldest):
            raise InputError(
                f"{name} {installed} is too old: expected {oldest} or later; run pip install --upgrade '{name}>={oldest}'"
            )


def _release(version: str) -> list[int]:
    """The numbers of a version: [2, 10, 0] of 2.10.0+cpu."""
    return [int(number) for number in re.split(r"[^\d.]", version)[0].split(".") if number]
