"""A few sentences, every pair of tokens in every layer and head: what the explorer of a report shows."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

# With the figures and tables of a run, the page stays below eight megabytes.
BUDGET = 5_500_000

MEASURES = {
    "attn_w": "α: attention weight",
    "attn_n": "‖αf‖: weighted vector",
    "attnres_n": "with the residual connection",
    "attnresln_n": "with residual and layer normalisation: the block",
}


@dataclasses.dataclass(frozen=True, eq=False)
class ExploredSentence:
    """One sequence of tokens and what every token takes from every other. Arrays are float32."""

    title: str
    """The text, for people."""
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    """The same as the queries but in cross-attention."""
    crosses: bool
    """Whether the keys are another sequence."""
    layers: tuple[int, ...]
    weights: np.ndarray
    """α: layer, head, query, key."""
    norms: np.ndarray
    """‖f(x)‖: layer, head, key."""
    maps: Mapping[str, np.ndarray]
    """Norms of what the block as a whole hands over, by method: layer, query, key."""

    @property
    def heads(self) -> int:
        """Heads of a layer."""
        return int(self.weights.shape[1])

    def pairs(self) -> pd.DataFrame:
        """Every pair, layer and head (0: the block) as one row, with a column per measure."""
        layers, heads, queries, keys = self.weights.shape
        tables = []
        for head in range(heads + 1):
            grid = np.indices((layers, queries, keys)).reshape(3, -1)
            if head:
                weights = self.weights[:, head - 1]
                columns = {"attn_w": weights, "attn_n": weights * self.norms[:, head - 1, None, :]}
            else:
                columns = {"attn_w": self.weights.mean(axis=1), **self.maps}
            table = pd.DataFrame(
                {"layer": np.asarray(self.layers)[grid[0]], "head": head, "query": grid[1], "key": grid[2]}
            )
            tables.append(table.assign(**{name: values.reshape(-1) for name, values in columns.items()}))
        pairs = pd.concat(tables, ignore_index=True)
        pairs.insert(4, "query_token", np.asarray(self.queries, dtype=object)[pairs["query"]])
        pairs.insert(5, "key_token", np.asarray(self.keys, dtype=object)[pairs["key"]])
        return pairs


def pairs_table(sentences: Sequence[ExploredSentence]) -> pd.DataFrame:
    """The pairs of all sentences, numbered from 1."""
    tables = [sentence.pairs().assign(sentence=number) for number, sentence in enumerate(sentences, start=1)]
    return pd.concat(tables, ignore_index=True)


def payload(sentences: Sequence[ExploredSentence], budget: int = BUDGET) -> dict[str, Any]:
    """The sentences as the page's script reads them, as far as they fit, and what was left out."""
    shown, left_out, size = [], [], 0
    for number, sentence in enumerate(sentences, start=1):
        for whole in (True, False):
            packed = _packed(sentence, whole)
            if size + _size(packed) <= budget:
                shown.append(packed)
                size += _size(packed)
                if not whole:
                    left_out.append(f"the single heads of sentence {number}")
                break
        else:
            left_out.append(f"sentence {number} ({len(sentence.queries)} tokens)")
    return {"sentences": shown, "measures": MEASURES, "leftOut": left_out}


def _packed(sentence: ExploredSentence, whole: bool) -> dict[str, Any]:
    """Values in sixteen bits each, of the largest in their layer: three digits are shown."""
    weights = sentence.weights if whole else sentence.weights.mean(axis=1, keepdims=True)
    packed: dict[str, Any] = {
        "title": sentence.title,
        "queries": sentence.queries,
        "keys": sentence.keys,
        "crosses": sentence.crosses,
        "layers": sentence.layers,
        "heads": sentence.heads if whole else 0,
        "weights": _scaled(weights),
        "maps": {name: _scaled(values) for name, values in sentence.maps.items()},
    }
    if whole:
        packed["norms"] = _scaled(sentence.norms)
    return packed


def _scaled(values: np.ndarray) -> dict[str, Any]:
    largest = values.reshape(len(values), -1).max(axis=1).astype(float)
    shape = (-1, *(1 for _ in values.shape[1:]))
    steps = np.rint(values / np.maximum(largest, 1e-30).reshape(shape) * 65535).astype("<u2")
    return {
        "largest": [float(f"{value:.9g}") for value in largest],
        "steps": base64.b64encode(steps.tobytes()).decode(),
    }


def _size(packed: Mapping[str, Any]) -> int:
    return sum(
        len(array["steps"])
        for array in (packed["weights"], packed.get("norms", {"steps": ""}), *packed["maps"].values())
    )
