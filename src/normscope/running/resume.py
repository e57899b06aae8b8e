"""Runs that are resumed, reproduced or merged: their configs come from their folders."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from normscope.config.schema import INCIDENTAL, RunOptions
from normscope.errors import InputError, one_line

AGREEMENT = 1e-5
"""Relative difference up to which two numbers agree: float32 sums differ between thread counts and machines."""


def earlier_run(config: DictConfig, sweeping: bool) -> tuple[str, Path | None]:
    """`resume`, `reproduce` or `merge`, and the folder of that run, or of the first to merge; None if none is set.

    Args:
        config: The composed config of this command.
        sweeping: Whether it is one job of a sweep, whose folder `output_dir` names.

    Raises:
        InputError: If both are set, or a run is to be resumed in another folder.
    """
    if config.merge is not None:
        if config.resume is not None or config.reproduce is not None or not config.merge:
            raise InputError(
                f"merge={list(config.merge)}: expected the folders of all shards, without resume and reproduce"
            )
        return "merge", Path(config.merge[0]).expanduser()
    given = [key for key in ("resume", "reproduce") if config[key] is not None]
    if not given:
        return "", None
    if len(given) > 1:
        raise InputError(
            f"resume={config.resume} and reproduce={config.reproduce} are both set; expected only one: resume continues a "
            "run, reproduce repeats one"
        )
    folder = Path(config[given[0]]).expanduser()
    own = config.output_dir is None or Path(config.output_dir).absolute() == folder.absolute()
    if given == ["resume"] and not own and not sweeping:
        raise InputError(
            f"resume={config.resume} and output_dir={config.output_dir} are both set, but a resumed run stays in its own "
            "folder; leave output_dir out"
        )
    return given[0], folder


def options_of(folder: Path, config: DictConfig, overrides: Sequence[str], key: str) -> RunOptions:
    """The options of the run in a folder, updated with what the user has typed beside `resume` or `reproduce`.

    Keys that no number depends on (`INCIDENTAL`) are set as typed; any other key must equal that of the run's config.

    Args:
        folder: The run folder.
        config: The composed config of this command.
        overrides: What the user typed.
        key: `resume` or `reproduce`, for messages.

    Raises:
        InputError: If the folder holds no run, or an override would change its numbers; the message names the key.
    """
    path = folder / "config.yaml"
    try:
        saved = OmegaConf.merge(OmegaConf.structured(RunOptions), OmegaConf.load(path))
        OmegaConf.to_object(saved)
    except (OSError, YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{key}={folder}: expected the folder of a run, with its config.yaml: "
            f"{error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)}"
        ) from error
    assert isinstance(saved, DictConfig)
    for override in overrides:
        for name in _keys_of(override, config):
            if name.split(".")[0] in INCIDENTAL:
                OmegaConf.update(saved, name, _plain(config, name), merge=True)
                continue
            before, now = _plain(saved, name), _plain(config, name)
            if before != now:
                raise InputError(
                    f"{key}={folder}: {_difference(name, before, now)}; leave {override} out, or start a new run"
                )
    options = OmegaConf.to_object(saved)
    assert isinstance(options, RunOptions)
    return options


def _keys_of(override: str, config: DictConfig) -> list[str]:
    """The keys of a config that an override may have set."""
    name = override.partition("=")[0].lstrip("+~")
    above, _, last = name.rpartition(".")
    node = OmegaConf.select(config, above) if above else config
    if OmegaConf.is_dict(node) and last in node.keys():  # noqa: SIM118 - `in` does not see keys without a value
        return [name]
    # `experiment` is a group without a key: its presets may set any key.
    return [str(part) for part in config if part not in INCIDENTAL or part == "recipe"]


def metrics_of(folder: Path) -> dict[str, float]:
    """The metrics of a completed run.

    Raises:
        InputError: If it has none.
    """
    from normscope.reporting.comparison.runs import read_results  # pandas takes seconds to import

    try:
        results = read_results(folder)
    except InputError as error:
        raise InputError(f"reproduce={folder}: expected the folder of a completed run: {error}") from error
    status = results["status"]
    if status != "completed":
        raise InputError(f"reproduce={folder}: that run is {status}; only a completed run can be repeated")
    return {str(name): float(value) for name, value in results["metrics"].items()}


def agreement(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[bool, str]:
    """Whether two runs' metrics agree, and a sentence on how far."""
    if set(before) != set(now):
        name = sorted(set(before) ^ set(now))[0]
        return False, f"reproduction: the runs do not have the same metrics: only one of them has {name}"
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
