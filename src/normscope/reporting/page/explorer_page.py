"""Pages that show nothing but token maps or pairs of texts, for notebooks and files."""

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup

from normscope.reporting.explorer import pairs_payload, payload
from normscope.reporting.page.elements import environment, table
from normscope.reporting.page.sections import Section, render
from normscope.results.figures import TextPair, are_ranked
from normscope.results.maps import TokenMap


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
    return render(_title(maps[0]), [explorer_section(maps)], {}, explorer=payload(maps))


def _title(of: TokenMap) -> str:
    return f"{'Attribution' if of.of_targets else f'{of.unit.capitalize()} maps'}: {of.title}"


def attention_page(
    *,
    title: str,
    what: str,
    strongest: Sequence[tuple[str, pd.DataFrame]],
    token_map: TokenMap,
    note: str,
) -> str:
    """What some tokens or regions of a text receive from others, as self-contained HTML.

    Args:
        title: The model and the text.
        what: What is measured, and what means are taken over.
        strongest: Some queries, each with its strongest keys.
        token_map: The requested map.
        note: What is left out of the page; may be empty.
    """
    lists = [
        Section(f"query-{number}", f"What {query} receives", content=table(keys, f"The strongest keys of {query}"))
        for number, (query, keys) in enumerate(strongest, start=1)
    ]
    explorer = explorer_section([token_map], f"{what} {note}")
    return render(title, [explorer, *lists], {}, explorer=payload([token_map], next(iter(token_map.maps)), alone=True))


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
    return render(pairs[0].title, [shown], {}, pairs={"pairs": pairs_payload(pairs)})
