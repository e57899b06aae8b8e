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
    "attn_s": "s (score before the softmax)",
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

TARGET_MEASURES = {
    "token_score": "score (what the token adds to the target)",
    "attention": "attention (what the heads add)",
    "network": "network (what the feed-forward network adds)",
    "embeddings": "embeddings (what the token's own embedding adds)",
    "bypass": "bypass (what goes around the layer's attention)",
}
"""The same for maps with targets as rows: numbers that a model computes, and what each token adds to them."""

SIGNED_MEASURES = ("share", "attn_s", *TARGET_MEASURES)
"""Measures whose values may be negative, which are drawn on a diverging scale."""

_NEGATIVE = 1 << 15
"""The bit of a code that stands for a minus sign."""

_KNEE = 1000
"""Where the explorer's codes change from equal steps to equal ratios."""

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
    """Layers, counted from 1; 0 stands for all of them together."""
    single_heads: bool
    """Whether there are maps of single heads besides those of the block."""
    weights: np.ndarray | None
    """α: layer, head, query, key. Without single heads, the mean over heads as the only entry; None for maps through several
    layers, which have no weights."""
    norms: np.ndarray | None
    """‖f(x)‖: layer, head, key; None if `head_maps` has ‖αf(x)‖, or there are no weights."""
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
    head_maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Maps of single heads that do not follow from weights and norms, by measure: layer, head, query, key. Between words,
    ‖αf(x)‖ (`attn_n`) is one of them."""

    @property
    def heads(self) -> int:
        """Number of heads with maps of their own."""
        of_heads = [values for values in (self.weights, *self.head_maps.values()) if values is not None]
        return int(of_heads[0].shape[1]) if self.single_heads and of_heads else 0

    def of_heads(self, measure: str) -> np.ndarray | None:
        """The maps of single heads: layer, head, query, key; None if there are none for a measure."""
        if measure in self.head_maps:
            return self.head_maps[measure]
        if not self.single_heads or self.weights is None or measure not in HEAD_MEASURES:
            return None
        if measure == "attn_w":
            return self.weights
        assert self.norms is not None, "maps of words come with their own"
        return self.weights * self.norms[:, :, None, :]

    @property
    def values(self) -> int:
        """Number of values of all maps."""
        arrays = (self.weights, *self.maps.values(), *self.head_maps.values())
        return sum(values.size for values in arrays if values is not None)

    @property
    def of_targets(self) -> bool:
        """Whether rows are numbers that a model computes, instead of tokens or words."""
        return not TARGET_MEASURES.keys().isdisjoint(self.maps)

    def pairs(self) -> pd.DataFrame:
        """One row per layer, head (0: the block) and pair of tokens, one column per measure."""
        blocks = ({} if self.weights is None else {"attn_w": self.weights.mean(axis=1)}) | dict(self.maps)
        measures: dict[str, np.ndarray] = {}
        for name, values in blocks.items():
            measures[name] = np.full((self.heads + 1, *values.shape), np.nan, dtype=np.float32)
            measures[name][0] = values
            of_heads = self.of_heads(name)
            if of_heads is not None:
                measures[name][1:] = of_heads.swapaxes(0, 1)
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
        "measures": MEASURES | TARGET_MEASURES,
        "head_measures": HEAD_MEASURES,
        "signed_measures": SIGNED_MEASURES,
    }


def packed(sentence: TokenMaps) -> dict[str, Any]:
    """Values as codes relative to the largest in their layer; see `scaled`."""
    packed: dict[str, Any] = {
        "title": sentence.title,
        "queries": sentence.queries,
        "keys": sentence.keys,
        "is_cross_attention": sentence.is_cross_attention,
        "of_targets": sentence.of_targets,
        "layers": sentence.layers,
        "heads": sentence.heads,
        "query_words": sentence.query_words,
        "key_words": sentence.key_words,
        "tree": None if sentence.tree is None else dataclasses.asdict(sentence.tree),
        "weights": None if sentence.weights is None else scaled(sentence.weights),
        "maps": {name: scaled(values) for name, values in sentence.maps.items()},
        "head_maps": {name: scaled(values) for name, values in sentence.head_maps.items()},
    }
    if sentence.single_heads and sentence.norms is not None:
        packed["norms"] = scaled(sentence.norms)
    return packed


def scaled(values: np.ndarray) -> dict[str, Any]:
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
        "codes": base64.b64encode(_compressed(planes.tobytes())).decode(),
    }


def _compressed(codes: bytes) -> bytes:
    """Compress runs of the same byte, and code bytes by their frequency, in zlib's format.

    Other repetitions are rare in maps: searching for them takes twenty times as long and saves less than one percent.
    """
    compressor = zlib.compressobj(strategy=zlib.Z_RLE)
    return compressor.compress(codes) + compressor.flush()
