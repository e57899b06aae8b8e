"""Bad folders of runs that are compared, and bad sweeps."""

import random
import shutil
from pathlib import Path

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import spoiled_bytes
from tests.end_to_end.bad_input.stock import Stock


def comparison(draw: random.Random, stock: Stock) -> Case:
    """Folders to compare with a broken table or record, and options that make no sense."""
    name = draw.choice(
        ["tables/curves.parquet", "failures.jsonl", "results.json", "config.yaml", "tables/mixing_by_layer.parquet"]
    )
    options = draw.choice(
        [
            *([], [], [], ["--baseline", "nope"], ["--baseline", ""], ["--baseline", "a\nb"], ["--baseline"]),
            *(["--output", "/proc/x"], ["--output", "before/results.json"], ["--output", "x" * 300], ["--nope"]),
            *(["nope"], [""], ["\x1b[31m"], ["x" * 5000], ["/dev/null"]),
        ]
    )
    options += draw.choice([[], [], ["--group", "a"], ["--wandb", ""], ["--wandb", "e/p", "--group", "g"]])
    state, where = draw.getstate(), draw.choice(["", "0/", "é/"])

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.finished, folder / "before" / where)
        path = folder / "before" / ("" if name == "failures.jsonl" else where) / name
        how = inner.random()
        good = b'{"job": "seed=1", "error": "x"}\n' if name == "failures.jsonl" else path.read_bytes()
        path.unlink(missing_ok=True)
        if how < 0.7:
            path.write_bytes(spoiled_bytes(inner, good))
        elif how < 0.8:
            path.mkdir()
        elif how < 0.9:
            path.symlink_to(path.name)

    named = ["--output", "out"] if "--output" not in options else []
    return Case(
        f"compare {where}{name} {options}",
        ["compare", "before", *options, *named],
        ["before", "--", *(option[:99] for option in options), "finished", "wandb", "run"],
        prepare,
        statuses=EITHER,
        writes="outputs" if "--output" in options else "out",
    )


def sweep(draw: random.Random, stock: Stock) -> Case:
    """A sweep with bad jobs, or into a folder that holds broken files."""
    bad = draw.choice(
        [
            *(
                "seed=1,x",
                "seed=1,-1",
                "layers=[1],[99]",
                "model.name=nope",
                "model.name=,",
                "seed=range(3,1)",
                "seed=1,",
            ),
            *(
                "'seed=choice()'",
                "seed=glob(*)",
                "model=brt,bert",
                "hydra.sweep.dir=/proc/x",
                "hydra.sweep.subdir=a/../b",
            ),
            *("hydra.sweep.subdir=''", "hydra/launcher=nope", "hydra/sweeper=nope", "hydra.launcher.x=1", "seed=1,1"),
            *(
                "resume=before,nope",
                "output_dir=a,b",
                "hydra.sweep.dir=null",
                "hydra.sweep.dir=work",
                "hydra.job.num=x",
            ),
        ]
    )
    name, state = (
        draw.choice(["failures.jsonl", "0/results.json", "results.json", "multirun.yaml", "0", "x/results.json"]),
        draw.getstate(),
    )

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        path = folder / "out" / name
        if inner.random() < 0.6:
            path.parent.mkdir(parents=True)
            good = inner.choice([b'{"job": "seed=1", "error": "x"}\n', (stock.finished / "results.json").read_bytes()])
            path.write_bytes(inner.choice([b"", good, spoiled_bytes(inner, good)]))

    return Case(
        f"sweep {bad} {name}",
        ["-m", *stock.common(), bad],
        [""],
        prepare,
        statuses=frozenset({0, 1, 2}),
        writes="." if "dir=" in bad else "out",
    )
