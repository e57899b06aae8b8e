"""Plant errors, one at a time, and print the share that the tests notice: `make mutants ARGS="--seed 1"`."""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.mutation.covering import ROOT, SOURCE, Covering, covering_tests
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.running import Outcome, Trial, run_trials

EXPECTED = 0.9
"""The share that the tests should notice."""


def main() -> int:
    """Sample, run and report; 1 where fewer are noticed than should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn (default: 0)")
    parser.add_argument("--mutants", type=int, default=400, help="how many (default: 400)")
    parser.add_argument("--processes", type=int, default=2, help="how many run at a time (default: 2)")
    parser.add_argument("--packages", nargs="+", default=["maths", "statistics", "analyses"], help="of src/normscope")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mutation.json", help="keeps which tests cover what")
    given = parser.parse_args()

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        covering = covering_tests(given.cache, given.processes, Path(folder))
    files = sorted(path for package in given.packages for path in (SOURCE / package).rglob("*.py"))
    every = [mutant for path in files for mutant in mutants_of(path.relative_to(ROOT), path.read_text())]
    drawn = random.Random(given.seed).sample(every, min(given.mutants, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants, seed {given.seed}", flush=True)
    trials = [trial_of(mutant, covering) for mutant in drawn]
    outcomes, checks = run_trials([trial for trial in trials if trial.tests], given.processes, _print)
    survivors = [outcome.trial.mutant for outcome in outcomes if not outcome.killed]
    uncovered = [trial.mutant for trial in trials if not trial.tests]
    share = 1 - (len(survivors) + len(uncovered)) / len(drawn)
    print(
        "\nsurvivors:\n" + "\n".join(map(str, survivors)) + "\n\ncovered by no test:\n" + "\n".join(map(str, uncovered))
    )
    print(f"\nkilled: {share:.1%} of {len(drawn)} in {(time.monotonic() - started) / 60:.0f} minutes")
    unsound = [check.trial.tests for check in checks if check.killed]
    if unsound:
        print(f"these tests fail alone with nothing planted, so what they killed does not count: {unsound}")
    return int(share < EXPECTED or bool(unsound))


def trial_of(mutant: Mutant, covering: Covering) -> Trial:
    """A mutant and the tests that run its lines; what runs at import is covered by all that run anything of its file."""
    found = {}
    for test, facts in covering.items():
        lines = facts["lines"].get(str(mutant.path), [])
        if any(line in mutant.lines for line in lines) or (mutant.scope is None and lines):
            found[test] = facts["duration"]
    if not found and mutant.scope is not None:
        found = {
            test: facts["duration"]
            for test, facts in covering.items()
            if any(line in mutant.statement for line in facts["lines"].get(str(mutant.path), []))
        }
    quickest = sorted(found, key=lambda test: (found[test], test))
    return Trial(mutant, tuple(quickest), 60 + 5 * sum(found.values()))


def _print(outcome: Outcome) -> None:
    word = f"killed by {outcome.by or 'time or memory'}" if outcome.killed else "SURVIVED"
    print(f"{outcome.seconds:6.1f} s {word}: {outcome.trial.mutant}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
