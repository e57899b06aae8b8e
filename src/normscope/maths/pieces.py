"""Work in pieces of bounded size."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_ENTRIES_AT_ONCE = 2**17
"""Numbers in a piece on a CPU, 512 KiB in float32: what several operations read one after the other stays in its cache."""

_MOST_LANES = 4
"""Histograms have counts for each lane, which take up to 5 MB per layer and category."""


def pieces(whole: slice, size: int) -> Iterator[slice]:
    """A range in pieces of a size, but of one at least."""
    for start in range(whole.start, whole.stop, size := max(1, size)):
        yield slice(start, min(whole.stop, start + size))


def cached_rows(rows: Float[Tensor, "row *size"], width: int | None = None) -> Sequence[Tensor]:
    """The rows in pieces that fit into the cache of a CPU; on other devices all of them, since they need large pieces of work.

    Args:
        rows: Vectors or matrices, or a number for each of them.
        width: Size of a row; that of `rows` if not given.
    """
    if rows.device.type != "cpu":
        return [rows]
    return rows.split(max(1, _ENTRIES_AT_ONCE // (math.prod(rows.shape[1:]) if width is None else width)))


def lanes(device: torch.device) -> int:
    """Into how many lanes to divide work on a device, so that each thread of a CPU goes on with numbers that it has computed.

    Where the caches of two processors are far apart, passing numbers from one to the other takes longer than adding them up.
    """
    return min(_MOST_LANES, torch.get_num_threads()) if device.type == "cpu" else 1
