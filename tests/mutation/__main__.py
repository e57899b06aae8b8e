"""Plant errors, one at a time, and print the share that the tests notice: `make mutants ARGS="--seed 1"`."""

import argparse
import collections
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.covering import PACKAGES, ROOT, SOURCE, covering_tests
from tests.mutation.equivalents import equivalents
from tests.mutation.mutants import Mutant, all_mutants
from tests.mutation.trials import Result, Trial, run_trials

EXPECTED = 0.9
"""The share that the tests should notice."""


def main() -> int:
    """Sample, run and report; 1 where fewer are noticed than should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn (default: 0)")
    parser.add_argument("--mutants", type=int, default=400, help="how many (default: 400)")
    parser.add_argument("--processes", type=int, default=2, help="how many run at a time (default: 2)")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES, help="where (default: all)")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mutation.json", help="keeps which tests cover what")
    given = parser.parse_args()

    started = time.monotonic()
    covering = covering_tests(given.cache)
    every = list(all_mutants(given.packages))
    drawn = random.Random(given.seed).sample(every, min(given.mutants, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants, seed {given.seed}", flush=True)
    trials = [Trial.of(mutant, covering) for mutant in drawn]
    results, failing = run_trials([trial for trial in trials if trial.tests], given.processes, _print)

    alive = [result.trial.mutant for result in results if not result.killer and result.trial.mutant]
    uncovered = [trial.mutant for trial in trials if not trial.tests and trial.mutant]
    _print_survivors(alive, uncovered)
    share = _print_shares(drawn, [*alive, *uncovered])
    print(f"{(time.monotonic() - started) / 60:.0f} minutes")
    if failing:
        print(f"these tests fail alone with nothing planted, so what they killed does not count: {failing}")
    return int(share < EXPECTED or bool(failing))


def _print(result: Result) -> None:
    word = f"killed by {result.killer}" if result.killer else "SURVIVED"
    print(f"{result.seconds:6.1f} s {word}: {result.trial.mutant}", flush=True)


def _print_survivors(alive: Sequence[Mutant], uncovered: Sequence[Mutant]) -> None:
    reasons = equivalents()
    explained = [f"{mutant}\n    {reasons[mutant.identity]}" for mutant in alive if mutant.identity in reasons]
    unexplained = [mutant for mutant in alive if mutant.identity not in reasons]
    for title, mutants in (
        ("survived, since no result differs", explained),
        ("survived", unexplained),
        ("covered by no test", uncovered),
    ):
        print(f"\n{title}: {len(mutants)}", *mutants, sep="\n")


def _print_shares(drawn: Sequence[Mutant], alive: Sequence[Mutant]) -> float:
    """Print the share that was killed, by package and of all; returns the latter. No survivor counts as killed."""
    counts, survivors = (collections.Counter(_package(mutant) for mutant in mutants) for mutants in (drawn, alive))
    print()
    for name, count in sorted(counts.items()):
        print(f"{name}: {count - survivors[name]} of {count} killed, {1 - survivors[name] / count:.1%}")
    share = 1 - len(alive) / len(drawn)
    print(f"all: {len(drawn) - len(alive)} of {len(drawn)} killed, {share:.1%}")
    return share


def _package(mutant: Mutant) -> str:
    return (ROOT / mutant.path).relative_to(SOURCE).parts[0]


if __name__ == "__main__":
    sys.exit(main())
