"""The results of several texts, or of several targets."""

from collections.abc import Sequence
from typing import Generic, TypeVar, overload

import pandas as pd

T = TypeVar("T")


class Several(Sequence[T], Generic[T]):
    """Results in the order in which they were asked for. Tables of all of them have one more column, which counts from 0."""

    counted = "sequence"
    """The name of that column."""

    def __init__(self, results: Sequence[T]) -> None:
        self._results = tuple(results)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> "Several[T]": ...

    def __getitem__(self, index: int | slice) -> "T | Several[T]":
        return type(self)(self._results[index]) if isinstance(index, slice) else self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def _concatenated(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """The tables one below the other, with their numbers as the first column."""
        if not tables:
            return pd.DataFrame(columns=[self.counted])
        numbered = pd.concat(dict(enumerate(tables)), names=[self.counted])
        return numbered.reset_index(self.counted).reset_index(drop=True)
