"""Token maps as a file: every pair of tokens as a row of a Parquet table, and the texts in the file's metadata."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from normscope.errors import InputError, one_line
from normscope.results.maps import DependencyTree, TokenMaps, pairs_table
from normscope.results.parquet import parquet_metadata, write_parquet
from normscope.results.run_tables import metadata
from normscope.untrusted.plain_data import parsed_json
from normscope.untrusted.tables import table

_KEY = "normscope.texts"
_NORMS = "f_n"
"""The column of ‖f(x)‖."""


def write_maps(stream: BinaryIO, maps: Sequence[TokenMaps], identity: Mapping[str, object]) -> None:
    """Write the token maps of at least one text.

    Args:
        stream: The file.
        maps: The maps.
        identity: What distinguishes the run from others.
    """
    rows = pairs_table(maps)
    if any(text.norms is not None for text in maps):
        rows[_NORMS] = np.concatenate([_norms(text) for text in maps])
    texts = json.dumps([_text(text) for text in maps], ensure_ascii=False)
    write_parquet(stream, rows, {**metadata("maps.parquet", rows.columns, identity), _KEY: texts})


def _norms(text: TokenMaps) -> np.ndarray:
    """‖f(x)‖ of each pair's key, for single heads alone."""
    values = np.full((text.heads + 1, len(text.layers), len(text.queries), len(text.keys)), np.nan, dtype=np.float32)
    if text.norms is not None:
        values[1:] = text.norms.swapaxes(0, 1)[:, :, None, :]
    return values.ravel()


def _text(text: TokenMaps) -> dict[str, Any]:
    """All of a text that is no number."""
    plain = (
        "title",
        "queries",
        "keys",
        "is_cross_attention",
        "layers",
        "single_heads",
        "unit",
        "query_words",
        "key_words",
    )
    return {name: getattr(text, name) for name in plain} | {
        "heads": text.heads,
        "weights": text.weights is not None,
        "norms": text.norms is not None,
        "maps": list(text.maps),
        "head_maps": list(text.head_maps),
        "tree": None if text.tree is None else dataclasses.asdict(text.tree),
    }


def read_maps(path: Path) -> list[TokenMaps]:
    """Read what `write_maps` has written.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path)
    try:
        texts = parsed_json(f'{{"texts": {parquet_metadata(path)[_KEY]}}}', finite=True)["texts"]
        parts = dict(iter(rows.groupby("sentence", sort=False)))
        return [_read(text, parts[number]) for number, text in enumerate(texts, start=1)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, MemoryError) as error:
        raise InputError(f"{path}: expected the token maps of a run: {one_line(error)}") from error


def _read(text: dict[str, Any], rows: pd.DataFrame) -> TokenMaps:
    queries, keys, layers = (tuple(text[name]) for name in ("queries", "keys", "layers"))
    of_texts = (text["title"], text["unit"], *queries, *keys)
    if not all(isinstance(value, str) for value in of_texts) or not all(isinstance(layer, int) for layer in layers):
        raise TypeError("the texts in its metadata are damaged")
    heads, pairs = int(text["heads"]), (len(layers), len(queries), len(keys))

    def of_blocks(name: str) -> np.ndarray:
        return _values(rows, name, heads, pairs)[0]

    def of_heads(name: str) -> np.ndarray:
        values = _values(rows, name, heads, pairs)
        return values[1:].swapaxes(0, 1) if heads else values[:1].swapaxes(0, 1)

    tree = text["tree"]
    return TokenMaps(
        title=text["title"],
        queries=queries,
        keys=keys,
        is_cross_attention=bool(text["is_cross_attention"]),
        layers=layers,
        single_heads=bool(text["single_heads"]),
        weights=of_heads("attn_w") if text["weights"] else None,
        norms=of_heads(_NORMS)[:, :, 0] if text["norms"] else None,
        maps={str(name): of_blocks(name) for name in text["maps"]},
        query_words=_whole(text["query_words"]),
        key_words=_whole(text["key_words"]),
        tree=None if tree is None else _tree(tree),
        unit=text["unit"],
        head_maps={str(name): of_heads(name) for name in text["head_maps"]},
    )


def _values(rows: pd.DataFrame, name: str, heads: int, pairs: tuple[int, int, int]) -> np.ndarray:
    """A column as an array: head, layer, query, key."""
    return rows[name].to_numpy(dtype=np.float32).reshape(heads + 1, *pairs)


def _whole(numbers: Any) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(map(int, numbers))


def _tree(tree: dict[str, Any]) -> DependencyTree:
    arcs = tuple((int(dependent), int(head), str(relation)) for dependent, head, relation in tree["arcs"])
    return DependencyTree(tuple(map(int, tree["words"])), arcs)
