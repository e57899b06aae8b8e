"""One bad input."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Case:
    """One bad input."""

    what: str
    arguments: Sequence[str]
    names: Sequence[str]
    """The message must contain one of these: a key or a file."""
    prepare: Callable[[Path], None] = lambda _folder: None
    """Writes the files of the case into the folder it runs in."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    statuses: frozenset[int] = frozenset({2})
    """0 is among them where the generator cannot know whether the input is fine after all."""
    writes: str = "out"
    """The run folder, or what else the command may write, in the folder it runs in."""
    refused: Sequence[str] = ()
    """The message must begin with none of these: it would refuse what an earlier message suggested."""


EITHER = frozenset({0, 2})
