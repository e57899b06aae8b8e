"""What Weights & Biases is told about a run, and what its environment variables say."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

from normscope.config.rules import check_rules
from normscope.errors import InputError
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.terminal import say


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
            check_rules(TrackingOptions(project=project), "tracking.")
        except InputError:
            warn(f"WANDB_PROJECT={project!r} is not a valid project name; the run is tracked in project {_PROJECT}")
            project = _PROJECT
    return dataclasses.replace(options, mode=mode, project=project)
