"""The live page: a text box above the explorer, whose scripts ask the server for what they show."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from normscope.errors import cut
from normscope.reporting.page.elements import ALONE, EXPLORER_SCRIPTS, environment, script, script_data, style
from normscope.reporting.page.source_view import sources_section

POLICY = f"{ALONE}; connect-src 'self'"
"""What a browser lets the page do: what a report may, and ask its own server."""
REFUSED = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>normscope live</title>
<p>This page needs a token: open the address that normscope printed, once in each browser that keeps cookies.</p>
<script>if (!location.search) location.replace(`/?again${location.hash}`);</script>
</html>
"""
"""What is shown without the token. Links from other sites bring no cookies along, so the page opens itself once more."""

_TITLE = 80
"""Maximum number of characters of a text in a title."""
_SCRIPTS = (
    "live_state.js",
    "live_text.js",
    "live_prediction.js",
    "live_mixing.js",
    "live_texts.js",
    "live_keep.js",
    "sources.js",
    "live.js",
)


def live_page_of_images(name: str, facts: str, *, compares: bool) -> str:
    """The live page of a model of images as HTML.

    Args:
        name: The model's.
        facts: What it is.
        compares: Whether images can be compared with texts.
    """
    page = environment().get_template("live_image.html")
    css, code = style("page.css", "live.css"), script("live_image.js")
    title, policy = f"{name}, live", Markup(POLICY)
    return page.render(title=title, policy=policy, css=css, script=code, name=name, facts=facts, compares=compares)


def live_page(about: Mapping[str, Any], saved: Mapping[str, Any] | None = None, text: str = "") -> str:
    """The live page as HTML.

    Args:
        about: What its scripts need to know before they ask.
        saved: For a page without a server: its `state`, the `answers` that it shows, as JSON by part and side, and
            `when` it was saved, if the page shows that.
        text: The text of a saved page, if its title is the text rather than the models.
    """
    names = " and ".join(model["name"] for model in about["models"][:2])
    return (
        environment()
        .get_template("live.html")
        .render(
            title=cut(text, _TITLE) or f"{names}, live",
            policy=Markup(POLICY if saved is None else ALONE),
            css=style("page.css", "explorer.css", "pairs.css", "sources.css", "live.css"),
            script=script(*EXPLORER_SCRIPTS, *_SCRIPTS),
            about=script_data(about),
            unit="token",
            is_cross_attention=any(model["two"] for model in about["models"]),
            of_targets=False,
            answer=sources_section(),
            saved="null" if saved is None else script_data({**saved, "titled": bool(text)}),
        )
    )
