"""`make bench`: what the analyses cost beside the bare forward pass, measured in one run; see measuring.py for how.

It measures shapes (models and analyses), lengths, corpora (size, and processes), and the same shapes on CUDA where there is
one; `--only` chooses. A table and a picture are written, with the machine named.
"""

import argparse
import json
from pathlib import Path

from benchmarks.corpora import measured_corpora
from benchmarks.measuring import measured, resident
from benchmarks.results import machine, show, write
from benchmarks.scenarios import SUITES, Scenario, correlation_costs, prepare, state_sizes

CORPORA = "corpora"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="passes of each way (default 5)")
    parser.add_argument("--only", nargs="+", choices=[*SUITES, CORPORA], help="measure these alone")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"), help="folder of table and picture")
    parser.add_argument("--memory-of", nargs=2, metavar=("SCENARIO", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        scenario, way = arguments.memory_of
        print(json.dumps(resident(prepare(Scenario.unpacked(scenario))[way])))
        return
    print(machine())
    for suite in arguments.only or [*SUITES, CORPORA]:
        if suite == CORPORA:
            rows = measured_corpora()
            show(rows)
        else:
            rows = []
            for scenario in SUITES[suite]():
                found = [{"suite": suite} | row for row in measured(scenario, arguments.repeats)]
                show(found)
                rows += found
        if suite == "shapes":
            for line in [*correlation_costs(arguments.repeats), *state_sizes()]:
                print(line)
        write(arguments.out, suite, rows)
    print(
        "time_ratio: median over paired passes. An analysis ends the pass at the last attention block, so the bare pass does"
    )
    print(f"what no analysis needs: the last feed-forward network. Written to {arguments.out}")


if __name__ == "__main__":
    main()
