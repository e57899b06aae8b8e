"""What runs, models and data are called, and the parameters by which trackers tell runs apart."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.config.sections import INCIDENTAL, flat
from normscope.config.training_step import step_in, without_step
from normscope.data.options import DatasetOptions
from normscope.models.options import ModelOptions


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
    if options.random_init:
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
