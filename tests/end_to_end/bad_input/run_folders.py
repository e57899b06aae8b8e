"""The boundary of a run's folder: folders that are compared, drawn again or repeated, and that sweeps are written to."""

import random
import shutil
from pathlib import Path

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import spoiled_bytes
from tests.end_to_end.bad_input.stock import Stock
from tests.end_to_end.bad_input.values import VALUES

_FAILURE = b'{"job": "seed=1", "error": "x"}\n'
_NAMES = ("tables/curves.parquet", "failures.jsonl", "results.json", "config.yaml", "tables/mixing_by_layer.parquet")


def earlier(draw: random.Random, stock: Stock) -> Case:
    """A folder with a broken table or record, which is compared, drawn again, resumed or reproduced."""
    name, where = draw.choice(_NAMES), draw.choice(["", "0/", "é/"])
    command, options = draw.choice(["compare", "compare", "page", "resume", "reproduce"]), []
    if command == "compare":
        options = [*draw.choice(VALUES["comparisons"])]
        options += draw.choice([[], [], ["--group", "a"], ["--wandb", ""], ["--wandb", "e/p", "--group", "g"]])
    elsewhere = "--output" in options
    state, source = draw.getstate(), stock.stopped if command == "resume" else stock.finished

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(source, folder / "before" / where)
        path = folder / "before" / ("" if name == "failures.jsonl" else where) / name
        how = inner.random()
        good = path.read_bytes() if path.is_file() else _FAILURE
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if how < 0.7:
            path.write_bytes(spoiled_bytes(inner, good))
        elif how < 0.8:
            path.mkdir()
        elif how < 0.9:
            path.symlink_to(path.name)

    if command == "compare":
        arguments = ["compare", "before", *options, *([] if elsewhere else ["--output", "out"])]
    elif command == "page":
        arguments = ["page", f"before/{where}"]
    else:
        folder_of = ["output_dir=out"] if command == "reproduce" else []
        arguments = ["tracking=disabled", f"{command}=before/{where}", *folder_of]
    return Case(
        f"{command} {where}{name} {options}",
        arguments,
        ["before", "--", *(option[:99] for option in options), "finished", "stopped", "wandb", "run"],
        prepare,
        statuses=EITHER if command != "reproduce" else frozenset({0, 1, 2}),
        writes=("outputs" if elsewhere else "out") if command in ("compare", "reproduce") else "before",
    )


def sweep(draw: random.Random, stock: Stock) -> Case:
    """A sweep with bad jobs, or into a folder that holds broken files."""
    bad = draw.choice(VALUES["sweeps"])
    name = draw.choice(["failures.jsonl", "0/results.json", "results.json", "multirun.yaml", "0", "x/results.json"])
    state = draw.getstate()

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        path = folder / "out" / name
        if inner.random() < 0.6:
            path.parent.mkdir(parents=True)
            good = inner.choice([_FAILURE, (stock.finished / "results.json").read_bytes()])
            path.write_bytes(inner.choice([b"", good, spoiled_bytes(inner, good)]))

    statuses, writes = frozenset({0, 1, 2}), "." if "dir=" in bad else "out"
    return Case(f"sweep {bad} {name}", ["-m", *stock.common(), bad], [""], prepare, statuses=statuses, writes=writes)
