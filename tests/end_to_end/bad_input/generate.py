"""Draws cases from a seed and runs them."""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.end_to_end.bad_input.alignments import links
from tests.end_to_end.bad_input.answer import faults, report
from tests.end_to_end.bad_input.case import Case
from tests.end_to_end.bad_input.corpora import odd_parquet, odd_rows, spoiled_corpus
from tests.end_to_end.bad_input.earlier_runs import comparison, sweep
from tests.end_to_end.bad_input.models import (
    adapter,
    family_config,
    model_config,
    model_file,
    other_tokenizer,
    pickled_weights,
    side_file,
    tokenizer_json,
    weights,
)
from tests.end_to_end.bad_input.overrides import (
    empty_value,
    environment,
    odd_group,
    odd_path,
    odd_syntax,
    two_values,
    wrong_value,
)
from tests.end_to_end.bad_input.process import Started, finished, started
from tests.end_to_end.bad_input.small_files import frequencies
from tests.end_to_end.bad_input.stock import Stock
from tests.end_to_end.bad_input.suggestions import followed
from tests.end_to_end.bad_input.wrong_files import category, odd_characters, two_files, wrong_file

Kind = Callable[[random.Random, Stock], Case]
KINDS: tuple[tuple[Kind, int], ...] = (
    *(
        (wrong_value, 9),
        (two_values, 4),
        (empty_value, 4),
        (odd_group, 4),
        (odd_syntax, 4),
        (odd_path, 6),
        (category, 4),
    ),
    *((spoiled_corpus, 7), (odd_rows, 3), (odd_parquet, 3), (wrong_file, 8), (odd_characters, 5), (two_files, 3)),
    *((model_config, 7), (family_config, 5), (model_file, 4), (tokenizer_json, 4), (weights, 4), (adapter, 3)),
    *((other_tokenizer, 4), (side_file, 3), (pickled_weights, 4), (comparison, 5)),
    *((sweep, 5), (environment, 3), (links, 5), (frequencies, 3)),
)


def case(seed: int, number: int, stock: Stock) -> Case:
    """Case `number` of a seed."""
    draw = random.Random(f"{seed} {number}")
    (kind,) = draw.choices(*zip(*KINDS, strict=True))
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
