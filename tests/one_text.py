"""The numbers of results of single texts as tests compare them, read from public members of `Result` alone."""

import collections
import dataclasses
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import normscope
from normscope.results.maps import TokenMap
from normscope.results.result import Result


def rows_of(result: Result, name: str, number: int | None, column: str = "sequence") -> pd.DataFrame:
    """The rows of a table for one of several texts; all rows if there is but one."""
    rows = result.tables[name]
    return rows if number is None else rows[rows[column] == number].drop(columns=column).reset_index(drop=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Decomposed:
    """One text of what `decompose` has returned."""

    result: Result
    number: int | None = None
    """Its place in a list of texts; None for a single text."""

    @property
    def map(self) -> TokenMap:
        return self.result.maps[self.number or 0]

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.map.queries

    @property
    def key_tokens(self) -> tuple[str, ...]:
        return self.map.keys

    @property
    def maps(self) -> Mapping[str, Tensor]:
        """By measure: layer, query, key."""
        return {name: torch.from_numpy(values) for name, values in self.map.maps.items()}

    @property
    def head_maps(self) -> Mapping[str, Tensor]:
        """By measure: layer, head, query, key."""
        found = {name: self.map.of_heads(name) for name in ("attn_w", "attn_n") if self.map.heads}
        return {name: torch.from_numpy(values) for name, values in found.items() if values is not None}

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per layer, query and key, without single heads."""
        rows = self.map.pairs()
        return rows[rows["head"] == 0].drop(columns="head").reset_index(drop=True)

    @property
    def mixing(self) -> pd.DataFrame:
        return rows_of(self.result, "ratios", self.number)

    @property
    def output_shares(self) -> pd.DataFrame:
        return rows_of(self.result, "output_shares", self.number)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(self.mixing["method"]))

    @cached_property
    def ratios(self) -> Tensor:
        """Mixing ratios: method, layer, query."""
        shape = (len(self.methods), len(self.map.layers), len(self.tokens))
        return torch.tensor(self.mixing["ratio"].to_numpy()).reshape(shape)


def decompose(*given, **options) -> "Decomposed | list[Decomposed]":
    """The numbers of `normscope.decompose`; a list of them for several texts."""
    result = normscope.decompose(*given, **options)
    if "sequence" not in result.tables["ratios"]:
        return Decomposed(result)
    return [Decomposed(result, number) for number in range(len(result.maps))]


@dataclasses.dataclass(frozen=True, eq=False)
class Attended:
    """One text of what `attention` has returned, as an array with named axes."""

    result: Result
    number: int | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        return rows_of(self.result, "values", self.number)

    @property
    def map(self) -> TokenMap:
        return self.result.maps[self.number or 0]

    @property
    def _names(self) -> list[str]:
        last = "rank" if "rank" in self.table else "key"
        return [name for name in ("layer", "head", "query", last) if name in self.table]

    @property
    def axes(self) -> Mapping[str, tuple]:
        """Numbers of layers, heads and ranks; names of queries and keys."""
        found = {name: tuple(self.table[name].unique().tolist()) for name in self._names}
        for name in {"query", "key"} & found.keys():
            found[name] = tuple(self.table.drop_duplicates(name)[f"{name}_token"])
        return found

    @cached_property
    def values(self) -> np.ndarray:
        shape = [self.table[name].nunique() for name in self._names]
        return self.table.iloc[:, -1].to_numpy(copy=True).reshape(shape)

    @property
    def keys(self) -> tuple[str, ...]:
        """All of them, including those that are not among the strongest."""
        return self.map.keys

    @property
    def strongest(self) -> np.ndarray:
        """The key of each value, as an index into `keys`."""
        places = {place: number for number, place in enumerate(self.map.key_places)}
        return self.table["key"].map(places).to_numpy().reshape(self.values.shape)

    @property
    def positions(self) -> Mapping[str, tuple[int, ...]]:
        return {"query": self.map.query_places, "key": self.map.key_places}


def attention(*given, **options) -> "Attended | list[Attended]":
    """The numbers of `normscope.attention`; a list of them for several texts."""
    result = normscope.attention(*given, **options)
    if "sequence" not in result.table:
        return Attended(result)
    return [Attended(result, number) for number in result.table["sequence"].unique().tolist()]


@dataclasses.dataclass(frozen=True, eq=False)
class Attributed:
    """One target of what `attribute` has returned."""

    result: Result
    number: int | None = None

    def _rows(self, name: str) -> pd.DataFrame | None:
        return rows_of(self.result, name, self.number, "number") if name in self.result.tables else None

    @cached_property
    def table(self) -> pd.DataFrame:
        return rows_of(self.result, "scores", self.number, "number")

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.table["token"])

    @property
    def scores(self) -> np.ndarray:
        return self.table["value"].to_numpy()

    @property
    def sides(self) -> Mapping[str, int] | None:
        """The number of tokens of each side, in order."""
        return collections.Counter(self.table["side"]) if "side" in self.table else None

    def _part(self, name: str) -> float:
        return float(rows_of(self.result, "parts", self.number, "number")[name].item())

    @property
    def bias(self) -> float:
        return self._part("bias")

    @property
    def remainder(self) -> float:
        return self._part("remainder")

    @property
    def target(self) -> float:
        return self._part("target")

    @property
    def error(self) -> float:
        return self._part("error")

    @property
    def what(self) -> str:
        return str(rows_of(self.result, "parts", self.number, "number")["what"].item())

    @property
    def sentence(self) -> str:
        return str(self.result.sentences[self.number or 0])

    @property
    def said(self) -> str:
        """The target with its value."""
        return self.sentence.partition(" = tokens")[0]

    @property
    def spans(self) -> Mapping[str, float] | None:
        rows = self._rows("spans")
        return None if rows is None else dict(zip(rows["span"], rows["value"], strict=True))

    @property
    def matrix(self) -> pd.DataFrame | None:
        """The score of each token (column) for each token of an answer (row)."""
        rows = self._rows("matrix")
        if rows is None:
            return None
        values = rows.pivot(index="answer_position", columns="position", values="value").to_numpy()
        names = rows.drop_duplicates("answer_position")["answer_token"]
        return pd.DataFrame(values, names.tolist(), rows.drop_duplicates("position")["token"].tolist())

    @property
    def effects(self) -> pd.DataFrame | None:
        return self._rows("effects")

    def strongest(self, count: int = 10) -> pd.DataFrame:
        """The heads that add or take the most."""
        rows = self._rows("heads")
        assert rows is not None
        return rows.head(count)


def attribute(*given, **options) -> "Attributed | list[Attributed]":
    """The numbers of `normscope.attribute`; a list of them for several texts or targets."""
    result = normscope.attribute(*given, **options)
    if "number" not in result.table:
        return Attributed(result)
    return [Attributed(result, number) for number in result.tables["parts"]["number"]]


@dataclasses.dataclass(frozen=True, eq=False)
class AttributionMap:
    """The map of one method of what `attribution_maps` has returned."""

    result: Result
    method: str

    @property
    def map(self) -> TokenMap:
        return self.result.maps[0]

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.map.queries

    @property
    def source_tokens(self) -> tuple[str, ...] | None:
        """Of a translation."""
        return self.map.keys[: len(self.map.keys) - len(self.tokens)] if self.map.is_cross_attention else None

    @cached_property
    def table(self) -> pd.DataFrame:
        rows = self.result.table
        return rows[rows["method"] == self.method].drop(columns="method").reset_index(drop=True)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.table["key_token"].iloc[: len(self.table) // len(self.tokens)])

    @property
    def total(self) -> np.ndarray:
        """Output, source; the bias last, if there is one."""
        return self.table["value"].to_numpy().reshape(len(self.tokens), -1)

    @property
    def shares(self) -> np.ndarray | None:
        known = "share" in self.table and self.table["share"].notna().all()
        return self.table["share"].to_numpy().reshape(len(self.tokens), -1) if known else None

    @property
    def cumulative(self) -> np.ndarray:
        """Layer, output, source; the bias last, if there is one."""
        values = self.map.maps[self.method]
        if "bias" not in self.result.tables or self.method not in set(self.result.tables["bias"]["method"]):
            return values
        biases = self.result.tables["bias"]["value"].to_numpy().reshape(len(values), len(self.tokens), 1)
        return np.concatenate([values, biases], axis=2)

    @property
    def layers(self) -> np.ndarray | None:
        """The map of each layer by itself."""
        rows = self.result.tables["layers"]
        if rows.empty or self.method not in set(rows["method"]):
            return None
        values = rows[rows["method"] == self.method]["value"].to_numpy()
        return values.reshape(len(self.map.layers), len(self.tokens), -1)


def attribution_maps(*given, **options) -> dict[str, AttributionMap]:
    """The numbers of `normscope.attribution_maps`, by method."""
    result = normscope.attribution_maps(*given, **options)
    return {method: AttributionMap(result, method) for method in result.maps[0].maps}


@dataclasses.dataclass(frozen=True, eq=False)
class Similarity:
    """One pair of texts of what `similarity` has returned."""

    result: Result
    number: int | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        return rows_of(self.result, "pairs", self.number, "number")

    def _names(self, side: str) -> tuple[str, ...]:
        return tuple(self.table.drop_duplicates(side).sort_values(side)[f"token_{side}"])

    @property
    def sources_a(self) -> tuple[str, ...]:
        """The names of the rows, the bias last."""
        return self._names("a")

    @property
    def sources_b(self) -> tuple[str, ...]:
        """The names of the columns, the bias last."""
        return self._names("b")

    @property
    def tokens_a(self) -> tuple[str, ...]:
        return self.sources_a[:-1]

    @property
    def tokens_b(self) -> tuple[str, ...]:
        return self.sources_b[:-1]

    @cached_property
    def matrix(self) -> np.ndarray:
        return self.table.pivot(index="a", columns="b", values="value").to_numpy(copy=True)

    @property
    def value(self) -> float:
        if self.number is None:
            return self.result.metrics["value"]
        ranking = self.result.tables["ranking"]
        return float(ranking.loc[ranking["number"] == self.number, "value"].item())

    @property
    def function(self) -> str:
        return str(self.result.config["compares"])

    @property
    def pooling(self) -> str:
        return str(self.result.config["pooling"])

    @property
    def matches(self) -> pd.DataFrame | None:
        return rows_of(self.result, "matches", self.number, "number") if "matches" in self.result.tables else None


class Similarities(list[Similarity]):
    """Several pairs of texts."""

    @property
    def result(self) -> Result:
        return self[0].result

    @property
    def ranking(self) -> pd.DataFrame:
        return self.result.tables["ranking"]

    @property
    def words(self) -> pd.DataFrame:
        return self.result.tables["words"]


def similarity(*given, **options) -> "Similarity | Similarities":
    """The numbers of `normscope.similarity`; a list of them if a list of texts was given."""
    result = normscope.similarity(*given, **options)
    if "ranking" not in result.tables:
        return Similarity(result)
    return Similarities(Similarity(result, number) for number in range(1, len(result.tables["ranking"]) + 1))
