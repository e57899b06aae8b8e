"""Token maps: the data behind the explorer in a report, for a few sentences, every layer and every head."""

import base64
import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from normscope.statistics.tidy import tidy

MEASURES = {
    "attn_w": "α (attention weight)",
    "attn_n": "‖αf(x)‖ (weighted vector)",
    "attnres_n": "‖αf(x) + x‖ (with the residual connection)",
    "attnresln_n": "‖LN(αf(x) + x)‖ (the attention block)",
    "share": "share (of the block's output, signed)",
    "atbff_n": "‖FF‖ (the feed-forward network)",
    "atbffres_n": "‖FF + T‖ (with its residual connection)",
    "atbffresln_n": "‖LN(FF + T)‖ (the whole layer)",
    "rollout": "rollout (of weights, up to this layer)",
    "norm_rollout": "norm rollout (of norms, up to this layer)",
    "globenc": "GlobEnc (up to this layer)",
    "alti": "ALTI (up to this layer)",
    "value_zeroing": "value zeroing (up to this layer)",
    "decompx": "DecompX (norms of vectors, up to this layer)",
}
"""Titles of all measures by their names in `TokenMaps.maps`, in order: the symbol, then words in brackets."""

SIGNED_MEASURES = ("share",)
"""Measures whose values may be negative, which are drawn on a diverging scale."""

_NEGATIVE = 1 << 15
"""The bit of a code that stands for a minus sign."""

_KNEE = 1000
"""Where the explorer's codes change from equal steps to equal ratios."""

_SMALLEST = 9
"""The level of compression of a page that is kept."""

HEAD_MEASURES = ("attn_w", "attn_n")
"""Measures of single heads: α and α‖f(x)‖."""


@dataclasses.dataclass(frozen=True)
class DependencyTree:
    """The tree of an annotated sentence. Words are numbered as in `TokenMaps.query_words`."""

    words: tuple[int, ...]
    """All but special tokens."""
    arcs: tuple[tuple[int, int, str], ...]
    """Dependent, head and relation, without the root's and those inside of words that share their tokens."""


@dataclasses.dataclass(frozen=True, eq=False)
class TokenMaps:
    """One example, and what each of its tokens (or words) takes from every other. Arrays are float32."""

    title: str
    """The text, as shown in the menu."""
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    """The same as the queries except in cross-attention."""
    is_cross_attention: bool
    """Whether the keys belong to another sequence."""
    layers: tuple[int, ...]
    single_heads: bool
    """Whether there are maps of single heads besides those of the block."""
    weights: np.ndarray | None
    """α: layer, head, query, key. Without single heads, the mean over heads as the only entry; None for maps through several
    layers, which have no weights."""
    norms: np.ndarray | None
    """‖f(x)‖: layer, head, key. Between words, ‖αf(x)‖: layer, head, query, key."""
    maps: Mapping[str, np.ndarray]
    """What the attention block and the feed-forward network pass from key to query, by measure: layer, query, key. Norms of
    vectors by method, and the signed shares of the block's output (`share`)."""
    query_words: tuple[int, ...] | None = None
    """The word that each query is part of, counted from 0; None if the tokenizer does not show words."""
    key_words: tuple[int, ...] | None = None
    tree: "DependencyTree | None" = None
    """The gold tree of an annotated sentence."""
    unit: str = "token"
    """What the queries and keys are: `token` or `word`."""

    @property
    def heads(self) -> int:
        """Number of heads with maps of their own."""
        return int(self.weights.shape[1]) if self.single_heads and self.weights is not None else 0

    @property
    def weighted(self) -> np.ndarray:
        """‖αf(x)‖: layer, head, query, key."""
        assert self.weights is not None
        assert self.norms is not None
        return self.norms if self.norms.ndim == self.weights.ndim else self.weights * self.norms[:, :, None, :]

    def pairs(self) -> pd.DataFrame:
        """One row per layer, head (0: the block) and pair of tokens, one column per measure."""
        blocks = ({} if self.weights is None else {"attn_w": self.weights.mean(axis=1)}) | dict(self.maps)
        measures: dict[str, np.ndarray] = {}
        for name, values in blocks.items():
            measures[name] = np.full((self.heads + 1, *values.shape), np.nan, dtype=np.float32)
            measures[name][0] = values
            if self.weights is not None and name in HEAD_MEASURES:
                of_heads = self.weights if name == "attn_w" else self.weighted
                measures[name][1:] = of_heads.swapaxes(0, 1)[: self.heads]
        tokens = {
            "query_token": np.array(self.queries, dtype=object)[:, None],
            "key_token": np.array(self.keys, dtype=object),
        }
        table = tidy(
            tokens | measures,
            head=np.arange(self.heads + 1, dtype=np.int32),
            layer=np.array(self.layers, dtype=np.int32),
            query=np.arange(len(self.queries), dtype=np.int32),
            key=np.arange(len(self.keys), dtype=np.int32),
        )
        return table[["layer", "head", "query", "key", *tokens, *measures]]


def pairs_table(sentences: Sequence[TokenMaps]) -> pd.DataFrame:
    """The pairs of all sentences; sentences count from 1."""
    tables = [sentence.pairs().assign(sentence=np.int32(number)) for number, sentence in enumerate(sentences, start=1)]
    return pd.concat(tables, ignore_index=True)


def payload(sentences: Sequence[TokenMaps], measure: str = "") -> dict[str, Any]:
    """The JSON content that the explorer's script reads.

    Args:
        measure: The measure that is shown first, if the maps have it; ‖αf(x)‖ by default.
    """
    return {
        "measure": measure if measure in sentences[0].maps else "attn_n",
        "sentences": [packed(sentence) for sentence in sentences],
        **about_measures(),
    }


def about_measures() -> dict[str, Any]:
    """What the explorer's script knows of all measures."""
    return {
        "measures": MEASURES,
        "head_measures": HEAD_MEASURES,
        "signed_measures": SIGNED_MEASURES,
    }


def packed(sentence: TokenMaps, compression: int = _SMALLEST) -> dict[str, Any]:
    """Values as codes relative to the largest in their layer; see `scaled`.

    Args:
        compression: zlib's level.
    """
    packed: dict[str, Any] = {
        "title": sentence.title,
        "queries": sentence.queries,
        "keys": sentence.keys,
        "is_cross_attention": sentence.is_cross_attention,
        "layers": sentence.layers,
        "heads": sentence.heads,
        "query_words": sentence.query_words,
        "key_words": sentence.key_words,
        "tree": None if sentence.tree is None else dataclasses.asdict(sentence.tree),
        "weights": None if sentence.weights is None else scaled(sentence.weights, compression),
        "maps": {name: scaled(values, compression) for name, values in sentence.maps.items()},
    }
    if sentence.single_heads and sentence.weights is not None and sentence.norms is not None:
        of_keys = sentence.norms.ndim < sentence.weights.ndim
        packed["norms" if of_keys else "weighted"] = scaled(sentence.norms, compression)
    return packed


def scaled(values: np.ndarray, compression: int = _SMALLEST) -> dict[str, Any]:
    """Values with the three digits that a reader sees, compressed.

    Up to 1000 steps of 1/65535 of the layer's largest value, a code is the number of steps; above that, each code is larger by
    a thousandth than the one before. Errors are at most half a step, or 0.05% above the knee. High and low bytes stand apart,
    since only the former compress well. Of a negative value, the magnitude is coded, with the highest bit set.
    """
    sizes = np.abs(values)
    largest = sizes.reshape(len(values), -1).max(axis=1).astype(float)
    shape = (-1, *(1 for _ in values.shape[1:]))
    steps = sizes / np.maximum(largest, 1e-30).reshape(shape) * 65535
    above = _KNEE + np.log(np.maximum(steps, _KNEE) / _KNEE) / np.log1p(1 / _KNEE)
    codes = np.rint(np.where(steps <= _KNEE, steps, above)).astype(np.uint16).ravel()
    codes |= np.where(values < 0, _NEGATIVE, 0).astype(np.uint16).ravel()
    planes = np.concatenate([codes >> 8, codes & 255]).astype(np.uint8)
    return {
        "largest": [float(f"{value:.9g}") for value in largest],
        "codes": base64.b64encode(zlib.compress(planes.tobytes(), compression)).decode(),
    }
