"""Work in pieces of bounded size."""

from collections.abc import Iterator


def pieces(whole: slice, size: int) -> Iterator[slice]:
    """A range in pieces of a size, but of one at least."""
    for start in range(whole.start, whole.stop, size := max(1, size)):
        yield slice(start, min(whole.stop, start + size))
