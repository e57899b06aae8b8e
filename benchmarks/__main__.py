"""`make bench`: time and memory relative to the bare forward pass; measuring.py explains the method.

Measures shapes (models and analyses), lengths, depths, and whole commands by phase; `--only` selects some of them, how cost
grows with the corpus and with processes (`--only corpora`), or the live page in a browser (`--only live`). Other tools
(`--only peers`) run in a separate environment. What is measured on a GPU (`--only cuda`) has steps, which
`benchmarks/gpu.sh` runs with a time limit each. Writes tables and figures that name the machine.
"""

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import commands, gpu, growth, live, peers
from benchmarks.measuring import measured, resident
from benchmarks.results import machine, show, write
from benchmarks.scenarios import SUITES, Scenario, prepare

COMMANDS, CORPORA, PEERS, LIVE, CUDA = "commands", "corpora", "peers", "live", "cuda"


def _arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="passes per measurement (default 5)")
    names = [*SUITES, COMMANDS, CORPORA, PEERS, LIVE, CUDA]
    parser.add_argument("--only", nargs="+", choices=names, help="measure only these")
    parser.add_argument("--steps", nargs="+", choices=gpu.STEPS, default=list(gpu.STEPS), help="steps of cuda (all)")
    parser.add_argument("--device", choices=gpu.TABLES, default=gpu.GPU, help="where cuda runs; cpu tries it, small")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"), help="output folder")
    parser.add_argument("--memory-of", nargs=2, metavar=("SCENARIO", "WAY"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print and write."""
    arguments = _arguments()
    if arguments.memory_of:
        scenario, way = arguments.memory_of
        print(json.dumps(resident(prepare(Scenario.unpacked(scenario))[way])))
        return
    suites = arguments.only or [*SUITES, COMMANDS]
    if CUDA in suites and not gpu.measure(arguments.steps, arguments.device, arguments.out, arguments.repeats):
        raise SystemExit(1)
    others = [suite for suite in suites if suite != CUDA]
    if not others:
        return
    print(machine())
    complete = [_measure(suite, arguments.repeats, arguments.out) for suite in others]
    print(
        "time_ratio: median over paired passes. The bare pass includes the last feed-forward network; unless feedforward is\n"
        f"measured, an analysed pass ends at the last attention block. Results are in {arguments.out}"
    )
    if not all(complete):
        raise SystemExit(1)


def _measure(suite: str, repeats: int, folder: Path) -> bool:
    """Measure a suite; print and write each part as soon as it is known, so that none is lost.

    Returns:
        Whether everything was measured.
    """
    rows: list[dict[str, object]] = []
    if suite in SUITES:
        for scenario in SUITES[suite]():
            started = time.monotonic()
            rows += measured(scenario, repeats)
            write(folder, suite, rows)
            print(f"{scenario.shape}, {scenario.length} tokens: {time.monotonic() - started:.0f} s", flush=True)
    else:
        for row in _rows_of(suite, repeats):
            rows.append(row)
            write(folder, suite, rows)
    complete = show(rows)
    if suite in growth.OVER:
        print(*growth.exponents(rows, growth.OVER[suite]), sep="\n")
    return complete


def _rows_of(suite: str, repeats: int) -> Iterable[dict[str, object]]:
    """The measurements of a suite that is not made of scenarios."""
    if suite == COMMANDS:
        return commands.measured_commands(repeats)
    if suite == CORPORA:
        return growth.measured_corpora(repeats)
    if suite == LIVE:
        return live.measured_typing()
    return peers.measured_peers(repeats=repeats)


if __name__ == "__main__":
    main()
