"""The parts of a number that a model computes, as a result: tables, figures, maps and words."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.api.one_text import stacked
from normscope.attribution.passes import Effects
from normscope.results.figures import ColouredText, Figure, Heatmaps, PatchMaps, WordMaps
from normscope.results.findings import Sentence, Summary
from normscope.results.maps import PatchedImage, TokenMap
from normscope.results.result import Result
from normscope.results.token_labels import as_text, labels
from normscope.rounding import begun, number
from normscope.statistics.tidy import tidy

_NUMBERED = 14
"""Columns of a matrix that leave room for numbers in its cells."""
_STRONGEST = 12
"""Tokens that are printed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Attributed:
    """The parts of a target: the scores of the tokens, the biases and a remainder, which add up to it."""

    tokens: tuple[str, ...]
    """The tokens of the text; for a translation, those of the source, then those of the target so far."""
    scores: Float[np.ndarray, " token"]
    """How much each token adds to the target."""
    bias: float
    """What the model's biases add."""
    remainder: float
    """What remains if the target is not linear in the last hidden vectors; otherwise 0 up to rounding."""
    target: float
    """The target's value."""
    what: str
    """What the target is, in words."""
    error: float
    """How far the parts miss the target, relative to the sum of their sizes: rounding error only."""
    sides: Mapping[str, int] | None = None
    """What the tokens belong to, in order, with the number of tokens of each: `source` and `target` of a translation; for an
    `Answer`, the `prompt`, the `answer` and, with a minus sign, what it is compared with (`against`); for two pairs of texts,
    the `pair` and, with a minus sign, the one it is compared with (`against`). None for a single text.
    The last token of an answer predicts nothing and is left out."""
    matrix: pd.DataFrame | None = None
    """For an `Answer` with `matrix=True`: the score of every token (column) for each of the answer's tokens (row)."""
    spans: Mapping[str, float] | None = None
    """The sum of the scores in each span of the text, and in the `rest`; None without spans."""
    effects: pd.DataFrame | None = None
    """What the parts of the model add, grouped as `attribute(by=…)` says."""
    direct: bool = False
    """Whether these effects are direct."""
    image: PatchedImage | None = None
    """The image whose patches are tokens."""

    @property
    def text(self) -> str:
        """The text, or the title of the image."""
        return as_text(self.tokens) if self.image is None else self.image.title


def result_of(found: Sequence[Attributed], *, single: bool) -> Result:
    """The parts of one target or of several.

    Args:
        found: The parts of each target, at least one.
        single: Whether there is no list of them, so that tables need no column `number`.
    """
    tables = {name: [make(each) for each in found] for name, make in _TABLES.items()}
    column = None if single else "number"
    first = found[0]
    figures = dict(itertools.chain.from_iterable(_figures(place, found) for place in range(len(found))))
    if first.image is not None:
        figures["image" if first.image.within_text else "tokens"] = drawn_on_image(found, first.image)
    if first.image is None or first.image.within_text:
        figures["tokens"] = _coloured(found)
    return Result(
        tables={name: stacked(rows, column) for name, rows in tables.items() if any(len(each) for each in rows)},
        metrics=_metrics(first) if single else {},
        figures=figures,
        maps=target_maps(found),
        sentences=[Sentence(_sum(each), figure="tokens", table="scores") for each in found],
        summaries={"": _summary(first) if single else _summary_of_several(found)},
    )


def _scores(of: Attributed) -> pd.DataFrame:
    """One row per token; tokens are numbered from 0 on each `side`, if there is more than one."""
    table = pd.DataFrame({"position": range(len(of.tokens)), "token": of.tokens, "value": of.scores})
    if of.sides is not None:
        table.insert(0, "side", [side for side, count in of.sides.items() for _ in range(count)])
        table["position"] = [place for count in of.sides.values() for place in range(count)]
    return table


def _metrics(of: Attributed) -> dict[str, float]:
    return {
        "target": of.target,
        "tokens": float(of.scores.sum()),
        "bias": of.bias,
        "remainder": of.remainder,
        "error": of.error,
    }


def _parts(of: Attributed) -> pd.DataFrame:
    """One row: the target in words, and what adds up to it."""
    return pd.DataFrame([{"what": of.what, **_metrics(of)}])


def _spans(of: Attributed) -> pd.DataFrame:
    return pd.DataFrame({"span": list(of.spans or ()), "value": list((of.spans or {}).values())})


def _matrix(of: Attributed) -> pd.DataFrame:
    """One row per token of the answer and token of the text."""
    if of.matrix is None:
        return pd.DataFrame()
    return tidy(
        {
            "answer_token": np.array(of.matrix.index, dtype=object)[:, None],
            "token": np.array(of.matrix.columns, dtype=object),
            "value": of.matrix.to_numpy(),
        },
        answer_position=range(len(of.matrix)),
        position=range(len(of.matrix.columns)),
    )


def _effect_rows(of: Attributed) -> pd.DataFrame:
    return pd.DataFrame() if of.effects is None else of.effects


def _heads(of: Attributed) -> pd.DataFrame:
    """What each head adds, over all tokens, the largest first; nothing unless effects are known by layer and head."""
    if of.effects is None or not _by_head(of):
        return pd.DataFrame()
    of_heads = of.effects[of.effects["part"] == "attention"].astype({"head": int})
    table = of_heads.groupby(["layer", "head"])["value"].sum().reset_index()
    return table.sort_values("value", key=abs, ascending=False, kind="stable", ignore_index=True)


_TABLES = {
    "scores": _scores,
    "parts": _parts,
    "spans": _spans,
    "matrix": _matrix,
    "heads": _heads,
    "effects": _effect_rows,
}
"""The tables of a target, in order; empty ones are left out."""


def _by_head(of: Attributed) -> bool:
    return of.effects is not None and {"layer", "head"} <= {*of.effects}


def said(of: Attributed) -> str:
    """The target with its value, as a title."""
    return f"{begun(of.what)}: {number(of.target)}"


def rounding(scores: Float[np.ndarray, " token"], bias: float) -> float:
    """What a remainder of nothing but rounding errors may be."""
    return float(1e-5 * (np.abs(scores).sum() + abs(bias)))


def _sum(of: Attributed) -> str:
    rest = "" if abs(of.remainder) <= rounding(of.scores, of.bias) else f" + remainder {number(of.remainder)}"
    spans = ", ".join(f"{name} {number(value)}" for name, value in (of.spans or {}).items())
    rest += f"; by span: {spans}" if spans else ""
    return f"{said(of)} = tokens {number(float(of.scores.sum()))} + biases {number(of.bias)}{rest}"


def _summary(of: Attributed) -> Summary:
    """The tokens that add or take the most."""
    rows = _scores(of).sort_values("value", key=abs, ascending=False, kind="stable").head(_STRONGEST)
    keys = [str(name) for name in rows if name != "value"]
    shown = pd.DataFrame({"value": [number(value, signed=True) for value in rows["value"]]})
    rows = rows.assign(token=labels(rows["token"].tolist()))
    names = [", ".join(map(str, key)) for key in rows[keys].itertuples(index=False, name=None)]
    shown = shown.set_axis(names).rename_axis(", ".join(keys))
    return Summary(shown, caption="The tokens that add most")


def _summary_of_several(found: Sequence[Attributed]) -> Summary:
    parts = pd.concat([_parts(each) for each in found]).set_index("what").drop(columns="error")
    return Summary(parts, digits=4, caption="What adds up to each target")


def _figures(place: int, found: Sequence[Attributed]) -> Iterator[tuple[str, Figure]]:
    """What is drawn of one target besides its tokens."""
    of, suffix = found[place], f"_{place + 1}" if len(found) > 1 else ""
    if _by_head(of):
        yield f"heads{suffix}", _drawn_heads(of)
    if of.matrix is not None:
        yield f"matrix{suffix}", _drawn_matrix(of, of.matrix)


def _drawn_heads(of: Attributed) -> Heatmaps:
    kind = (
        "written into the output directly, along the residual connections and their norms"
        if of.direct
        else "directly and through all later layers"
    )
    return Heatmaps(
        table=_heads(of).sort_values(["layer", "head"], ignore_index=True),
        values={"value": "effect of each head"},
        row="layer",
        column="head",
        diverging=True,
        value_label="effect",
        caption=f"What each attention head adds to the {of.what} ({number(of.target)}), {kind}. Orange raises it, purple "
        "lowers it.",
    )


def _drawn_matrix(of: Attributed, matrix: pd.DataFrame) -> WordMaps:
    return WordMaps(
        table=_matrix(of).assign(panel=said(of), frame="none"),
        panel="panel",
        panel_titles={said(of): said(of)},
        row="answer_position",
        row_label="answer_token",
        column="position",
        column_label="token",
        largest=float(np.abs(matrix.to_numpy()).max()) or 1.0,
        digits=2 if matrix.shape[1] <= _NUMBERED else None,
        caption="What each token (column) adds to each token of the answer (row). Orange raises it, purple lowers it.",
    )


def _coloured(found: Sequence[Attributed]) -> ColouredText:
    """Texts with each token coloured by its score, on one scale."""
    titles = [said(each) for each in found]
    several = len({*titles}) < len(titles)  # numbers where titles would otherwise be the same
    tables = [
        _folded(each).assign(text=f"{place}. {title}" if several else title)
        for place, (each, title) in enumerate(zip(found, titles, strict=True), start=1)
    ]
    one = found[0]
    small = abs(one.remainder) <= rounding(one.scores, one.bias)
    rest = "" if small else f" and a remainder ({number(one.remainder)})"
    sums = f" With the biases ({number(one.bias)}){rest}, they add up to it." if len(found) == 1 else ""
    what = f"{titles[0]}. Tokens are" if len(found) == 1 else "Tokens are"
    return ColouredText(
        table=pd.concat(tables, ignore_index=True),
        text="text",
        caption=f"{what} coloured by what each of them adds: orange raises the value, purple lowers it. The largest values are "
        f"written below.{sums}",
        value_label="what a token adds",
    )


def _folded(of: Attributed) -> pd.DataFrame:
    """The scores of the tokens, with a single row for each run of an image's patches: their sum."""
    table = _scores(of)
    if of.image is None:
        return table
    is_patch = table.index.isin(of.image.places)
    run = (~is_patch | ~np.roll(is_patch, 1)).cumsum()
    rows = table.assign(token=table["token"].mask(is_patch, "[image]")).groupby(run, sort=False)
    return rows.agg({name: "sum" if name == "value" else "first" for name in table}).reset_index(drop=True)


_MISLEADS = (
    " These are parts of the number as the model computes it, not what would change without a patch: an image with patches "
    "removed is unlike anything that the model was trained on, so removing them from the image alone misleads."
)


def drawn_on_image(found: Sequence[Attributed], image: PatchedImage) -> PatchMaps:
    """The image with each patch coloured by its score, for each target on a scale of its own."""
    others = [] if image.within_text else image.others(len(found[0].tokens))
    names = [str(place) for place in range(len(found))]
    beside = {
        name: " · ".join(
            [f"{each.tokens[at]} {number(float(each.scores[at]), signed=True)}" for at in others]
            or [f"the image {number(float(image.of(each.scores).sum()), signed=True)}"]
        )
        for name, each in zip(names, found, strict=True)
    }
    below = "the sum over the image" if image.within_text else "what tokens other than patches add"
    return image.maps(
        {name: image.of(each.scores) for name, each in zip(names, found, strict=True)},
        dict(zip(names, map(said, found), strict=True)),
        beside,
        f"Patches are coloured by what each of them adds: orange raises the value, purple lowers it. Below each map: {below}."
        + _MISLEADS * image.within_text,
        signed=True,
    )


def table_of_effects(effects: Effects, tokens: Sequence[str], numbers: Int[np.ndarray, " token"]) -> pd.DataFrame:
    """One row per layer, part, head and token.

    Args:
        tokens: The text's tokens, or its words.
        numbers: Which of these each token belongs to.
    """

    def rows(part: str, values: Tensor, **axes: range) -> pd.DataFrame:
        merged = torch.zeros(*values.shape[:-1], len(tokens), dtype=values.dtype)
        merged.index_add_(-1, torch.as_tensor(numbers), values.cpu())
        table = tidy({"value": merged.numpy()}, **axes, position=range(len(tokens)))
        return table.assign(part=part, token=[tokens[at] for at in table["position"]])

    layers, heads, _ = effects.heads.shape
    all_layers = range(1, layers + 1)
    before = range(1) if effects.direct else all_layers
    bias = pd.DataFrame({"layer": list(before), "part": "bias", "value": effects.bias.cpu().numpy()})
    table = pd.concat(
        [
            rows("attention", effects.heads, layer=all_layers, head=range(1, heads + 1)).dropna(subset="value"),
            rows("network", effects.networks, layer=all_layers),
            rows("embeddings" if effects.direct else "bypass", effects.rest, layer=before),
            bias,
        ],
        ignore_index=True,
    )
    return table.astype({"head": "Int64", "position": "Int64"})[["layer", "part", "head", "position", "token", "value"]]


_SCORE = "token_score"


def target_maps(targets: Sequence[Attributed]) -> list[TokenMap]:
    """The scores of every text, followed by what else is known of them: answer tokens, effects, heads, spans.

    Targets of the same text that follow each other share a map, in float32.
    """
    found: list[TokenMap] = []
    for _, of_text in itertools.groupby(targets, lambda target: (target.tokens, target.sides)):
        found += _maps_of_text(list(of_text))
    return found


def _maps_of_text(rows: Sequence[Attributed]) -> Iterator[TokenMap]:
    tokens, titles = rows[0].tokens, [said(row) for row in rows]
    text, shape = rows[0].text, (len(rows), len(tokens))
    tables = [row.effects.assign(row=at) for at, row in enumerate(rows) if row.effects is not None]
    effects = pd.concat(tables) if tables else pd.DataFrame()
    if "layer" not in effects:
        effects["layer"] = 0
    # Besides effects of all layers together, direct effects of the embeddings, which precede the first layer.
    maps, head_maps = _effects(effects, [0], shape)
    scores = np.stack([row.scores for row in rows])
    whole = _maps(text, titles, tokens, {_SCORE: scores[None], **maps}, head_maps)
    yield dataclasses.replace(whole, image=rows[0].image)
    for row in rows:
        if row.matrix is not None:
            yield _table_map(f"each token of the answer: {text}", row.matrix, _SCORE)
    layers = sorted({*effects["layer"].astype(int)} - {0})
    maps, head_maps = _effects(effects, layers, shape)
    if maps:
        yield _maps(f"effects by layer: {text}", titles, tokens, maps, head_maps, layers)
    for row in rows:
        if _by_head(row):
            grid = _heads(row).pivot_table(index="layer", columns="head", values="value").fillna(0.0)
            named = grid.rename(index="layer {}".format, columns="head {}".format)
            yield _table_map(f"heads: {said(row)}", named, "attention")
    spans = pd.DataFrame([row.spans for row in rows if row.spans is not None])
    if len(spans):
        yield _table_map(f"spans: {text}", spans.set_axis(titles), _SCORE)


def _effects(
    effects: pd.DataFrame, layers: Sequence[int], shape: tuple[int, int]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The effects of the parts of some layers: layer, row, token; and those of single heads: layer, head, row, token.

    Args:
        effects: Effects with their layers and rows.
        shape: Number of rows and of tokens.
    """
    maps: dict[str, np.ndarray] = {}
    head_maps: dict[str, np.ndarray] = {}
    if "position" not in effects:
        return maps, head_maps
    known = effects[effects["position"].notna() & effects["layer"].isin(layers)]
    for name, of_part in known.groupby("part", sort=False):
        layer = np.searchsorted(layers, of_part["layer"])
        row, token = (of_part[axis].to_numpy(dtype=int) for axis in ("row", "position"))
        maps[str(name)] = _summed(of_part["value"], (layer, row, token), (len(layers), *shape))
        if name == "attention" and "head" in of_part:
            head = of_part["head"].to_numpy(dtype=int)
            sizes = (len(layers), head.max(), *shape)
            head_maps["attention"] = _summed(of_part["value"], (layer, head - 1, row, token), sizes)
    return maps, head_maps


def _summed(values: pd.Series, places: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Values added up at their places in an array."""
    flat = np.ravel_multi_index(places, shape)
    return np.bincount(flat, values, minlength=math.prod(shape)).reshape(shape)


def _maps(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    maps: Mapping[str, np.ndarray],
    head_maps: Mapping[str, np.ndarray] | None = None,
    layers: Sequence[int] = (0,),
) -> TokenMap:
    return TokenMap(
        title=title,
        queries=tuple(rows),
        keys=tuple(columns),
        layers=tuple(layers),
        maps={name: values.astype(np.float32) for name, values in maps.items()},
        head_maps={name: values.astype(np.float32) for name, values in (head_maps or {}).items()},
        is_cross_attention=True,
    )


def _table_map(title: str, table: pd.DataFrame, measure: str) -> TokenMap:
    """A single map whose rows and columns are those of a table."""
    return _maps(title, table.index.tolist(), table.columns.tolist(), {measure: table.to_numpy()[None]})
