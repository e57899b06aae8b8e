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
from normscope.results.maps import SIGNED_MEASURES, TITLES, TokenMap, shares_of_rows
from normscope.rounding import counted

_NEGATIVE = 1 << 15
"""The bit of a code that stands for a minus sign."""

_KNEE = 1000
"""Where the explorer's codes change from equal steps to equal ratios."""


def payload(token_maps: Sequence[TokenMap], measure: str = "", *, alone: bool = False) -> dict[str, Any]:
    """The JSON content that the explorer's script reads.

    Args:
        measure: The measure that is shown if the reader names none and the maps have it; ‖αf(x)‖ by default.
        alone: Whether it is also what is shown first. Otherwise that is α beside ‖αf(x)‖ where they differ most, if the maps
            have both.
    """
    return {
        "measure": measure if measure in token_maps[0].maps else "attn_n",
        "start": None if alone else _where_norms_differ(token_maps),
        "sentences": [packed(token_map) for token_map in token_maps],
        **about_measures(),
    }


def _where_norms_differ(token_maps: Sequence[TokenMap]) -> dict[str, Any] | None:
    """The state in which α is beside the ‖αf(x)‖ that differs most from it, of one head, or of a layer without single heads;
    of differences, the layer with the largest.

    Both are shares of a row; the difference is the total variation distance, averaged over rows. The text is the shortest one:
    two maps of it are seen whole.
    """
    first = token_maps[0]
    if first.is_difference:
        return {"sentence": 0, "layer": first.layers.index(first.first_layer), "measure": first.leading}
    number = min(range(len(token_maps)), key=lambda at: len(token_maps[at].queries))
    weights, norms = (_by_head(token_maps[number], measure) for measure in ("attn_w", "attn_n"))
    if weights is None or norms is None:
        return None
    distances = np.abs(shares_of_rows(weights) - shares_of_rows(norms)).sum(axis=-1).mean(axis=-1) / 2
    layer, head = np.unravel_index(int(distances.argmax()), distances.shape)
    place = {"sentence": number, "layer": int(layer), "head": int(head) + 1 if token_maps[number].heads else 0}
    return {**place, "beside": "attn_w", "measure": "attn_n", "scale": "map"}


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
    return {
        "title": token_map.title,
        "queries": token_map.queries,
        "keys": token_map.keys,
        "is_cross_attention": token_map.is_cross_attention,
        "is_difference": token_map.is_difference,
        "of_targets": token_map.of_targets,
        "layers": token_map.layers,
        "heads": token_map.heads,
        "query_words": token_map.query_words,
        "key_words": token_map.key_words,
        "tree": None if token_map.tree is None else dataclasses.asdict(token_map.tree),
        "maps": {name: scaled(values) for name, values in token_map.maps.items()},
        "head_maps": {name: scaled(values) for name, values in token_map.head_maps.items()},
        "norms": None if token_map.norms is None else scaled(token_map.norms),
    }


def scaled(values: np.ndarray) -> dict[str, Any]:
    """Values with the three digits that a reader sees, compressed.

    Up to 1000 steps of 1/65535 of the layer's largest value, a code is the number of steps; above that, each code is larger by
    a thousandth than the one before. Errors are at most half a step, or 0.05% above the knee. High and low bytes stand apart,
    since only the former compress well. Of a negative value, the magnitude is coded, with the highest bit set.
    """
    sizes = np.abs(values)
    largest = sizes.reshape(len(values), -1).max(axis=1).astype(float)
    shape = (-1, *(1 for _ in values.shape[1:]))
    steps = sizes / np.maximum(largest, 1e-30).reshape(shape) * 65535
    above = _KNEE + np.log(np.maximum(steps, _KNEE) / _KNEE) / np.log1p(1 / _KNEE)
    codes = np.rint(np.where(steps <= _KNEE, steps, above)).astype(np.uint16).ravel()
    codes |= np.where(values < 0, _NEGATIVE, 0).astype(np.uint16).ravel()
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
            "tokens_a": list(pair.tokens_a),
            "tokens_b": list(pair.tokens_b),
            "values": [float(f"{value:.5g}") for value in pair.matrix.ravel()],
        }
        for pair in pairs
    ]


_LARGEST = 1_500_000
"""Values of token maps on a page that also shows other things, about 3 MB."""


def within_limit(maps: Sequence[TokenMap]) -> tuple[list[TokenMap], list[str]]:
    """Maps that fit on a page, and what they leave out: single heads, the last queries, and further texts."""
    shown: list[TokenMap] = []
    notes: list[str] = []
    remaining = _LARGEST
    for place, each in enumerate(maps, start=1):
        smaller = each if each.values <= remaining else dataclasses.replace(each, head_maps={}, norms=None)
        count = len(each.queries)
        kept = count if smaller.values <= remaining else remaining * count // smaller.values
        if not kept:
            notes.append(f"{counted(len(maps) - len(shown), 'text does', 'texts do')} not fit on the page.")
            break
        if smaller.heads < each.heads:
            notes.append(f"Text {place} is shown without individual heads.")
        if kept < count:
            notes.append(f"Only the first {kept:,} of {count:,} queries of text {place} fit on the page.")
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
    title = f"Explorer: what each {unit} adds" if of_targets else f"Explorer: {unit} by {unit}"
    place = Markup('<div id="explorer-root"></div>')
    return Section("explorer", title, note=f"{how} {note}".strip(), content=place)


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
