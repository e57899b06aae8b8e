"""How cost grows: with lengths and depths, whose scenarios are in scenarios.py, and with the corpus and the processes that
share it.

Each process has one thread. A corpus of made-up sentences has as many different ones as it has lines, because the state of an
analysis grows with these.
"""

import itertools
import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.commands import BEFORE, cost_of

OVER = {"lengths": "length", "depths": "layers", "corpora": "examples"}
"""The suites that show how cost grows, and the column that says over what."""
CORPORA = (1_000, 10_000, 100_000)
PROCESSES = (1, 2)
_WORDS = 5
_OFTEN = 1_000
"""Examples of the largest corpus that is measured more than once."""


def measured_corpora(
    repeats: int, corpora: Sequence[int] = CORPORA, processes: Sequence[int] = PROCESSES
) -> Iterator[dict[str, object]]:
    """One row per number of examples and of processes: seconds and peak memory of a command with mixing and norms.

    Args:
        repeats: How often the command is run on a small corpus.
        corpora: Numbers of examples.
        processes: Numbers of processes.
    """
    with tempfile.TemporaryDirectory() as folder:
        for size, number in itertools.product(corpora, processes):
            corpus = Path(folder, f"{size}.txt")
            corpus.write_text("".join(sentences(size)))
            runs = [_measured(corpus, number) for _ in range(repeats if size <= _OFTEN else 1)]
            medians = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
            way = f"mixing+norms, {number} {'process' if number == 1 else 'processes'}"
            yield {"shape": "MiniLM", "examples": size, "way": way, **medians, "repeats": len(runs)}


def sentences(number: int) -> Iterator[str]:
    """Lines of made-up words, no two alike."""
    draw = random.Random(0)
    words = [f"{start}{end}" for start in ("ba", "do", "fi", "lu", "me", "ro") for end in ("lan", "mer", "tos", "vik")]
    for line in range(number):
        yield f"{line} {' '.join(draw.choices(words, k=_WORDS))}.\n"


def _measured(corpus: Path, processes: int) -> dict[str, float]:
    """Seconds of the first process before the first batch, in the pass and in all, and the peak of the largest in MiB."""
    run = Path(tempfile.mkdtemp(dir=corpus.parent))
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    settings = ["analysis=[mixing,norms]", "model=minilm", "device=cpu", "dataset=text", f"dataset.path={corpus}"]
    whole, mebibytes = cost_of(
        *several, "run.py", *settings, "tracking=disabled", f"output_dir={run}", OMP_NUM_THREADS="1"
    )
    facts = json.loads((run / "results.json").read_text())["facts"]
    phases = facts["phases"]
    return {
        "whole": whole,
        "before_first_batch": sum(phases[phase] for phase in BEFORE),
        "seconds": phases["pass"],
        "tokens": facts["tokens"],
        "mebibytes": mebibytes,
    }


def exponents(rows: Sequence[Mapping[str, object]], over: str) -> Iterator[str]:
    """How the seconds of one sequence, or of a whole corpus, grow between the two largest sizes, in words.

    Args:
        rows: The measurements of a suite.
        over: The column of the sizes.
    """
    table = pd.DataFrame(rows)
    for (shape, way), same in table.groupby(["shape", "way"], sort=False):
        measured = same.dropna(subset="seconds").sort_values(over).tail(2)
        if measured[over].nunique() < 2:
            continue
        sizes = measured[over].to_numpy()
        seconds = (measured["seconds"] / measured.get("sequences", 1)).to_numpy()
        power = math.log(seconds[1] / seconds[0]) / math.log(sizes[1] / sizes[0])
        yield f"{shape}, {way}: from {sizes[0]:,} to {sizes[1]:,} {over}, time grows with the power {power:.2f}"
