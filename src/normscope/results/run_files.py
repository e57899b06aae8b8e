"""The files of a run folder that are not tables: `results.json`, with the facts of the run, and `config.yaml`.

A folder may come from someone else, or be damaged: everything is read with size limits and validated.
"""

import dataclasses
import enum
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError, printable
from normscope.rounding import brief_share, counted
from normscope.untrusted.plain_data import MIB, Kind, json_mapping, require, shown, yaml_mapping

FUNCTION = "function"
"""The key of a config that names the function of single texts, which are their own corpus. The config of a run lacks it."""

Type = Literal["string", "integer", "number", "object", "array"]
"""A type of JSON."""


@dataclasses.dataclass(frozen=True)
class Fact:
    """One fact. Its value may be null, and a run that failed early lacks most facts."""

    type: Type
    meaning: str
    of: Type | None = None
    """What the values of an object, or the items of an array, are."""


FACTS: Mapping[str, Fact] = {
    "versions": Fact(
        "object", "Versions of Python, of normscope and of the libraries that numbers depend on.", "string"
    ),
    "platform": Fact("string", "The operating system."),
    "git_commit": Fact("string", "Commit of the checkout that ran, followed by `+` if it had uncommitted changes."),
    "finished": Fact("string", "Local time at which the run ended, `YYYY-MM-DD HH:MM:SS`."),
    "command": Fact("string", "The command line; for a job of a sweep, one that runs this job alone."),
    "model": Fact("string", "Name of the model."),
    "model_revision": Fact("string", "Commit of the model on the Hub."),
    "tower": Fact("string", "Which part of a model that embeds images and texts was measured: `image` or `text`."),
    "model_sha256": Fact("string", "Digest of the weights that were measured, wherever they came from."),
    "files_sha256": Fact(
        "string", "Digest of the weight files; null for weights of other origins, or with an adapter."
    ),
    "heads_sha256": Fact("object", "Digests of the weights that heads add to them, by head.", "string"),
    "config_sha256": Fact("string", "Digest of the model's config, without names."),
    "weights_from": Fact(
        "string",
        "`seed` if the weights were drawn at random; otherwise it is not known whether they are trained: `files` or `memory`.",
    ),
    "weights_seed": Fact(
        "integer", "The seed from which the weights were drawn, or that of `training`; null if unknown."
    ),
    "training": Fact("string", "The training that was repeated with other seeds, as declared by `model.training`."),
    "training_step": Fact("integer", "Training step of the checkpoint."),
    "device": Fact("string", "The device that the model ran on."),
    "dtype": Fact("string", "Number format of the weights."),
    "not_measured": Fact(
        "string", "The layers that are not measured, and what they have instead of attention that is."
    ),
    "seed": Fact("integer", "Seed of all random choices."),
    "examples": Fact("integer", "Number of examples read."),
    "skipped": Fact("object", "Number of examples skipped, by reason.", "integer"),
    "remarks": Fact(
        "object", "Number of examples used, by what was lost from them or is unusual about them.", "integer"
    ),
    "left_out": Fact("array", "Files in the folder of the corpus that are not part of the corpus.", "string"),
    "not_shown": Fact("array", "What the token maps leave out to keep the page small.", "string"),
    "unknown_share": Fact(
        "number", "Share of the unknown token among the ordinary tokens; null without ordinary tokens."
    ),
    "examples_used": Fact("integer", "Number of examples analysed."),
    "sequences": Fact("integer", "Number of sequences analysed."),
    "texts_digest": Fact("string", "Digest of their tokens before any are masked, whatever their order."),
    "cut": Fact("integer", "Number of examples truncated."),
    "tokens": Fact("integer", "Number of tokens analysed."),
    "tokens_by_category": Fact("object", "Number of tokens by category.", "integer"),
    "compared": Fact(
        "object",
        "Counts of the pairs whose texts are compared, if other analyses read these pairs as single sequences.",
    ),
    "seconds": Fact("number", "Wall time of the run, in seconds."),
    "phases": Fact(
        "object",
        "Seconds of each phase, in order; `start`, in which Python's libraries are imported, is not part of `seconds`. For a "
        "resumed run, those of the process that completed it.",
        "number",
    ),
    "steps": Fact("object", "Seconds of the steps within phases, by name.", "number"),
    "model_share": Fact(
        "number", "Share of the time of the pass over the corpus in which the model and the analyses ran."
    ),
    "verification_error": Fact("number", "Largest relative difference from the untouched model, measured at load."),
    "verification_layer": Fact("integer", "Layer of that difference, from 1."),
    "verification_part": Fact("string", "Part of the layer that has this difference."),
}
"""All facts, by name."""

_MANY_UNKNOWN = 0.05
"""Above this share of unknown tokens, numbers say more about the tokenizer's gaps than about the texts."""


def lost(facts: Mapping[str, Any], longest: str = "the maximum number of tokens (dataset.max_length)") -> list[str]:
    """What was lost from a corpus and what is unusual about it, in sentences.

    Args:
        facts: The facts of a run; only those about the corpus are read.
        longest: What examples were truncated to.
    """
    sentences = {f"truncated to {longest}": facts.get("cut", 0)}
    sentences |= {f"skipped: {reason}": number for reason, number in (facts.get("skipped") or {}).items()}
    said = [f"{counted(number, 'example was', 'examples were')} {what}" for what, number in sentences.items() if number]
    said += [f"{counted(number, 'example')} {what}" for what, number in (facts.get("remarks") or {}).items()]
    if unknown := facts.get("unknown_share"):
        sentence = f"the tokenizer does not know {brief_share(unknown)} of the ordinary tokens"
        many = unknown > _MANY_UNKNOWN
        said.append(f"warning: {sentence}; do it and the texts share a language?" if many else sentence)
    if names := facts.get("left_out"):
        said.append(f"files in the folder that were not read: {printable(', '.join(names), 300)}")
    return said


RESULTS = "results.json"
CONFIG = "config.yaml"
MAPS = "maps.parquet"

_MOST_RESULTS, _MOST_CONFIG = 64 * MIB, MIB


class Status(enum.StrEnum):
    """How a run ended. A folder without results.json belongs to a run that was killed or is still running."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


_KINDS: dict[Type, Kind] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping",
    "array": "a list",
}


def results_content(
    status: str,
    metrics: Mapping[str, float],
    facts: Mapping[str, object],
    error: str = "",
    words: Mapping[str, Sequence[object]] | None = None,
) -> bytes:
    """The content of results.json.

    Args:
        status: How the run ended.
        metrics: Finite numbers.
        facts: Where the numbers come from.
        error: Why the run failed, if it did.
        words: Names of tables and figures in their order, sentences, notes and summaries.
    """
    not_finite = [name for name, value in metrics.items() if not math.isfinite(value)]
    if not_finite:
        raise ValueError(f"metrics must be finite: {not_finite}")
    content: dict[str, object] = {"schema": RUN_SCHEMA, "status": str(status), "metrics": dict(metrics)}
    content |= {"facts": dict(facts), **(words or {})}
    if status == Status.FAILED:
        content["error"] = " ".join(error.split())
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def read_results(folder: Path) -> dict[str, Any]:
    """The content of results.json.

    Raises:
        InputError: If results.json is missing, was not written by a run, or has a schema that this version does not know.
    """
    path = folder / RESULTS
    results = json_mapping(path, _MOST_RESULTS)
    require(path, results, "schema", "a whole number")
    if results["schema"] != RUN_SCHEMA:
        raise InputError(
            f"{path}: expected schema {RUN_SCHEMA}, got {results['schema']}: another version of normscope wrote this run"
        )
    require(path, results, "status", "a text")
    for key in ("metrics", "facts"):
        require(path, results, key, "a mapping")
    if results["status"] not in list(Status):
        raise InputError(f"{path}: expected a status of {', '.join(Status)}, got {shown(results['status'])}")
    for name in results["metrics"]:
        require(path, results["metrics"], name, "a number")
    for name, fact in FACTS.items():
        require(path, results["facts"], name, _KINDS[fact.type], optional=True)
    for name in ("tables", "figures", "sentences", "notes", "summaries"):
        require(path, results, name, "a list", optional=True)
    return results | {"metrics": {name: float(value) for name, value in results["metrics"].items()}}


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a completed run."""
    try:
        return bool(read_results(folder)["status"] == Status.COMPLETED)
    except InputError:
        return False


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a run, nested as in the schema, which it need not match.

    Raises:
        InputError: If config.yaml is missing, or is not a mapping of plain data.
    """
    return yaml_mapping(folder / CONFIG, _MOST_CONFIG)


def require_run(folder: Path) -> None:
    """Check that a folder holds a finished run.

    Raises:
        InputError: If it does not; the message says what the folder holds instead.
    """
    name = printable(str(folder), 300)
    try:
        if (folder / RESULTS).exists():
            return
        if not os.path.lexists(folder):
            raise InputError(f"run={name}: expected the folder of a run, but it does not exist")
        if not folder.is_dir():
            raise InputError(f"run={name}: expected the folder of a run, got a file")
        jobs = sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
    except (OSError, ValueError) as error:
        raise InputError(f"run={name}: expected the folder of a run: {error}") from error
    if jobs:
        raise InputError(
            f"run={name}: expected the folder of one run, got the folder of several; read one of them, such as {jobs[0]}"
        )
    if (folder / CONFIG).exists():
        raise InputError(f"run={name}: the run is unfinished; continue it with resume={name}, or wait until it ends")
    raise InputError(f"run={name}: expected the folder of a run, but it has no {RESULTS}")
