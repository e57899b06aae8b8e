"""The tracker that the config selects."""

import contextlib
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from normscope.errors import InputError
from normscope.reporting.options import TrackerName, TrackingMode, TrackingOptions
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
