"""Environment variables of Weights & Biases, which hold where the user's config says nothing."""

import dataclasses
import os

from normscope.config.schema import TrackingMode, TrackingOptions
from normscope.config.validation import check_tracking
from normscope.errors import InputError
from normscope.reporting.terminal import say

_PROJECT = "normscope"
_MODES = {
    "online": TrackingMode.online,
    "run": TrackingMode.online,
    "shared": TrackingMode.online,
    "offline": TrackingMode.offline,
    "dryrun": TrackingMode.offline,
    "disabled": TrackingMode.disabled,
}
"""What W&B accepts as WANDB_MODE."""


def with_environment(options: TrackingOptions) -> TrackingOptions:
    """The tracking options with WANDB_MODE and WANDB_PROJECT in place of what the user has not set.

    The environment cannot make a run fail: a value that W&B does not take is reported and passed over.
    """
    mode, project = options.mode, options.project
    if mode is None:
        given = os.environ.get("WANDB_MODE") or TrackingMode.offline
        mode = _MODES.get(given.strip().lower())
        if mode is None:
            mode = TrackingMode.offline
            say(f"WANDB_MODE={given!r}: expected online, offline or disabled; the run is tracked offline")
    if project is None:
        project = os.environ.get("WANDB_PROJECT") or _PROJECT
        try:
            check_tracking(TrackingOptions(project=project))
        except InputError:
            say(f"WANDB_PROJECT={project!r}: W&B takes no such name; the run is tracked in the project {_PROJECT}")
            project = _PROJECT
    return dataclasses.replace(options, mode=mode, project=project)
