"""`normscope attention TEXT`: what tokens and regions of a text receive from others, as a table, a Parquet file and a page."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from normscope.api.attention_values import AttentionValues, attention
from normscope.errors import InputError, cut, escaped, one_line, printable
from normscope.live.texts import as_given
from normscope.maths.choices import PairMeasure
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import load
from normscope.reporting.options import Verbosity
from normscope.reporting.page.explorer import attention_page
from normscope.results.maps import TokenMap
from normscope.rounding import begun, counted, number
from normscope.running.options import RunOptions
from normscope.running.progress import Phase, Phases
from normscope.streams import wrapped
from normscope.untrusted.writing import write_file

PAGE, TABLE = "attention.html", "attention.parquet"

_QUERIES = 3
"""Number of queries whose strongest keys are printed."""
_KEYS = 12
"""Number of keys printed for each query."""
_NAME = 26
"""Characters of a name to print, so that lines have at most 80."""
_TITLE = 80
"""Maximum number of characters of the text in the page's title."""
_LARGEST = 1_500_000
"""The most values on the page, about 3 MB. Beyond that, single heads and then the last queries are left out."""

_MAPS = {
    PairMeasure.weight: "attn_w",
    PairMeasure.norm: "attn_n",
    PairMeasure.share: "share",
    PairMeasure.score: "attn_s",
}
"""The explorer's names of measures."""
_WHAT = {
    PairMeasure.weight: "attention weight α",
    PairMeasure.norm: "norm ‖αf(x)‖ of the weighted vectors",
    PairMeasure.share: "signed share of αf(x) in the attention output",
    PairMeasure.score: "score before the softmax, scale · q·k",
}
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")


def show_attention(options: RunOptions, text: str, asked: Mapping[str, Any], folder: Path) -> Path:
    """Print what tokens and regions of a text receive from others, and write the table and the page.

    Args:
        options: The model, the device, `layers` and `dataset.chat_template`; all other options are ignored.
        text: The text, or two texts with ` ||| ` between them; with `dataset.chat_template`, a conversation (see
            `live.texts`).
        asked: `queries`, `keys`, `heads`, `measure`, `reduce` and `top` as Hydra reads them; see `normscope.attention`. A slice
            is a text such as `0:5`.
        folder: The folder to write to, created if needed.

    Raises:
        InputError: If the text is empty or too long, or does not have the requested parts.
    """
    if "top" in asked and asked.get("measure") == PairMeasure.score:
        raise InputError(
            f"top={asked['top']}: scores are shown with those of all other keys; leave out top, or choose weight"
        )
    with Phases([Phase.MODEL, Phase.TEXT], shown=options.verbosity is not Verbosity.quiet) as phases:
        model = load(options.model, options.device)
        phases.begin(Phase.TEXT)
        with phases.layers():
            found = _values(options, model, text, asked)
    values = _every(found)
    strongest = [
        (_placed(found, "query", row), _strongest(found, values[:, :, row]))
        for row in range(min(_QUERIES, values.shape[2]))
    ]
    what = _said(found, values.shape[1])
    _print(model.name, what, strongest, len(found.axes["query"]) - len(strongest))
    token_map, note = _maps(found, values)
    columns = {"from": "name", "mean": "mean", "largest, and where": "largest"}
    page = attention_page(
        title=cut(text, _TITLE),
        what=what,
        strongest=[
            (query, pd.DataFrame({column: [getattr(key, field) for key in keys] for column, field in columns.items()}))
            for query, keys in strongest
        ],
        token_map=token_map,
        note=note,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found.save(folder / TABLE)
        return write_file(folder, PAGE, page.encode())
    except OSError as error:
        raise InputError(f"output_dir={folder}: cannot be written: {one_line(error)}") from error


def _values(options: RunOptions, model: LoadedModel, text: str, asked: Mapping[str, Any]) -> AttentionValues:
    found = attention(
        model,
        as_given(model, text, chat=options.dataset.chat_template),
        queries=_parts(asked.get("queries", "last")),
        keys=_parts(asked.get("keys", "words")),
        layers=_numbers(options.layers),
        heads=_numbers(asked.get("heads", "all")),
        measure=asked.get("measure", "weight"),
        reduce=asked.get("reduce"),
        top=asked.get("top"),
    )
    assert isinstance(found, AttentionValues)
    return found


def _parts(asked: Any) -> list[Any]:
    """Tokens and regions: `last`, `3`, `0:5`, or several."""

    def part(item: Any) -> Any:
        found = _SLICE.fullmatch(item) if isinstance(item, str) else None
        return item if found is None else slice(*(None if end is None else int(end) for end in found.groups()))

    return [part(item) for item in (asked if isinstance(asked, list) else [asked])]


def _numbers(asked: Any) -> list[Any] | None:
    """Numbers of layers or heads; None for all."""
    return None if asked == "all" else asked if isinstance(asked, list) else [asked]


def _every(found: AttentionValues) -> Float[np.ndarray, "layer head query key"]:
    """Values of all keys: layer, head (one if heads are reduced), query, key. Keys that are not kept are 0."""
    values, strongest = found.values, found.strongest
    if strongest is not None:
        values = np.zeros((*found.values.shape[:-1], len(found.keys)), dtype=values.dtype)
        np.put_along_axis(values, strongest, found.values, axis=-1)
    values = np.where(np.isfinite(values), values, 0)  # scores of invisible keys
    return values if "head" in found.axes else values[:, None]


class _Key(NamedTuple):
    """One key of a query."""

    mean: float
    largest: str
    """The value with the largest magnitude, with its layer and head."""
    name: str


def _strongest(found: AttentionValues, values: Float[np.ndarray, "layer head key"]) -> list[_Key]:
    """The keys from which a query receives the most, averaged over layers and heads."""
    means = values.mean(axis=(0, 1))
    keys = []
    for at in np.argsort(-np.abs(means), kind="stable")[:_KEYS]:
        layer, head = np.unravel_index(np.abs(values[..., at]).argmax(), values.shape[:2])
        where = f"layer {found.axes['layer'][layer]}"
        where += f" head {found.axes['head'][head]}" if "head" in found.axes else ""
        keys.append(
            _Key(float(means[at]), f"{number(float(values[layer, head, at]))} {where}", _placed(found, "key", at))
        )
    return keys


def _placed(found: AttentionValues, axis: str, at: int) -> str:
    """A query or key with the position of its first token, since a word may occur twice."""
    name, place = (found.axes["query"] if axis == "query" else found.keys)[at], found.positions[axis][at]
    return name if _SLICE.fullmatch(name) else f"{name} ({place})"


def _said(found: AttentionValues, heads: int) -> str:
    """What the numbers are."""
    layers = counted(len(found.axes["layer"]), "layer")
    over = f"{layers} and {counted(heads, 'head')}" if "head" in found.axes else f"{layers}, heads reduced"
    sums = (
        "averaged over the visible pairs of a region"
        if found.measure == PairMeasure.score
        else "summed over the tokens of a region"
    )
    kept = "" if found.strongest is None else f", counting only the {found.strongest.shape[-1]} strongest keys"
    what = _WHAT[PairMeasure(found.measure)]
    return f"{begun(what)}, {sums}; mean over {over}{kept}. Tokens count from 0."


def _print(name: str, what: str, strongest: Sequence[tuple[str, Sequence[_Key]]], others: int) -> None:
    """Print a self-explanatory table, at most 80 columns wide."""
    print(f"\n{escaped(name)}\n{wrapped(what)}")
    for query, keys in strongest:
        size = max((abs(key.mean) for key in keys), default=0.0) or 1.0
        print(f"\nWhat {printable(query, _NAME)} receives\n{'mean':>10}  {'largest, and where':<26}  from")
        for key in keys:
            bar = "█" * round(10 * abs(key.mean) / size)
            print(f"{number(key.mean):>10}  {key.largest:<26}  {printable(key.name, _NAME):<{_NAME}}  {bar}".rstrip())
    more = f"{counted(others, 'more query is', 'more queries are')} in {TABLE}\n" if others else ""
    print(f"\n{more}", end="")


def _maps(found: AttentionValues, values: Float[np.ndarray, "layer head query key"]) -> tuple[TokenMap, str]:
    """The requested map, and a note of what it leaves out."""
    notes = []
    layers, heads, queries, keys = values.shape
    kept = max(1, _LARGEST // (layers * keys))
    if kept < queries:
        notes.append(f"only the first {kept:,} of {queries:,} queries fit on the page")
        values = values[:, :, :kept]
    every = "head" in found.axes and [*found.axes["head"]] == list(range(1, heads + 1))
    single = every and heads > 1 and values.size * 2 <= _LARGEST
    if "head" in found.axes and not single:
        which = "" if every else f" {', '.join(map(str, found.axes['head']))}"
        notes.append(f"heads{which} are combined")
    shown = values.astype(np.float32)
    name = _MAPS[PairMeasure(found.measure)]
    combined = shown.sum(axis=1) if name == "share" and "head" in found.axes else shown.mean(axis=1)
    token_map = TokenMap(
        title=found.text,
        queries=tuple(found.axes["query"][: values.shape[2]]),
        keys=tuple(found.keys),
        layers=tuple(found.axes["layer"]),
        maps={name: combined},
        head_maps={name: shown} if single else {},
        is_cross_attention=tuple(found.axes["query"]) != tuple(found.keys),
    )
    note = "; ".join(notes)
    return token_map, f"{begun(note)}." if note else ""
