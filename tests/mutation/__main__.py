"""Plant errors, one at a time, and print the share that the tests notice: `make mutants ARGS="--seed 1"`."""

import argparse
import collections
import random
import sys
import time
from pathlib import Path

from tests.mutation.covering import PACKAGES, ROOT, SOURCE, covering_tests
from tests.mutation.mutants import mutants_of
from tests.mutation.trials import Result, Trial, run_trials

EXPECTED = 0.9
"""The share that the tests should notice."""
_LEFT_OUT = {"aligners", "reverse_run"}
"""Modules that run other programs or read other runs, which end-to-end tests check."""


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
    files = sorted(path for package in given.packages for path in (SOURCE / package).rglob("*.py"))
    files = [path for path in files if path.stem not in _LEFT_OUT]
    every = [mutant for path in files for mutant in mutants_of(path.relative_to(ROOT), path.read_text())]
    drawn = random.Random(given.seed).sample(every, min(given.mutants, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants, seed {given.seed}", flush=True)
    trials = [Trial.of(mutant, covering) for mutant in drawn]
    results, failing = run_trials([trial for trial in trials if trial.tests], given.processes, _print)

    missed = [result.trial.mutant for result in results if not result.killer]
    uncovered = [trial.mutant for trial in trials if not trial.tests]
    for title, mutants in (("survived", missed), ("covered by no test", uncovered)):
        print(f"\n{title}: {len(mutants)}", *mutants, sep="\n")
    share = _print_shares([str(mutant.path) for mutant in drawn], [str(one.path) for one in missed + uncovered if one])
    print(f"{(time.monotonic() - started) / 60:.0f} minutes")
    if failing:
        print(f"these tests fail alone with nothing planted, so what they killed does not count: {failing}")
    return int(share < EXPECTED or bool(failing))


def _print(result: Result) -> None:
    word = f"killed by {result.killer}" if result.killer else "SURVIVED"
    print(f"{result.seconds:6.1f} s {word}: {result.trial.mutant}", flush=True)


def _print_shares(drawn: list[str], alive: list[str]) -> float:
    """Print the share that was killed, by package and of all; returns the latter."""
    package = len(SOURCE.relative_to(ROOT).parts)
    of_package, left = (collections.Counter(path.split("/")[package] for path in paths) for paths in (drawn, alive))
    print()
    for name, count in (*sorted(of_package.items()), ("all", len(drawn))):
        killed = count - (len(alive) if name == "all" else left[name])
        print(f"{name}: {killed} of {count} killed, {killed / count:.1%}")
    return 1 - len(alive) / len(drawn)


if __name__ == "__main__":
    sys.exit(main())
