"""Environment variables of trackers, used where the config sets nothing."""

import dataclasses
import os
from collections.abc import Callable

from normscope.config.rules import check_rules
from normscope.errors import InputError
from normscope.reporting.options import TrackerName, TrackingMode, TrackingOptions
from normscope.reporting.terminal import say

_PROJECT = "normscope"
_PROJECT_VARIABLES = {TrackerName.wandb: "WANDB_PROJECT", TrackerName.mlflow: "MLFLOW_EXPERIMENT_NAME"}
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
    """The tracking options, with unset ones taken from WANDB_MODE and WANDB_PROJECT, or MLFLOW_EXPERIMENT_NAME.

    The environment cannot make a run fail: values that W&B would reject are ignored with a warning.

    Args:
        options: As the user set them.
        warn: Called with each warning.
    """
    mode, project = options.mode, options.project
    if mode is None and options.tracker is TrackerName.wandb:
        value = os.environ.get("WANDB_MODE") or TrackingMode.offline
        mode = _MODES.get(value.strip().lower())
        if mode is None:
            mode = TrackingMode.offline
            warn(f"WANDB_MODE={value!r}: expected online, offline or disabled; the run is tracked offline")
    if project is None:
        variable = _PROJECT_VARIABLES.get(options.tracker, "")
        project = os.environ.get(variable) or _PROJECT
        try:
            check_rules(TrackingOptions(project=project), "tracking.")
        except InputError:
            warn(f"{variable}={project!r} is not a valid project name; the run is tracked in project {_PROJECT}")
            project = _PROJECT
    return dataclasses.replace(options, mode=mode, project=project)
