"""How long the live page takes: its server for each part of the page, beside a bare pass over the same texts; and Chromium, if
there is one, from a key to what is drawn.
"""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

import normscope
from normscope.live.session import Session
from normscope.models.loaded import LoadedModel

_REPEATS = 20
_TOKENS = 40
_WORDS = [
    "the",
    "old",
    "bridge",
    "across",
    "river",
    "was",
    "closed",
    "for",
    "repairs",
    "last",
    "winter",
    "so",
    "people",
    "of",
]
"""Words that are one token each."""

_STEPS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "maps of tokens": ("maps", {}),
    "maps of words": ("maps", {"level": "word"}),
    "maps without a head": ("maps", {"removed": "3.5"}),
    "prediction": ("prediction", {}),
    "what heads add": ("heads", {}),
    "similarity to the text before": ("pair", {"before": " ".join((_WORDS * 3)[: _TOKENS - 2])}),
    "rollout and ALTI up to each layer": ("chained", {}),
    "DecompX up to each layer": ("carried", {}),
}
"""What is asked for, and the state besides the text."""


_SEEN: Mapping[str, tuple[str, str]] = {
    "a key: maps of tokens": ("type", "isRead()"),
    "a key: similarity to the text before": ("type", "isRead() && isSimilar()"),
    "a key: all maps up to each layer": ("type", "isRead() && isCarried()"),
    "another layer": ("step", "true"),
    "another head": ("head", "true"),
    "another measure": ("measure", "true"),
}
"""What is done on the page, and the condition under which its result is seen."""

_IN_THE_PAGE = """
(async (act, text) => {
  const find = (selector) => document.querySelector(selector), all = (selector) => [...document.querySelectorAll(selector)];
  const isRead = () => all(".tokens [data-at] > span").slice(1, -1).map((each) => each.textContent).join(" ") === text
    && all("#explorer-root .row-labels span").slice(1, -1).map((each) => each.textContent).join(" ") === text;
  const isSimilar = () => find(".pairs") && !find(".pairs").hidden && !find("#prediction .stale")
    && all(".pair-text")[0].textContent.replaceAll(" ", "").includes(text.replaceAll(" ", ""));
  const isCarried = () => all("[name=measure] option").some(({ value }) => value === "decompx");
  const other = (menu) => {
    menu.selectedIndex = (menu.selectedIndex + 1) % menu.options.length;
    menu.onchange();
  };
  const acts = {
    type: () => { find("textarea").value = text; find("textarea").dispatchEvent(new Event("input")); },
    step: () => { window.back = !window.back; all(".step")[window.back ? 0 : 1].click(); },
    head: () => other(find("[name=head]")),
    measure: () => other(find("[name=measure]")),
  };
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  const start = performance.now();
  acts[act]();
  while (!(DONE)) await frame();
  await frame();  // which shows what was drawn in the one before
  return performance.now() - start;
})
"""


def measured_live() -> list[dict[str, object]]:
    """Medians over texts of 40 tokens, each new to the server, as JSON; of texts that it knows; and in Chromium."""
    model = normscope.load()
    _ = model.verification, model.layers_verification
    session = Session([model], 64)
    rng = random.Random(0)

    def text() -> str:
        return " ".join(rng.choices(_WORDS, k=_TOKENS - 2))

    def bare(given: str) -> None:
        with torch.inference_mode():
            model.model(**model.tokenizer(given, return_tensors="pt").to(model.device))

    def asking(part: str, state: Mapping[str, str]) -> Callable[[str], None]:
        return lambda given: _answered(session, part, {"text": given} | dict(state))

    ways: dict[str, Callable[[str], None]] = {"bare pass": bare}
    ways |= {name: asking(*step) for name, step in _STEPS.items()}
    rows = [_row("server", name, map(_timed(way), [text() for _ in range(_REPEATS + 1)])) for name, way in ways.items()]
    known = [text()] * (_REPEATS + 1)
    rows.append(_row("server", "maps that are known", map(_timed(ways["maps of tokens"]), known)))
    session.engine.close(5)
    return [*rows, *_in_chromium(model, text)]


def _in_chromium(model: LoadedModel, text: Callable[[], str]) -> Iterator[dict[str, object]]:
    """From a key, after which the page waits 80 ms for the next one, to the frame that shows what it has changed."""
    try:
        from tests.end_to_end.browser import CHROMIUM
        from tests.end_to_end.tabs import browsing
    except ModuleNotFoundError:  # of what tests need
        CHROMIUM = None
    if CHROMIUM is None:
        print("live: Chromium is not installed, so nothing is measured in it")
        return
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder)) as browser, normscope.explore(model) as page:
        for step, (act, seen) in _SEEN.items():
            tab = browser.open(f"{page.url}&before={'+'.join((_WORDS * 3)[: _TOKENS - 2])}")
            tab.until("document.querySelector('.pairs canvas') && document.querySelector('#progress').hidden")
            if "isCarried" in seen:
                tab.click("[name=through]")
                tab.until("document.querySelector('[name=measure] [value=decompx]')")
            script = _IN_THE_PAGE.replace("DONE", seen)
            texts = [text() for _ in range(_REPEATS + 1)]
            times = (tab.run(f"({script})({json.dumps(act)}, {json.dumps(given)})") / 1000 for given in texts)
            yield _row("Chromium", step, times)
            tab.close()


def _timed(way: Callable[[str], None]) -> Callable[[str], float]:
    def timed(text: str) -> float:
        started = time.perf_counter()
        way(text)
        return time.perf_counter() - started

    return timed


def _answered(session: Session, part: str, state: Mapping[str, str]) -> None:
    json.dumps(session.answer({"part": part, "state": state}).result())


def _row(where: str, step: str, times: Iterator[float]) -> dict[str, object]:
    _, *seconds = times  # the first prepares what the others find ready
    return {
        "where": where,
        "step": step,
        "milliseconds": round(1000 * statistics.median(seconds), 1),
        "slowest": round(1000 * max(seconds), 1),
    }


if __name__ == "__main__":
    for row in measured_live():
        print(row)
