"""Attribution against a known truth: a small model that makes verbs agree with their subjects.

`near the doors the key beside the cabinets behind the box` goes on with `is`, because its subject is `key`. The subject is the
noun whose article follows no preposition, and its place varies. The other nouns are singular or plural at random, so only the
subject decides the verb. See `known_truth.py`.
"""

from collections.abc import Iterator

import numpy as np

from tests.known_truth import Task

NOUNS = ("key", "door", "box", "cabinet", "lamp", "chair", "window", "garden")
PREPOSITIONS = ("near", "beside", "behind")
VERBS = ("is", "are")
PHRASES = 3
"""Prepositional phrases of a sentence; at least one follows the subject."""

_LENGTH = 3 * PHRASES + 2
"""Words before the verb."""
_SENTENCES = 4


def _sentence(generator: np.random.Generator) -> tuple[list[str], str, int]:
    """The words before the verb, the verb, and the place of the subject."""
    before = int(generator.integers(PHRASES))
    nouns, plural = generator.choice(NOUNS, PHRASES + 1).tolist(), generator.integers(2, size=PHRASES + 1).tolist()
    said = [_plural(noun) if many else noun for noun, many in zip(nouns, plural, strict=True)]
    phrases = [[str(generator.choice(PREPOSITIONS)), "the", noun] for noun in said[1:]]
    phrases.insert(before, ["the", said[0]])
    return [word for phrase in phrases for word in phrase], VERBS[plural[0]], 3 * before + 1


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("x") else f"{noun}s"


def other_number(noun: str) -> str:
    """The plural of a noun in the singular, or the other way round."""
    singular = {_plural(each): each for each in NOUNS}
    return singular[noun] if noun in singular else _plural(noun)


def prompts(generator: np.random.Generator) -> Iterator[tuple[str, str, list[int]]]:
    """Sentences up to their verb, the verb, and the position of the subject."""
    while True:
        words, verb, subject = _sentence(generator)
        yield " ".join(words), verb, [subject]


def _lesson(generator: np.random.Generator) -> list[str]:
    sentences = [_sentence(generator) for _ in range(_SENTENCES)]
    return [word for words, verb, _ in sentences for word in (*words, verb, ".")]


AGREEMENT = Task(
    (*NOUNS, *map(_plural, NOUNS), *PREPOSITIONS, *VERBS, "the", "."),
    prompts,
    _lesson,
    tuple(_LENGTH - 1 + number * (_LENGTH + 2) for number in range(_SENTENCES)),
)
