"""Imports of large libraries in a fifth less time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Context for the imports of torch, transformers and what is built on them.

    The garbage collector would look through thousands of modules again and again. They stay until the process ends, so that it
    leaves them alone from then on.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
