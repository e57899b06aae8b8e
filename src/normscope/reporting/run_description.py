"""The name, tags, notes and config by which people tell tracked runs apart."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.config.schema import (
    INCIDENTAL,
    NAME_LENGTH,
    TAG_LENGTH,
    DatasetOptions,
    ModelOptions,
    RunOptions,
    enabled_analyses,
    flat,
    plain,
)
from normscope.config.training_step import step_in, without_step
from normscope.reporting.tracker import RunDescription


def describe(options: RunOptions, command: str, family: str) -> RunDescription:
    """The description of a run.

    Args:
        options: The whole config.
        command: What the user typed.
        family: The model's family.
    """
    analyses, tracking = enabled_analyses(options.analysis), options.tracking
    dataset = dataset_label(options.dataset)
    layers = [] if options.layers == "all" else [layers_label(options.layers)]
    parts = ["+".join(analyses), model_label(options.model), dataset, *layers, *_seeds(options)]
    name = " · ".join(parts)[:NAME_LENGTH]
    config = plain(options)
    config["dataset"]["name"] = dataset
    return RunDescription(
        name=tracking.name or name,
        slug=re.sub(r"[^\w.]+", "-", name, flags=re.ASCII).strip("-")[:NAME_LENGTH],
        job_type=tracking.job_type or _job_type(options),
        tags=[tag[:TAG_LENGTH] for tag in dict.fromkeys([family, dataset, *analyses, *tracking.tags]) if tag.strip()],
        notes=tracking.notes or command,
        config=config | {"analyses": analyses, "model_family": family},
    )


def parameters(config: Mapping[str, Any]) -> dict[str, object]:
    """What of a description's config numbers depend on, flat: no options of analyses that are not enabled.

    For trackers that show parameters as columns.
    """
    skipped = [f"{key}." for key in INCIDENTAL] + [
        f"analysis.{name}." for name in config["analysis"] if name not in config["analyses"]
    ]
    return {
        key: value
        for key, value in flat(config).items()
        if key not in INCIDENTAL and not key.startswith(tuple(skipped))
    }


def model_label(options: ModelOptions) -> str:
    """A model's name without its organisation or folder, and what else distinguishes it: revision, training step, stack."""
    path = Path(options.name)
    label = path.name or options.name
    if step_in(label) is not None and not without_step(label):  # checkpoint-500 of any training
        label = f"{path.parent.name}/{label}".lstrip("/")
    if options.revision is not None:
        label += f" {_abbreviated(options.revision)}"
    if options.step is not None and options.step not in (step_in(options.revision), step_in(options.name)):
        label += f" step {options.step}"
    if options.random_init or options.architecture:
        label += " (random)"
    return label if options.stack is None else f"{label} {options.stack}"


def _abbreviated(revision: str) -> str:
    """A revision; of a commit, the beginning."""
    return revision[:8] if re.fullmatch(r"[0-9a-f]{40}", revision) else revision


def dataset_label(options: DatasetOptions) -> str:
    """The name of the data: that of the config, or else the file's or the kind's."""
    if options.name is not None:
        return options.name
    return str(options.kind) if options.path is None else Path(options.path).name or str(options.kind)


def layers_label(layers: Any) -> str:
    """The `layers` key, which may be `all`, a list of numbers or a single number: `all layers`, `layers 1, 6`, `layer 3`."""
    if layers == "all":
        return "all layers"
    numbers = layers if isinstance(layers, list) else [layers]
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _seeds(options: RunOptions) -> list[str]:
    seeds = [f"seed {options.seed}"]
    return seeds if options.model.seed == options.seed else [*seeds, f"model seed {options.model.seed}"]


def _job_type(options: RunOptions) -> str:
    if options.reproduce is not None:
        return "reproduction"
    return "experiment" if options.recipe.name is not None else "analysis"
