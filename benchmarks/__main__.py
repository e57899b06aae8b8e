"""`make bench`: time and memory of every way beside the bare forward pass, in one run.

Time: the ways take turns, and each is divided by the bare pass just before it; the median of these ratios is told, since
the machine's mood changes from second to second. Memory: one process per way; `memory` is the peak of what the process
holds (weights, accumulators and all), `pass` the peak during a pass above what was held before it.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.scenarios import BARE, LENGTHS, SCENARIOS, STRAIGHTFORWARD, Scenario, prepare
from normscope.analyses.pair_correlation import NORM_AXIS, WEIGHT_AXIS
from normscope.statistics.rank_correlation import RankCorrelation


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="passes of each way (default 9)")
    parser.add_argument("--lengths", action="store_true", help="cost against length instead, up to 4,096 tokens")
    parser.add_argument("--memory-of", nargs=2, metavar=("SCENARIO", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scenarios = LENGTHS if arguments.lengths else SCENARIOS
    if arguments.memory_of:
        number, way = arguments.memory_of
        print(json.dumps(_memory(prepare(scenarios[int(number)])[way])))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{'shapes':<16}{'batch':<12}{'way':<42}{'time/bare':>10}{'memory/bare':>13}{'pass/bare':>11}{'seconds':>10}{'MiB':>9}"
    )
    for number, scenario in enumerate(scenarios):
        seconds, ratios = _times(scenario, arguments.repeats)
        memory = {way: _memory_in_own_process(number, way, lengths=arguments.lengths) for way in scenario.ways}
        (bare_process, bare_pass) = memory[BARE]
        for way in scenario.ways:
            print(
                f"{scenario.shape:<16}{f'{scenario.sequences} × {scenario.length}':<12}{way:<42}"
                f"{ratios[way]:>10.2f}{memory[way][0] / bare_process:>13.2f}{memory[way][1] / bare_pass:>11.2f}"
                f"{seconds[way]:>10.3f}{memory[way][0] / 2**20:>9.0f}",
                flush=True,
            )
    if not arguments.lengths:
        _correlation_costs(arguments.repeats)
    print(
        "\ntime/bare: median over paired passes. An analysis ends the pass at the last attention block, so the bare pass"
    )
    print("does what no analysis needs: the last feed-forward network.")


def _correlation_costs(repeats: int) -> None:
    """Nanoseconds per pair of α and ‖f‖, counted or kept, ranking at the end included."""
    torch.manual_seed(0)
    weights = torch.softmax(torch.randn(8, 12, 128, 128) * 2, dim=-1)
    norms, group = torch.rand(8, 12, 128) * 3 + 1, torch.zeros(8, 128, dtype=torch.long)
    pairs = weights.numel()
    for name, budget in (("estimated", 0), ("exact", 10**12)):
        updates, ends = [], []
        for _ in range(repeats):
            correlation = RankCorrelation(1, 1, WEIGHT_AXIS, NORM_AXIS, budget)
            correlation.update(0, weights, norms, group)  # makes room
            updates.append(_seconds(lambda: correlation.update(0, weights, norms, group)) / pairs)  # noqa: B023
            ends.append(_seconds(lambda: correlation.compute()) / (4 * pairs))  # noqa: B023 - two updates, ranked twice
        update, end = statistics.median(updates) * 1e9, statistics.median(ends) * 1e9
        if name == "estimated":
            end = 0.0  # that many cells are ranked however many pairs there are
        print(
            f"rank correlation, {name}: {update + end:.1f} ns per pair, so {2 * (update + end):.0f} s for 2·10⁹ pairs"
        )


def _times(scenario: Scenario, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    ways = prepare(scenario)
    for forward in ways.values():
        forward()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way, forward in ways.items():
            if way == STRAIGHTFORWARD and repeat >= 3:
                continue
            bare = _seconds(ways[BARE])
            seconds[way].append(_seconds(forward))
            ratios[way].append(seconds[way][-1] / bare)
    return (
        {way: statistics.median(values) for way, values in seconds.items()},
        {way: statistics.median(values) for way, values in ratios.items()},
    )


def _seconds(forward: Callable[[], object]) -> float:
    start = time.perf_counter()
    forward()
    return time.perf_counter() - start


def _memory_in_own_process(number: int, way: str, lengths: bool) -> tuple[int, int]:
    command = [sys.executable, "-m", "benchmarks", "--memory-of", str(number), way, *(["--lengths"] if lengths else [])]
    # Memory that is given back at once shows the peak as it is; glibc would keep some of it resident.
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    whole, during = json.loads(output.splitlines()[-1])
    return int(whole), int(during)


def _memory(forward: Callable[[], None]) -> tuple[int, int]:
    """Peak of resident bytes of the process, and during a second pass above what was resident before it (Linux)."""
    forward()
    first_peak = _status("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    forward()
    peak = _status("VmHWM")
    return max(first_peak, peak), max(1, peak - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
