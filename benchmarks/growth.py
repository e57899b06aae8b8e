"""How cost grows with the corpus, length, layers, categories, processes and shards: `make bench ARGS="--only growth"`.

Length, layers and categories: passes of one batch with random weights, in a process per row, which alternate with the bare
forward pass. Corpus, processes and shards: complete runs over the sample's texts, repeated as often as needed, whose pass over
the corpus is timed. The state is what shards save and processes send.

`python -m benchmarks.growth run FILE KEY=VALUE...` is `normscope KEY=VALUE...`, with the times written to a file.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from benchmarks.peer_tasks import lines
from benchmarks.peers import default_model
from benchmarks.scenarios import SHAPES
from normscope.reporting.palette import LINE_COLOURS, LINE_STYLES, MARKERS, STYLE

CELL = ("part", "model", "at", "way")
"""The columns that say what a row is about."""
WAYS = ("mixing", "mixing+norms")
TINY, MINILM = "tiny BERT", "MiniLM"

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
LAYERS = (1, 2, 4, 8, 16, 24)
CATEGORIES = (5, 10, 20, 40)
PROCESSES = (1, 2)
SHARDS = (1, 4, 16, 64)
CORPORA = {TINY: (1_000, 10_000, 100_000, 1_000_000), MINILM: (1_000, 10_000)}
"""Sequences of the corpora of each model."""
LARGEST = 10_000
"""The largest corpus by default."""

_WORDS = 12
"""Words of a sequence, about 16 tokens, so that a million of them can be read."""
_TOKENS = 4096
"""Of a batch of any length."""
_PASSES = 3
_SHARED = 2_000
"""Sequences that shards share, in batches so small that each shard has some."""
_SMALL = 512
_IN_PROCESSES = 2_000
"""Sequences that processes share."""
_BARE = ("device=cpu", "tracking=disabled", "report.enabled=false")


@dataclasses.dataclass(frozen=True)
class Pass:
    """One batch of a model with random weights."""

    part: str
    at: int
    """What grows."""
    way: str
    sequences: int
    length: int
    layers: int | None = None
    categories: int | None = None
    """Number of categories; the usual ones if None."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Which sizes to measure."""

    largest: int = LARGEST
    """The largest corpus, in sequences."""
    only: Collection[int] | None = None
    """The only sizes to measure, of any part; all if None."""

    def of(self, sizes: Sequence[int]) -> list[int]:
        """Those of these sizes, of a part, that are to be measured."""
        return [size for size in sizes if self.only is None or size in self.only]


def measured_growth(parts: Sequence[str] | None = None, sizes: Sizes | None = None) -> Iterator[dict[str, object]]:
    """One row per part, model, size and analyses.

    Args:
        parts: Some of PARTS; all by default.
        sizes: Some of the sizes of a part; by default, all but corpora larger than LARGEST.
    """
    for part in PARTS if parts is None else parts:
        yield from PARTS[part](sizes or Sizes())


def _lengths(sizes: Sizes) -> Iterator[dict[str, object]]:
    for length, way in itertools.product(sizes.of(LENGTHS), WAYS):
        yield _of_pass(Pass("length", length, way, max(1, _TOKENS // length), length))


def _layers(sizes: Sizes) -> Iterator[dict[str, object]]:
    for layers, way in itertools.product(sizes.of(LAYERS), WAYS):
        yield _of_pass(Pass("layers", layers, way, 8, 128, layers=layers))


def _categories(sizes: Sizes) -> Iterator[dict[str, object]]:
    for count, way in itertools.product(sizes.of(CATEGORIES), WAYS):
        yield _of_pass(Pass("categories", count, way, 16, 128, categories=count))


def _of_pass(cell: Pass) -> dict[str, object]:
    """A row, measured in its own process."""
    command = [sys.executable, "-m", "benchmarks.growth", "pass", json.dumps(dataclasses.asdict(cell))]
    # Make glibc return freed memory at once; otherwise some stays resident and hides the peak.
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    row: dict[str, object] = json.loads(output.splitlines()[-1])
    return row


def pass_row(cell: Pass) -> dict[str, object]:
    """Run passes in this process: tokens per second, with and without analyses, peak memory, and the bytes of the state."""
    import torch
    from transformers import AutoModel

    from benchmarks.measuring import resident
    from benchmarks.scenarios import analysing, context_of, duration, random_batch
    from normscope.analyses.base import state_of
    from normscope.analyses.registry import analyses
    from normscope.data.categories import ALL

    torch.manual_seed(0)
    config = SHAPES[MINILM].__class__(**SHAPES[MINILM].to_dict())
    config.num_hidden_layers = cell.layers or config.num_hidden_layers
    config.max_position_embeddings = max(config.max_position_embeddings, cell.length)
    model = AutoModel.from_config(config).eval().requires_grad_(False)
    batch, context = random_batch((cell.sequences, cell.length), config.vocab_size), context_of(model)
    if cell.categories is not None:
        names = [f"category {number}" for number in range(cell.categories)]
        context = dataclasses.replace(context, categories=[*names, ALL], names=tuple(names))
        drawn = torch.randint(cell.categories, batch.input_ids.shape).masked_fill(~batch.token_mask, -1)
        batch = dataclasses.replace(batch, categories=drawn)
    settings: dict[str, dict[str, Any]] = {"norms": {"seed": 0}}
    infos = [analyses()[name] for name in cell.way.split("+")]
    measured = [info.load()(info.options(**settings.get(info.name, {})), context) for info in infos]
    analysed = analysing(model, batch, measured)
    inputs = batch.model_inputs()

    def bare() -> None:
        model.set_attn_implementation("sdpa")
        with torch.inference_mode():
            model(**inputs)

    memory = resident(analysed).whole
    state = sum(part.nbytes for part in state_of(measured).values())
    bare()
    times = [(duration(bare), duration(analysed)) for _ in range(_PASSES)]
    tokens = int(batch.token_mask.sum())
    of_bare, seconds = map(statistics.median, zip(*times, strict=True))
    return {
        "part": cell.part,
        "model": MINILM,
        "at": cell.at,
        "way": cell.way,
        "tokens": tokens,
        "seconds": round(seconds, 4),
        "tokens_per_second": round(tokens / seconds),
        "bare_tokens_per_second": round(tokens / of_bare),
        "mebibytes": round(memory / 2**20),
        "state_bytes": state,
    }


def _corpora(sizes: Sizes) -> Iterator[dict[str, object]]:
    for model, known in CORPORA.items():
        for size in sizes.of(known):
            if size <= sizes.largest:
                with _corpus(size, _WORDS) as corpus:
                    # A single shard leaves its state.
                    yield _of_run("corpus", model, size, corpus, "shard=0")


def _processes(sizes: Sizes) -> Iterator[dict[str, object]]:
    for processes in sizes.of(PROCESSES):
        with _corpus(min(_IN_PROCESSES, sizes.largest)) as corpus:
            yield _of_run("processes", MINILM, processes, corpus)


def _shards(sizes: Sizes) -> Iterator[dict[str, object]]:
    for shards in sizes.of(SHARDS):
        with _corpus(min(_SHARED, sizes.largest)) as corpus:
            numbers = f"shard={','.join(map(str, range(shards)))}"
            yield _of_run(
                "shards", MINILM, shards, corpus, numbers, f"shards={shards}", f"device.batch_tokens={_SMALL}"
            )


@contextlib.contextmanager
def _corpus(sequences: int, words: int | None = None) -> Iterator[Path]:
    """The file of a corpus, in its own folder: the sample's texts, or the first words of each."""
    texts = [" ".join(text.split()[:words]) for text in lines()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in itertools.islice(itertools.cycle(texts), sequences))
        yield path


def _of_run(part: str, model: str, at: int, corpus: Path, *overrides: str) -> dict[str, object]:
    """A row from a complete run: one process, several, or the shards of a sweep, which merges them at its end."""
    folder, swept = corpus.parent, part == "shards"
    arguments = ["analysis=[mixing,norms]", "dataset=text", f"dataset.path={corpus}", *_BARE, *overrides]
    if model == TINY:
        _save_tiny(folder / "model")
        arguments.append(f"model.name={folder / 'model'}")
    arguments += [f"hydra.sweep.dir={folder / 'run'}", "-m"] if swept else [f"output_dir={folder / 'run'}"]
    program = [sys.executable, "-m", "benchmarks.growth", "run", str(folder / "times"), *arguments]
    environment = dict(os.environ)
    if part == "processes":
        launcher = ["-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        program[1:2] = [*launcher, f"--nproc-per-node={at}", "-m"]
        environment["OMP_NUM_THREADS"] = "1"
    ended = subprocess.run(program, check=False, capture_output=True, text=True, env=environment)
    if ended.returncode:
        raise RuntimeError(ended.stdout + ended.stderr)
    times = [json.loads(file.read_text()) for file in folder.glob("times*")]
    facts = [json.loads(file.read_text()) for file in (folder / "run").rglob("results.json")]
    read = [each["provenance"] for each in facts if not swept or each["status"] == "shard"]
    states = [file.stat().st_size for file in (folder / "run").rglob("shard.safetensors")]
    tokens = sum(each["tokens"] for each in read)
    seconds = max(sum(each["passes"]) for each in times)
    merged = next((each["merge"] for each in times if each["merge"]), None)
    return {
        "part": part,
        "model": model,
        "at": at,
        "way": "mixing+norms",
        "tokens": tokens,
        "text_bytes": corpus.stat().st_size,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds),
        "model_share": None if swept else round(min(each["model_share"] for each in read), 4),
        "mebibytes": round(max(each["bytes"] for each in times) / 2**20),
        "state_bytes": sum(states) or None,
        "merge_seconds": round(merged[0], 3) if merged else None,
        "merge_mebibytes": round(merged[1] / 2**20) if merged else None,
    }


def _save_tiny(folder: Path) -> None:
    """Save a model of two layers with random weights and the default model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(default_model())
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _run(file: Path) -> None:
    """Run a command, and time its passes over the corpus and the merging of shards."""
    from benchmarks.measuring import status
    from normscope import cli
    from normscope.running import loop, pipeline, shards

    passes: list[float] = []
    merges: list[tuple[float, int]] = []
    peaks: list[int] = []
    accumulate, merge = loop.accumulate, shards.merge

    def timed(function: Callable[..., None], *arguments: Any) -> float:
        started = time.monotonic()
        function(*arguments)
        return time.monotonic() - started

    def note() -> None:
        content: Mapping[str, object] = {
            "passes": passes,
            "merge": merges[0] if merges else None,
            "bytes": max(peaks, default=0),
        }
        file.with_name(f"{file.name}{os.environ.get('RANK', '')}").write_text(json.dumps(content))

    def accumulate_and_time(*arguments: Any) -> None:
        passes.append(timed(accumulate, *arguments))
        peaks.append(status("VmHWM"))
        note()

    def merge_and_time(*arguments: Any) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        seconds = timed(merge, *arguments)
        merges.append((seconds, status("VmHWM")))
        note()

    with (
        mock.patch.object(pipeline, "accumulate", accumulate_and_time),
        mock.patch.object(pipeline, "merge", merge_and_time),
    ):
        cli.main()


PARTS: Mapping[str, Callable[[Sizes], Iterator[dict[str, object]]]] = {
    "corpus": _corpora,
    "length": _lengths,
    "layers": _layers,
    "categories": _categories,
    "processes": _processes,
    "shards": _shards,
}
"""What grows."""

_AXES = {
    "corpus": "sequences",
    "length": "tokens per sequence",
    "layers": "layers",
    "categories": "token categories",
    "processes": "processes",
    "shards": "shards",
}


_COLUMNS = 3
_SERIES = ((MINILM, "mixing"), (MINILM, "mixing+norms"), (TINY, "mixing+norms"))
"""The models and analyses that are drawn as lines."""
_ROOM = 1.5
"""Beyond the smallest and the largest number, so that no marker is cut off."""


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw tokens per second, and below them MiB of memory and of the state, for each part that grows; and write a caption.

    Args:
        table: Rows of `measured_growth`.
        path: The picture.
    """
    parts = [part for part in PARTS if (table["part"] == part).any()]
    columns = min(_COLUMNS, len(parts))
    blocks = -(-len(parts) // columns)
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            2 * blocks, columns, figsize=(2.3 * columns, 3.4 * blocks), squeeze=False, layout="constrained"
        )
        for axis in axes.flat:
            axis.set_visible(False)
        for number, part in enumerate(parts):
            row, column = 2 * (number // columns), number % columns
            speed, memory = axes[row][column], axes[row + 1][column]
            _draw_part(table[table["part"] == part], speed, memory)
            memory.set_xlabel(_AXES[part])
            if column == 0:
                speed.set_ylabel("tokens per second")
                memory.set_ylabel("MiB")
        for kind in (axes[::2], axes[1::2]):
            shown = [axis for axis in kind.flat if axis.get_visible()]
            limits = [axis.get_ylim() for axis in shown]
            for axis in shown:  # the same in all panels of a kind
                axis.set_ylim(min(low for low, _ in limits) / _ROOM, max(high for _, high in limits) * _ROOM)
        labelled = {
            label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            labelled.values(), labelled.keys(), loc="outside upper center", ncols=min(4, len(labelled)), frameon=False
        )
        figure.savefig(path, dpi=200)
        plt.close(figure)
    path.with_suffix(".txt").write_text(f"{caption(table)}\n", encoding="utf-8")


def _draw_part(rows: pd.DataFrame, speed: Axes, memory: Axes) -> None:
    """The two panels of a part."""
    for number, (model, way) in enumerate(_SERIES):
        values = rows[(rows["model"] == model) & (rows["way"] == way)].sort_values("at")
        if values.empty:
            continue
        style: dict[str, Any] = {
            "color": LINE_COLOURS[number],
            "linestyle": LINE_STYLES[number],
            "marker": MARKERS[number],
            "markersize": 3.5,
        }
        hollow = style | {"markerfacecolor": "white"}
        speed.plot(values["at"], values["tokens_per_second"], label=f"{model}, {way.replace('+', ' and ')}", **style)
        memory.plot(values["at"], values["mebibytes"], **style)
        has_state = values[values["state_bytes"].notna()]
        memory.plot(has_state["at"], has_state["state_bytes"] / 2**20, **hollow)
        bare = values[values["bare_tokens_per_second"].notna()]
        if way == WAYS[-1] and not bare.empty:
            speed.plot(
                bare["at"], bare["bare_tokens_per_second"], color="#5a5f66", linestyle=(0, (1, 1)), label="bare pass"
            )
    sizes = sorted(rows["at"].unique())
    shown = sizes if len(sizes) < 5 else sizes[:: (len(sizes) + 3) // 4]
    for axis in (speed, memory):
        axis.set_visible(True)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(axis="y")
        axis.set_xticks(shown, [f"{size:,}" for size in shown])
        axis.xaxis.set_minor_locator(NullLocator())


def caption(table: pd.DataFrame) -> str:
    """What the figure shows, and what to notice.

    Args:
        table: Rows of `measured_growth`.
    """
    text = (
        "Tokens per second, and below them the peak of a process's memory (filled) and the state (hollow), by what grows. "
        "Both axes are logarithmic; where a line is level, the cost of a token stays the same."
    )
    corpora = table[table["part"] == "corpus"].sort_values("at")
    for model, rows in corpora.groupby("model", sort=False):
        few, many = rows.iloc[0], rows.iloc[-1]
        if many["at"] > few["at"]:
            text += (
                f" With {many['at'] // few['at']:,} times as many sequences, {model} runs at "
                f"{many['tokens_per_second']:,} tokens per second instead of {few['tokens_per_second']:,}, in "
                f"{many['mebibytes']:,} MiB instead of {few['mebibytes']:,}."
            )
    return f"{text} {' '.join(dict.fromkeys(table['machine']))}."


if __name__ == "__main__":
    if sys.argv[1] == "pass":
        print(json.dumps(pass_row(Pass(**json.loads(sys.argv[2])))))
    else:
        times = Path(sys.argv[2])
        del sys.argv[1:3]
        _run(times)
