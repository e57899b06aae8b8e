"""Files that are slow to make and the same for every run, kept in the user's cache."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from normscope.errors import InputError
from normscope.untrusted.writing import write_file


def folder() -> Path:
    """Our folder in the user's cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normscope"


def remembered(name: str, make: Callable[[], bytes]) -> bytes:
    """Bytes that are made once and read by later runs.

    They are made every time if the cache cannot be read or written.

    Args:
        name: File in the cache. It names everything that the bytes depend on, such as versions.
        make: Makes the bytes.
    """
    try:
        path = folder() / name
    except RuntimeError:  # the user has no home
        return make()
    content = _read(path)
    if content is None:
        content = make()
        with contextlib.suppress(OSError, InputError):
            _write(path, content)
    return content


def _read(path: Path) -> bytes | None:
    """The bytes in a file, which begins with their digest; None if they are missing or incomplete."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    digest, content = stored[:size], stored[size:]
    return content if digest == hashlib.sha256(content).digest() else None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path.parent, path.name, hashlib.sha256(content).digest() + content)
