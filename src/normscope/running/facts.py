"""What is said about a run: where its numbers come from, and its name."""

import functools
import hashlib
import json
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata

from normscope.config.schema import plain
from normscope.config.training_step import training_step
from normscope.data.corpora import left_out
from normscope.distribution import CHECKOUT, RUN_SCHEMA, VERSION
from normscope.errors import cut
from normscope.models.stored.stored_weights import number_format
from normscope.reporting.options import NAME_LENGTH, TAG_LENGTH
from normscope.reporting.tracking import RunDescription, dataset_label, layers_label, model_label
from normscope.running.loop import Run
from normscope.running.options import RunOptions, enabled_analyses

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "pandas")

_NAME_LENGTH = 60
"""Characters of a run's name, which stands in a narrow column."""
_SHORTEST = 10
"""Characters of a part that is not cut any further."""


def facts_of(run: Run) -> dict[str, object]:
    """Software, model, corpus, time and verification error, as they are now, at whatever point the run ends."""
    counts, model, speed, verification = run.counts, run.plan.model, run.speed, run.plan.verification
    options = run.plan.options
    return dict(software()) | {
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": run.command,
        "model": model.name,
        "model_revision": model.revision,
        **({} if model.tower is None else {"tower": str(model.tower)}),
        **_of_weights(run),
        "training_step": training_step(vars(options.model), model.folder),
        "device": str(model.device),
        "dtype": number_format(model.model),
        **({"not_measured": note} if (note := model.facts.note) else {}),
        "seed": options.seed,
        "examples": counts.read,
        **counts.facts(),
        "left_out": left_out(options.dataset),
        "tokens_by_category": dict(counts.categories),
        "compared": None if counts.compared is None else counts.compared.facts(),
        "seconds": round(time.monotonic() - run.started, 3),
        "phases": run.phases.seconds(),
        "steps": run.phases.step_seconds(),
        "model_share": None if speed is None or not speed.seconds else round(speed.model_share, 4),
        "verification_error": verification.error,
        "verification_layer": verification.layer,
        "verification_part": verification.part,
    }


def _of_weights(run: Run) -> dict[str, object]:
    """What the weights are, and where they come from: names of models and folders may be those of others."""
    model, (whole, *heads), options = run.plan.model, run.plan.weights.items(), run.plan.options.model
    drawn = model.drawn is not None and model.drawn.digest == whole[1]
    trained = options.training is not None and model.folder is not None
    config = {key: value for key, value in model.model.config.to_dict().items() if key not in _NAMES_IN_CONFIGS}
    return {
        "model_sha256": whole[1],
        "files_sha256": model.files_sha256,
        "heads_sha256": dict(heads),
        "config_sha256": hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest(),
        "weights_from": "seed" if drawn else "memory" if model.folder is None else "files",
        "weights_seed": model.drawn.seed if drawn and model.drawn else options.seed if trained else None,
        "training": options.training if trained else None,
    }


_NAMES_IN_CONFIGS = ("_name_or_path", "transformers_version", "architectures")


@functools.cache
def software() -> Mapping[str, object]:
    """Versions of the software that the numbers depend on, and the commit of this code."""
    libraries = {name: metadata.version(name) for name in _LIBRARIES}
    return {
        "versions": {"python": platform.python_version(), "normscope": VERSION, **libraries},
        "platform": platform.platform(),
        "git_commit": git_commit(),
    }


@functools.cache
def git_commit() -> str | None:
    """Commit of the checkout that contains this code, followed by `+` if files have changed; None outside a checkout."""
    if CHECKOUT is None or not (CHECKOUT / ".git").exists():
        return None
    # `git status` refreshes the index under a lock, which would stay in the checkout if the run were killed meanwhile.
    command = ["git", "--no-optional-locks", "-C", str(CHECKOUT), "status", "--porcelain=v2", "--branch"]
    try:
        status = subprocess.run(
            [*command, "--no-ahead-behind", "--untracked-files=no"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    commit = next(line.split()[-1] for line in status if line.startswith("# branch.oid"))
    if commit == "(initial)":
        return None
    return commit + ("+" if any(not line.startswith("#") for line in status) else "")


def describe(options: RunOptions, command: str, family: str) -> RunDescription:
    """The description of a run."""
    analyses, tracking = enabled_analyses(options.analysis), options.tracking
    dataset = dataset_label(options.dataset)
    layers = [] if options.layers == "all" else [layers_label(options.layers)]
    parts = [
        "+".join(analyses),
        model_label(options.model),
        dataset,
        *layers,
        *_seeds(options.seed, options.model.seed),
    ]
    name = " · ".join(parts)
    kind = (
        "reproduction"
        if options.reproduce is not None
        else "experiment"
        if options.recipe.name is not None
        else "analysis"
    )
    config = plain(options)
    config["dataset"]["name"] = dataset
    return RunDescription(
        name=tracking.name or _short(analyses, parts),
        slug=re.sub(r"[^\w.]+", "-", name, flags=re.ASCII).strip("-")[:NAME_LENGTH],
        job_type=tracking.job_type or kind,
        tags=[tag[:TAG_LENGTH] for tag in dict.fromkeys([family, dataset, *analyses, *tracking.tags]) if tag.strip()],
        notes=tracking.notes or command,
        config=config | {"analyses": analyses, "model_family": family, "schema": RUN_SCHEMA},
    )


def _short(analyses: Sequence[str], parts: Sequence[str]) -> str:
    """The parts of a name as people read it in a list of hundreds: many analyses as their number, and the longest part cut."""
    short = list(parts)
    if len(" · ".join(short)) > _NAME_LENGTH and len(analyses) > 1:
        short[0] = f"{len(analyses)} analyses"
    while (beyond := len(" · ".join(short)) - _NAME_LENGTH) > 0:
        longest = max(range(len(short)), key=lambda place: len(short[place]))
        if len(short[longest]) <= _SHORTEST:
            break
        short[longest] = cut(short[longest], max(_SHORTEST, len(short[longest]) - beyond))
    return " · ".join(short)[:_NAME_LENGTH]


def _seeds(seed: int, of_model: int) -> list[str]:
    return [f"seed {seed}"] if of_model == seed else [f"seed {seed}", f"model seed {of_model}"]
