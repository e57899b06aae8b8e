"""How long the live page takes from a keystroke to its picture, in a real browser: milliseconds.

One word of a text is replaced by another, as often as there are measurements, in the page that `normscope serve` serves;
results of earlier texts are no help. The clock starts with the event of the keystroke, so the pause in which the page
waits for more keystrokes counts as well. It stops with the frame that shows the map of the new text, and again with the one
that shows what its tokens and heads add. Needs Chromium.
"""

import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

from tests.end_to_end.tabs import Tab, browsing

TEXT = (
    "The old bridge over the river was closed last week , so we took a small ferry in the next town and walked back "
    "along the other side of it , where the path is so {word} ."
)
TOKENS = 40
"""Of the text with [CLS] and [SEP]."""
WORDS = tuple(
    "long wide new short steep green flat clear warm cold quiet empty open narrow soft hard low high dark light rough".split()  # noqa: SIM905
)
"""What is typed; each is one token. The first only begins."""

_WATCH = """((text, word) => new Promise((resolve) => {
  const area = document.querySelector('#writing textarea');
  const rows = document.querySelector('#explorer-root .row-labels');
  const heads = document.querySelector('.of-heads');
  const found = {};
  const started = performance.now();
  const note = (name) => {
    if (found[name] === undefined) {
      found[name] = null;
      requestAnimationFrame(() => setTimeout(() => {
        found[name] = performance.now() - started;
        if (found.map && found.answer) { watch.disconnect(); resolve(found); }
      }));
    }
  };
  let waiting = false;
  const watch = new MutationObserver(() => {
    if ([...rows.children].some((row) => row.textContent === word)) note('map');
    if (heads.classList.contains('stale')) waiting = true;
    else if (waiting) note('answer');
  });
  watch.observe(rows, { childList: true });
  watch.observe(heads, { attributes: true });
  area.value = text;
  area.dispatchEvent(new Event('input'));
}))"""


def measured_typing(model: str = "minilm") -> list[dict[str, object]]:
    """One row for the map and one for the whole answer: the median and the largest of the edits, in milliseconds.

    Args:
        model: A preset of `conf/model`.
    """
    with tempfile.TemporaryDirectory() as profile, _served(model) as address, browsing(Path(profile)) as browser:
        tab = browser.open(f"{address}#{urlencode({'text': TEXT.format(word=WORDS[0])})}")
        tab.until("document.querySelector('#explorer-root .row-labels span') && !document.querySelector('.stale')", 120)
        tokens = tab.run("document.querySelectorAll('#explorer-root .row-labels span').length")
        if tokens != TOKENS:
            raise RuntimeError(f"expected a text of {TOKENS} tokens, got {tokens}")
        edits = [_edited(tab, word) for word in WORDS[1:]]
    return [
        {
            "model": model,
            "tokens": tokens,
            "shown": name,
            "edits": len(edits),
            "median_ms": round(statistics.median(edit[name] for edit in edits)),
            "largest_ms": round(max(edit[name] for edit in edits)),
        }
        for name in ("map", "answer")
    ]


def _edited(tab: Tab, word: str) -> dict[str, float]:
    found: dict[str, float] = tab.run(f"{_WATCH}({TEXT.format(word=word)!r}, {word!r})")
    return found


@contextmanager
def _served(model: str) -> Iterator[str]:
    """The address of a live page in a process of its own."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "normscope", "serve", f"model={model}", "device=cpu", f"live.port={port}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        line = next((line for line in server.stdout if "http://" in line), None)
        if line is None:
            raise RuntimeError(f"{' '.join(command)}: exit status {server.wait()}")
        yield line.split()[2]
    finally:
        server.terminate()
        server.wait(30)
