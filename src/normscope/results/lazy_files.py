"""Files of a folder that are read when they are first asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LazyFiles(Mapping[str, T], Generic[T]):
    """What Parquet files hold, by their names. Each is read once, when it is first asked for.

    Args:
        folder: The folder of the files; it need not exist.
        read: Reads one, given its name and its path.
        order: Names in their order; others follow.
    """

    def __init__(self, folder: Path, read: Callable[[str, Path], T], order: Iterable[str] = ()) -> None:
        found = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
        self._paths = {name: found[name] for name in map(str, order) if name in found} | found
        self._read, self._known = read, dict[str, T]()

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            self._known[name] = self._read(name, self._paths[name])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return ", ".join(self) or "none"


class LazyItems(Sequence[T], Generic[T]):
    """What one file holds, read when it is first asked for.

    Args:
        read: Reads all items.
    """

    def __init__(self, read: Callable[[], Sequence[T]]) -> None:
        self._read = read

    @cached_property
    def _items(self) -> Sequence[T]:
        return self._read()

    def __getitem__(self, place: Any) -> Any:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)
