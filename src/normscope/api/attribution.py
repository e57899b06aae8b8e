"""The parts of a number that a model computes."""

import dataclasses
import enum
import html
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.api.arguments import checked, chosen
from normscope.api.attributed_maps import AttributionMap
from normscope.api.picture import LEGEND, Several, coloured
from normscope.api.saved import SAVED, read_result, save_result
from normscope.attribution.passes import Effects
from normscope.errors import InputError, escaped
from normscope.results.figures import ColouredText, Heatmaps
from normscope.results.maps import TokenMap
from normscope.results.pictures import Explorer, Picture
from normscope.rounding import begun, number
from normscope.statistics.tidy import tidy

_NUMBERED = 14
"""Columns of a matrix that leave room for numbers in its cells."""


class Part(enum.StrEnum):
    """What a figure shows of an attribution."""

    tokens = "tokens"
    heads = "heads"
    matrix = "matrix"


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of a target: the scores of the tokens, the biases and a remainder, which add up to it."""

    __pydantic_config__ = SAVED

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
    """What the parts of the model add, grouped as `attribute(by=…)` says: `layer`, `part` (`attention`, `network`,
    `embeddings`, `bypass`, `bias`), `head`, `position`, `token` and `value`. With the remainder, direct effects add up to the
    target over all rows; total effects add up to it in every layer, without its `network`. None without `by`."""
    direct: bool = False
    """Whether these effects are direct."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per token; tokens are numbered from 0 on each `side`, if there is more than one."""
        table = pd.DataFrame({"position": range(len(self.tokens)), "token": self.tokens, "value": self.scores})
        if self.sides is not None:
            table.insert(0, "side", [side for side, count in self.sides.items() for _ in range(count)])
            table["position"] = [place for count in self.sides.values() for place in range(count)]
        return table

    def strongest(self, count: int = 10) -> pd.DataFrame:
        """The heads that add or subtract most, over all tokens.

        Raises:
            InputError: If the effects are not known by layer and head.
        """
        heads = self._heads()
        order = heads["value"].abs().sort_values(ascending=False, kind="stable").index
        return heads.loc[order].head(count).reset_index(drop=True)

    @checked
    def figure(self, of: str | None = None) -> Picture:
        """Draw the parts of the target.

        Args:
            of: `tokens`: the text, with each token coloured by its score; `heads`: what every head adds, over all tokens, layer
                by layer; `matrix`: the score of every token for each token of the answer. By default heads, if they are
                known; otherwise the matrix, if there is one; otherwise tokens.

        Raises:
            InputError: If these parts are not known.
        """
        if of is None:
            of = "heads" if self._by_head else "tokens" if self.matrix is None else "matrix"
        match chosen("of", of, Part):
            case Part.tokens:
                return text_picture([self])
            case Part.heads:
                return self._heads_picture()
            case Part.matrix:
                return self._matrix_picture()

    def explorer(self) -> Explorer:
        """The scores on an interactive page, like the explorer of a report, with whatever else is known of the target.

        The menu `map` switches to the tokens of an answer, to effects and to spans. Effects by layer and token have one map per
        layer, and one per head if they are split by head as well.

        Raises:
            InputError: If there are too many values for one page.
        """
        return Explorer(self.figure(), _target_maps([self]))

    def _matrix_picture(self) -> Picture:
        if self.matrix is None:
            raise InputError(
                "of='matrix': expected the scores for each token of an answer; pass Answer(…, matrix=True)"
            )
        values = self.matrix.to_numpy()
        caption = "What each token (column) adds to each token of the answer (row). Orange raises it, purple lowers it."
        figure = _table_map(self._said, self.matrix, "token_score").panels({"token_score": self._said}, caption)
        digits = 2 if values.shape[1] <= _NUMBERED else None
        return Picture(dataclasses.replace(figure, digits=digits, largest=float(np.abs(values).max()) or 1.0))

    def _heads_picture(self) -> Picture:
        kind = (
            "written into the output directly, along the residual connections and their norms"
            if self.direct
            else "directly and through all later layers"
        )
        return Picture(
            Heatmaps(
                table=self._heads(),
                values={"value": "effect of each head"},
                row="layer",
                column="head",
                diverging=True,
                value_label="effect",
                caption=f"What each attention head adds to the {self.what} ({number(self.target)}), {kind}. Orange raises it, "
                "purple lowers it.",
            )
        )

    @checked
    def save(self, path: str | Path) -> None:
        """Write everything to a file, which `load_attribution` reads back exactly.

        Args:
            path: The file; its format is safetensors, whatever its name.

        Raises:
            InputError: If the file cannot be written.
        """
        save_result(self, path)

    def _check_sizes(self) -> None:
        """Check that there is a score for every token."""
        sides = [len(self.tokens)] if self.sides is None else self.sides.values()
        if not (self.what and len(self.tokens) == len(self.scores) == sum(sides)):
            raise ValueError("expected a score for every token")
        if self.effects is not None and not {"part", "value"} <= {*self.effects}:
            raise ValueError("expected the parts and values of effects")

    @property
    def _by_head(self) -> bool:
        return self.effects is not None and {"layer", "head"} <= {*self.effects}

    @property
    def _said(self) -> str:
        """The target with its value, as a title."""
        return f"{begun(self.what)}: {number(self.target)}"

    @property
    def _head_grid(self) -> pd.DataFrame:
        """What every head adds, over all tokens: one row per layer, one column per head, 0 if a layer does not have it."""
        return self._heads().pivot_table(index="layer", columns="head", values="value").fillna(0.0)

    def _heads(self) -> pd.DataFrame:
        effects = self.effects
        if effects is None or not self._by_head:
            raise InputError("expected effects by layer and head; call attribute with by=['layer', 'head']")
        of_heads = effects[effects["part"] == "attention"].astype({"head": int})
        return of_heads.groupby(["layer", "head"])["value"].sum().reset_index()

    @property
    def _rounding(self) -> float:
        """What a remainder of nothing but rounding errors may be."""
        return float(1e-5 * (np.abs(self.scores).sum() + abs(self.bias)))

    @property
    def _sum(self) -> str:
        rest = "" if abs(self.remainder) <= self._rounding else f" + remainder {number(self.remainder)}"
        rest += "" if self.spans is None else f"; by span: {_listed(self.spans)}"
        scores = float(self.scores.sum())
        what = begun(self.what)
        return f"{what}: {number(self.target)} = tokens {number(scores)} + biases {number(self.bias)}{rest}"

    def _repr_html_(self) -> str:
        largest = float(np.abs(self.scores).max(initial=0))
        ends = [len(self.tokens)] if self.sides is None else list(itertools.accumulate(self.sides.values()))
        parts = [slice(*ends) for ends in itertools.pairwise([0, *ends])]
        texts = "".join(coloured(self.tokens[part], self.scores[part], largest) for part in parts)
        return (
            '<div style="font-family:system-ui,sans-serif;max-width:50em">'
            f"<p>{html.escape(self._sum)}</p>{texts}{LEGEND}</div>"
        )

    def __repr__(self) -> str:
        return escaped(f"{self._sum}\n{self.table.to_string(index=False, float_format='{:.4f}'.format)}", keep="\n")


def text_picture(attributions: Sequence[Attribution]) -> Picture:
    """Texts with each token coloured by its score, on one scale."""
    tables = [each.table.assign(text=f"{place}{each._said}") for place, each in _numbered(attributions)]
    one = attributions[0]
    rest = "" if abs(one.remainder) <= one._rounding else f" and a remainder ({number(one.remainder)})"
    biases = f"the biases ({number(one.bias)})"
    sums = f" With {biases}{rest}, they add up to it." if len(attributions) == 1 else ""
    what = f"{one._said}. Tokens are" if len(attributions) == 1 else "Tokens are"
    return Picture(
        ColouredText(
            table=pd.concat(tables, ignore_index=True),
            text="text",
            caption=f"{what} coloured by what each of them adds: orange raises the value, purple lowers it. The largest values "
            f"are written below.{sums}",
            value_label="what a token adds",
        )
    )


def _numbered(attributions: Sequence[Attribution]) -> Iterator[tuple[str, Attribution]]:
    """Numbers where titles would otherwise be the same."""
    titles = [each._said for each in attributions]
    several = len({*titles}) < len(titles)
    for place, each in enumerate(attributions, start=1):
        yield f"{place}. " if several else "", each


class Attributions(Several[Attribution]):
    """The attributions of several texts, or of several targets for one text, in their order."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per text or target (`number`, from 0) and token."""
        return self._concatenated([each.table.assign(what=each.what) for each in self])

    counted = "number"

    def figure(self) -> Picture:
        """Draw all texts, with each token coloured by its score, on one scale.

        Raises:
            InputError: If there are none.
        """
        if not self:
            raise InputError("figure: expected at least one attribution")
        return text_picture(self)

    def explorer(self) -> Explorer:
        """All attributions on one interactive page, like the explorer of a report, with one row per target of a text.

        Raises:
            InputError: If there are no attributions, or too many values for one page.
        """
        if not self:
            raise InputError("explorer: expected at least one attribution")
        return Explorer(self.figure(), _target_maps(self))

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self)

    def __repr__(self) -> str:
        return "\n".join(escaped(each._sum) for each in self)


def _listed(spans: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in spans.items())


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


def _target_maps(targets: Sequence[Attribution]) -> list[TokenMap]:
    """The scores of every text, followed by what else is known of them: answer tokens, effects, heads, spans.

    Targets of the same text that follow each other share a map, in float32.
    """
    found: list[TokenMap] = []
    for _, of_text in itertools.groupby(targets, lambda target: (target.tokens, target.sides)):
        found += _maps_of_text(list(of_text))
    return found


def _maps_of_text(rows: Sequence[Attribution]) -> Iterator[TokenMap]:
    tokens, titles = rows[0].tokens, [row._said for row in rows]
    text, shape = " ".join(tokens), (len(rows), len(tokens))
    tables = [row.effects.assign(row=at) for at, row in enumerate(rows) if row.effects is not None]
    effects = pd.concat(tables) if tables else pd.DataFrame()
    if "layer" not in effects:
        effects["layer"] = 0
    # Besides effects of all layers together, direct effects of the embeddings, which precede the first layer.
    maps, head_maps = _effects(effects, [0], shape)
    scores = np.stack([row.scores for row in rows])
    yield _maps(text, titles, tokens, {_SCORE: scores[None], **maps}, head_maps)
    for row in rows:
        if row.matrix is not None:
            yield _table_map(f"each token of the answer: {text}", row.matrix, _SCORE)
    layers = sorted({*effects["layer"].astype(int)} - {0})
    maps, head_maps = _effects(effects, layers, shape)
    if maps:
        yield _maps(f"effects by layer: {text}", titles, tokens, maps, head_maps, layers)
    for row in rows:
        if row._by_head:
            named = row._head_grid.rename(index="layer {}".format, columns="head {}".format)
            yield _table_map(f"heads: {row._said}", named, "attention")
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


@checked
def load_attribution(path: str | Path) -> Attribution | AttributionMap:
    """Read what `Attribution.save` or `AttributionMap.save` has written.

    Args:
        path: The file.

    Examples:
        >>> import normscope
        >>> result = normscope.attribute(normscope.load(), "A film.", lambda hidden: hidden[0, 3])
        >>> result.save("result.safetensors")
        >>> normscope.load_attribution("result.safetensors").tokens
        ('[CLS]', 'a', 'film', '.', '[SEP]')

    Raises:
        InputError: If it cannot be read, or is another file.
    """
    return read_result(path, {each.__name__: each for each in (Attribution, AttributionMap)})
