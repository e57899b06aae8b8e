"""Complete runs over corpora of increasing size, with one process and with two."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from normscope.data.corpora import sample_path

SIZES = (500, 2_000, 8_000)
PROCESSES = (1, 2)
_COMMAND = (
    "analysis=[mixing,norms,outliers]",
    "dataset=text",
    "device=cpu",
    "tracking=disabled",
    "report.enabled=false",
    "analysis.norms.exact_pairs=0",
)


def measured_corpora() -> list[dict[str, object]]:
    """One row per size and number of processes: seconds, peak memory of a process, seconds per thousand sentences.

    Every process has one thread. Seconds per thousand exclude the time of the smallest corpus, which is mostly startup.
    """
    rows: list[dict[str, object]] = []
    for processes in PROCESSES:
        smallest = 0.0
        for size in SIZES:
            seconds, peak = _run(size, processes)
            smallest = smallest or seconds
            rest = size - SIZES[0]
            rows.append(
                {
                    "processes": processes,
                    "sentences": size,
                    "seconds": round(seconds, 1),
                    "mebibytes": round(peak / 2**20),
                    "seconds_per_thousand": round((seconds - smallest) / rest * 1000, 2) if rest else None,
                }
            )
    return rows


def _run(sentences: int, processes: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder, sample_path().open() as sample:
        texts = [json.loads(line)["text"] for line in sample]
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(itertools.islice(itertools.cycle(texts), sentences)) + "\n")
        program = [sys.executable, "run.py"]
        if processes > 1:
            launcher = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
            program = [sys.executable, *launcher, f"--nproc-per-node={processes}", "run.py"]
        command = [*program, *_COMMAND, f"dataset.path={corpus}", f"output_dir={folder}/run"]
        begun = time.perf_counter()
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
            _, state, usage = os.wait4(process.pid, 0)
            if state:
                log.seek(0)
                raise RuntimeError(log.read())
        return time.perf_counter() - begun, usage.ru_maxrss * 1024
