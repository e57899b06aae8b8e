"""The explorer as a page of its own, for notebooks and files."""

from collections.abc import Sequence

from normscope.reporting.explorer import TokenMaps, payload
from normscope.reporting.page.elements import EXPLORER_SCRIPTS, asset, environment, script, script_data


def explorer_page(sentences: Sequence[TokenMaps]) -> str:
    """The explorer of at least one sentence as self-contained HTML, which works in a sandboxed frame too."""
    return (
        environment()
        .get_template("explorer_page.html")
        .render(
            title=f"Token maps: {sentences[0].title}",
            css=asset("page.css") + asset("explorer.css"),
            script=script(*EXPLORER_SCRIPTS, "explorer_page.js"),
            explorer=script_data(payload(sentences)),
            is_cross_attention=any(sentence.is_cross_attention for sentence in sentences),
        )
    )
