"""Attributions as the report's explorer takes them: maps with a row for each target."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from normscope.results.maps import TokenMap

_SCORE = "token_score"


class TargetRow(NamedTuple):
    """What is known of one target; see `Attribution`."""

    title: str
    tokens: tuple[str, ...]
    sides: Mapping[str, int] | None
    scores: np.ndarray
    matrix: pd.DataFrame | None
    spans: Mapping[str, float] | None
    effects: pd.DataFrame | None
    heads: pd.DataFrame | None
    """The effects of heads, over all tokens: one row per layer, one column per head."""


def target_maps(targets: Sequence[TargetRow]) -> list[TokenMap]:
    """The scores of every text, followed by what else is known of them: answer tokens, effects, heads, spans.

    Targets of the same text that follow each other share a map, in float32.
    """
    found: list[TokenMap] = []
    for _, of_text in itertools.groupby(targets, lambda row: (row.tokens, row.sides)):
        found += _maps_of_text(list(of_text))
    return found


def _maps_of_text(rows: Sequence[TargetRow]) -> Iterator[TokenMap]:
    tokens, titles = rows[0].tokens, [row.title for row in rows]
    text, shape = " ".join(tokens), (len(rows), len(tokens))
    tables = [row.effects.assign(row=at) for at, row in enumerate(rows) if row.effects is not None]
    effects = pd.concat(tables) if tables else pd.DataFrame()
    if "layer" not in effects:
        effects["layer"] = 0
    # Besides effects of all layers together, direct effects of the embeddings, which precede the first layer.
    maps, head_maps = _effects(effects, [0], shape)
    scores = np.stack([row.scores for row in rows])
    yield _maps(text, titles, tokens, {_SCORE: scores[None], **maps}, head_maps)
    for row in rows:
        if row.matrix is not None:
            yield table_map(f"each token of the answer: {text}", row.matrix, _SCORE)
    layers = sorted({*effects["layer"].astype(int)} - {0})
    maps, head_maps = _effects(effects, layers, shape)
    if maps:
        yield _maps(f"effects by layer: {text}", titles, tokens, maps, head_maps, layers)
    for row in rows:
        if row.heads is not None:
            named = row.heads.rename(index="layer {}".format, columns="head {}".format)
            yield table_map(f"heads: {row.title}", named, "attention")
    spans = pd.DataFrame([row.spans for row in rows if row.spans is not None])
    if len(spans):
        yield table_map(f"spans: {text}", spans.set_axis(titles), _SCORE)


def _effects(
    effects: pd.DataFrame, layers: Sequence[int], shape: tuple[int, int]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The effects of the parts of some layers: layer, row, token; and those of single heads: layer, head, row, token.

    Args:
        effects: Effects with their layers and rows.
        shape: Number of rows and of tokens.
    """
    maps: dict[str, np.ndarray] = {}
    head_maps: dict[str, np.ndarray] = {}
    if "position" not in effects:
        return maps, head_maps
    known = effects[effects["position"].notna() & effects["layer"].isin(layers)]
    for name, of_part in known.groupby("part", sort=False):
        layer = np.searchsorted(layers, of_part["layer"])
        row, token = (of_part[axis].to_numpy(dtype=int) for axis in ("row", "position"))
        maps[str(name)] = _summed(of_part["value"], (layer, row, token), (len(layers), *shape))
        if name == "attention" and "head" in of_part:
            head = of_part["head"].to_numpy(dtype=int)
            sizes = (len(layers), head.max(), *shape)
            head_maps["attention"] = _summed(of_part["value"], (layer, head - 1, row, token), sizes)
    return maps, head_maps


def _summed(values: pd.Series, places: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Values added up at their places in an array."""
    flat = np.ravel_multi_index(places, shape)
    return np.bincount(flat, values, minlength=math.prod(shape)).reshape(shape)


def _maps(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    maps: Mapping[str, np.ndarray],
    head_maps: Mapping[str, np.ndarray] | None = None,
    layers: Sequence[int] = (0,),
) -> TokenMap:
    return TokenMap(
        title=title,
        queries=tuple(rows),
        keys=tuple(columns),
        layers=tuple(layers),
        maps={name: values.astype(np.float32) for name, values in maps.items()},
        head_maps={name: values.astype(np.float32) for name, values in (head_maps or {}).items()},
        is_cross_attention=True,
    )


def table_map(title: str, table: pd.DataFrame, measure: str) -> TokenMap:
    """A single map whose rows and columns are those of a table."""
    return _maps(title, table.index.tolist(), table.columns.tolist(), {measure: table.to_numpy()[None]})
