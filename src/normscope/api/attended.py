"""What tokens and regions receive through attention, as a result: tables, maps and words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normscope.api.one_text import stacked
from normscope.errors import printable
from normscope.maths.choices import PairMeasure
from normscope.results.findings import Sentence, Summary
from normscope.results.maps import TokenMap
from normscope.results.result import Result
from normscope.results.table_files import Lazy, LazyItems
from normscope.results.token_labels import label
from normscope.rounding import begun, counted, number
from normscope.statistics.tidy import tidy

_QUERIES = 3
"""Number of queries whose strongest keys are printed."""
_KEYS = 12
"""Number of strongest keys of each query."""
_LONGEST_SENTENCE = 100
"""Characters of a sentence that a finding keeps."""
_MOST_METRICS = 100
"""Pairs of a query and a key up to which their means are metrics, which comparisons read."""
_MOST_WITH_TOP = 1_500_000
"""Values of all keys up to which there are maps if only the strongest were kept."""

_MAPS = {
    PairMeasure.weight: "attn_w",
    PairMeasure.norm: "attn_n",
    PairMeasure.share: "share",
    PairMeasure.score: "attn_s",
}
"""The names of measures in token maps."""
_WHAT = {
    PairMeasure.weight: "attention weight α",
    PairMeasure.norm: "norm ‖αf(x)‖ of the weighted vectors",
    PairMeasure.share: "signed share of αf(x) in the attention output",
    PairMeasure.score: "score before the softmax, scale · q·k",
}


class AttentionValues(NamedTuple):
    """How much the queries of one text receive from its keys, as an array with named axes."""

    values: Float[np.ndarray, "*axes"]
    """Values along `axes`: for regions of several tokens, sums over queries and keys; means over visible pairs for scores."""
    axes: Mapping[str, Sequence[Any]]
    """The labels of each axis, in order: `layer` and `head` from 1, then the names of each `query` and `key`. There is no
    `head` if heads are reduced; `rank`, from 1, replaces `key` if only the strongest keys are kept."""
    positions: Mapping[str, Sequence[int]]
    """The position of the first token of each `query` and `key`, from 0."""
    keys: Sequence[str]
    """The names of all keys, including those that are not among the strongest."""
    strongest: Int[np.ndarray, "*axes"] | None
    """The key of each value, as an index into `keys`; None unless only the strongest keys are kept."""
    measure: str
    text: str
    """The text, decoded from its tokens; as it was given if it is known where keys lie in it."""
    spans: tuple[tuple[int, int, int] | None, ...] = ()
    """See `TokenMap.key_spans`."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per value: `layer`, `head`, `query` and `key` (positions of first tokens, from 0), names and the measure."""
        axes = {name: np.arange(len(labels)) if name == "query" else labels for name, labels in self.axes.items()}
        if self.strongest is None:
            axes["key"] = np.arange(len(self.keys))
        table = tidy({self.measure: self.values}, **axes)
        if self.strongest is not None:
            table["key"] = self.strongest.ravel()
        for name, names in (("query", self.axes["query"]), ("key", self.keys)):
            places = table[name].to_numpy()
            table[name] = np.asarray(self.positions[name])[places]
            table[f"{name}_token"] = np.array(names, dtype=object)[places]
        order = [
            name for name in ("layer", "head", "query", "query_token", "rank", "key", "key_token") if name in table
        ]
        return table[[*order, self.measure]]


def result_of(found: Sequence[AttentionValues], column: str | None) -> Result:
    """What is found of texts, in tables that are made when they are read.

    Args:
        found: The values of each text, at least one.
        column: The column with the number of the text; None for a single text.
    """
    first, every = found[0], _with_all_keys(found[0])
    has_maps = all(each.strongest is None or _all_keys(each) <= _MOST_WITH_TOP for each in found)
    has_maps = has_maps and not (first.strongest is not None and first.measure == PairMeasure.score)
    strongest = _strongest(first, every, _QUERIES)
    return Result(
        tables=Lazy(
            {
                "values": lambda: stacked([each.table for each in found], column),
                "strongest": lambda: stacked([_strongest(each, _with_all_keys(each)) for each in found], column),
            }
        ),
        maps=LazyItems(lambda: [_token_map(each) for each in found]) if has_maps else (),
        metrics=_metrics(first, every) if column is None else {},
        sentences=[
            *(_read_sentence(_token_map(first)) if first.spans and has_maps else ()),
            *_sentence(strongest, first.measure),
        ],
        notes=[_said(first)],
        summaries={"": _summary(strongest)},
    )


def _metrics(found: AttentionValues, values: Float[np.ndarray, "layer head query key"]) -> dict[str, float]:
    """What each query receives from each key, averaged over layers and heads, if these are few."""
    means = values.mean(axis=(0, 1))
    if found.strongest is not None or means.size > _MOST_METRICS:
        return {}
    queries = map(_placed, found.axes["query"], found.positions["query"])
    keys = [*map(_placed, found.keys, found.positions["key"])]
    names = [f"{query} from {key}" for query in queries for key in keys]
    return dict(zip(names, means.ravel().astype(float).tolist(), strict=True))


def _all_keys(found: AttentionValues) -> int:
    """Number of values if all keys were kept."""
    return int(np.prod(found.values.shape[:-1])) * len(found.keys)


def _with_all_keys(found: AttentionValues) -> Float[np.ndarray, "layer head query key"]:
    """Values of all keys: layer, head (one if heads are reduced), query, key. Keys that are not kept are 0."""
    values, strongest = found.values, found.strongest
    if strongest is not None:
        values = np.zeros((*found.values.shape[:-1], len(found.keys)), dtype=values.dtype)
        np.put_along_axis(values, strongest, found.values, axis=-1)
    if found.measure == PairMeasure.score:
        values = np.where(np.isfinite(values), values, 0)  # of invisible keys
    return values if "head" in found.axes else values[:, None]


def _strongest(
    found: AttentionValues, values: Float[np.ndarray, "layer head query key"], queries: int | None = None
) -> pd.DataFrame:
    """The keys from which each query receives the most, averaged over layers and heads, and where it receives most from each.

    Args:
        values: Those of all keys.
        queries: Number of queries; all by default.
    """
    rows: list[dict[str, Any]] = []
    for query, name in enumerate(found.axes["query"][:queries]):
        of_query = values[:, :, query]
        means = of_query.mean(axis=(0, 1))
        for key in np.argsort(-np.abs(means), kind="stable")[:_KEYS]:
            layer, head = np.unravel_index(np.abs(of_query[..., key]).argmax(), of_query.shape[:2])
            row = {"query": found.positions["query"][query], "query_token": name}
            row |= {"key": found.positions["key"][key], "key_token": found.keys[key]}
            row |= {"mean": means[key], "largest": of_query[layer, head, key], "layer": found.axes["layer"][layer]}
            rows.append(row | ({"head": found.axes["head"][head]} if "head" in found.axes else {}))
    return pd.DataFrame(rows)


def _placed(name: str, place: int) -> str:
    """A token or region with the position of its first token, since a word may occur twice."""
    return f"{label(name)} ({place})"


def _sentence(strongest: pd.DataFrame, measure: str) -> list[Sentence]:
    """From which key the first query receives the most."""
    first = strongest.iloc[0]
    query, key = _placed(first["query_token"], first["query"]), _placed(first["key_token"], first["key"])
    text = f"{begun(query)} receives the most from {key}: {number(float(first['mean']))} on average."
    return [Sentence(text, table="strongest", measure=_MAPS[PairMeasure(measure)])]


def _read_sentence(of: TokenMap) -> Iterator[Sentence]:
    """From which sentence of the text the query receives the most, and what from the keys that are listed separately.

    Args:
        of: A map whose text is read; see `TokenMap.key_spans`.
    """
    row, apart = of.maps[of.leading].mean(axis=0)[0], of.apart
    spans = [None if at in apart else span for at, span in enumerate(of.key_spans)]
    members: dict[int, list[int]] = {}
    for at, span in enumerate(spans):
        if span is not None and span[0] >= 0:
            members.setdefault(span[0], []).append(at)
    if len(members) < 2:
        return
    sums = {sentence: float(row[keys].sum()) for sentence, keys in members.items()}
    best = max(sums, key=lambda sentence: abs(sums[sentence]))
    lying = [span for span in spans if span is not None and span[0] == best]
    text = printable(of.title[lying[0][1] : lying[-1][2]].strip(), _LONGEST_SENTENCE)
    query, place = f"“{label(of.queries[0])}” (token {of.query_places[0]:,})", of.key_places[members[best][0]]
    heads = "with all heads together" if of.leading == _MAPS[PairMeasure.share] else "on average"  # as in `_token_map`
    strongest = (
        f"{query} receives the most from “{text}” (which begins at token {place:,}): {number(sums[best])} {heads}."
    )
    named = "; ".join(
        f"{_placed(of.keys[at], of.key_places[at])}, {what}, {number(float(row[at]))}" for at, what in apart.items()
    )
    said = f"Of the {counted(len(sums), 'sentence')}, {strongest}" + (f" Listed separately: {named}." if named else "")
    yield Sentence(said, measure=of.leading)


def _summary(strongest: pd.DataFrame) -> Summary:
    """The strongest keys in words."""
    where = "layer " + strongest["layer"].astype(str)
    where += " head " + strongest["head"].astype(str) if "head" in strongest else ""
    table = pd.DataFrame(
        {
            "mean": [number(float(value)) for value in strongest["mean"]],
            "largest": [number(float(value)) for value in strongest["largest"]],
            "in": where,
        }
    )
    sides = {"query": "query", "from": "key"}
    names = {title: list(map(_placed, strongest[f"{side}_token"], strongest[side])) for title, side in sides.items()}
    return Summary(table.set_index(pd.MultiIndex.from_frame(pd.DataFrame(names))), caption="The strongest keys")


def _said(found: AttentionValues) -> str:
    """What the numbers are."""
    axes: Mapping[str, Sequence[Any]] = found.axes
    layers = counted(len(axes["layer"]), "layer")
    over = f"{layers} and {counted(len(axes['head']), 'head')}" if "head" in axes else f"{layers}, heads reduced"
    sums = "averaged over the visible pairs" if found.measure == PairMeasure.score else "summed over the tokens"
    kept = "" if found.strongest is None else f", counting only the {found.strongest.shape[-1]} strongest keys"
    what = _WHAT[PairMeasure(found.measure)]
    return f"{begun(what)}, {sums} of a region; mean over {over}{kept}. Tokens count from 0."


def _token_map(found: AttentionValues) -> TokenMap:
    """The values as a map, with single heads if all of several were asked for."""
    values, name = _with_all_keys(found), _MAPS[PairMeasure(found.measure)]
    heads = list(found.axes.get("head", ()))
    every = len(heads) > 1 and heads == list(range(1, len(heads) + 1))
    return TokenMap(
        title=found.text,
        queries=tuple(found.axes["query"]),
        keys=tuple(found.keys),
        layers=tuple(found.axes["layer"]),
        maps={name: values.sum(axis=1) if name == "share" and heads else values.mean(axis=1)},
        head_maps={name: values} if every else {},
        is_cross_attention=tuple(found.axes["query"]) != tuple(found.keys),
        query_places=tuple(found.positions["query"]),
        key_places=tuple(found.positions["key"]),
        key_spans=found.spans,
    )
