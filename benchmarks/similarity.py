"""The cost of splitting the similarities of many pairs of texts into sums by token, relative to embedding the texts.

The texts are embedded with sentence-transformers.

Texts are pieces of the sample corpus, of lengths as in the STS benchmark (12 tokens in the median), or of 128 tokens.
"""

import functools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

import normscope
from normscope.data.corpora import sample_path
from normscope.models.loaded import LoadedModel

SHORT_PAIRS, LONG_PAIRS = 1_500, 40
LONG = 128
"""Tokens of a long text."""
_REPEATS = 3


def measured_similarity() -> list[dict[str, object]]:
    """One row per kind of pairs: processor seconds of embedding and of the sums, and the median of their paired ratios."""
    from sentence_transformers import SentenceTransformer

    model = normscope.load()
    encoder = SentenceTransformer(str(model.folder), device="cpu")
    encoder.max_seq_length = model.max_length
    generator = random.Random(0)
    kinds = {
        f"{SHORT_PAIRS} pairs of short texts": (SHORT_PAIRS, lambda: generator.lognormvariate(2.3, 0.45)),
        f"{LONG_PAIRS} pairs of {LONG} tokens": (LONG_PAIRS, lambda: LONG),
    }
    rows: list[dict[str, object]] = []
    for kind, (count, length) in kinds.items():
        pairs = _pairs(model, count, length, generator)
        texts = [text for pair in pairs for text in pair]
        seconds = _in_turn(
            [
                functools.partial(encoder.encode, texts),
                functools.partial(normscope.run, "similarity", model=model, texts=pairs, sums=True),
            ]
        )
        embedding, sums = (statistics.median(each) for each in seconds)
        ratio = statistics.median(one / other for other, one in zip(*seconds, strict=True))
        rows.append(
            {
                "pairs": kind,
                "tokens": sum(len(ids) for ids in model.tokenizer(texts)["input_ids"]),
                "embedding_seconds": round(embedding, 2),
                "sums_seconds": round(sums, 2),
                "time_ratio": round(ratio, 2),
            }
        )
    return rows


def _in_turn(calls: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Processor seconds of each call, which take turns; the first turn is not counted. One thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds: list[list[float]] = [[] for _ in calls]
        for turn in range(_REPEATS + 1):
            for call, own in zip(calls, seconds, strict=True):
                started = time.process_time()
                call()
                own.extend([time.process_time() - started] if turn else [])
        return seconds
    finally:
        torch.set_num_threads(threads)


def _pairs(
    model: LoadedModel, count: int, length: Callable[[], float], generator: random.Random
) -> list[tuple[str, str]]:
    with sample_path().open() as sample:
        words = [word for line in sample for word in json.loads(line)["text"].split()]

    def text() -> str:
        tokens, start = max(1, round(length()) - 2), generator.randrange(len(words))
        chosen = " ".join((words[start:] + words)[:tokens])
        ids = model.tokenizer(chosen, add_special_tokens=False)["input_ids"][:tokens]
        return str(model.tokenizer.decode(ids))

    return [(text(), text()) for _ in range(count)]
