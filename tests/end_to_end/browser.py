"""A page as a browser shows it, where there is one: Debian's chromium, without a network."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

_FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --enable-logging=stderr"


def opened(
    page: Path, fragment: str = "", *, size: tuple[int, int] = (1280, 900), flags: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The page's elements once its scripts have run, and everything that it said on the console."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        outcome = subprocess.run(
            [
                CHROMIUM,
                *_FLAGS.split(),
                *flags,
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                "--virtual-time-budget=30000",
                "--dump-dom",
                f"{page.as_uri()}{fragment}",
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    return outcome.stdout, re.findall(r"CONSOLE[^\n]*", outcome.stderr)


def checked(
    page: Path, folder: Path, fragments: Sequence[str] = (), *, size: tuple[int, int], flags: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """What `page_checks.js` sees in a copy of a report, and the console.

    The copy is in a frame, because Chromium's windows are at least 500 pixels wide.
    """
    checks = (Path(__file__).parent / "page_checks.js").read_text()
    before, end, after = page.read_text().rpartition("</body>")
    script = f"<script>window.FRAGMENTS = {json.dumps(list(fragments))};{checks}</script>"
    (folder / "copy.html").write_text(f"{before}{script}{end}{after}")
    (folder / "frame.html").write_text(
        f'<iframe src="copy.html" style="border: 0; width: {size[0]}px; height: {size[1]}px"></iframe><pre id="seen"></pre>'
        "<script>addEventListener('message', ({ data }) => { document.getElementById('seen').textContent = data; });</script>"
    )
    shown, console = opened(folder / "frame.html", size=(max(size[0] + 40, 500), size[1] + 40), flags=flags)
    for name in ("copy.html", "frame.html"):
        (folder / name).unlink()
    seen = re.search(r'<pre id="seen">(.+?)</pre>', shown, re.DOTALL)
    assert seen, console
    return json.loads(html.unescape(seen[1])), console
