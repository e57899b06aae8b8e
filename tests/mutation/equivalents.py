"""Errors that change no result, so no test can notice them, with the reason: `equivalents.toml`."""

import tomllib
from pathlib import Path

Identity = tuple[str, str, str, str]
"""See `Mutant.identity`."""


def equivalents() -> dict[Identity, str]:
    """The reason why each of these errors changes no result."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
    return {(entry["file"], entry["function"], entry["before"], entry["after"]): entry["reason"] for entry in entries}
