"""Runs that go on where they were stopped, and runs that are made again: their configs come from their folders."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from normscope.errors import InputError
from normscope.schema import RunOptions

# Where results go and how they are told is not what a run is.
FREE = ("resume", "reproduce", "output_dir", "tracking", "report", "checkpoint")

AGREEMENT = 1e-5
"""Relative difference of two numbers that agree: what other threads or another machine may add up otherwise in float32."""


def options_of(folder: Path, config: DictConfig, overrides: Sequence[str], key: str) -> RunOptions:
    """The options of the run in a folder.

    Args:
        folder: The run folder.
        config: What was composed for this command.
        overrides: What the user typed: where it says something else than the folder's config, it is refused.
        key: `resume` or `reproduce`, for messages.

    Raises:
        InputError: If the folder holds no run, or an override differs; the message names it.
    """
    path = folder / "config.yaml"
    try:
        saved = OmegaConf.merge(OmegaConf.structured(RunOptions), OmegaConf.load(path))
        options = OmegaConf.to_object(saved)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{key}={folder}: expected the folder of a run, with its config.yaml") from error
    assert isinstance(options, RunOptions)
    assert isinstance(saved, DictConfig)
    for override in overrides:
        name = override.partition("=")[0].lstrip("+~")
        if name.split(".")[0] in FREE:
            continue
        for part in [name] if OmegaConf.select(config, name) is not None else [str(part) for part in config]:
            if part.split(".")[0] in FREE or part == "recipe":
                continue
            before, now = _plain(saved, part), _plain(config, part)
            if before != now:
                raise InputError(
                    f"{key}={folder}: {_difference(part, before, now)}; leave {override} out, or begin a new run"
                )
    return options


def metrics_of(folder: Path) -> dict[str, float]:
    """The metrics of a completed run.

    Raises:
        InputError: If it has none.
    """
    try:
        results = json.loads((folder / "results.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"reproduce={folder}: expected the folder of a completed run, with its results.json"
        ) from error
    if results["status"] != "completed":
        raise InputError(f"reproduce={folder}: that run is {results['status']}; only a completed one can be made again")
    return dict(results["metrics"])


def agreement(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[bool, str]:
    """Whether two runs' metrics agree, and a sentence on how far."""
    if set(before) != set(now):
        name = sorted(set(before) ^ set(now))[0]
        return False, f"reproduction: the runs do not have the same metrics: {name} is in one of them alone"
    differences = {name: abs(now[name] - value) / max(abs(value), 1e-12) for name, value in before.items()}
    equal = sum(difference == 0 for difference in differences.values())
    if equal == len(differences):
        return True, f"reproduction: all {equal} numbers are the same"
    worst = max(differences, key=lambda name: differences[name])
    agrees = differences[worst] <= AGREEMENT and math.isfinite(differences[worst])
    return agrees, (
        f"reproduction: {equal} of {len(differences)} numbers are the same; the largest difference is "
        f"{differences[worst]:.1e} of its value, {worst}: {before[worst]:.9g} then, {now[worst]:.9g} now"
    )


def _plain(config: DictConfig, key: str) -> Any:
    value = OmegaConf.select(config, key)
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True, enum_to_str=True)
    return getattr(value, "value", value)


def _difference(key: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                return _difference(f"{key}.{name}", before.get(name), now.get(name))
    return f"{key} was {before!r} in that run and is {now!r} now"
