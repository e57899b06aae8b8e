"""The states of the parts of a corpus, merged pairwise, in the same order wherever they are merged."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from normscope.analyses.base import Analysis, load_state, merge_state, state_of

State = Mapping[str, Tensor]


class Reduction:
    """Merges states one after another as a tree would: ((0 + 1) + (2 + 3)) + …, with at most log₂ N of them in memory.

    Processes that send their states to each other merge them in this order too (`ProcessGroup.reduce`), so that the result has
    the same bytes.

    Args:
        analyses: The analyses whose states are merged.
    """

    def __init__(self, analyses: Sequence[Analysis]) -> None:
        self._analyses = analyses
        self._added = 0
        self._left: list[State] = []
        """The merged states of 2^k parts each, the largest first."""

    def add(self) -> None:
        """Add the state that the analyses hold, as that of the next part."""
        number = self._added
        while number % 2:
            self._merge_left()
            number //= 2
        self._left.append(state_of(self._analyses))
        self._added += 1

    def finish(self) -> None:
        """Give the analyses the merged state of all parts, of which there is at least one."""
        load_state(self._analyses, self._left.pop())
        while self._left:
            self._merge_left()

    def _merge_left(self) -> None:
        right = state_of(self._analyses)
        load_state(self._analyses, self._left.pop())
        merge_state(self._analyses, right)
