"""Two alignments in opposite directions, combined into one.

Two families of heuristics are called "grow-diagonal". Moses adds a neighbouring link if at least one of its words is still
unaligned. The published tables of fast_align and Mgiza, with which Kobayashi et al. 2020 compare, require both.

Sources: Koehn et al. 2003 (Statistical Phrase-Based Translation), section 4.2; Och & Ney 2003, section 3.1; Zenkel et al. 2019
(arXiv:1901.11359), whose tables use the second kind.
"""

import enum
from collections.abc import Callable, Iterable

Link = tuple[int, int]

# Direct neighbours before diagonal ones, as in the paper: which links are added depends on the order.
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


class Heuristic(enum.StrEnum):
    """Which links of the union are kept."""

    INTERSECTION = "intersection"
    UNION = "union"
    GROW_DIAG = "grow-diag"
    """Moses' grow-diag: a neighbour needs one unaligned word."""
    GROW_DIAG_FINAL = "grow-diag-final"
    """Moses' grow-diag-final: one unaligned word, while growing and in the final step."""
    GROW_DIAG_AND = "grow-diag-and"
    """The published tables' grow-diagonal: a neighbour needs both words unaligned."""
    GROW_DIAG_FINAL_AND = "grow-diag-final-and"
    """The published tables' grow-diagonal-final: both words unaligned, while growing and in the final step.

    Moses uses this name for something else: grow-diag with one unaligned word, then a final step with both.
    """


def symmetrised(forward: Iterable[Link], backward: Iterable[Link], heuristic: Heuristic) -> frozenset[Link]:
    """Two alignments of one sentence pair, combined by a heuristic.

    Args:
        forward: Links (source, target) of the model from source to target.
        backward: Links of the model in the opposite direction, also as (source, target).
        heuristic: `grow-diag` starts from the intersection and adds links of the union that touch a link, also diagonally,
            if at least one of their words is unaligned. `grow-diag-final` then adds any other link with an unaligned word,
            first those of `forward`. `grow-diag-and` and `grow-diag-final-and` require in both steps that both words are
            unaligned; their result is one-to-one if the intersection is.
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
    """An alignment that takes a new link if `enough` (any or all) of its two words are unaligned."""

    def __init__(self, links: Iterable[Link], enough: Callable[[Iterable[bool]], bool]) -> None:
        self.links = set(links)
        self._sources = {source for source, _ in self.links}
        self._targets = {target for _, target in self.links}
        self._enough = enough

    def grow(self, union: frozenset[Link]) -> None:
        """Add neighbours of links, and their neighbours, until nothing changes."""
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
        """Add links anywhere."""
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
