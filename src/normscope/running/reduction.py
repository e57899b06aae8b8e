"""The states of the shares of a corpus, merged pairwise, in the order of their numbers."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from normscope.analyses.base import Analysis, load_state, merge_state, state_of
from normscope.data.examples import CorpusCounts

State = Mapping[str, Tensor]


class Reduction:
    """Merges states, added one after another, as a tree would: ((0 + 1) + (2 + 3)) + …, with about log₂ N of them in memory.

    The result has the same bytes whether the states come from processes, checkpoints or other runs.

    Args:
        analyses: The analyses whose states are merged.
    """

    def __init__(self, analyses: Sequence[Analysis]) -> None:
        self._analyses = analyses
        self._added = 0
        self._left: list[State] = []
        """The merged states of 2^k shares each, the largest first."""
        self._counts = CorpusCounts()

    def add(self, state: State, counts: CorpusCounts) -> None:
        """Add the state of the next share, and the counts of its examples."""
        number = self._added
        while number % 2:
            state = self._merged(self._left.pop(), state)
            number //= 2
        self._left.append(state)
        self._added += 1
        self._counts.add(counts)

    def finish(self) -> CorpusCounts:
        """Load the merged state of all shares (at least one) into the analyses; return the sum of the counts."""
        state = self._left.pop()
        while self._left:
            state = self._merged(self._left.pop(), state)
        load_state(self._analyses, state)
        return self._counts

    def _merged(self, left: State, right: State) -> State:
        load_state(self._analyses, left)
        merge_state(self._analyses, right)
        return state_of(self._analyses)
