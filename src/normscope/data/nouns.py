"""What a model reads, in words: sentences take their nouns from here."""

from typing import NamedTuple


class Nouns(NamedTuple):
    """How inputs and their tokens are called."""

    inputs: str
    unit: str
    units: str


TEXTS = Nouns("text", "token", "tokens")
IMAGES = Nouns("images", "patch", "patches")
RECORDINGS = Nouns("recordings", "frame", "frames")
VECTORS = Nouns("inputs", "token", "tokens")
