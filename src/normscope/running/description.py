"""The name, tags, notes and config by which people tell tracked runs apart."""

import re

from normscope.config.sections import plain
from normscope.reporting.options import NAME_LENGTH, TAG_LENGTH
from normscope.reporting.run_description import dataset_label, layers_label, model_label
from normscope.reporting.tracker import RunDescription
from normscope.running.options import RunOptions, enabled_analyses


def describe(options: RunOptions, command: str, family: str) -> RunDescription:
    """The description of a run.

    Args:
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


def _seeds(options: RunOptions) -> list[str]:
    seeds = [f"seed {options.seed}"]
    return seeds if options.model.seed == options.seed else [*seeds, f"model seed {options.model.seed}"]


def _job_type(options: RunOptions) -> str:
    if options.reproduce is not None:
        return "reproduction"
    return "experiment" if options.recipe.name is not None else "analysis"
