"""Bad overrides: values, groups, syntax and paths; bad environment variables."""

import dataclasses
import os
import random
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normscope.running.options import RunOptions
from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.stock import Stock


def leaves() -> Iterator[tuple[str, str]]:
    """Keys of the schema on the command line, and their types."""

    def walk(kind: Any, prefix: str) -> Iterator[tuple[str, str]]:
        for name, of in typing.get_type_hints(kind).items():
            if dataclasses.is_dataclass(of):
                yield from walk(of, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", of.__name__ if isinstance(of, type) else str(of)

    yield from walk(RunOptions, "")


LEAVES = list(leaves())
STRINGS = [key for key, kind in LEAVES if "str" in kind and "dict" not in kind and "list" not in kind]
PATHS = ["dataset.path", "dataset.pair_path", "model.name", "model.tokenizer", "analysis.frequency.path", "output_dir"]
PATHS += [
    "analysis.frequency.source",
    "analysis.alignment.gold.path",
    "resume",
    "reproduce",
]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


# What a key needs beside it to be looked at.
def _with(stock: Stock, key: str) -> list[str]:
    if key.startswith("analysis.alignment") or key == "dataset.pair_path":
        return stock.aligning()
    extra = {"dataset.path": ["dataset=text"], "dataset.delimiter": ["dataset=text", "dataset.path=a.csv"]}
    section = key.split(".")[1] if key.startswith("analysis.") and key.count(".") > 1 else "mixing"
    return [*stock.common(), f"analysis=[{section}]", *extra.get(key, [])]


def wrong_value(draw: random.Random, stock: Stock) -> Case:
    """A value of the wrong type, or out of range, for any key."""
    key, kind = draw.choice(LEAVES)
    value = draw.choice(
        [
            *("x", "1.5", "[1]", "{a:1}", "null", "-1", "0", "true", "1e400", "nan", "-inf", "9" * 5000, "99999999999"),
            *("[[]]", "[null]", "[-1]", "[x,y]", "{}", "'${nope}'", "'${seed}'", "'${oc.env:NOPE}'", "'a b'", "3.0"),
            *("18446744073709551616", "-9223372036854775809", "'${dataset}'", "é", "'???'"),
        ]
    )
    writes = value.strip("'") if key == "output_dir" else "out"
    arguments = [*_with(stock, key), f"{key}={value}"]
    names = [_last(key), *(["analysis=[]"] if key.endswith(".enabled") else [])]  # false disables the only analysis
    return Case(f"{key} ({kind}) = {value:.30}", arguments, names, statuses=EITHER, writes=writes)


def two_values(draw: random.Random, stock: Stock) -> Case:
    """Several values, each of which may be fine alone, at the edge of what numbers can be."""
    numbers = [key for key, kind in LEAVES if "int" in kind or "float" in kind]
    others = [key for key, kind in LEAVES if key not in ("output_dir", "resume", "reproduce") and key not in numbers]
    chosen = [*draw.sample(numbers, 2), draw.choice(others)]
    edges = ["0", "1", "2", "2147483647", "2147483648", "9223372036854775807", "-1", "0.5", "1e-300", "1e300", "null"]
    words = ["true", "false", "text", "x", "sentence", "'\\u0000'", "\u202e", "[a,b]", "[1,2]", "{a:1}", "''", "0"]
    overrides = [f"{key}={draw.choice(edges if key in numbers else words)}" for key in chosen]
    arguments = [*stock.common(), "analysis=[mixing,norms,frequency,outliers,score]", *overrides]
    return Case(f"values {overrides}", arguments, [_last(key) for key in chosen], statuses=EITHER)


def empty_value(draw: random.Random, stock: Stock) -> Case:
    """An empty string where something is meant."""
    key = draw.choice([*STRINGS, "+model.pin.name", "tracking.tags"])
    value = draw.choice(["", "''", '""', "' '"])
    if key in ("dataset.delimiter", "dataset.separator"):
        value = "''"
    if key == "tracking.tags":
        value = "['']"
    return Case(f"{key}={value}", [*_with(stock, key), f"{key}={value}"], [_last(key)])


def odd_group(draw: random.Random, stock: Stock) -> Case:
    """Groups and sections that are none."""
    groups = ["model", "dataset", "analysis", "device", "tracking", "experiment", "checkpoint", "report", "recipe"]
    key = draw.choice(
        [
            *groups,
            "analysis.mixing",
            "analysis.norms",
            "model.pin",
            "dataset.categories",
            "layers",
            "categories",
            "analysis.alignment.gold",
            "analysis.alignment.baselines",
            "hydra",
            "hydra.job",
            "hydra.sweep.dir",
        ]
    )
    value = draw.choice(
        [
            "null",
            "3",
            "[]",
            "{}",
            "[mixing,3]",
            "x/../../y",
            "[a,a]",
            "{a:{b:[1]}}",
            "''",
            "true",
            "é",
            "/etc",
            "[null]",
        ]
    )
    return Case(f"group {key}={value}", [*stock.common(), f"{key}={value}"], [_last(key), "analysis"], statuses=EITHER)


def odd_syntax(draw: random.Random, stock: Stock) -> Case:
    """Overrides that are none."""
    override = draw.choice(
        [
            *(
                "dataset",
                "=3",
                "dataset.=1",
                "a b=1",
                "[",
                "dataset.path=[",
                "dataset.limit",
                "+x.y=1",
                "++x=1",
                "~seed",
            ),
            *(
                "~dataset",
                "~analysis",
                "dataset.path='",
                "dataset.path={",
                "seed=1,2",
                "seed=choice(1)",
                "seed=${",
                "seed=$",
            ),
            *(
                "analysis.mixing.enabled.x=1",
                "+seed=1",
                "hydra/x=1",
                "+dataset=text",
                "dataset@x=text",
                "model@=bert",
                "..=1",
            ),
            *(
                "~model.name",
                "+dataset.categories.other=[a]",
                "+dataset.categories.x=re:(",
                "--foo",
            ),
            *(
                "+dataset.categories.x=file:/nope",
                "+dataset.categories.x=[[1]]",
                "+dataset.categories.x={a:1}",
                "--multirun=3",
            ),
            *(
                "+dataset.categories.x=re:(a+)+b",
                "seed=range(1)",
                "seed=int(x)",
                "\n",
                "dataset.path=\n",
                "seed=\x00".strip(),
            ),
            *(
                "+dataset.categories.x=",
                "+dataset.categories.''=a",
                "hydra.run.dir=",
                "hydra.run.dir=/proc/x",
                "hydra.verbose=[3]",
                "+hydra.job.env_copy=[NOPE]",
                "-c",
                "-x",
            ),
        ]
    )
    return Case(f"syntax {override!r}", [*stock.common(), override], [""], statuses=EITHER)


def odd_path(draw: random.Random, stock: Stock) -> Case:
    """Paths that cannot be."""
    key = draw.choice(PATHS)
    value = draw.choice(
        [
            *(
                "/proc/nope/x",
                "~nobody-of-that-name/x",
                "a\nb",
                "x" * 300,
                "/".join(["x" * 200] * 30),
                "loop",
                "fifo",
                "secret",
            ),
            *(
                "folder",
                "empty",
                "/dev/null",
                "/dev/zero",
                "*",
                "[",
                "**",
                "{a}",
                "a\\b",
                ".",
                "..",
                "/",
                "wide.txt/x",
                "\x1b[31m",
            ),
            *(
                "\t",
                "-",
                "--help",
                "con:",
                "http://x/y",
                "file:///etc/passwd",
                "a/./b",
                "\u202e",
                "é" * 200,
                "none.txt",
                "x" * 5000,
            ),
        ]
    )

    def prepare(folder: Path) -> None:
        (folder / "loop").symlink_to("loop")
        os.mkfifo(folder / "fifo")
        (folder / "folder").mkdir()
        (folder / "empty").write_bytes(b"")
        (folder / "wide.txt").write_text("x")
        (folder / "secret").write_text("x")
        (folder / "secret").chmod(0)

    if key == "output_dir" and value == "/":
        value = "/proc"  # the run would be right to write there
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    texts = key in ("dataset.path", "analysis.frequency.source") and value in ("*", "**", "folder", ".", "..", "/")
    return Case(
        f"{key}={value!r:.40}",
        [*_with(stock, key), f'{key}="{quoted}"'],
        [_last(key)],
        prepare,
        statuses=EITHER if key == "output_dir" or texts else frozenset({2}),
        writes=value if key == "output_dir" else "out",
    )


def environment(draw: random.Random, stock: Stock) -> Case:
    """Environment variables that make no sense."""
    name = draw.choice(
        [
            *(
                "WORLD_SIZE",
                "RANK",
                "LOCAL_RANK",
                "XDG_CACHE_HOME",
                "HOME",
                "COLUMNS",
                "HYDRA_FULL_ERROR",
                "TMPDIR",
                "LANG",
            ),
            *(
                "MPLCONFIGDIR",
                "HF_HOME",
                "WANDB_MODE",
                "WANDB_DIR",
                "WANDB_PROJECT",
                "SLURM_JOB_ID",
                "NO_COLOR",
                "TERM",
            ),
            *("MASTER_PORT", "MASTER_ADDR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TZ", "PYTHONIOENCODING"),
        ]
    )
    value = draw.choice(["abc", "-1", "", "0", "1.5", "/proc/x", "9" * 5000, "é", "2", "/dev/null", " 1 ", "1e3"])
    extra = {} if name == "WORLD_SIZE" else {"WORLD_SIZE": draw.choice(["1", "2"])} if name == "RANK" else {}
    return Case(
        f"{name}={value:.30}", stock.common(), [name, "WORLD_SIZE"], environment=extra | {name: value}, statuses=EITHER
    )
