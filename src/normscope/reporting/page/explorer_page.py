"""The explorer, or pairs of texts, as a page of its own, for notebooks and files."""

from collections.abc import Sequence

from normscope.analyses.findings import TextPair
from normscope.reporting.explorer import TokenMaps, payload
from normscope.reporting.page.elements import EXPLORER_SCRIPTS, asset, environment, script, script_data
from normscope.reporting.text_pairs import payload as pairs_payload


def explorer_page(sentences: Sequence[TokenMaps]) -> str:
    """The explorer of at least one sentence as self-contained HTML, which works in a sandboxed frame too."""
    return (
        environment()
        .get_template("explorer_page.html")
        .render(
            title=f"{sentences[0].unit.capitalize()} maps: {sentences[0].title}",
            css=asset("page.css") + asset("explorer.css"),
            script=script(*EXPLORER_SCRIPTS, "explorer_page.js"),
            explorer=script_data(payload(sentences)),
            unit=sentences[0].unit,
            is_cross_attention=any(sentence.is_cross_attention for sentence in sentences),
        )
    )


def pairs_page(pairs: Sequence[TextPair]) -> str:
    """At least one pair of texts as self-contained HTML, which works in a sandboxed frame too."""
    return (
        environment()
        .get_template("pairs_page.html")
        .render(
            title=pairs[0].title,
            css=asset("page.css") + asset("explorer.css") + asset("pairs.css"),
            script=script(*EXPLORER_SCRIPTS, "pairs_page.js"),
            pairs=script_data(pairs_payload(pairs)),
        )
    )
