"""Sizes of memory."""

import re

from normscope.errors import InputError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")


def is_size(text: str) -> bool:
    """Whether a text is a size of memory, such as `20GiB` or `500MB`."""
    return _SIZE.fullmatch(text.strip()) is not None


def size_in_bytes(key: str, size: str) -> int:
    """A size of memory, such as `20GiB` or `500MB`, in bytes."""
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise InputError(f"{key}={size}: expected a size such as 20GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])
