"""Pairs of texts for the page's script: which tokens of both make up a number."""

from collections.abc import Iterable
from typing import Any

from normscope.results.figures import TextPair


def payload(pairs: Iterable[TextPair]) -> list[dict[str, Any]]:
    """The JSON content that the script reads, with the five digits that serve to add values up."""
    return [
        {
            "title": pair.title,
            "measure": pair.measure,
            "tokens_a": list(pair.tokens_a),
            "tokens_b": list(pair.tokens_b),
            "values": [float(f"{value:.5g}") for value in pair.matrix.ravel()],
        }
        for pair in pairs
    ]
