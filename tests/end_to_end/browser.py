"""A page as a browser shows it, where there is one: Debian's chromium, without a network."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

_FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --enable-logging=stderr"


def opened(page: Path, fragment: str = "", *, size: tuple[int, int] = (1280, 900)) -> tuple[str, list[str]]:
    """The page's elements once its scripts have run, and everything that it said on the console."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        outcome = subprocess.run(
            [
                CHROMIUM,
                *_FLAGS.split(),
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                "--virtual-time-budget=4000",
                "--dump-dom",
                f"{page.as_uri()}{fragment}",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    return outcome.stdout, re.findall(r"CONSOLE[^\n]*", outcome.stderr)
