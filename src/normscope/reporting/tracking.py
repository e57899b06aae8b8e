"""The names of runs, models and data, what Weights & Biases is told about them, and what its environment variables say."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.config.schema import check_options
from normscope.config.training_step import step_in, without_step
from normscope.data.options import DatasetOptions
from normscope.errors import InputError
from normscope.models.options import ModelOptions
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.terminal import say
from normscope.results.measures import Family, title


def model_label(options: ModelOptions) -> str:
    """A model's name without its organisation or folder, and what else distinguishes it: revision, step, stack, tower."""
    path = Path(options.name)
    label = path.name or options.name
    if step_in(label) is not None and not without_step(label):  # checkpoint-500 of any training
        label = f"{path.parent.name}/{label}".lstrip("/")
    if options.revision is not None:
        label += f" {_abbreviated(options.revision)}"
    if options.step is not None and options.step not in (step_in(options.revision), step_in(options.name)):
        label += f" step {options.step}"
    if options.random_init:
        label += " (random)"
    return " ".join([label, *(each for each in (options.stack, options.tower) if each is not None)])


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


def figure_key(analysis: str, figure: str) -> str:
    """`mixing/heatmap figure` for `mixing_heatmap`. No number has such a name."""
    return f"{analysis}/{figure.removeprefix(f'{analysis}_').replace('_', ' ')} figure"


def chart_key(family: Family) -> str:
    """`mixing/share by layer`: W&B has a section for what its keys begin with."""
    return f"{family.name} by layer"


def chart_title(family: Family) -> str:
    """`Mixing ratios: mixing ratio (%)`: a chart has no label beside its axis."""
    return f"{title(family.analysis)}: {family.measure}"


@dataclasses.dataclass(frozen=True)
class RunDescription:
    """What identifies a run among others."""

    name: str
    """For people: `mixing · roberta-base · wikipedia · seed 3`."""
    slug: str
    """The same for file names, URLs and artifacts: letters, digits, `-`, `_` and `.` alone."""
    job_type: str
    tags: Sequence[str]
    notes: str
    config: Mapping[str, object]
    """The config, nested, so that runs can be filtered and grouped by `model.name`, `dataset.name`, `layers` and `seed`."""


_PROJECT = "normscope"
_MODES = {
    "online": TrackingMode.online,
    "run": TrackingMode.online,
    "shared": TrackingMode.online,
    "offline": TrackingMode.offline,
    "dryrun": TrackingMode.offline,
    "disabled": TrackingMode.disabled,
}
"""Values that W&B accepts for WANDB_MODE."""


def with_environment(options: TrackingOptions, warn: Callable[[str], None] = say) -> TrackingOptions:
    """The tracking options, with unset ones taken from WANDB_MODE and WANDB_PROJECT.

    The environment cannot make a run fail: values that W&B would reject are ignored with a warning.

    Args:
        options: As the user set them.
        warn: Called with each warning.
    """
    mode, project = options.mode, options.project
    if mode is None:
        value = os.environ.get("WANDB_MODE") or TrackingMode.offline
        mode = _MODES.get(value.strip().lower())
        if mode is None:
            mode = TrackingMode.offline
            warn(f"WANDB_MODE={value!r}: expected online, offline or disabled; the run is tracked offline")
    if project is None:
        project = os.environ.get("WANDB_PROJECT") or _PROJECT
        try:
            check_options(TrackingOptions(project=project), "tracking.")
        except InputError:
            warn(f"WANDB_PROJECT={project!r} is not a valid project name; the run is tracked in project {_PROJECT}")
            project = _PROJECT
    return dataclasses.replace(options, mode=mode, project=project)
