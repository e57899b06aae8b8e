"""The numbers of results of single texts as tests compare them, read from public members of `Result` alone."""

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
