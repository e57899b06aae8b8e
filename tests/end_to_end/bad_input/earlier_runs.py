"""Bad run folders: configs, results and checkpoints of runs that are resumed, reproduced or compared."""

import json
import random
import shutil
import struct
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import as_json, spoiled, spoiled_bytes
from tests.end_to_end.bad_input.stock import Stock


def earlier_run(draw: random.Random, stock: Stock) -> Case:
    """A run folder whose config or results are broken, gone on with, made again or compared."""
    command = draw.choice(["resume", "reproduce", "compare"])
    name, state = draw.choice(["config.yaml", "results.json"]), draw.getstate()

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.stopped if command == "resume" else stock.finished, folder / "before")
        path = folder / "before" / name
        how = inner.random()
        if how < 0.3:
            path.write_bytes(spoiled_bytes(inner, path.read_bytes()))
        elif how < 0.35:
            path.unlink()
        else:
            value, _ = spoiled(inner, yaml.safe_load(path.read_text()))
            path.write_bytes(as_json(value))  # JSON is YAML

    names = [
        "before",
        "model.",
        "dataset.",
        "analysis",
        "device.",
        "layers",
        "categories",
        "seed",
        "tracking",
        "checkpoint",
    ]
    if command == "compare":
        arguments = ["before", str(stock.finished), "--output", "out"]
        return Case(
            f"compare {name}",
            arguments,
            names,
            prepare,
            statuses=EITHER,
            module="normscope.reporting.comparison.compare",
        )
    arguments = [f"{command}=before", *(["output_dir=out"] if command == "reproduce" else [])]
    return Case(
        f"{command} {name}",
        arguments,
        names,
        prepare,
        statuses=frozenset({0, 1, 2}),
        writes="before" if command == "resume" else "out",
    )


def checkpoint(draw: random.Random, stock: Stock) -> Case:
    """A checkpoint that is broken or forged."""
    state, forged = draw.getstate(), draw.random() < 0.7

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.stopped, folder / "before")
        path = folder / "before/checkpoint.safetensors"
        content = path.read_bytes()
        if not forged:
            path.write_bytes(spoiled_bytes(inner, content))
            return
        length = struct.unpack("<Q", content[:8])[0]
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        tensors = load_file(path)
        if inner.random() < 0.6:
            header, _ = spoiled(inner, json.loads(metadata["normscope"]))
            metadata["normscope"] = as_json(header).decode("utf-8", "replace")
        else:
            key = inner.choice(sorted(tensors))
            tensors[key] = inner.choice(
                [torch.zeros(1), tensors[key].to(torch.int8), torch.zeros(0), torch.zeros(3, 3)]
            )
            if inner.random() < 0.4:
                del tensors[key]
        path.write_bytes(save(tensors, metadata))

    return Case("checkpoint", ["resume=before"], ["checkpoint", "resume"], prepare, statuses=EITHER, writes="before")
