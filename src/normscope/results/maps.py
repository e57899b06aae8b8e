"""Token maps: what each token of a text takes from every other, for every layer and head; in memory and as a file."""

import base64
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8
from PIL import Image

from normscope.errors import InputError, one_line, printable
from normscope.results.figures import PatchMaps, SoundMaps, WordMaps
from normscope.results.run_tables import metadata
from normscope.results.table_files import parquet_metadata, write_parquet
from normscope.results.token_labels import labels
from normscope.rounding import percentage
from normscope.statistics.tidy import tidy
from normscope.untrusted.plain_data import parsed_json
from normscope.untrusted.tables import table

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
"""Titles of all measures by their names in `TokenMap.maps`, in order: the symbol, then words in brackets."""

CUMULATIVE_MEASURES = {"rollout", "norm_rollout", "globenc", "alti", "value_zeroing", "decompx"}
"""Those that follow tokens from the input up to a layer."""

TARGET_MEASURES = {
    "token_score": "score (what the token adds to the target)",
    "attention": "attention (what the heads add)",
    "network": "network (what the feed-forward network adds)",
    "embeddings": "embeddings (what the token's own embedding adds)",
    "bypass": "bypass (what goes around the layer's attention)",
    "product": "product (of the token's vector with that of the query)",
}
"""The same for maps with targets as rows: numbers that a model computes, and what each token adds to them."""

TITLES = MEASURES | TARGET_MEASURES
"""Titles of both."""

SIGNED_MEASURES = ("share", "attn_s", *TARGET_MEASURES)
"""Measures whose values may be negative, which are drawn on a diverging scale."""


def shares_of_rows(values: np.ndarray) -> np.ndarray:
    """Values that cannot be negative as shares of what their query receives; 0 where that is nothing."""
    shares: np.ndarray = values / np.maximum(values.sum(axis=-1, keepdims=True), np.finfo(values.dtype).tiny)
    return shares


@dataclasses.dataclass(frozen=True)
class DependencyTree:
    """The dependency tree of an annotated sentence. Words are numbered as in `TokenMap.query_words`."""

    words: tuple[int, ...]
    """All words except special tokens."""
    arcs: tuple[tuple[int, int, str], ...]
    """Dependent, head and relation, without the arcs of the root and those inside words that share their tokens."""


@dataclasses.dataclass(frozen=True, eq=False)
class PatchedImage:
    """An image whose patches are tokens of an input."""

    pixels: UInt8[np.ndarray, "row column 3"]
    """Red, green and blue from 0 to 255, as the model has read them."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    places: tuple[int, ...]
    """Which token each patch is, row by row; BLANK where there is none."""
    title: str = ""
    """The name of its file, with the text that it belongs to."""
    within_text: bool = False
    """Whether other tokens are those of a text."""

    BLANK = -1

    def of(self, values: Float[np.ndarray, " token"]) -> Float[np.ndarray, " patch"]:
        """The values of the patches, given those of all tokens; 0 where there is no patch."""
        places = np.array(self.places)
        found: np.ndarray = np.where(places == self.BLANK, 0, values[places])
        return found

    def others(self, tokens: int) -> list[int]:
        """Which of an input's tokens are no patches."""
        return sorted({*range(tokens)}.difference(self.places))

    def row(self, tokens: int) -> int | None:
        """The token that takes in the whole image: the one before the patches, or the last one of a text; None for none."""
        if self.within_text:
            return tokens - 1
        return 0 if self.others(tokens) else None

    @property
    def png(self) -> str:
        """The content of a PNG file, in base 64."""
        content = io.BytesIO()
        Image.fromarray(self.pixels).save(content, "PNG")
        return base64.b64encode(content.getvalue()).decode()

    def maps(
        self,
        values: Mapping[str, Float[np.ndarray, " patch"]],
        titles: Mapping[str, str],
        beside: Mapping[str, str],
        caption: str,
        *,
        signed: bool = False,
    ) -> PatchMaps:
        """Values of patches laid on the image.

        Args:
            values: By panel.
            titles: See `PatchMaps`, as for the other two.
        """
        table = tidy(
            {"value": np.stack([each.reshape(self.grid) for each in values.values()])},
            panel=list(values),
            row=range(self.grid[0]),
            column=range(self.grid[1]),
        )
        return PatchMaps(table, self.png, titles, beside, caption, signed)


@dataclasses.dataclass(frozen=True, eq=False)
class HeardSound:
    """A sound whose frames, or stretches of them, are the keys, one after the other; what is behind them is padding."""

    low: tuple[float, ...]
    """The lowest sample of each frame, from −1 to 1."""
    high: tuple[float, ...]
    """The highest one."""
    wave_seconds: float
    """From one frame to the next."""
    seconds: float
    """From one key to the next."""
    keys: int
    """Number of keys that are no padding."""

    def packed(self) -> dict[str, Any]:
        """The sound in JSON's types, with samples as far as they can be seen."""
        low, high = ([round(sample, 3) for sample in samples] for samples in (self.low, self.high))
        return dataclasses.asdict(self) | {"low": low, "high": high}

    @classmethod
    def unpacked(cls, content: Any) -> "HeardSound | None":
        """The sound that `packed` has written."""
        if content is None:
            return None
        low, high = (tuple(map(float, content[name])) for name in ("low", "high"))
        return cls(low, high, float(content["wave_seconds"]), float(content["seconds"]), int(content["keys"]))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TokenMap:
    """What each token or word of a text takes from every other, by measure, layer and head, in float32 or float64.

    `maps` and `head_maps` hold arrays, whose layers count from 0: `maps["attn_w"][layers.index(3)]` is layer 3. `pairs` has
    the same values as a table, with the numbers of layers as everywhere else.
    """

    title: str
    """The text, as shown in the menu."""
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    """The same as the queries except in cross-attention."""
    layers: tuple[int, ...] = ()
    """Layers, counted from 1; 0 stands for all layers together."""
    maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """What all heads together, or the layers up to this one, pass from key to query, by measure: layer, query, key."""
    head_maps: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """What single heads pass, by measure: layer, head, query, key; empty without single heads."""
    norms: np.ndarray | None = None
    """‖f(x)‖: layer, head, key, from which the ‖αf(x)‖ of heads (`attn_n`) follow; None if `head_maps` has them, or none are
    known."""
    is_cross_attention: bool = False
    """Whether the keys belong to another sequence."""
    query_places: tuple[int, ...] = ()
    """The place in the text of each query (of a region, of its first token), counted from 0; empty if these are all tokens."""
    key_places: tuple[int, ...] = ()
    key_spans: tuple[tuple[int, int, int] | None, ...] = ()
    """Of a single query: where each key lies in the text, which is then the title. Its sentence, counted from 0 (−1 for none),
    its first character and the first one after it; None for special tokens. Empty if that is not known."""
    query_words: tuple[int, ...] | None = None
    """The word that each query is part of, counted from 0; None if the tokenizer does not show words."""
    key_words: tuple[int, ...] | None = None
    tree: "DependencyTree | None" = None
    """The gold tree of an annotated sentence."""
    unit: str = "token"
    """What the queries and keys are: `token`, `word`, or `stretch` of several frames of a sound."""
    is_difference: bool = False
    """Whether values are differences from another map; for measures that cannot be negative, between shares of a row."""
    image: PatchedImage | None = None
    """The image whose patches are tokens."""
    sound: HeardSound | None = None
    """The sound whose frames are the keys."""
    categories: tuple[str, ...] = ()
    """The category of each key, as in the tables of a run; empty outside of runs."""

    @property
    def heads(self) -> int:
        """Number of heads that have their own maps."""
        return next((int(values.shape[1]) for values in self.head_maps.values()), 0)

    def of_heads(self, measure: str) -> np.ndarray | None:
        """The maps of single heads: layer, head, query, key; None if there are none for a measure."""
        if measure == "attn_n" and self.norms is not None:
            weighted: np.ndarray = self.head_maps["attn_w"] * self.norms[:, :, None, :]
            return weighted
        return self.head_maps.get(measure)

    @property
    def values(self) -> int:
        """Number of values of all maps."""
        return sum(values.size for values in (*self.maps.values(), *self.head_maps.values()))

    @property
    def apart(self) -> dict[int, str]:
        """Of a text that is read: the keys that are no part of what a query looks for, by their number, and what they are.

        These are special tokens, the query itself, and the first token if the query takes more from it than from any other, as
        from an attention sink.
        """
        found = {at: "special token" for at, span in enumerate(self.key_spans) if span is None}
        own = max((at for at, place in enumerate(self.key_places) if place <= self.query_places[0]), default=None)
        if own is not None and self.key_spans[own] is not None:
            found[own] = "the query itself"
        means = np.abs(self.maps[self.leading].mean(axis=0)[0])
        others = [at for at in range(len(means)) if at not in found]
        if others and self.key_places[others[0]] == 0 and means[others].argmax() == 0:
            found[others[0]] = "first token, an attention sink"
        return dict(sorted(found.items()))

    @property
    def of_targets(self) -> bool:
        """Whether rows are numbers that a model computes instead of tokens or words."""
        return not TARGET_MEASURES.keys().isdisjoint(self.maps)

    def seen(self, measure: str) -> np.ndarray:
        """Which keys anything can reach each query from: layer, query, key.

        A softmax gives every key that a query sees a weight above 0, and a causal or local mask gives the others exactly 0. The
        measures up to a layer follow what the layers before it have seen, and maps without weights are those of a causal model
        if nothing in them comes from a later token.
        """
        values = self.maps[measure]
        if self.of_targets or self.is_difference:
            return np.ones(values.shape, dtype=bool)
        if "attn_w" in self.maps:
            visible = self.maps["attn_w"] > 0
            return _reached(visible) | (values != 0) if measure in CUMULATIVE_MEASURES else visible
        before: np.ndarray = np.tri(*values.shape[1:], dtype=bool)
        causal = len(self.queries) == len(self.keys) > 1 and not values[:, ~before].any()
        return np.broadcast_to(before | (not causal), values.shape)

    @property
    def leading(self) -> str:
        """The measure that is looked at first."""
        return "attn_n" if "attn_n" in self.maps else next(iter(self.maps))

    @property
    def first_layer(self) -> int:
        """The layer that is looked at first: the last one; of a difference, the one with the largest."""
        if not self.is_difference:
            return self.layers[-1]
        return self.layers[int(np.abs(self.maps[self.leading]).max(axis=(1, 2)).argmax())]

    def figure(self, layer: int | None = None, measure: str | None = None) -> WordMaps | PatchMaps | SoundMaps:
        """Describe the maps of one layer side by side, without single heads; signed ones only if there are no others.

        This is what a figure shows; `Result.figure(layer=3)` draws it.

        Args:
            layer: The number of the layer; by default the last one, or of a difference the one with the largest.
            measure: One of the measures; by default all that are not signed.

        Raises:
            InputError: If there is no such layer or measure.
        """
        if layer is not None and layer not in self.layers:
            raise InputError(f"layer={layer}: expected {', '.join(map(str, self.layers))}")
        if measure is not None and measure not in self.maps:
            raise InputError(f"measure: expected one of {', '.join(self.maps)}, got {printable(repr(measure), 60)}")
        measures = [each for each in self.maps if measure in (each, None)]
        unsigned = [] if self.is_difference else [each for each in measures if each not in SIGNED_MEASURES]
        titles = {each: TITLES[each] for each in unsigned or measures}
        number = self.first_layer if layer is None else layer
        if self.image is not None and unsigned:
            return self._on_image(self.image, number, titles)
        if self.sound is not None and unsigned:
            return self._over_time(self.sound, number, titles)
        where = f"{'up to' if CUMULATIVE_MEASURES.intersection(titles) else 'in'} layer {number}"
        what = f"How much each {self.unit} (row) receives from each {self.unit} (column) {where}"
        table = tidy(
            {
                "query_token": np.array(self.queries, dtype=object)[:, None],
                "key_token": np.array(self.keys, dtype=object),
                "value": np.stack([self._cells(measure, self.layers.index(number)) for measure in titles]),
            },
            measure=list(titles),
            query=self.query_places or range(len(self.queries)),
            key=self.key_places or range(len(self.keys)),
        )
        shown = table.assign(frame="none")
        if unsigned:
            return WordMaps(shown, "measure", titles, f"{what}; darker is more.")
        if self.of_targets:
            what = f"{self.title}: what each {self.unit} (column) adds to each target (row)"
        elif self.is_difference:
            what = f"{self.title}: share of what each {self.unit} (row) receives from each {self.unit} (column) {where}"
        caption, largest = f"{what}; orange is above 0, purple below.", float(table["value"].abs().max()) or 1.0
        return WordMaps(shown, "measure", titles, caption, largest=largest)

    def _on_image(self, image: PatchedImage, layer: int, titles: Mapping[str, str]) -> PatchMaps:
        """What one token takes from the patches in a layer; without a token besides them, what all tokens take."""
        others, at = image.others(len(self.keys)), image.row(len(self.queries))
        patches, beside = {}, {}
        for measure in titles:
            values = self.maps[measure][self.layers.index(layer)]
            row = values.mean(axis=0) if at is None else values[at]
            patches[measure] = image.of(row)
            shares = row / max(float(row.sum()), np.finfo(row.dtype).tiny)
            beside[measure] = (
                f"the whole image {percentage(float(image.of(shares).sum()))}"
                if image.within_text
                else " · ".join(f"{self.keys[key]} {percentage(float(shares[key]))}" for key in others)
            )
        which = "the last token" if image.within_text else None if at is None else self.queries[at]
        who = "all tokens take on average" if which is None else f"{which} takes"
        caption = f"{self.title}: what {who} from each patch in layer {layer}; darker is more."
        if image.within_text:
            caption += " Below each map: the share that it takes from the whole image; the rest comes from the text."
        elif others:
            caption += " Below each map: the share that it takes from tokens other than patches."
        return image.maps(patches, titles, beside, caption)

    def _over_time(self, sound: HeardSound, layer: int, titles: Mapping[str, str]) -> SoundMaps:
        """What all tokens of a sound take on average from each of its frames in a layer; of another text, what each takes."""
        values, panels = {}, {}
        for measure, title in titles.items():
            rows = self.maps[measure][self.layers.index(layer)]
            rows = rows if self.is_cross_attention else rows[: sound.keys].mean(axis=0, keepdims=True)
            values[measure] = rows[:, : sound.keys]
            share = float(rows[:, sound.keys :].sum()) / max(float(rows.sum()), np.finfo(rows.dtype).tiny)
            behind = f"; {percentage(share)} from padding after the sound" if rows.shape[1] > sound.keys else ""
            panels[measure] = f"{title}{behind}"
        who = "each token takes" if self.is_cross_attention else "the tokens of the sound take on average"
        return SoundMaps.of(
            values,
            labels(self.queries) if self.is_cross_attention else ("",),
            panels,
            np.array([sound.low, sound.high]).T,
            sound.seconds,
            sound.wave_seconds,
            caption=f"{self.title}: what {who} from each part of the sound in layer {layer}.",
        )

    def _cells(self, measure: str, layer: int) -> np.ndarray:
        """The map of one layer as it is drawn: NaN where a query cannot see a key."""
        cells: np.ndarray = np.where(self.seen(measure)[layer], self.maps[measure][layer], np.nan)
        return cells

    def __repr__(self) -> str:
        layers = ", ".join(map(str, self.layers))
        heads = f", {self.heads} heads" if self.heads else ""
        shape = f"{len(self.queries)} × {len(self.keys)}, layers {layers}{heads}: {', '.join(self.maps)}"
        return f"TokenMap({printable(repr(self.title), 60)}, {shape})"

    def pairs(self) -> pd.DataFrame:
        """One row per layer, head (0: the block) and pair of tokens, one column per measure."""
        measures: dict[str, np.ndarray] = {}
        for name, values in self.maps.items():
            measures[name] = np.full((self.heads + 1, *values.shape), np.nan, dtype=values.dtype)
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
            query=np.array(self.query_places or range(len(self.queries)), dtype=np.int32),
            key=np.array(self.key_places or range(len(self.keys)), dtype=np.int32),
        )
        return table[["layer", "head", "query", "key", *tokens, *measures]]


def _reached(visible: np.ndarray) -> np.ndarray:
    """The keys that reach each query through the layers up to each one: layer, query, key. A token always reaches itself."""
    _, queries, keys = visible.shape
    if queries != keys:
        return visible
    reached = [np.eye(queries, dtype=bool)]
    for layer in visible:
        reached.append(reached[-1] | layer @ reached[-1])
    return np.stack(reached[1:])


def pairs_table(token_maps: Sequence[TokenMap]) -> pd.DataFrame:
    """The pairs of all maps, whose texts count from 1."""
    tables = [
        token_map.pairs().assign(sentence=np.int32(number)) for number, token_map in enumerate(token_maps, start=1)
    ]
    return pd.concat(tables, ignore_index=True)


_KEY = "normscope.texts"
_NORMS = "f_n"
"""The column of ‖f(x)‖."""


def write_maps(stream: BinaryIO, maps: Sequence[TokenMap], identity: Mapping[str, object]) -> None:
    """Write the token maps of at least one text.

    Args:
        stream: The file.
        maps: The maps.
        identity: What distinguishes the run from others.
    """
    rows = pairs_table(maps)
    if any(text.norms is not None for text in maps):
        rows[_NORMS] = np.concatenate([_norms(text) for text in maps])
    texts = json.dumps([_text(text) for text in maps], ensure_ascii=False)
    write_parquet(stream, rows, {**metadata("maps.parquet", rows.columns, identity), _KEY: texts})


def _norms(text: TokenMap) -> np.ndarray:
    """‖f(x)‖ of each pair's key, for single heads only."""
    kind = np.dtype(np.float32) if text.norms is None else text.norms.dtype
    values = np.full((text.heads + 1, len(text.layers), len(text.queries), len(text.keys)), np.nan, dtype=kind)
    if text.norms is not None:
        values[1:] = text.norms.swapaxes(0, 1)[:, :, None, :]
    return values.ravel()


def _text(text: TokenMap) -> dict[str, Any]:
    """Everything about a text that is not a number."""
    plain = ("title", "queries", "keys", "is_cross_attention", "is_difference", "layers", "unit")
    places = ("query_places", "key_places", "key_spans", "query_words", "key_words", "categories")
    return {name: getattr(text, name) for name in (*plain, *places)} | {
        "heads": text.heads,
        "in_double": any(values.dtype == np.float64 for values in text.maps.values()),
        "norms": text.norms is not None,
        "maps": list(text.maps),
        "head_maps": list(text.head_maps),
        "tree": None if text.tree is None else dataclasses.asdict(text.tree),
        "sound": None if text.sound is None else text.sound.packed(),
        "image": None
        if text.image is None
        else {
            "png": text.image.png,
            "grid": text.image.grid,
            "places": text.image.places,
            "title": text.image.title,
            "within_text": text.image.within_text,
        },
    }


def read_maps(path: Path) -> list[TokenMap]:
    """Read what `write_maps` wrote.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path)
    try:
        texts = parsed_json(f'{{"texts": {parquet_metadata(path)[_KEY]}}}', finite=True)["texts"]
        parts = dict(iter(rows.groupby("sentence", sort=False)))
        return [_read(text, parts[number]) for number, text in enumerate(texts, start=1)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, MemoryError) as error:
        raise InputError(f"{path}: expected the token maps of a run: {one_line(error)}") from error


def _read(text: dict[str, Any], rows: pd.DataFrame) -> TokenMap:
    queries, keys, layers = (tuple(text[name]) for name in ("queries", "keys", "layers"))
    of_texts = (text["title"], text["unit"], *queries, *keys)
    if not all(isinstance(value, str) for value in of_texts) or not all(isinstance(layer, int) for layer in layers):
        raise TypeError("the texts in the metadata are damaged")
    heads, pairs = int(text["heads"]), (len(layers), len(queries), len(keys))

    kind = np.float64 if text.get("in_double") else np.float32

    def of_blocks(name: str) -> np.ndarray:
        return _values(rows, name, heads, pairs)[0].astype(kind)

    def of_heads(name: str) -> np.ndarray:
        return _values(rows, name, heads, pairs)[1:].swapaxes(0, 1).astype(kind)

    tree = text["tree"]
    return TokenMap(
        title=text["title"],
        queries=queries,
        keys=keys,
        layers=layers,
        maps={str(name): of_blocks(name) for name in text["maps"]},
        head_maps={str(name): of_heads(name) for name in text["head_maps"]},
        norms=of_heads(_NORMS)[:, :, 0] if text["norms"] else None,
        is_cross_attention=bool(text["is_cross_attention"]),
        query_places=_whole(text.get("query_places")) or (),
        key_places=_whole(text.get("key_places")) or (),
        key_spans=_spans(text.get("key_spans") or (), len(keys), len(text["title"])),
        query_words=_whole(text["query_words"]),
        key_words=_whole(text["key_words"]),
        tree=None if tree is None else _tree(tree),
        unit=text["unit"],
        is_difference=bool(text.get("is_difference")),
        image=_image(text.get("image"), len(text["keys"])),
        sound=HeardSound.unpacked(text.get("sound")),
        categories=tuple(map(str, text.get("categories") or ())),
    )


def _image(content: Any, tokens: int) -> PatchedImage | None:
    """The image of a map with a number of tokens.

    Raises:
        ValueError: If its patches are not among these.
    """
    if content is None:
        return None
    rows, columns = map(int, content["grid"])
    places = tuple(map(int, content["places"]))
    if len(places) != rows * columns or not all(PatchedImage.BLANK <= place < tokens for place in places):
        raise ValueError("the patches of the image are damaged")
    pixels, title = pixels_of(content["png"]), str(content["title"])
    return PatchedImage(pixels, (rows, columns), places, title, within_text=bool(content["within_text"]))


def pixels_of(png: str) -> UInt8[np.ndarray, "row column 3"]:
    """Red, green and blue of the pixels in the content of a PNG file, in base 64.

    Raises:
        ValueError: If it is none.
    """
    try:
        with Image.open(io.BytesIO(base64.b64decode(png)), formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError("the image is damaged") from error


def _values(rows: pd.DataFrame, name: str, heads: int, pairs: tuple[int, int, int]) -> np.ndarray:
    """A column as an array: head, layer, query, key."""
    return rows[name].to_numpy().reshape(heads + 1, *pairs)


def _whole(numbers: Any) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(map(int, numbers))


def _spans(spans: Any, keys: int, length: int) -> tuple[tuple[int, int, int] | None, ...]:
    """Where keys lie in a text.

    Raises:
        ValueError: If one does not, or does not follow the one before it.
    """
    found = tuple(None if span is None else (int(span[0]), int(span[1]), int(span[2])) for span in spans)
    starts = [0, *(span[1] for span in found if span is not None)]
    if found and (
        len(found) != keys
        or starts != sorted(starts)
        or not all(span is None or span[1] <= span[2] <= length for span in found)
    ):
        raise ValueError("the places of keys are damaged")
    return found


def _tree(tree: dict[str, Any]) -> DependencyTree:
    arcs = tuple((int(dependent), int(head), str(relation)) for dependent, head, relation in tree["arcs"])
    return DependencyTree(tuple(map(int, tree["words"])), arcs)
