"""The tracker that the config selects."""

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from normscope.config.rules import check_rules
from normscope.errors import InputError
from normscope.reporting.options import TrackerName, TrackingMode, TrackingOptions
from normscope.reporting.terminal import say
from normscope.reporting.tracker import NoTracker, RunDescription, Tracker

_TRACKERS = {
    TrackerName.wandb: "weights_and_biases:wandb_run",
    TrackerName.mlflow: "mlflow_store:mlflow_run",
    TrackerName.tensorboard: "tensorboard_files:tensorboard_run",
}
"""Where each tracker is; it is imported by the runs that use it."""

_PACKAGES = {
    TrackerName.mlflow: {"mlflow": "mlflow-skinny", "sqlalchemy": "sqlalchemy", "alembic": "alembic"},
    TrackerName.tensorboard: {"tensorboard": "tensorboard"},
}
"""The modules that optional trackers need, and the packages that have them."""


def check_installed(options: TrackingOptions) -> None:
    """Check before a run that its tracker is installed."""
    if options.mode is TrackingMode.disabled:
        return
    packages = _PACKAGES.get(options.tracker, {})
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"tracking={options.tracker}: {missing[0]} is not installed; run `pip install {' '.join(packages.values())}`"
        )


@contextlib.contextmanager
def track(options: TrackingOptions, description: RunDescription, folder: Path) -> Iterator[Tracker]:
    """The tracker that the config selects, for the duration of one run.

    Args:
        options: The tracking options, completed by `tracking_environment`.
        description: The run, as it is tracked.

    If a tracker fails, at any time and in any of its threads, the run continues without it and logs one warning.
    """
    if options.mode is TrackingMode.disabled:
        yield NoTracker()
        return
    module, _, function = _TRACKERS[options.tracker].partition(":")
    start = getattr(importlib.import_module(f"normscope.reporting.trackers.{module}"), function)
    with start(options, description, folder) as tracker:
        yield tracker


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
