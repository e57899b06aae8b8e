"""Time and memory of the alternatives of a scenario.

Time: the alternatives take turns, and each is divided by the bare pass just before it. The median of these ratios is reported,
because the machine's load changes from second to second. Memory on the CPU: one process per alternative; `memory` is the
process's peak (including weights and accumulators), `pass` how far memory rises during a pass. On CUDA, both count what torch
has allocated.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.scenarios import BARE, SHAPES, STRAIGHTFORWARD, Scenario, duration, prepare


class Memory(NamedTuple):
    """Peaks, in bytes."""

    whole: int
    during: int


def measured(scenario: Scenario, repeats: int) -> list[dict[str, object]]:
    """One row per alternative of a scenario.

    Args:
        scenario: The scenario to run.
        repeats: Passes per alternative.
    """
    seconds, ratios, notes = times(scenario, repeats)
    memory: dict[str, Memory] = {}
    for way in seconds:
        if scenario.memory:
            with _noted(notes, way, "memory"):
                memory[way] = _memory_of(scenario, way)
    return _rows(scenario, seconds, ratios, memory, notes)


def measured_memory(scenario: Scenario) -> list[dict[str, object]]:
    """One row per alternative of a scenario, without times: a pass to warm up and another are enough."""
    memory, notes = dict[str, Memory](), dict[str, str]()
    prepared = prepare(scenario) if scenario.device == "cuda" else {}
    for way in scenario.ways:
        with _noted(notes, way, "memory"):
            memory[way] = _allocated(prepared[way]) if prepared else _memory_of(scenario, way)
    return _rows(scenario, {}, {}, memory, notes)


def _rows(
    scenario: Scenario,
    seconds: Mapping[str, float],
    ratios: Mapping[str, float],
    memory: Mapping[str, Memory],
    notes: Mapping[str, str],
) -> list[dict[str, object]]:
    """What has been measured of the alternatives; what has not is left out."""
    bare = memory.get(BARE)
    about = {
        "shape": scenario.shape,
        "device": scenario.device,
        "dtype": scenario.dtype,
        "sequences": scenario.sequences,
        "length": scenario.length,
        "layers": scenario.layers or SHAPES[scenario.shape].num_hidden_layers,
    }
    rows: list[dict[str, object]] = []
    for way in scenario.ways:
        row: dict[str, object] = about | {"way": way}
        if way in seconds:
            row["time_ratio"] = round(ratios[way], 3)
        if way in memory and bare is not None:
            row["memory_ratio"] = round(memory[way].whole / bare.whole, 3)
            row["pass_ratio"] = round(memory[way].during / bare.during, 3)
        if way in seconds:
            row["seconds"] = round(seconds[way], 4)
            row["tokens_per_second"] = round(scenario.sequences * scenario.length / seconds[way])
        if way in memory:
            row["mebibytes"] = round(memory[way].whole / 2**20)
        rows.append(row | {"note": notes.get(way, "")})
    return rows


@contextlib.contextmanager
def _noted(notes: dict[str, str], way: str, what: str) -> Iterator[None]:
    """Note that an alternative has failed, instead of losing the others."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines()
        notes[way] = f"{what} failed: {type(error).__name__}: {reason[-1] if reason else ''}"


def times(scenario: Scenario, repeats: int) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Seconds, and time relative to the bare pass, of each alternative: medians.

    Args:
        scenario: The scenario to run.
        repeats: Passes per alternative.

    Returns:
        Both, and why others have failed.
    """
    prepared, notes = prepare(scenario), dict[str, str]()
    for way, forward in prepared.items():
        with _noted(notes, way, "it"):
            forward()
    if BARE in notes:
        raise RuntimeError(f"{scenario.shape}, {scenario.length} tokens: {BARE}: {notes[BARE]}")
    ways = {way: forward for way, forward in prepared.items() if way not in notes}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way, forward in ways.items():
            if way == STRAIGHTFORWARD and repeat >= 3:
                continue
            bare = duration(ways[BARE])
            with _noted(notes, way, "it"):
                seconds[way].append(duration(forward))
                ratios[way].append(seconds[way][-1] / bare)
    return (
        {way: statistics.median(values) for way, values in seconds.items() if values},
        {way: statistics.median(values) for way, values in ratios.items() if values},
        notes,
    )


def _memory_of(scenario: Scenario, way: str) -> Memory:
    command = [sys.executable, "-m", "benchmarks", "--memory-of", scenario.packed(), way]
    # Make glibc return freed memory at once; otherwise some stays resident and hides the peak.
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return Memory(*json.loads(output.splitlines()[-1]))


def _allocated(forward: Callable[[], None]) -> Memory:
    """Peak of what torch has allocated on a GPU, and during a second pass above what was allocated before it."""
    forward()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forward()
    peak = torch.cuda.max_memory_allocated()
    return Memory(peak, max(1, peak - before))


def resident(forward: Callable[[], None]) -> Memory:
    """Peak of resident bytes of the process, and during a second pass above what was resident before it (Linux)."""
    forward()
    first_peak = status("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    forward()
    peak = status("VmHWM")
    return Memory(max(first_peak, peak), max(1, peak - before))


def status(field: str) -> int:
    """Bytes in a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
