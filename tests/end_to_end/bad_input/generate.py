"""Draws cases from a seed and runs them."""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.end_to_end.bad_input import corpora, models, overrides, run_folders
from tests.end_to_end.bad_input.answer import faults, report
from tests.end_to_end.bad_input.case import Case
from tests.end_to_end.bad_input.process import Started, finished, started
from tests.end_to_end.bad_input.stock import Stock
from tests.end_to_end.bad_input.suggestions import followed

Kind = Callable[[random.Random, Stock], Case]
KINDS: dict[Kind, int] = {
    overrides.override: 31,
    overrides.several: 4,
    overrides.environment: 3,
    corpora.file: 23,
    corpora.rows: 8,
    corpora.parquet: 3,
    models.model: 38,
    run_folders.earlier: 8,
    run_folders.sweep: 5,
}
"""A generator for each boundary, or two, and how often each is drawn."""


def case(seed: int, number: int, stock: Stock) -> Case:
    """Case `number` of a seed."""
    draw = random.Random(f"{seed} {number}")
    (kind,) = draw.choices([*KINDS], [*KINDS.values()])
    return kind(draw, stock)


def run_all(stock: Stock, folder: Path, seed: int, numbers: Sequence[int]) -> list[str]:
    """Run numbered cases, as many at a time as there are processors, and return the faults.

    What the message of a case suggests is then done, as a case of its own.
    """
    waiting: Iterator[tuple[int | str, Case]] = ((number, case(seed, number, stock)) for number in numbers)
    running: list[Started] = []
    found: list[str] = []
    while True:
        for number, drawn in itertools.islice(waiting, max(0, (os.cpu_count() or 1) - len(running))):
            running.append(started(drawn, folder / str(number), number))
        if not running:
            return found
        run, outcome = finished(running)
        running.remove(run)
        wrong = faults(run, outcome)
        if wrong:
            found.append(report(run, outcome, wrong))
        next_ones = [(f"{run.number}.{n}", case) for n, case in enumerate(followed(run.case, outcome.err), start=1)]
        waiting = itertools.chain(next_ones, waiting)
        shutil.rmtree(run.folder, ignore_errors=True)
