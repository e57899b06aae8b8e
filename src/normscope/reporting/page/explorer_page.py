"""The explorer, or pairs of texts, as a page of its own, for notebooks and files."""

from collections.abc import Sequence

from normscope.reporting.explorer import pairs_payload, payload
from normscope.reporting.page.elements import EXPLORER_SCRIPTS, environment, script, script_data, style
from normscope.results.figures import TextPair
from normscope.results.maps import TokenMaps


def explorer_page(sentences: Sequence[TokenMaps]) -> str:
    """The explorer of at least one sentence as self-contained HTML, which works in a sandboxed frame too."""
    return (
        environment()
        .get_template("explorer_page.html")
        .render(
            title=_title(sentences[0]),
            css=style("page.css", "explorer.css"),
            script=script(*EXPLORER_SCRIPTS, "explorer_page.js"),
            explorer=script_data(payload(sentences)),
            unit=sentences[0].unit,
            is_cross_attention=any(sentence.is_cross_attention for sentence in sentences),
            of_targets=sentences[0].of_targets,
        )
    )


def _title(sentence: TokenMaps) -> str:
    return f"{'Attribution' if sentence.of_targets else f'{sentence.unit.capitalize()} maps'}: {sentence.title}"


def attention_page(
    *,
    title: str,
    what: str,
    strongest: Sequence[tuple[str, Sequence[tuple[str, str, str]]]],
    maps: TokenMaps,
    note: str,
) -> str:
    """What some tokens or regions of a text receive from others, as self-contained HTML.

    Args:
        title: The model and the text.
        what: What is measured, and what means are taken over.
        strongest: Some queries, each with its strongest keys: the mean, the largest value and where it is, and the name.
        maps: The requested map.
        note: What is left out of the page; may be empty.
    """
    return (
        environment()
        .get_template("attention_page.html")
        .render(
            title=title,
            what=what,
            strongest=strongest,
            note=note,
            css=style("page.css", "explorer.css"),
            script=script(*EXPLORER_SCRIPTS, "explorer_page.js"),
            explorer=script_data(payload([maps], next(iter(maps.maps)), alone=True)),
        )
    )


def pairs_page(pairs: Sequence[TextPair], *, ranked: bool = False) -> str:
    """At least one pair of texts as self-contained HTML, which works in a sandboxed frame too.

    Args:
        ranked: Whether the pairs are a query and its documents, in order, which are then listed above.
    """
    return (
        environment()
        .get_template("pairs_page.html")
        .render(
            title=pairs[0].title,
            css=style("page.css", "explorer.css", "pairs.css"),
            script=script(*EXPLORER_SCRIPTS, *(["ranking.js"] if ranked else []), "pairs_page.js"),
            ranked=ranked,
            pairs=script_data(pairs_payload(pairs)),
        )
    )
