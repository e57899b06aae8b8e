"""`make bench ARGS="--profile"`: what each analysis costs, how many operations it dispatches, and a trace of all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measuring import times
from benchmarks.scenarios import BARE, EVERYTHING, Scenario, prepare

WAYS = (BARE, "mixing", "outliers", "frequency", "score", "norms", EVERYTHING)


def profiled(scenario: Scenario, repeats: int, folder: Path) -> list[dict[str, object]]:
    """One row per alternative of a scenario; writes `trace.json`, which chrome://tracing and Perfetto open.

    Args:
        scenario: The scenario to run.
        repeats: Passes per alternative.
        folder: Output folder, created if missing.
    """
    seconds, ratios, _ = times(scenario, repeats)
    ways = prepare(scenario)
    rows: list[dict[str, object]] = []
    for way, forward in ways.items():
        forward()
        rows.append(
            {
                "shape": scenario.shape,
                "device": scenario.device,
                "sequences": scenario.sequences,
                "length": scenario.length,
                "way": way,
                "time_ratio": round(ratios[way], 3),
                "seconds": round(seconds[way], 4),
                "operations": operations(forward),
            }
        )
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if scenario.device == "cuda" else [])]
    with profile(activities=activities) as trace:
        ways[scenario.ways[-1]]()
    folder.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(folder / "trace.json"))
    return rows


def operations(forward: Callable[[], object]) -> int:
    """The number of operations that a call dispatches to torch."""
    with _Counter() as counter:
        forward()
    return counter.count


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
