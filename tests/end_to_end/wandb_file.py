"""Reads the file that an offline Weights & Biases run leaves, to see what a server would be sent.

The format is LevelDB's log: after a seven-byte header, blocks of 32 KiB filled with chunks, each a header of checksum,
length and type (whole, first, middle, last) before its bytes; the joined bytes are one protocol buffer record each.
"""

import fnmatch
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = 7, b""
    while position + _HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        if kind == 0:
            position += left
            continue
        position += _HEADER.size
        parts += data[position : position + length]
        position += length
        if kind in (_WHOLE, _LAST):
            record = pb.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def run_of(folder: Path) -> dict[str, Any]:
    """What the one W&B run below a run folder contains."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return contents(path)


def contents(path: Path) -> dict[str, Any]:
    """What a W&B file contains: description, config, history rows, definitions of metrics, summary, artifacts, exit code."""
    found: dict[str, Any] = {"history": [], "summary": {}, "config": {}, "exit": None, "artifacts": [], "metrics": {}}
    found |= {"system": 0, "charts": {}, "hidden": []}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                run = record.run
                found |= {"id": run.run_id, "name": run.display_name, "job_type": run.job_type, "notes": run.notes}
                found |= {"group": run.run_group, "tags": list(run.tags), "resumed": run.resumed}
                found["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            case "history":
                found["history"].append(_nested(record.history.item))
            case "summary":
                found["summary"] |= _nested(record.summary.update)
            case "metric":
                metric = record.metric
                found["metrics"][metric.name or metric.glob_name] = metric.step_metric
                found["hidden"] += [metric.name or metric.glob_name] * metric.options.hidden
            case "config":
                found["charts"] |= _charts(_nested(record.config.update))
            case "stats":
                found["system"] += 1
            case "request" if record.request.WhichOneof("request_type") == "log_artifact":
                found["artifacts"].append(_artifact(record.request.log_artifact.artifact))
            case "artifact":
                found["artifacts"].append(_artifact(record.artifact))
            case "exit":
                found["exit"] = record.exit.exit_code
    return found


def panels(run: dict[str, Any]) -> list[str]:
    """The panels that a workspace makes of a run by itself: of keys of the history that are not hidden, and of charts."""
    keys = {key for row in run["history"] for key in row if not key.startswith("_")}
    shown = [key for key in keys if not any(fnmatch.fnmatch(key, pattern) for pattern in run["hidden"])]
    return sorted([*shown, *run["charts"]])


def _charts(config: dict[str, Any]) -> dict[str, str]:
    """The kind of each chart, by key."""
    drawn = config.get("_wandb", {}).get("visualize", {})
    return {key: chart["panel_config"]["panelDefId"] for key, chart in drawn.items()}


def _artifact(artifact: Any) -> dict[str, Any]:
    return {
        "name": artifact.name,
        "type": artifact.type,
        "aliases": list(artifact.aliases),
        "files": sorted(entry.path for entry in artifact.manifest.contents),
    }


def _nested(items: Iterable[Any]) -> dict[str, Any]:
    """Items as a dictionary; a picture or a table comes as one item per property."""
    found: dict[str, Any] = {}
    for item in items:
        *path, name = item.nested_key or [item.key]
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = json.loads(item.value_json)
    return found
