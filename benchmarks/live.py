"""How long the live page's server takes for each part of the page, beside a bare pass of the same model over the same texts."""

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

import normscope
from normscope.live.session import Session

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


def measured_live() -> list[dict[str, object]]:
    """Medians over texts of 40 tokens, each new to the server, as JSON; and of texts that it knows."""
    model = normscope.load()
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
    rows = [_row(name, way, [text() for _ in range(_REPEATS + 1)]) for name, way in ways.items()]
    rows.append(_row("maps that are known", ways["maps of tokens"], [text()] * (_REPEATS + 1)))
    session.engine.close(5)
    return rows


def _answered(session: Session, part: str, state: Mapping[str, str]) -> None:
    json.dumps(session.answer({"part": part, "state": state}).result())


def _row(name: str, way: Callable[[str], None], texts: list[str]) -> dict[str, object]:
    seconds = []
    for text in texts:
        started = time.perf_counter()
        way(text)
        seconds.append(time.perf_counter() - started)
    measured = sorted(seconds[1:])  # the first prepares what the others find ready
    return {
        "step": name,
        "milliseconds": round(1000 * statistics.median(measured), 1),
        "slowest": round(1000 * measured[-1], 1),
    }


if __name__ == "__main__":
    for row in measured_live():
        print(row)
