"""Documents as sentences. syntok finds where they end; the document is cut there, so no character is lost.

syntok knows the abbreviations of English, German and Spanish and needs no language setting.
"""

import itertools
import re
from collections.abc import Iterator

from syntok import segmenter

_BLANK_LINE = re.compile(r"\n\s*\n")
_SPACE = re.compile(r"\s")
# Chinese and Japanese put no space between sentences, and syntok needs one. Closing marks belong to the sentence.
_IDEOGRAPHIC_END = re.compile(r"[。！？]+[」』”’）》〉】\"')\]]*")
# German and French close quotations with marks that open them in English; syntok accepts plain marks for both. One
# character replaces one, so that offsets stay valid.
_PLAIN_QUOTES = str.maketrans(dict.fromkeys("„“”«»", '"'))
# Characters passed to syntok at a time: it keeps a few hundred bytes for every word of a sentence.
_PIECE = 2**18


def sentences(document: str) -> list[str]:
    """The sentences of a document in order, stripped of white space.

    A blank line ends a sentence; a single line break does not. Joined, the sentences are the document up to white space.
    """
    cuts = {0, len(document), *(match.end() for match in _IDEOGRAPHIC_END.finditer(document))}
    start = 0
    for blank in (*_BLANK_LINE.finditer(document), None):
        end = len(document) if blank is None else blank.start()
        cuts |= {start, *(start + cut for cut in _cuts(document[start:end]))}
        start = len(document) if blank is None else blank.end()
    parts = (document[first:last].strip() for first, last in itertools.pairwise(sorted(cuts)))
    return [part for part in parts if part]


def _cuts(paragraph: str) -> Iterator[int]:
    """Offsets at which syntok finds sentences after the first."""
    start = 0
    while start < len(paragraph):
        piece = paragraph[start : start + _PIECE]
        cuts = list(_cuts_of_piece(piece))
        yield from (start + cut for cut in cuts)
        # The last sentence of a piece may continue, so the next piece starts with it.
        start += len(piece) if start + len(piece) == len(paragraph) or not cuts else cuts[-1]


def _cuts_of_piece(piece: str) -> Iterator[int]:
    end = None
    for paragraph in segmenter.analyze(piece.translate(_PLAIN_QUOTES)):
        for tokens in paragraph:
            first, last = tokens[0], tokens[-1]
            if end is not None:
                # Characters outside syntok's tokens stay with the sentence they touch.
                space = _SPACE.search(piece, end, first.offset)
                yield first.offset if space is None else space.start()
            end = last.offset + len(last.value)
