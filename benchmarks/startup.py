"""How long a fresh process takes until its first batch and after its last one, beside the bare imports of its libraries.

`python -m benchmarks.startup FILE KEY=VALUE...` is such a process: `normscope KEY=VALUE...`, with the times in a file.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from normscope.data.options import DatasetOptions
    from normscope.reporting.weights_and_biases import Tracker
    from normscope.running.pipeline import Finished
    from normscope.running.run import Run

_REPEATS = 7
_IMPORTS = "import torch; from transformers import AutoModel; from transformers.models.bert import modeling_bert"
"""What a script that uses a BERT imports."""


def measured_startup() -> list[dict[str, object]]:
    """Medians of bare imports and of default runs, which take turns: seconds to the first batch, of the pass, and after it."""
    seconds: dict[str, list[Sequence[float]]] = {"bare imports": [], "default run": []}
    for _ in range(_REPEATS):
        seconds["bare imports"].append([_timed("-c", _IMPORTS)[1]])
        seconds["default run"].append(_phases())
    columns = ("whole", "to_first_batch", "pass", "after_last_batch")
    return [
        {"way": way}
        | {
            column: round(statistics.median(values), 2)
            for column, values in zip(columns, zip(*measurements, strict=True), strict=False)
        }
        for way, measurements in seconds.items()
    ]


def _phases() -> Sequence[float]:
    """Seconds of a whole run, to its first batch, from there to the end of its last one, and after that."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times")
        started, whole = _timed("-m", "benchmarks.startup", str(file), f"output_dir={folder}/run")
        first, last = json.loads(file.read_text())
    return whole, first - started, last - first, started + whole - last


def _timed(*command: str) -> tuple[float, float]:
    """When Python started a command, and how long that took."""
    started = time.monotonic()  # a clock that processes share
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return started, time.monotonic() - started


def _run(file: Path) -> None:
    from normscope import cli

    def import_and_time(dataset: "DatasetOptions") -> Callable[..., "Finished"]:
        run = import_pipeline(dataset)
        from normscope.running.loop import accumulate

        def accumulate_and_time(current: "Run", tracker: "Tracker") -> None:
            first = time.monotonic()
            accumulate(current, tracker)
            file.write_text(json.dumps([first, time.monotonic()]))

        mock.patch("normscope.running.pipeline.accumulate", accumulate_and_time).start()
        return run

    import_pipeline, cli._import_pipeline = cli._import_pipeline, import_and_time
    cli.main()


if __name__ == "__main__":
    _run(Path(sys.argv.pop(1)))
