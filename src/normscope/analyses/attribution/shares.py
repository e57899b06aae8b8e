"""Where the vectors of each layer come from: the token itself, other tokens by category, neighbours, others, the bias."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normscope.data.categories import ALL

_ITSELF, _NEIGHBOURS, _OTHERS, _BIAS = "itself", "neighbours", "others", "bias"
_CATCH_ALL = "other"
"""The category of the tokens that belong to no other."""

LAYER, CUMULATIVE = "layer", "cumulative"
"""Scopes: the map of a layer alone, and the map from the input up to it."""


class Shares:
    """Sums of the shares of a sample's tokens.

    Args:
        layers: The reported layers, from 1.
        names: All token categories.
        categories: The reported ones: categories of the tokens whose vectors are attributed.
    """

    def __init__(self, layers: Sequence[int], names: Sequence[str], categories: Sequence[str]) -> None:
        self._layers, self._names = layers, list(names)
        # `all` is always counted: the metrics are about all tokens.
        self._categories = [*(category for category in categories if category != ALL), ALL]
        self._sources = [_ITSELF, *(name for name in names if name != _CATCH_ALL), _NEIGHBOURS, _OTHERS, _BIAS]
        # By layer, method and scope: the sums of `itself` and `effective_tokens`, and the number of tokens.
        self._whole: dict[tuple[int, str, str], np.ndarray] = {}
        # By layer and method: category × (sums of the sources' shares, number of tokens).
        self._parts: dict[tuple[int, str], np.ndarray] = {}

    def add(
        self,
        method: str,
        maps: Mapping[str, Sequence[Float[np.ndarray, "query source"]]],
        categories: Int[np.ndarray, " token"],
    ) -> None:
        """Add the maps of one sequence.

        Args:
            maps: By scope, the map of each layer of the model. A column after those of the tokens belongs to the bias.
            categories: The category of each token, an index into `names`.
        """
        sources = self._sources_of(categories)
        members = np.stack([self._is_in(category, categories) for category in self._categories])
        for scope, layer in ((scope, layer) for scope in maps for layer in self._layers):
            values = maps[scope][layer - 1]
            total = values.sum(axis=1)
            defined = total > 0  # a query whose layer changes with no value has no shares
            shares = values / np.where(defined, total, 1.0)[:, None]
            of_tokens = shares[:, : len(categories)]
            whole = self._whole.setdefault((layer, method, scope), np.zeros(3))
            whole += [of_tokens.diagonal().sum(), _effective_numbers(of_tokens)[defined].sum(), defined.sum()]
            if scope == CUMULATIVE:
                empty = np.zeros((len(self._categories), len(self._sources) + 1))
                parts = self._parts.setdefault((layer, method), empty)
                parts[:, :-1] += members @ _summed(shares, sources, len(self._sources))
                parts[:, -1] += (members & defined).sum(axis=1)

    def by_layer(self) -> pd.DataFrame:
        """The table `by_layer`."""
        rows = [
            {
                "layer": layer,
                "method": method,
                "scope": scope,
                "itself": itself / count,
                "effective_tokens": effective / count,
                "count": int(count),
            }
            for (layer, method, scope), (itself, effective, count) in self._whole.items()
            if count
        ]
        columns = ["layer", "method", "scope", "itself", "effective_tokens", "count"]
        return pd.DataFrame(rows, columns=columns).sort_values("layer", kind="stable", ignore_index=True)

    def by_category(self) -> pd.DataFrame:
        """The table `by_category`, with `all`. Sources that occur nowhere have no rows."""
        occurs = np.sum([parts[-1, :-1] for parts in self._parts.values()], axis=0) > 0
        rows = [
            {
                "layer": layer,
                "method": method,
                "category": category,
                "source": source,
                "share": share / count,
                "count": int(count),
            }
            for (layer, method), parts in self._parts.items()
            for category, (*shares, count) in zip(self._categories, parts, strict=True)
            for source, share, occurring in zip(self._sources, shares, occurs, strict=True)
            if count and occurring and (source != _BIAS or parts[-1, len(self._sources) - 1])
        ]
        columns = ["layer", "method", "category", "source", "share", "count"]
        return pd.DataFrame(rows, columns=columns).sort_values("layer", kind="stable", ignore_index=True)

    def _is_in(self, category: str, categories: np.ndarray) -> np.ndarray:
        every = np.ones(len(categories), dtype=bool)
        return every if category == ALL else every & (categories == self._names.index(category))

    def _sources_of(self, categories: np.ndarray) -> np.ndarray:
        """The source of each pair (query, key), and in the last column that of the bias; indices into the sources."""
        number = {source: index for index, source in enumerate(self._sources)}
        named = np.array([number[_OTHERS if name == _CATCH_ALL else name] for name in self._names])
        tokens = np.arange(len(categories))
        distance = np.abs(tokens[:, None] - tokens)
        sources = np.where(distance == 0, number[_ITSELF], named[categories])
        sources = np.where((distance == 1) & (sources == number[_OTHERS]), number[_NEIGHBOURS], sources)
        return np.hstack([sources, np.full((len(categories), 1), number[_BIAS])])


def _summed(shares: np.ndarray, sources: np.ndarray, number: int) -> np.ndarray:
    """The shares of each query by source: query, source."""
    belongs = sources[:, : shares.shape[1]]
    return np.stack([np.where(belongs == source, shares, 0.0).sum(axis=1) for source in range(number)], axis=1)


def _effective_numbers(shares: np.ndarray) -> np.ndarray:
    """exp(−Σ p log p) of each row, where p are the shares divided by their sum."""
    p = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    numbers: np.ndarray = np.exp(-np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(axis=1))
    return numbers
