"""The same tasks with other tools, as their users would do them: time, memory, and whether the numbers are equal.

`make bench ARGS="--only peers"`, in a separate environment (`benchmarks/peers.txt`). Each measurement has its own process,
and the tools for a task take turns. Work on the first input, during which libraries prepare what they keep, counts as startup.
For a tool that cannot be imported or fails, the table gives the reason.
"""

import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_tasks import CAUSAL, ENCODER, OURS, TASKS, Numbers, Task, Tool, save_causal


def measured_peers(repeats: int = 3) -> Iterator[dict[str, object]]:
    """One row per task and tool.

    Args:
        repeats: Processes per tool. The median time and the highest memory are reported.
    """
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        (models / ENCODER).symlink_to(default_model())
        save_causal(models / CAUSAL)
        for name in TASKS:
            yield from _measured(name, models, repeats)


def _measured(name: str, models: Path, repeats: int) -> list[dict[str, object]]:
    """The rows of a task."""
    task = TASKS[name]
    runs: dict[str, list[dict[str, Any]]] = {tool.name: [] for tool in task.tools}
    for _ in range(repeats):
        for number, tool in enumerate(task.tools):
            # What has failed once is not tried again.
            if not any("failed" in run for run in runs[tool.name]):
                runs[tool.name].append(_in_its_own_process(name, number, models))
    numbers = {
        tool.name: dict(np.load(file))
        for number, tool in enumerate(task.tools)
        if (file := _file(models, name, number)).exists()
    }
    inputs = len(task.inputs())
    return [
        {"task": name, "tool": tool.name, "version": _version(tool.package), "inputs": inputs}
        | _summary(runs[tool.name])
        | compared(tool, task, numbers)
        for tool in task.tools
    ]


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    failed = [run["failed"] for run in runs if "failed" in run]
    if failed:
        return {"note": failed[0]}
    return {
        "startup": round(statistics.median(run["startup"] for run in runs), 1),
        "seconds": round(statistics.median(run["seconds"] for run in runs), 2),
        "mebibytes": round(max(run["bytes"] for run in runs) / 2**20),
        "note": "",
    }


def compared(tool: Tool, task: Task, numbers: Mapping[str, Numbers]) -> dict[str, object]:
    """The largest difference from the same numbers of another tool: ours, or else the first that has them.

    Args:
        tool: Whose numbers to compare.
        task: What they are about.
        numbers: What each tool has found, by its name.
    """
    # A comparison is reported once, in the row of the peer, or of the later of two of our own ways.
    others = sorted((other.name for other in task.tools), key=lambda other: not other.startswith(OURS))
    if tool.package == OURS:
        others = others[: others.index(tool.name)]
    for other in others:
        shared = [name for name in numbers.get(tool.name, {}) if name in numbers.get(other, {})]
        if other != tool.name and shared:
            values = [(numbers[tool.name][name], numbers[other][name]) for name in shared]
            return {
                "numbers": " and ".join(shared),
                "beside": other,
                "difference": max(_difference(*pair) for pair in values),
                "largest": max(float(np.abs(mine).max()) for mine, _ in values),
            }
    return {}


def _difference(mine: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(mine - other).max()) if mine.shape == other.shape else float("nan")


def default_model() -> Path:
    """The folder of the default model."""
    from normscope.api.models import DEFAULT_MODEL, DEFAULT_PIN
    from normscope.models.options import ModelOptions
    from normscope.models.stored.files import locate

    return locate(DEFAULT_MODEL, ModelOptions(name=DEFAULT_MODEL, pin=DEFAULT_PIN, seed=0), weights=True).folder


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _file(models: Path, task: str, tool: int) -> Path:
    return models / f"{task}-{tool}.npz"


def _in_its_own_process(task: str, tool: int, models: Path) -> dict[str, Any]:
    """What one process reports: seconds of startup and of the work, and its peak memory; or why it failed."""
    command = [sys.executable, "-m", "benchmarks.peers", task, str(tool), str(models), str(time.monotonic())]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if ended.returncode:
        return {"failed": f"ended with status {ended.returncode}: {(ended.stderr.strip().splitlines() or [''])[-1]}"}
    reported: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return reported


def work(task: str, number: int, models: Path, started: float) -> dict[str, Any]:
    """Do a task with one of its tools, in this process, and keep the numbers in a file.

    Args:
        task: Its name.
        number: Which of its tools.
        models: The folder of the models, and of the file.
        started: When the process was started, by `time.monotonic`.
    """
    tool, inputs = TASKS[task].tools[number], TASKS[task].inputs()
    try:
        do = tool.prepare(models)
        do(inputs[:1])
        ready = time.monotonic()
        numbers = do(inputs)
        seconds = time.monotonic() - ready
    except ImportError as error:
        return {"failed": f"cannot be imported: {_line(error)}"}
    except Exception as error:
        return {"failed": f"fails: {type(error).__name__}: {_line(error)}"}
    np.savez(_file(models, task, number), allow_pickle=False, **dict(numbers))
    return {"startup": ready - started, "seconds": seconds, "bytes": _peak()}


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _peak() -> int:
    """The most memory that was resident in this process, in bytes (Linux).

    What the system says of a child process may include the memory of the parent that it was forked from.
    """
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    _, asked, chosen, folder, since = sys.argv
    print(json.dumps(work(asked, int(chosen), Path(folder), float(since))))
