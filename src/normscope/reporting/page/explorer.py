"""The explorer of token maps and pairs of texts: the data of its scripts, its section of a page, and pages of its own."""

import base64
import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from normscope.reporting.page.elements import environment
from normscope.reporting.page.sections import Section, render
from normscope.results.figures import TextPair, are_ranked
from normscope.results.findings import Sentence
from normscope.results.maps import SIGNED_MEASURES, TITLES, TokenMap, shares_of_rows
from normscope.results.token_labels import continues, labels
from normscope.rounding import begun, counted

_NEGATIVE = 1 << 15
"""The bit of a code that stands for a minus sign."""

_UNSEEN = _NEGATIVE - 1
"""The code of a cell without a value, whose query cannot see the key."""

_KNEE = 1000
"""Where the explorer's codes change from equal steps to equal ratios."""


def payload(token_maps: Sequence[TokenMap], finding: Sentence | None = None) -> dict[str, Any]:
    """The JSON content that the explorer's script reads.

    Args:
        finding: What the page says first: the explorer opens at its place, and shows its measure if the reader names none and
            the maps have it (‖αf(x)‖ by default).
    """
    said = Sentence("") if finding is None else finding
    return {
        "measure": said.measure if said.measure in token_maps[0].maps else "attn_n",
        "start": view_of(said, token_maps),
        "sentences": [packed(token_map) for token_map in token_maps],
        **about_measures(),
    }


def view_of(finding: Sentence, token_maps: Sequence[TokenMap]) -> dict[str, Any]:
    """What the explorer shows of a finding, as its address keeps it: texts, layers and heads count from 1, tokens from 0.

    What the finding leaves open is where α and ‖αf(x)‖ differ most, as shares of a row, in the mean over rows of the total
    variation distance; of a finding about a category, the keys of that category count alone. If it has a measure of its own, or
    the maps have not both, the block is shown; of differences, the layer with the largest.
    """
    number = _text_of(finding, token_maps)
    shown, place = token_maps[number], finding.place
    asked = {name: place[name] for name in ("layer", "token") if name in place}
    own = finding.measure if finding.measure in shown.maps and "layer" in place else ""
    weights, norms = (_by_head(shown, measure) for measure in ("attn_w", "attn_n"))
    if weights is None or norms is None or own not in ("", "attn_w", "attn_n"):
        view = {"layer": shown.first_layer, "measure": own or shown.leading, "scale": "map"}
        return {"sentence": number + 1, **view, **asked}
    layers, heads = _asked_of(shown.layers, place.get("layer")), _asked_of(range(1, shown.heads + 1), place.get("head"))
    category = place.get("category") if place.get("category") in shown.categories else None
    differences = np.abs(shares_of_rows(weights) - shares_of_rows(norms)) / 2
    if category is not None:
        differences = differences * [each == category for each in shown.categories]
    distances = differences.sum(axis=-1).mean(axis=-1)[np.ix_(layers, heads or [0])]
    at_layer, at_head = np.unravel_index(int(distances.argmax()), distances.shape)
    layer, head = layers[at_layer], heads[at_head] if heads else 0
    cells = differences[layer, head]
    # Of a category, the row of the key is looked at: its list says what it contributes.
    row = cells.sum(axis=1 if category is None or shown.is_cross_attention else 0).argmax()
    whole = None if shown.image is None else shown.image.row(len(shown.keys))
    if category is None and whole is not None and whole < len(shown.queries):
        row = whole
    return {
        "sentence": number + 1,
        "layer": shown.layers[layer],
        "head": head + 1 if heads else 0,
        "measure": "attn_n",
        "beside": "attn_w",
        "scale": "map",
        "token": int(row),
        **asked,
    }


def _text_of(finding: Sentence, token_maps: Sequence[TokenMap]) -> int:
    """The text that a finding names; otherwise the shortest one, of which two maps are seen whole, with a token of its category
    if there is one."""
    if 1 <= finding.place.get("text", 0) <= len(token_maps):
        return int(finding.place["text"]) - 1
    category = finding.place.get("category")
    having = [number for number, each in enumerate(token_maps) if category in each.categories]
    return min(having or range(len(token_maps)), key=lambda number: len(token_maps[number].queries))


def _asked_of(numbers: Sequence[int], asked: int | None) -> list[int]:
    """The places of the layers or heads that are looked at: the one that is asked for, if it is there, or all."""
    return [numbers.index(asked)] if asked in numbers else list(range(len(numbers)))


def _by_head(token_map: TokenMap, measure: str) -> np.ndarray | None:
    """Maps by layer and head; without single heads, those of the block as the only head; None if there are none."""
    if token_map.heads:
        return token_map.of_heads(measure)
    return token_map.maps[measure][:, None] if measure in token_map.maps else None


def about_measures() -> dict[str, Any]:
    """What the explorer's script knows of all measures."""
    return {
        "measures": TITLES,
        "signed_measures": SIGNED_MEASURES,
    }


def packed(token_map: TokenMap) -> dict[str, Any]:
    """Values as codes relative to the largest in their layer; see `scaled`."""
    seen_by_heads = token_map.seen(token_map.leading)[:, None] if token_map.head_maps else None
    return {
        "title": token_map.title,
        "queries": token_map.queries,
        "keys": token_map.keys,
        "query_labels": labels(token_map.queries),
        "key_labels": labels(token_map.keys),
        "is_cross_attention": token_map.is_cross_attention,
        "is_difference": token_map.is_difference,
        "of_targets": token_map.of_targets,
        "layers": token_map.layers,
        "heads": token_map.heads,
        "places": {"rows": token_map.query_places, "columns": token_map.key_places},
        "query_words": token_map.query_words,
        "key_words": token_map.key_words,
        "tree": None if token_map.tree is None else dataclasses.asdict(token_map.tree),
        "image": None
        if token_map.image is None
        else {"png": token_map.image.png, "grid": token_map.image.grid, "places": token_map.image.places},
        "sound": None if token_map.sound is None else token_map.sound.packed(),
        "maps": packed_maps(token_map),
        "head_maps": {name: scaled(values, seen_by_heads) for name, values in token_map.head_maps.items()},
        "norms": None if token_map.norms is None else scaled(token_map.norms),
    }


def packed_maps(token_map: TokenMap) -> dict[str, Any]:
    """The maps of a text by measure, without those of single heads; see `scaled`."""
    return {name: scaled(values, token_map.seen(name)) for name, values in token_map.maps.items()}


def scaled(values: np.ndarray, seen: np.ndarray | None = None) -> dict[str, Any]:
    """Values with the three digits that a reader sees, compressed.

    Up to 1000 steps of 1/65535 of the layer's largest value, a code is the number of steps; above that, each code is larger by
    a thousandth than the one before. Errors are at most half a step, or 0.05% above the knee. High and low bytes stand apart,
    since only the former compress well. Of a negative value, the magnitude is coded, with the highest bit set.

    Args:
        values: Of any shape; the first axis counts layers.
        seen: Where there is a value at all, in a shape that expands to that of the values; everywhere by default.
    """
    sizes = np.abs(values)
    largest = sizes.reshape(len(values), -1).max(axis=1).astype(float)
    shape = (-1, *(1 for _ in values.shape[1:]))
    steps = sizes / np.maximum(largest, 1e-30).reshape(shape) * 65535
    above = _KNEE + np.log(np.maximum(steps, _KNEE) / _KNEE) / np.log1p(1 / _KNEE)
    codes = np.rint(np.where(steps <= _KNEE, steps, above)).astype(np.uint16).ravel()
    codes |= np.where(values < 0, _NEGATIVE, 0).astype(np.uint16).ravel()
    if seen is not None:
        codes[~np.broadcast_to(seen, values.shape).ravel()] = _UNSEEN
    planes = np.concatenate([codes >> 8, codes & 255]).astype(np.uint8)
    return {
        "largest": [float(f"{value:.9g}") for value in largest],
        "codes": base64.b64encode(_compressed(planes.tobytes())).decode(),
    }


def _compressed(codes: bytes) -> bytes:
    """Compress runs of the same byte, and code bytes by their frequency, in zlib's format.

    Other repetitions are rare in maps: searching for them takes twenty times as long and saves less than one percent.
    """
    compressor = zlib.compressobj(strategy=zlib.Z_RLE)
    return compressor.compress(codes) + compressor.flush()


def pairs_payload(pairs: Iterable[TextPair]) -> list[dict[str, Any]]:
    """The JSON content that the script reads, with the five digits that serve to add values up."""
    return [
        {
            "title": pair.title,
            "measure": pair.measure,
            "number": pair.number,
            "texts": [_labelled(tokens) for tokens in (pair.tokens_a, pair.tokens_b)],
            "values": [float(f"{value:.5g}") for value in pair.matrix.ravel()],
        }
        for pair in pairs
    ]


def _labelled(tokens: Sequence[str]) -> dict[str, Any]:
    """The tokens of a text, how they read, and which of them continue a word."""
    return {"tokens": list(tokens), "labels": labels(tokens), "continues": continues(tokens)}


_LARGEST = 1_500_000
"""Values of token maps on a page that also shows other things, about 3 MB."""


def within_limit(maps: Sequence[TokenMap]) -> tuple[list[TokenMap], list[str]]:
    """Maps that fit on a page, and what they leave out: single heads, the last queries, and further texts."""
    shown: list[TokenMap] = []
    notes: list[str] = []
    remaining = _LARGEST
    for place, each in enumerate(maps, start=1):
        noun = "text" if each.image is None else "image"
        smaller = each if each.values <= remaining else dataclasses.replace(each, head_maps={}, norms=None)
        count = len(each.queries)
        kept = count if smaller.values <= remaining else remaining * count // smaller.values
        if not kept:
            notes.append(f"{counted(len(maps) - len(shown), f'{noun} does', f'{noun}s do')} not fit on the page.")
            break
        if smaller.heads < each.heads:
            notes.append(f"{begun(noun)} {place} is shown without individual heads.")
        if kept < count:
            notes.append(f"Only the first {kept:,} of {count:,} queries of {noun} {place} fit on the page.")
            smaller = _first_queries(smaller, kept)
        remaining -= smaller.values
        shown.append(smaller)
    return shown, notes


def _first_queries(of: TokenMap, count: int) -> TokenMap:
    """A map of the first queries alone."""
    words = None if of.query_words is None else of.query_words[:count]
    return dataclasses.replace(
        of,
        queries=of.queries[:count],
        query_places=of.query_places[:count],
        query_words=words,
        maps={name: values[:, :count] for name, values in of.maps.items()},
        head_maps={name: values[:, :, :count] for name, values in of.head_maps.items()},
    )


_OF_TOKENS = (
    " The images show what one token receives from each patch: click a patch to choose its token. The percentages below an "
    "image are the largest shares that come from tokens other than patches."
)
_OF_TARGETS = " The images show what each patch adds to the chosen row; below them is what every other token adds."
_OF_PRODUCTS = (
    " Products of vectors are shown, too: the largest one in a token’s row is what that row adds to the score."
)


def explorer_section(maps: Sequence[TokenMap], note: str = "") -> Section:
    """The section of a page with the explorer, whose data is `payload(maps)`.

    Args:
        maps: At least one.
        note: What to know besides how to read it.
    """
    unit, of_targets = maps[0].unit, maps[0].of_targets
    guide = environment().get_template("explorer_help.html")
    is_cross_attention = any(each.is_cross_attention for each in maps)
    how = guide.render(unit=unit, is_cross_attention=is_cross_attention, of_targets=of_targets)
    if any(each.image is not None for each in maps):
        how += _OF_TARGETS if of_targets else _OF_TOKENS
        how += _OF_PRODUCTS * any("product" in each.maps for each in maps)
    if any(each.sound is not None for each in maps):
        how += (
            f" The curves show what one {unit} receives from each part of the sound, without padding after it; click a "
            f"{'row of a map' if is_cross_attention else 'time'} to choose the {unit}."
        )
    title = f"Explorer: what each {unit} adds" if of_targets else f"Explorer: {unit} by {unit}"
    place = Markup('<div id="explorer-root"></div>')
    return Section("explorer", title, note=f"{how} {note}".strip(), content=place)


def reads_as_text(maps: Sequence[TokenMap]) -> bool:
    """Whether a page shows maps as a text: a single row, of which it is known where its keys lie."""
    return len(maps) == 1 and bool(maps[0].key_spans)


def row_payload(of: TokenMap) -> dict[str, Any]:
    """The JSON content that the script of a text reads; see `TokenMap.key_spans`."""
    return {
        **about_measures(),
        "measure": of.leading,
        "sentence": packed(of),
        "spans": of.key_spans,
        "apart": list(of.apart.items()),
    }


def row_section(note: str = "") -> Section:
    """The section of a page with a text that is read for one query, whose data is `row_payload`.

    Args:
        note: What to know besides how to read it.
    """
    how = (
        "The stronger the colour of a word, the more the token receives from it; hover over a word to see how much. The sum of "
        "a sentence’s words is beside it, unless it is below a hundredth of the largest. Click a listed sentence to see it in "
        "the text. Tokens listed separately are not coloured and are in no sum."
    )
    return Section("text", "The text", note=f"{how} {note}".strip(), content=Markup('<div id="row-root"></div>'))


def explorer_page(maps: Sequence[TokenMap]) -> str:
    """The explorer of at least one text as self-contained HTML, which works in a sandboxed frame too."""
    return render(_title(maps[0]), [explorer_section(maps)], explorer=payload(maps))


def _title(of: TokenMap) -> str:
    return f"{'Attribution' if of.of_targets else f'{of.unit.capitalize()} maps'}: {of.title}"


def place_of_pairs(pairs: Sequence[TextPair], name: str, identifier: str) -> Markup:
    """Where a page shows pairs of texts; if they are a query and its documents, these are listed above.

    Args:
        name: Of the pairs, in the data of the page.
        identifier: Where links to the pairs lead.
    """
    place = Markup('<div class="text-pairs" id="{}" data-pairs="{}"></div>').format(identifier, name)
    ranking = Markup('<section id="ranking-root" aria-label="Documents in order"></section>')
    return ranking + place if are_ranked(pairs) else place


def pairs_page(pairs: Sequence[TextPair]) -> str:
    """At least one pair of texts as self-contained HTML, which works in a sandboxed frame too.

    If they are a query and its documents, in order, these are listed above.
    """
    heading = "Documents in order" if are_ranked(pairs) else "Token by token"
    shown = Section("pairs", heading, content=place_of_pairs(pairs, "pairs", "pairs-root"))
    return render(pairs[0].title, [shown], pairs={"pairs": pairs_payload(pairs)})
