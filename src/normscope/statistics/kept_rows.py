"""Rows of numbers kept as they are."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError


class KeptRows(Accumulator):
    """Keeps every row that it is given, ordered by the first column. Use it for a few numbers per text, not per token.

    Args:
        columns: Numbers in a row. The first identifies the row.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._kept: list[Tensor] = []

    def update(self, rows: Float[Tensor, "row column"]) -> None:
        """Keep some rows, as float64 on the CPU."""
        self._kept.append(rows.cpu().double())

    def compute(self) -> Float[Tensor, "row column"]:
        """The rows.

        Raises:
            EmptyAccumulatorError: If no row has been kept.
        """
        rows = self.state_dict()["rows"]
        if not len(rows):
            raise EmptyAccumulatorError("no row has been kept")
        return rows

    def state_dict(self) -> dict[str, Tensor]:
        """The rows, in order."""
        rows = torch.cat([torch.zeros(0, self._columns, dtype=torch.float64), *self._kept])
        return {"rows": rows[rows[:, 0].argsort(stable=True)]}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the rows of another accumulator."""
        self._kept.append(state["rows"].clone())
