"""What is wrong with the answer to a bad input."""

import json
import os
import re
from collections.abc import Sequence

from tests.end_to_end.bad_input.process import Started, snapshot
from tests.end_to_end.forks import Outcome

# Progress of a run that has begun.
PROGRESS = re.compile(
    r".*( layers? on cpu, |examples \[|\d+ examples?|: *\d+%\||resuming after ).*|\s*|sequences.*|job \d+: .*"
    r"|\w+ \(\d+ of \d+\).*|allow_pickle: pickled weights, which can run code, .*"
)


def faults(run: Started, outcome: Outcome) -> list[str]:
    """What is wrong with the answer to a bad input."""
    wrong, sweeping = [], run.case.arguments[:1] == ["-m"]
    if outcome.status not in run.case.statuses:
        wrong.append(f"status {outcome.status}")
    if "Traceback" in outcome.err:
        wrong.append("traceback")
    elif outcome.status == 2:
        said = [line for line in outcome.err.splitlines() if line.startswith("normscope: ")]
        other = [line for line in outcome.err.splitlines() if line not in said and not PROGRESS.fullmatch(line)]
        if len(said) != 1 and not sweeping:  # each job of a sweep has its own
            wrong.append(f"{len(said)} messages")
        elif not any(name in said[0] for name in run.case.names):
            wrong.append("names neither key nor file")
        if any(line.startswith(tuple(run.case.refused)) for line in said):
            wrong.append("the suggestion is refused")
        if any(len(line) > 1500 or not line.isprintable() for line in said):
            wrong.append("unreadable message")
        if other and not sweeping:
            wrong.append(f"said more: {other[0]:.150}")
        if (run.folder / "work/out").exists() and not sweeping:
            path = run.folder / "work/out/results.json"
            if not path.is_file() or json.loads(path.read_text())["status"] != "failed":
                wrong.append("left something behind")
    wrong += _changes(run)
    return wrong


def _changes(run: Started) -> list[str]:
    after = snapshot(run.folder)
    mine = os.path.normpath(os.path.join("work", run.case.writes))
    changed = sorted(
        name
        for name in {**run.before, **after}
        if run.before.get(name) != after.get(name)
        and not f"{name}/".startswith(f"{mine}/")
        and mine not in ("work", ".")
    )
    return [f"changed {changed[0]}"] if changed else []


def report(run: Started, outcome: Outcome, wrong: Sequence[str]) -> str:
    """A fault for people."""
    last = [line for line in outcome.err.splitlines() if line.strip()][-3:]
    return f"#{run.number} {run.case.what}: {'; '.join(wrong)}\n      " + "\n      ".join(line[:300] for line in last)
