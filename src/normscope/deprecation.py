"""Deprecated names, arguments and keys: for one minor version, they still work and warn."""

import re
import warnings

_MINOR = re.compile(r"0\.(\d+)")


def deprecated(what: str, *, since: str, instead: str) -> None:
    """Warn that something deprecated is used, which the next minor version removes; call this where it is used.

    Args:
        what: What the user wrote, such as `normscope.old(…)` or `run(old=…)`.
        since: The version that deprecates it: `0.3`. It is removed in `0.4`.
        instead: What to write now.
    """
    # Python hides a DeprecationWarning from everyone but the author of the calling line.
    warnings.warn(
        f"{what} is deprecated since {since} and will be removed in {gone_in(since)}; use {instead}",
        FutureWarning,
        stacklevel=3,
    )


def gone_in(since: str) -> str:
    """The version that removes what `since` deprecates."""
    minor = _MINOR.fullmatch(since)
    if minor is None:
        raise ValueError(f"since={since}: expected a minor version such as 0.3")
    return f"0.{int(minor[1]) + 1}"
