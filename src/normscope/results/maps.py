"""Token maps: what each token of a text takes from every other, for every layer and head."""

import dataclasses
from collections.abc import Mapping, Sequence

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

TARGET_MEASURES = {
    "token_score": "score (what the token adds to the target)",
    "attention": "attention (what the heads add)",
    "network": "network (what the feed-forward network adds)",
    "embeddings": "embeddings (what the token's own embedding adds)",
    "bypass": "bypass (what goes around the layer's attention)",
}
"""The same for maps with targets as rows: numbers that a model computes, and what each token adds to them."""

SIGNED_MEASURES = ("share", *TARGET_MEASURES)
"""Measures whose values may be negative, which are drawn on a diverging scale."""

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
