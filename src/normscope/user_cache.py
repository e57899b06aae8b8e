"""Our folder in the user's cache, for what is slow to make and the same for every run."""

import os
from pathlib import Path


def folder() -> Path:
    """The folder; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normscope"
