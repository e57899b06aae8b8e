"""What is needed to explain a difference between two runs."""

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_VERSIONS = ("normscope", "torch", "transformers", "tokenizers", "numpy", "pandas")


def provenance() -> dict[str, object]:
    """Versions of the software that made the numbers, and the commit of the code."""
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONS}},
        "platform": platform.platform(),
        "git_commit": git_commit(),
    }


@functools.cache
def git_commit() -> str | None:
    """Commit of the checkout that this code is in, `+` behind it if files differ; None outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    # `git status` refreshes the index under a lock, which a run that is killed meanwhile would leave in the user's checkout.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
