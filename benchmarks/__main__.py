"""`make bench`: cost of the analyses relative to the bare forward pass; measuring.py explains the method.

Measures shapes (models and analyses), what signed shares add, attributions, feed-forward networks, sinks, lengths, startup,
corpora (sizes and numbers of processes), syntax on made-up treebanks, retrieval and agreement (how well methods find the words
that decide an answer), the answers of the live page, similarities relative to embedding, whole commands by phase, and the
shapes on CUDA if available; `--only` selects some of them. Writes tables and figures that name the machine. `--profile`
measures the cost of each analysis for one shape instead, and writes a trace. Only on request: how cost grows (`growth`), and
other tools (`peers`, in a separate environment).
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks import commands, parted
from benchmarks.agreement import measured_agreement
from benchmarks.corpora import measured_corpora, measured_treebanks
from benchmarks.growth import LARGEST, Sizes
from benchmarks.live import measured_live
from benchmarks.measuring import measured, resident
from benchmarks.profiling import WAYS, profiled
from benchmarks.results import machine, show, write
from benchmarks.retrieval import measured_retrieval
from benchmarks.scenarios import (
    SHAPES,
    SUITES,
    Scenario,
    correlation_costs,
    dry_run,
    large_language_model,
    prepare,
    state_sizes,
)
from benchmarks.similarity import measured_similarity
from benchmarks.startup import measured_startup

RUNS = {
    "startup": measured_startup,
    "corpora": measured_corpora,
    "syntax": measured_treebanks,
    "retrieval": measured_retrieval,
    "agreement": measured_agreement,
    "live": measured_live,
    "similarity": measured_similarity,
}
"""Suites of complete runs."""
COMMANDS = "commands"

_PARTS = (
    ("shapes", str, "shapes"),
    ("lengths", int, "lengths"),
    ("ways", str, "alternatives"),
    ("examples", int, "numbers of examples"),
)
"""Options that choose parts of a suite: name, type, and what they choose."""


def _arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="passes per measurement (default 5)")
    parser.add_argument(
        "--only", nargs="+", choices=[*SUITES, *RUNS, COMMANDS, *parted.SUITES], help="measure only these"
    )
    for name, kind, what in _PARTS:
        parser.add_argument(
            f"--{name}", nargs="+", type=kind, help=f"only these {what} of the suites; rows of others stay in the file"
        )
    parser.add_argument(
        "--parts", nargs="+", choices=parted.PARTS, help="only these parts of peers and growth; the rows of others stay"
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, help="only these sizes of the parts of growth; the rows of others stay"
    )
    parser.add_argument(
        "--largest", type=int, default=LARGEST, help=f"largest corpus of growth, in sequences (default {LARGEST:,})"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="run the alternatives of `cuda` once, with a tiny model on the CPU"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"), help="output folder")
    parser.add_argument("--profile", action="store_true", help="cost by analysis of one shape, and a trace, instead")
    parser.add_argument("--shape", choices=SHAPES, default="MiniLM", help="shape to profile (default MiniLM)")
    parser.add_argument("--sequences", type=int, default=32, help="sequences to profile (default 32)")
    parser.add_argument("--length", type=int, default=128, help="tokens per sequence to profile (default 128)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to profile (default cpu)")
    parser.add_argument("--memory-of", nargs=2, metavar=("SCENARIO", "WAY"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print and write."""
    arguments = _arguments()
    if arguments.memory_of:
        scenario, way = arguments.memory_of
        print(json.dumps(resident(prepare(Scenario.unpacked(scenario))[way])))
        return
    print(machine())
    if arguments.profile:
        scenario = Scenario(arguments.shape, arguments.sequences, arguments.length, WAYS, device=arguments.device)
        rows = profiled(scenario, arguments.repeats, arguments.out)
        show(rows)
        write(arguments.out, "profile", rows)
        return
    if arguments.dry_run:
        show(measured(dry_run(large_language_model()), repeats=1))
        return
    for suite in arguments.only or [*SUITES, *RUNS, COMMANDS]:
        _measure(suite, arguments)
    print(
        "time_ratio: median over paired passes. The bare pass includes the last feed-forward network; unless feedforward is"
    )
    print(f"measured, an analysed pass ends at the last attention block. Results are in {arguments.out}")


def _measure(suite: str, arguments: argparse.Namespace) -> None:
    """Measure a suite, and print and write its rows."""
    if suite == COMMANDS:
        _measure_commands(arguments)
        return
    if suite in parted.SUITES:
        sizes = Sizes(arguments.largest, arguments.sizes)
        parted.measure(suite, arguments.parts, arguments.repeats, sizes, arguments.out)
        return
    if suite in RUNS:
        rows = RUNS[suite]()
        show(rows)
    else:
        rows = []
        if suite == "cuda" and not torch.cuda.is_available():
            print("cuda: torch finds no such device, so nothing is measured; --dry-run tries the code on the CPU")
        for scenario in _chosen(suite, arguments):
            started = time.monotonic()
            new_rows = [{"suite": suite} | row for row in measured(scenario, arguments.repeats)]
            show(new_rows)
            rows += new_rows
            # After each, so that what is measured is kept if the next one takes too long.
            write(arguments.out, suite, rows, adds=_is_part(arguments))
            print(f"{scenario.shape}, {scenario.length} tokens: {time.monotonic() - started:.0f} s", flush=True)
    if suite == "shapes":
        for line in [*correlation_costs(arguments.repeats), *state_sizes()]:
            print(line)
    write(arguments.out, suite, rows, adds=suite in SUITES and _is_part(arguments))


def _is_part(arguments: argparse.Namespace) -> bool:
    """Whether only some scenarios or alternatives are measured."""
    return any(getattr(arguments, name) for name, _, _ in _PARTS)


def _measure_commands(arguments: argparse.Namespace) -> None:
    """Measure the commands that were asked for. Each is written as soon as it has been measured, so that none is lost."""
    shapes = [shape for shape in commands.MODELS if shape in (arguments.shapes or commands.MODELS)]
    sizes = [size for size in commands.SIZES if size in (arguments.examples or commands.SIZES)]
    adds = _is_part(arguments)
    for row in commands.measured_commands(arguments.repeats, shapes, sizes, arguments.ways or commands.WAYS):
        show([row])
        write(arguments.out, COMMANDS, [row], adds=adds)
        adds = True


def _chosen(suite: str, arguments: argparse.Namespace) -> Iterator[Scenario]:
    """The scenarios of a suite that were asked for, with the alternatives that were."""
    for scenario in SUITES[suite]():
        if arguments.shapes and scenario.shape not in arguments.shapes:
            continue
        if arguments.lengths and scenario.length not in arguments.lengths:
            continue
        some = scenario.only(arguments.ways) if arguments.ways else scenario
        if arguments.ways is None or {*some.ways} - {some.beside} or some.skipped:
            yield some


if __name__ == "__main__":
    main()
