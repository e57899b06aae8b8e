"""One alignment out of two in opposite directions.

Two families of heuristics share the word "grow-diagonal". Moses' adds a neighbouring link if one of its words is still free;
that of the published tables of fast_align and Mgiza, with which Kobayashi et al. 2020 compare, only if both are.

Sources: Koehn et al. 2003 (Statistical Phrase-Based Translation), section 4.2; Och & Ney 2003, section 3.1; Zenkel et al. 2019
(arXiv:1901.11359), whose tables have the second kind.
"""

import enum
from collections.abc import Callable, Iterable

Link = tuple[int, int]

# Those beside come before those at the corners, as in the paper: which links find a free word depends on the order.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


class Heuristic(enum.StrEnum):
    """What of the union is kept."""

    INTERSECTION = "intersection"
    UNION = "union"
    GROW_DIAG = "grow-diag"
    """Moses' grow-diag: a neighbour needs one free word."""
    GROW_DIAG_FINAL = "grow-diag-final"
    """Moses' grow-diag-final: one free word, while growing and in the final step."""
    GROW_DIAG_AND = "grow-diag-and"
    """The published tables' grow-diagonal: a neighbour needs both words free."""
    GROW_DIAG_FINAL_AND = "grow-diag-final-and"
    """The published tables' grow-diagonal-final: both words free, while growing and in the final step.

    Moses gives this name to something else: grow-diag with one free word, then a final step with both.
    """


def symmetrised(forward: Iterable[Link], backward: Iterable[Link], heuristic: Heuristic) -> frozenset[Link]:
    """The links that a heuristic makes of two alignments of the same pair of sentences.

    Args:
        forward: Links (source, target) of the model from source to target.
        backward: Links of the model in the opposite direction, also as (source, target).
        heuristic: `grow-diag` begins with the links that both have and adds those of either that touch one already there,
            diagonally too, as long as one of their words has no link yet; `grow-diag-final` then adds what is left of
            either alignment, first of `forward`, where one of the words has none. `grow-diag-and` and
            `grow-diag-final-and` ask in both steps that neither word has a link yet. Where the intersection is
            one-to-one, so are they.
    """
    forward, backward = frozenset(forward), frozenset(backward)
    match heuristic:
        case Heuristic.INTERSECTION:
            return forward & backward
        case Heuristic.UNION:
            return forward | backward
        case Heuristic.GROW_DIAG | Heuristic.GROW_DIAG_FINAL:
            growing = _Growing(forward & backward, any)
        case Heuristic.GROW_DIAG_AND | Heuristic.GROW_DIAG_FINAL_AND:
            growing = _Growing(forward & backward, all)
    growing.grow(forward | backward)
    if heuristic in (Heuristic.GROW_DIAG_FINAL, Heuristic.GROW_DIAG_FINAL_AND):
        growing.complete(forward)
        growing.complete(backward)
    return frozenset(growing.links)


class _Growing:
    """An alignment that links are added to, as long as `enough` (any or all) of their two words are free."""

    def __init__(self, links: Iterable[Link], enough: Callable[[Iterable[bool]], bool]) -> None:
        self.links = set(links)
        self._sources = {source for source, _ in self.links}
        self._targets = {target for _, target in self.links}
        self._enough = enough

    def grow(self, union: frozenset[Link]) -> None:
        """Add neighbours of links, and theirs, until there is none left to add."""
        added = True
        while added:
            added = False
            for source, target in sorted(union):
                if (source, target) not in self.links:
                    continue
                for down, right in _NEIGHBOURS:
                    candidate = (source + down, target + right)
                    if candidate in union:
                        added |= self._add(candidate)

    def complete(self, alignment: frozenset[Link]) -> None:
        """Add links wherever they are."""
        for candidate in sorted(alignment):
            self._add(candidate)

    def _add(self, candidate: Link) -> bool:
        source, target = candidate
        if candidate in self.links or not self._enough((source not in self._sources, target not in self._targets)):
            return False
        self.links.add(candidate)
        self._sources.add(source)
        self._targets.add(target)
        return True
