"""What the program does on a GPU, in steps that each leave what they have found: `benchmarks/gpu.sh` runs them one by one.

`right` runs the tests marked `cuda`, `fast` and `memory` measure shapes beside the bare pass, and `command` measures a whole
command. `DEVICE=cpu` runs all of it small, to show that it runs.
"""

import contextlib
import dataclasses
import gc
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import tokenizers
import torch
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.configuration_utils import PretrainedConfig

from benchmarks import commands
from benchmarks.measuring import measured, measured_memory
from benchmarks.peers import default_model
from benchmarks.results import machine, show
from benchmarks.scenarios import (
    ANSWER,
    ANSWER_THROUGH,
    BARE,
    BLOCKS,
    EVERYTHING,
    LAST_ROW,
    PROMPT,
    SHAPES,
    Scenario,
)
from normscope.errors import InputError

GPU = "cuda"
TABLES = {GPU: "gpu", "cpu": "gpu_rehearsal"}
"""The name of the table by device: what is measured on a CPU is no table of a GPU."""
ROOT = Path(__file__).parents[1]
TESTS = "tests/unit/test_accelerators.py"
"""The tests marked `cuda`: to look for others takes longer than to run them."""

Row = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Size:
    """How a shape is measured in one dtype."""

    shape: str
    dtype: str
    tokens: int
    """Tokens in a batch: as many as fill the card for a tenth of a second or so, in whole sequences."""
    layers: int | None = None
    """Number of layers, if not the shape's. Relative cost depends on width and length, not on depth."""


SIZES = (
    Size("Llama-3.1-8B", "bfloat16", 8192),
    Size("BERT-base", "bfloat16", 65536),
    Size("Llama-3.2-1B", "bfloat16", 16384),
    Size("BERT-base", "float32", 16384),
    Size("Llama-3.2-1B", "float32", 4096),
    Size("Llama-3.1-8B", "float32", 4096, layers=4),
)
"""Shapes in the order in which they are measured: what matters most comes first, since the step may be cut."""
LENGTHS = (4096, 128, 512)
WAYS = (BARE, "mixing", "norms", EVERYTHING)
ANSWERS = (500, 2000, 5000)
"""Lengths of answers that are attributed, in tokens."""
LONG = 32768
"""Length of the text whose rows of attention are read."""

COMMAND = ("mixing", "norms", "score")
"""Analyses of the whole command."""


def measure(steps: list[str], device: str, folder: Path, repeats: int) -> bool:
    """Run steps; print and write the table after every row of each.

    Args:
        steps: Names of steps.
        device: `cuda` or `cpu`.
        folder: Where the table is; rows of other steps in it are kept.
        repeats: Passes per measurement.

    Returns:
        Whether every test has passed, and nothing has failed but for a lack of memory.
    """
    if device == GPU and not torch.cuda.is_available():
        print("device=cuda: torch finds no such device, so nothing is measured")
        return False
    whole = True
    for step in steps:
        started, rows = time.monotonic(), list[Row]()
        for row in STEPS[step](device, repeats):
            rows.append(row)
            keep(folder, device, step, rows)
            whole &= row.get("note", "") == "" or "out of memory" in str(row["note"]).lower()
        show(rows)
        print(f"{step}: {time.monotonic() - started:.0f} s", flush=True)
    return whole


def keep(folder: Path, device: str, step: str, rows: list[Row]) -> None:
    """Write the rows of a step to the table, in place of what the step found before."""
    path = folder / f"{TABLES[device]}.csv"
    now = pd.DataFrame(rows).assign(machine=card() if device == GPU else machine())
    now.insert(0, "step", step)
    before = pd.read_csv(path) if path.exists() else now[:0]
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat([before[before["step"] != step], now], ignore_index=True).to_csv(path, index=False)


def card() -> str:
    """The GPU, its driver, and versions."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    gibibytes = torch.cuda.get_device_properties(0).total_memory / 2**30
    return (
        f"{torch.cuda.get_device_name()}, {gibibytes:.0f} GiB, driver {driver}, CUDA {torch.version.cuda}, {versions}"
    )


def scenarios(device: str) -> Iterator[Scenario]:
    """Everything that is measured beside a bare pass, with batches that fill the card; small ones for a CPU."""
    if device != GPU:
        for dtype in ("float32", "bfloat16"):
            yield Scenario("tiny Llama", 2, 64, WAYS, dtype=dtype, layers=2)
        yield Scenario("tiny Llama", 1, 128, (BARE, LAST_ROW, BLOCKS), layers=2)
        yield Scenario("tiny Llama", 1, PROMPT + 20, (BARE, ANSWER, ANSWER_THROUGH), layers=2)
        return
    first, *others = SIZES
    free = torch.cuda.mem_get_info()[0]
    yield from _lengths(first, free)
    layers = layers_that_fit(SHAPES["Llama-3.1-8B"], free)
    for answer in ANSWERS:
        ways = (BARE, ANSWER, ANSWER_THROUGH)
        yield Scenario("Llama-3.1-8B", 1, PROMPT + answer, ways, device, "bfloat16", layers)
    yield Scenario("Llama-3.1-8B", 1, LONG, (BARE, LAST_ROW, BLOCKS), device, "bfloat16", min(8, layers))
    for size in others:
        yield from _lengths(size, free)


def _lengths(size: Size, free: int) -> Iterator[Scenario]:
    config = SHAPES[size.shape]
    layers = min(size.layers or config.num_hidden_layers, layers_that_fit(config, free, size))
    for length in LENGTHS:
        yield Scenario(size.shape, size.tokens // length, length, WAYS, device=GPU, dtype=size.dtype, layers=layers)


def layers_that_fit(config: PretrainedConfig, free: int, size: Size = SIZES[0]) -> int:
    """Number of layers of a shape whose weights fit into some memory, with what one layer needs for a batch.

    Args:
        config: The shape: gated networks, as in Llama; others have fewer weights.
        free: Bytes of free memory.
        size: The dtype and the batch.

    Returns:
        At least 1, at most the shape's own number.
    """
    model, network, element = config.hidden_size, config.intermediate_size, getattr(torch, size.dtype).itemsize
    keys = getattr(config, "num_key_value_heads", config.num_attention_heads)
    attention = 2 * model * model * (1 + keys / config.num_attention_heads)
    # The observed weights of attention in float32, with a key and a value for each head, are kept beside the model's own.
    layer = element * (attention + 3 * model * network) + 4 * 4 * model * model
    # The network's vectors in float32, and a dozen tensors of the size of the hidden vectors.
    batch = 4 * size.tokens * (3 * network + 12 * model)
    fitting = (free - batch - element * config.vocab_size * model) / layer
    return max(1, min(config.num_hidden_layers, math.floor(fitting)))


def right(device: str, _repeats: int) -> Iterator[Row]:
    """The tests that compare a device with the CPU: the GPU, or the simulated device if there is none."""
    chosen, marked, workers = ("gpu", "cuda", "8") if device == GPU else ("simulated", "cuda and not slow", "0")
    command = [sys.executable, "-m", "pytest", "-m", marked, "-k", chosen, "-n", workers, "--durations", "5", TESTS]
    started, last = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        command += ["--basetemp", folder]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
            for line in running.stdout or ():
                print(line, end="", flush=True)
                last = line.strip() if re.search(r"\d+ (passed|failed|error)", line) else last
    seconds = round(time.monotonic() - started, 1)
    passed = re.search(r"(\d+) passed", last)
    note = "" if running.returncode == 0 else last or f"pytest: exit status {running.returncode}"
    yield {"way": f"{passed[1] if passed else 0} tests on {chosen}", "seconds": seconds, "note": note}


def fast(device: str, repeats: int) -> Iterator[Row]:
    """Time of each scenario, beside the bare pass in one run."""
    for scenario in scenarios(device):
        with _room(scenario):
            yield from _unless_it_fails(scenario, lambda timed: measured(timed, repeats))


def memory(device: str, _repeats: int) -> Iterator[Row]:
    """Peaks of each scenario; on a CPU, which takes a process for each alternative, of one."""
    for scenario in scenarios(device) if device == GPU else [Scenario("tiny Llama", 2, 64, (BARE, "mixing"), layers=2)]:
        with _room(scenario):
            yield from _unless_it_fails(scenario, measured_memory)


def _unless_it_fails(scenario: Scenario, rows: Callable[[Scenario], list[Row]]) -> list[Row]:
    """The rows of a scenario, or one that says why there are none, so that the others are not lost."""
    try:
        return rows(dataclasses.replace(scenario, memory=False))
    except Exception as error:
        reason = str(error).strip().splitlines() or [""]
        about = dataclasses.asdict(scenario) | {"layers": scenario.layers or SHAPES[scenario.shape].num_hidden_layers}
        note = f"it failed: {type(error).__name__}: {reason[-1]}"
        return [{name: about[name] for name in _ABOUT} | {"way": BARE, "note": note}]


_ABOUT = ("shape", "device", "dtype", "sequences", "length", "layers")


@contextlib.contextmanager
def _room(scenario: Scenario) -> Iterator[None]:
    """Free what the last scenario took, and say how long this one takes."""
    gc.collect()
    if scenario.device == GPU:
        torch.cuda.empty_cache()
    started = time.monotonic()
    yield
    told = f"{scenario.shape}, {scenario.dtype}, {scenario.sequences} × {scenario.length} tokens"
    print(f"{told}: {time.monotonic() - started:.0f} s", flush=True)


def command(device: str, _repeats: int) -> Iterator[Row]:
    """A whole command on the sample corpus, beside the untouched model on the same batches."""
    with tempfile.TemporaryDirectory() as name:
        shape, settings = _model(Path(name))
        settings += [f"device={device}", "report.enabled=false", *([] if device == GPU else ["dataset.limit=4"])]
        run = commands.measured_command("+".join(COMMAND), settings, Path(name))
    yield {
        "shape": shape,
        "device": device,
        "dtype": "float32",
        "way": f"normscope analysis=[{','.join(COMMAND)}]",
        "time_ratio": round(run["pass"] / run["bare"], 3),
        "seconds": round(run["pass"], 2),
        "tokens_per_second": round(run["tokens"] / run["pass"]),
        "command_seconds": round(run["whole"], 1),
        "note": "",
    }


def _model(folder: Path) -> tuple[str, list[str]]:
    """The default model; without its files, its shape with random weights and words as tokens."""
    try:
        default_model()
    except InputError:
        pass
    else:
        return "MiniLM", ["model=minilm"]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words.train_from_iterator(commands.examples(200), tokenizers.trainers.WordLevelTrainer(special_tokens=special))
    words.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    PreTrainedTokenizerFast(
        tokenizer_object=words, **{f"{name}_token": token for name, token in names.items()}
    ).save_pretrained(folder / "model")
    SHAPES["MiniLM"].save_pretrained(folder / "model")
    return "MiniLM, random weights", ["model=minilm", f"model.name={folder / 'model'}", "model.random_init=true"]


STEPS: dict[str, Callable[[str, int], Iterator[Row]]] = {
    "right": right,
    "fast": fast,
    "memory": memory,
    "command": command,
}
"""The steps, each of which yields rows of the table."""
