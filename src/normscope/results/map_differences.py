"""What the maps of one text have more than those of another: a text before and after a change, or a text in two models."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from normscope.results.findings import Sentence
from normscope.results.maps import SIGNED_MEASURES, TARGET_MEASURES, TITLES, TokenMap, shares_of_rows
from normscope.results.result import Result
from normscope.results.token_labels import label
from normscope.rounding import number, percentage

CHANGES = "map_changes"
"""The name of the table of the cells that differ most."""

_MOST = 20
"""Cells of each measure that are listed."""

_MOST_TOLD = 3
"""Maps that have a sentence."""


class MapDifference(NamedTuple):
    """Two texts' maps, where both have the same tokens or words."""

    later: TokenMap
    before: TokenMap
    """The same cells of the other map."""

    @classmethod
    def of(cls, later: TokenMap, before: TokenMap) -> "MapDifference | None":
        """Maps of the cells that both texts have; None if they share no measure, layer, query or key.

        Values that cannot be negative become shares of what their query receives in its whole text: norms of two models have
        no common scale.
        """
        measures = [name for name in later.maps if name in before.maps]
        layers = [layer for layer in later.layers if layer in before.layers]
        queries, keys = _common(later.queries, before.queries), _common(later.keys, before.keys)
        if later.is_cross_attention is not before.is_cross_attention or not (measures and layers and queries and keys):
            return None
        sides = (0, later), (1, before)
        return cls(
            *(_part(each, measures, layers, [q[at] for q in queries], [k[at] for k in keys]) for at, each in sides)
        )

    def map(self, title: str) -> TokenMap:
        """The difference, cell by cell. A token in place of another is written `before → later`."""
        maps = {name: values - self.before.maps[name] for name, values in self.later.maps.items()}
        return dataclasses.replace(
            self.later,
            title=title,
            queries=_both(self.before.queries, self.later.queries),
            keys=_both(self.before.keys, self.later.keys),
            maps=maps,
            is_difference=True,
        )

    def changes(self) -> pd.DataFrame:
        """The cells of each measure that differ most: layer, tokens, both values and the difference."""
        columns = ["layer", "query", "key", "query_token", "key_token"]
        later, before, whole = (each.pairs() for each in (self.later, self.before, self.map("")))
        tables = []
        for name in self.later.maps:
            cells = whole[columns].assign(measure=name, before=before[name], later=later[name], difference=whole[name])
            order = cells["difference"].abs().sort_values(ascending=False, kind="stable").index
            tables.append(cells.loc[order[:_MOST]])
        table = pd.concat(tables, ignore_index=True)
        return table[["measure", *columns, "before", "later", "difference"]]


def differences_of_maps(results: Sequence[Result], labels: Iterable[str]) -> Result:
    """The differences between token maps of results and those of the first one, text by text.

    Args:
        results: At least one.
        labels: What each is called.

    Returns:
        The maps, the table `map_changes`, and a sentence for each map that names the cell that differs most.
    """
    (baseline, first), *others = zip(labels, results, strict=True)
    maps: list[TokenMap] = []
    tables: list[pd.DataFrame] = []
    sentences: list[Sentence] = []
    for name, result in others:
        for text, (later, before) in enumerate(zip(result.maps, first.maps, strict=False), start=1):
            found = MapDifference.of(later, before)
            if found is None:
                continue
            whole = found.map(f"{name} minus {baseline}{f', text {text}' if len(first.maps) > 1 else ''}")
            maps.append(whole)
            changes = found.changes()
            tables.append(changes.assign(result=name, text=text))
            told = changes[changes["measure"] == whole.leading].iloc[0]
            row = whole.query_places.index(told["query"]) if whole.query_places else int(told["query"])
            place = {"text": len(maps), "layer": int(told["layer"]), "token": row}
            sentences.append(_sentence_of(told, whole.leading, name, baseline).but(place=place))
    changed = {CHANGES: pd.concat(tables, ignore_index=True)} if tables else {}
    return Result(maps=maps, tables=changed, sentences=sentences[:_MOST_TOLD])


def _sentence_of(first: "pd.Series[Any]", leading: str, later: str, before: str) -> Sentence:
    """The cell that differs most, in words.

    Args:
        first: The first row of a measure in `MapDifference.changes`.
        leading: The measure.
        later: The label of the later result.
        before: That of the one it is compared with.
    """
    name = TITLES[leading].partition(" (")[0]
    if not first["difference"]:
        return Sentence(f"The maps of {later} and {before} do not differ.", table=CHANGES)
    query, key = (f"“{label(first[column])}”" for column in ("query_token", "key_token"))
    where = f"in layer {first['layer']}, " if first["layer"] else ""
    if leading in SIGNED_MEASURES:
        values = [number(float(first[column]), signed=True) for column in ("later", "before")]
        what = f"{where}{name} of {key} for {query} is {values[0]} in {later} and {values[1]}"
        if leading in TARGET_MEASURES:
            of = "" if leading == "token_score" else f"{name} of "
            what = f"{where}{of}{key} adds {values[0]} in {later} and {values[1]}"
    else:
        values = [percentage(float(first[column])) for column in ("later", "before")]
        what = f"{where}{query} receives {values[0]} of its {name} from {key} in {later} and {values[1]}"
    return Sentence(f"The largest change: {what} in {before}.", table=CHANGES, measure=leading)


def _common(later: Sequence[str], before: Sequence[str]) -> list[tuple[int, int]]:
    """The places of tokens that both texts have in the same order, and of those that stand in each other's place."""
    found = difflib.SequenceMatcher(None, later, before, autojunk=False).get_opcodes()
    return [
        pair
        for kind, start, end, other, stop in found
        if kind == "equal" or end - start == stop - other
        for pair in zip(range(start, end), range(other, stop), strict=True)
    ]


def _part(
    of: TokenMap, measures: Sequence[str], layers: Sequence[int], queries: list[int], keys: list[int]
) -> TokenMap:
    """Some cells of a map, without single heads."""
    at = np.ix_([of.layers.index(layer) for layer in layers], queries, keys)
    return TokenMap(
        title=of.title,
        queries=tuple(of.queries[each] for each in queries),
        keys=tuple(of.keys[each] for each in keys),
        layers=tuple(layers),
        maps={
            name: (of.maps[name] if name in SIGNED_MEASURES else shares_of_rows(of.maps[name]))[at] for name in measures
        },
        is_cross_attention=of.is_cross_attention,
        query_places=_chosen(of.query_places, queries) or tuple(queries),
        key_places=_chosen(of.key_places, keys) or tuple(keys),
        unit=of.unit,
    )


def _chosen(places: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
    return tuple(places[each] for each in chosen) if places else ()


def _both(before: Sequence[str], later: Sequence[str]) -> tuple[str, ...]:
    return tuple(new if old == new else f"{old} → {new}" for old, new in zip(before, later, strict=True))
