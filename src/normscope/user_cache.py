"""Files that are slow to make and the same for every run, kept in the user's cache."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


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
        with contextlib.suppress(OSError):
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
    """Write a file through a temporary one, because several runs may write it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(content).digest() + content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
