"""The tracker that the config selects."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from normscope.config.schema import RunOptions, TrackerName, TrackingMode, TrackingOptions
from normscope.errors import InputError
from normscope.reporting.run_description import describe
from normscope.reporting.tracker import NoTracker, Tracker
from normscope.reporting.trackers.mlflow_store import mlflow_run
from normscope.reporting.trackers.tensorboard_files import tensorboard_run
from normscope.reporting.trackers.weights_and_biases import wandb_run

_PACKAGES = {
    TrackerName.mlflow: {"mlflow": "mlflow-skinny", "sqlalchemy": "sqlalchemy", "alembic": "alembic"},
    TrackerName.tensorboard: {"tensorboard": "tensorboard"},
}
"""The modules that optional trackers need, and the packages that have them."""


def check_installed(options: TrackingOptions) -> None:
    """Check before a run that its tracker is installed.

    Raises:
        InputError: If it is not.
    """
    if options.mode is TrackingMode.disabled:
        return
    packages = _PACKAGES.get(options.tracker, {})
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"tracking={options.tracker}: {missing[0]} is not installed; run `pip install {' '.join(packages.values())}`"
        )


@contextlib.contextmanager
def track(options: RunOptions, folder: Path, command: str = "", family: str = "") -> Iterator[Tracker]:
    """The tracker that the config selects, for the duration of one run.

    Args:
        options: The whole config.
        folder: The run folder.
        command: What the user typed.
        family: The model's family.

    If a tracker fails, at any time and in any of its threads, the run continues without it and logs one warning.
    `tracking_environment` must have filled in the tracking options.
    """
    if options.tracking.mode is TrackingMode.disabled:
        yield NoTracker()
        return
    description = describe(options, command, family)
    match options.tracking.tracker:
        case TrackerName.wandb:
            started = wandb_run(options.tracking, description, folder)
        case TrackerName.mlflow:
            started = mlflow_run(options.tracking, description, folder)
        case TrackerName.tensorboard:
            started = tensorboard_run(options.tracking, description, folder)
    with started as tracker:
        yield tracker
