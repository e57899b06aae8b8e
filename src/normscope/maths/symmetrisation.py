"""One alignment out of two in opposite directions.

Source: Koehn et al. 2003 (Statistical Phrase-Based Translation), section 4.2; Och & Ney 2003, section 3.1.
"""

import enum
from collections.abc import Iterable

Link = tuple[int, int]

# Those beside come before those at the corners, as in the paper: which links find a free word depends on the order.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


class Heuristic(enum.StrEnum):
    """What of the union is kept."""

    INTERSECTION = "intersection"
    UNION = "union"
    GROW_DIAG = "grow-diag"
    GROW_DIAG_FINAL = "grow-diag-final"


def symmetrised(forward: Iterable[Link], backward: Iterable[Link], heuristic: Heuristic) -> frozenset[Link]:
    """The links that a heuristic makes of two alignments of the same pair of sentences.

    Args:
        forward: Links (source, target) of the model from source to target.
        backward: Links of the model in the opposite direction, also as (source, target).
        heuristic: `grow-diag` begins with the links that both have and adds those of either that touch one already there,
            diagonally too, as long as one of their words has no link yet; `grow-diag-final` then adds what is left of
            either alignment where one of the words has none.
    """
    forward, backward = frozenset(forward), frozenset(backward)
    match heuristic:
        case Heuristic.INTERSECTION:
            return forward & backward
        case Heuristic.UNION:
            return forward | backward
        case Heuristic.GROW_DIAG:
            return frozenset(_grown(forward, backward))
        case Heuristic.GROW_DIAG_FINAL:
            return frozenset(_completed(_grown(forward, backward), forward, backward))


def _grown(forward: frozenset[Link], backward: frozenset[Link]) -> set[Link]:
    links, union = set(forward & backward), forward | backward
    added = True
    while added:
        added = False
        for source, target in sorted(union):
            if (source, target) not in links:
                continue
            for down, right in _NEIGHBOURS:
                candidate = (source + down, target + right)
                if candidate in union and candidate not in links and _has_free_word(candidate, links):
                    links.add(candidate)
                    added = True
    return links


def _completed(links: set[Link], forward: frozenset[Link], backward: frozenset[Link]) -> set[Link]:
    for alignment in (forward, backward):
        for candidate in sorted(alignment):
            if _has_free_word(candidate, links):
                links.add(candidate)
    return links


def _has_free_word(candidate: Link, links: set[Link]) -> bool:
    return all(source != candidate[0] for source, _ in links) or all(target != candidate[1] for _, target in links)
