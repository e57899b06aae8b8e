"""How long a user waits for whole commands with default options: seconds, by phase, and as multiples of a bare pass.

Each command has its own process, which records the seconds of its phases (`facts.phases` in results.json). Just before
each, another process reads the same batches and runs the untouched model on them, with fused attention:
`python -m benchmarks.commands FILE KEY=VALUE...` is such a process. Ratios are medians over these pairs of processes, because
the machine's load changes from minute to minute.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

from normscope.analyses.registry import analyses, plug_ins
from normscope.data.corpora import sample_path

if TYPE_CHECKING:
    from normscope.reporting.tracker import Tracker
    from normscope.results.result import Result
    from normscope.running.loop import Run
    from normscope.running.options import RunOptions

MODELS = ("MiniLM", "BERT-base")
"""The models, by their names in tables; the second has random weights."""
SIZES = (120, 2_000)
ANALYSES = tuple(
    name
    for name, info in analyses().items()
    if not (info.requires_annotation or info.requires_cross_attention or info.requires_pairs or info in plug_ins())
)
"""Every analysis of plain text: those that need no trees, no pairs and no translation model."""
TOGETHER = "+".join(ANALYSES)
WAYS = (*ANALYSES, TOGETHER)
BEFORE = ("start", "model", "corpus")
"""The phases before the first batch. They do not grow with the corpus, unless an analysis reads it beforehand."""
PHASES = ("pass", "interventions", "results", "maps", "views")
"""The phases from the first batch on, which are reported one by one."""


def measured_commands(repeats: int) -> Iterator[dict[str, object]]:
    """One row per model, number of examples and command, as soon as it has been measured.

    Args:
        repeats: How often each command is run.
    """
    with tempfile.TemporaryDirectory() as folder:
        for shape, size in itertools.product(MODELS, SIZES):
            corpus = Path(folder, f"{size}.jsonl")
            corpus.write_text("".join(examples(size)))
            settings = [*_model(shape, Path(folder)), "device=cpu", "dataset=text", f"dataset.path={corpus}"]
            for way in WAYS:
                runs = [measured_command(way, settings, Path(folder)) for _ in range(repeats)]
                yield {"shape": shape, "examples": size, "way": way} | medians(runs)


def _model(shape: str, folder: Path) -> list[str]:
    """The keys of a model. BERT-base is a config without weights, which takes the tokenizer of MiniLM."""
    if shape == "MiniLM":
        return ["model=minilm"]
    from transformers import BertConfig

    BertConfig().save_pretrained(folder / "bert-base")
    tokenizer = "model.tokenizer=sentence-transformers/all-MiniLM-L6-v2"
    return ["model=minilm", f"model.name={folder / 'bert-base'}", "model.random_init=true", tokenizer]


def examples(number: int) -> Iterator[str]:
    """Examples of the sample corpus, repeated as needed, as lines of a file: sentences, and pairs of paragraphs."""
    with sample_path().open(encoding="utf-8") as file:
        yield from itertools.islice(itertools.cycle(file.readlines()), number)


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians of what was measured of each run: seconds, and multiples of the bare pass just before it.

    Args:
        runs: Seconds of the whole command (`whole`), of the bare pass before it (`bare`) and of the phases of the command.
    """

    def ratio(*phases: str) -> float:
        return round(statistics.median(sum(run.get(phase, 0.0) for phase in phases) / run["bare"] for run in runs), 3)

    def seconds(*names: str) -> float:
        return round(statistics.median(sum(run.get(name, 0.0) for name in names) for run in runs), 2)

    return {
        "seconds": seconds("whole"),
        "before_first_batch": seconds(*BEFORE),
        "bare_pass": seconds("bare"),
        "ratio": ratio(*PHASES),
        **{f"{phase}_ratio": ratio(phase) for phase in PHASES},
        "repeats": len(runs),
    }


def measured_command(way: str, settings: Sequence[str], folder: Path) -> dict[str, float]:
    """Seconds of a command (`whole`), of its phases, and of the bare pass before it (`bare`); and its number of `tokens`.

    Args:
        way: Names of analyses joined by +.
        settings: Further arguments of the command.
        folder: Where it writes.
    """
    with tempfile.TemporaryDirectory(dir=folder) as own:
        bare, run = Path(own, "bare.json"), Path(own, "run")
        _timed("-m", "benchmarks.commands", str(bare), *settings, f"output_dir={own}/bare")
        analyses = f"analysis=[{way.replace('+', ',')}]"
        whole = _timed("run.py", analyses, *settings, "tracking=disabled", f"output_dir={run}")
        facts = json.loads((run / "results.json").read_text())["facts"]
        return {"whole": whole, "bare": json.loads(bare.read_text()), "tokens": facts["tokens"]} | facts["phases"]


def _timed(*command: str) -> float:
    seconds, _ = cost_of(*command)
    return seconds


def cost_of(*command: str, **environment: str) -> tuple[float, float]:
    """Seconds that a Python process takes, and the peak in MiB of the largest process among it and those that it waits for.

    Args:
        command: Arguments of Python.
        environment: Environment variables to set.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env=os.environ | environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}\n{log.read()}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def _bare(run: "Run", file: Path) -> NoReturn:
    """Run the untouched model on all batches of a run, write the seconds to a file, and end the process."""
    import torch

    model = run.plan.model
    model.model.set_attn_implementation("sdpa")
    started = time.monotonic()
    with torch.inference_mode(), run.stream.ahead_of(model.device):
        for batch, _ in run.stream:
            model.model(**batch.to(model.device).model_inputs())
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    file.write_text(json.dumps(time.monotonic() - started))
    raise SystemExit(0)


def _run(file: Path) -> None:
    from normscope import cli

    def import_and_replace(options: "RunOptions") -> "Callable[..., Result | None]":
        run = import_pipeline(options)

        def pass_bare(current: "Run", _tracker: "Tracker") -> Any:
            _bare(current, file)

        mock.patch("normscope.running.pipeline.accumulate", pass_bare).start()
        return run

    import_pipeline, cli._import_pipeline = cli._import_pipeline, import_and_replace
    sys.argv.append("tracking=disabled")
    cli.main()


if __name__ == "__main__":
    _run(Path(sys.argv.pop(1)))
