"""Work in pieces of bounded size."""

from collections.abc import Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

_ENTRIES_AT_ONCE = 2**17
"""Numbers in a piece on a CPU, 512 KiB in float32: what several operations read one after the other stays in its cache."""


def pieces(whole: slice, size: int) -> Iterator[slice]:
    """A range in pieces of a size, but of one at least."""
    for start in range(whole.start, whole.stop, size := max(1, size)):
        yield slice(start, min(whole.stop, start + size))


def cached_rows(rows: Float[Tensor, "row size"], width: int | None = None) -> Sequence[Tensor]:
    """The rows in pieces that fit into the cache of a CPU; on other devices all of them, since they need large pieces of work.

    Args:
        rows: Vectors, or a number for each of them.
        width: Size of a vector; that of a row if not given.
    """
    if rows.device.type != "cpu":
        return [rows]
    return rows.split(max(1, _ENTRIES_AT_ONCE // (rows.shape[-1] if width is None else width)))
