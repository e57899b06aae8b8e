"""Complete runs over corpora of increasing size, with one process and with two; and over made-up treebanks."""

import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from normscope.data.corpora import sample_path

SIZES = (500, 2_000, 8_000)
PROCESSES = (1, 2)
TREEBANKS = (500, 2_000)
_BARE = ("device=cpu", "tracking=disabled", "report.enabled=false")
_COMMAND = ("analysis=[mixing,norms,outliers]", "dataset=text", *_BARE)


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


def measured_treebanks() -> list[dict[str, object]]:
    """One row per size: seconds and processor seconds of `analysis=syntax` with all measures and probes, and peak memory."""
    rows: list[dict[str, object]] = []
    for size in TREEBANKS:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder) / "corpus.conllu"
            words = _write_treebank(corpus, size)
            arguments = ["analysis=syntax", "dataset=conllu", *_BARE, f"dataset.path={corpus}"]
            seconds, usage = _timed([sys.executable, "run.py", *arguments, f"output_dir={folder}/run"], Path(folder))
        rows.append(
            {
                "sentences": size,
                "words": words,
                "seconds": round(seconds, 1),
                "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
                "mebibytes": round(usage.ru_maxrss / 2**10),
            }
        )
    return rows


def _write_treebank(path: Path, sentences: int) -> int:
    """Write the sample's texts as sentences of 1 to 24 words (12.5 in the mean, as in treebanks of the web), with random trees.

    Returns:
        The number of words.
    """
    generator = random.Random(0)
    with sample_path().open() as sample:
        texts = [json.loads(line)["text"].split() for line in sample]
    total = 0
    with path.open("w") as stream:
        for number in range(sentences):
            words = texts[number % len(texts)][: 1 + number % 24]
            total += len(words)
            order = generator.sample(range(1, len(words) + 1), len(words))
            heads = {word: generator.choice(order[:place]) if place else 0 for place, word in enumerate(order)}
            for word, form in enumerate(words, start=1):
                relation = "dep" if heads[word] else "root"
                stream.write(f"{word}\t{form}\t_\tX\t_\t_\t{heads[word]}\t{relation}\t_\t_\n")
            stream.write("\n")
    return total


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
        seconds, usage = _timed(command, Path(folder), {"OMP_NUM_THREADS": "1"})
        return seconds, usage.ru_maxrss * 1024


def _timed(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[float, resource.struct_rusage]:
    """Seconds that a command takes, and what it used."""
    begun = time.perf_counter()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        _, state, usage = os.wait4(process.pid, 0)
        if state:
            log.seek(0)
            raise RuntimeError(log.read())
    return time.perf_counter() - begun, usage
