"""What analyses know about the tokenizer."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens of a run, by id."""

    size: int = 0
    """Number of tokens that the tokenizer and the model both know."""
    special: frozenset[int] = frozenset()
    """The special tokens."""
    mask: int | None = None
    """The mask token; None if there is none."""
    first: int | None = None
    """The token that begins a sequence (`bos` or `cls`); None if there is neither."""
    text: Callable[[int], str] = str
    """Returns the text of a token."""
