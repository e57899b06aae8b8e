"""Sentences that tell a reader what to do: in a passage that is only to be read, they may have been put there to be obeyed."""

import re

from normscope.data.segmentation import spans_of_sentences
from normscope.data.tokenization import Span

_SAY = r"(answer|say|reply|respond|write|output|print|state)"
_TELLS = re.compile(
    "|".join(
        (
            r"\b(ignore|disregard|forget|override)\b.{0,40}\b(instructions?|prompts?|above|previous|prior|everything|rules)\b",
            rf"\b(always|only|just|instead,?|must|should|please) {_SAY}\b",
            rf"^\W*{_SAY} (only |always )?(with|that|by|in)\b",
            r"\byou (must|are now|have to|shall)\b",
            rf"\b(do not|don't|never) ({_SAY}|mention|use|reveal|tell|follow)\b",
            r"^\W*(system|assistant|developer|instructions?)\W*:",
            r"\b(new|updated|important) instructions?\b",
        )
    ),
    re.IGNORECASE,
)
"""How instructions to a model are worded in English, as collections of prompt injections word them. Other languages are not
covered."""


def instructions_in(text: str) -> list[Span]:
    """Where the sentences of a text lie that read as instructions."""
    return [span for span in spans_of_sentences(text) if _TELLS.search(text[slice(*span)])]
