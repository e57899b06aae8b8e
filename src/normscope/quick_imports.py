"""Imports of large libraries without what no run needs: a quarter of the time before a first batch."""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

_CHECKS = "transformers.utils.import_utils"
"""Module in which transformers finds out what is installed and what it consists of itself."""


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Context in which the command line first imports torch, transformers and the pipeline.

    - The garbage collector would look through all modules again and again; they stay until the process ends.
    - Transformers reads each of its three thousand files for the names in it, twice. Here it remembers what it has read.
    - It imports SciPy's optimisers for losses of object detection, which it goes without in this process. That is why only the
      command line imports this way: in a notebook, somebody may need those losses.
    """
    if "transformers" in sys.modules:
        yield
        return
    changes = _Changes()
    sys.meta_path.insert(0, changes)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        sys.meta_path.remove(changes)
        changes.undo()


class _Changes(importlib.abc.MetaPathFinder):
    """Changes two functions of transformers as soon as they exist, if they still do."""

    def __init__(self) -> None:
        self._checks: Any = None
        self._originals: dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The usual spec of one module, with a loader that changes it."""
        if fullname != _CHECKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._apply)
        return spec

    def _apply(self, checks: ModuleType) -> None:
        self._checks = checks
        self._replace("create_import_structure_from_path", _by_folder)
        self._replace("_is_package_available", _without_scipy)

    def _replace(self, name: str, change: Callable[[Any], Any]) -> None:
        if hasattr(self._checks, name):
            self._originals[name] = getattr(self._checks, name)
            setattr(self._checks, name, change(self._originals[name]))

    def undo(self) -> None:
        """Give transformers its own functions back; from now on SciPy is installed."""
        for name, function in self._originals.items():
            setattr(self._checks, name, function)
        if self._checks is not None:
            with contextlib.suppress(AttributeError):
                self._checks.is_scipy_available.cache_clear()


class _Loader(importlib.abc.Loader):
    """Calls a function with a module that it has loaded as another loader does."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)


def _by_folder(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a folder or of a file in it, which remembers its answers, always called with the folder."""
    return lambda path: read(os.path.dirname(path) if os.path.isfile(path) else os.fspath(path))


def _without_scipy(is_available: Callable[..., Any]) -> Callable[..., Any]:
    """A check of installed packages to which SciPy is none."""

    def check(name: str, *arguments: Any, **options: Any) -> Any:
        return is_available("a package that does not exist" if name == "scipy" else name, *arguments, **options)

    return check
