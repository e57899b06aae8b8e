"""Examples from a file of texts, ranked by a number."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from normscope.api.decomposition import Decomposition, decompose
from normscope.data.corpora import open_corpus
from normscope.data.options import DatasetOptions
from normscope.errors import InputError
from normscope.live.engine import Turn
from normscope.live.texts import Limit, read
from normscope.models.loaded import LoadedModel
from normscope.typed_texts import SEPARATOR

_SEARCHED = 100
"""Texts that are measured."""
_SHOWN = 10


def texts_of(options: DatasetOptions) -> Iterator[str]:
    """The texts of a corpus as they are typed on the page; pairs with ` ||| ` between them.

    Raises:
        InputError: If it cannot be opened.
    """
    for example in open_corpus(options).examples():
        if isinstance(example, str) or not example.text:  # why it is skipped, or a conversation
            continue
        yield example.text if example.text_pair is None else f"{example.text}{SEPARATOR}{example.text_pair}"


def _of_first_weight(found: Decomposition) -> float:
    return float(found.weights[:, :, 0].mean())


def _of_first_norm(found: Decomposition) -> float:
    assert found.vectors is not None
    return float((found.vectors[:, :, 0] / found.vectors.sum(dim=-1)).mean())


def _of_mixing(found: Decomposition) -> float:
    return float(found.ratios[-1].mean())


_NUMBERS: Mapping[str, tuple[Callable[[Decomposition], float], int]] = {
    "first_weight": (_of_first_weight, 1),
    "first_norm": (_of_first_norm, 1),
    "most_mixing": (_of_mixing, 1),
    "least_mixing": (_of_mixing, -1),
}
"""What ranks examples, and 1 if the largest come first. Means over layers and tokens; mixing is that of the whole block."""


def ranked(model: LoadedModel, options: DatasetOptions, ranking: str, limit: Limit, turn: Turn) -> dict[str, Any]:
    """The first texts of a corpus, ranked.

    Args:
        model: See `normscope.load`.
        options: The corpus.
        ranking: One of `state.RANKINGS`.
        limit: The longest text; longer ones are cut.
        turn: Others get theirs between two texts.

    Raises:
        InputError: If the corpus cannot be opened, the model reads none of its texts.
    """
    number, sign = _NUMBERS[ranking]
    found: list[tuple[float, str]] = []
    reason = "the corpus is empty"
    for text in itertools.islice(texts_of(options), _SEARCHED):
        turn.let_others()
        try:
            typed = model.exclusively(functools.partial(read, model, text, limit))
            found.append((number(decompose(model, typed.given, measures=["attn_n"])), typed.text))
        except InputError as error:
            reason = str(error)
    if not found:
        raise InputError(f"dataset: {reason}")
    found.sort(key=lambda pair: -sign * pair[0])
    return {"searched": len(found), "examples": [{"text": text, "value": value} for value, text in found[:_SHOWN]]}
