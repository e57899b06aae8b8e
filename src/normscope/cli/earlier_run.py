"""Runs that are resumed or reproduced: their configs come from their folders."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normscope.cli.command_line import word_for
from normscope.config.schema import INCIDENTAL, difference, flat, lasting, plain
from normscope.errors import InputError, one_line
from normscope.reporting.options import TrackingOptions, Verbosity
from normscope.results.measures import metric_title
from normscope.results.run_files import read_config, read_results
from normscope.rounding import number
from normscope.running.options import SCHEMA, RunOptions

log = logging.getLogger(__name__)

AGREEMENT = 1e-5
"""Relative difference up to which two numbers agree: float32 sums differ between thread counts and machines."""


def earlier_run(config: DictConfig, sweeping: bool) -> tuple[str, Path | None]:
    """`resume` or `reproduce`, and the folder of that run; None if none is set.

    Args:
        config: The composed config of this command.
        sweeping: Whether it is one job of a sweep, whose folder `output_dir` names.

    Raises:
        InputError: If both are set, or a run is to be resumed in another folder.
    """
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
    """The options of the run in a folder, updated with what the user has typed besides `resume` or `reproduce`.

    Only keys that no number depends on (`INCIDENTAL`) may be typed with other values. Keys that let third-party code run
    (`config.rules.RUNS_CODE`) and paths outside the folder take effect only if they are typed again. Where data go is the
    user's own setting (`config.rules.OWN`); what the run had is logged if it differs.

    Args:
        config: The composed config of this command.
        overrides: What the user typed.
        key: `resume` or `reproduce`, for messages.

    Raises:
        InputError: If the folder holds no run, an override would change its numbers, or the run allows code to run or reads
            files that the user does not name; the message names the key.
    """
    saved = _saved(folder, key)
    before = _lasting(saved)
    for override in overrides:
        for name in _keys_of(override, config):
            OmegaConf.update(saved, name, _without_interpolations(_value(config, name)), merge=True)
    if changed := difference(before, _lasting(saved), "in that run"):
        raise InputError(f"{key}={folder}: {changed}; leave it out, or start a new run")
    _refuse_code(saved, config, f"{key}={folder}")
    _keep_own(saved, config, folder, key)
    options = OmegaConf.to_object(saved)
    assert isinstance(options, RunOptions)
    return options


def _lasting(config: DictConfig) -> dict[str, Any]:
    return lasting(_plain(config))


def _refuse_code(saved: DictConfig, config: DictConfig, run: str) -> None:
    """Check that the run allows no code to run that the user does not allow now."""
    for name, default in SCHEMA.keys_that_run_code.items():
        before = OmegaConf.select(saved, name)
        if before not in (default, OmegaConf.select(config, name)):
            setting = f"{name}={str(before).lower() if isinstance(before, bool) else before}"
            raise InputError(
                f"{run}: that run had {setting}, which lets third-party code run here; if you trust that code, add {setting}"
            )


def _keep_own(saved: DictConfig, config: DictConfig, folder: Path, key: str) -> None:
    """Let the user's own settings decide where data go; refuse a run that read files outside its folder, unless named again."""
    from normscope.reporting.tracking import with_environment  # takes pandas along, for which help need not wait

    tracking = OmegaConf.to_object(config.tracking)
    assert isinstance(tracking, TrackingOptions)
    settled = plain(with_environment(tracking, lambda _warning: None))
    wanted, read = [], []
    for name in SCHEMA.own_keys:
        before, now = _value(saved, name), _value(config, name)
        group, _, last = name.partition(".")
        if before == now:
            continue
        if group in INCIDENTAL:
            OmegaConf.update(saved, name, now, merge=False)
            wanted += _typed(name, before) if before and before != settled.get(last) else []
        elif _is_outside(before, folder):
            read += _typed(name, before)
    if read:
        files = " ".join(read)
        raise InputError(
            f"{key}={folder}: that run read {files}, outside its folder; if it is to be read here, add {files}"
        )
    if wanted and saved.verbosity is not Verbosity.quiet:
        asked = " ".join(wanted)
        log.warning("%s=%s: your own settings decide where data go; to do as that run did, add %s", key, folder, asked)


def _typed(name: str, value: Any) -> list[str]:
    """What gives a key a value, as words for a shell."""
    if isinstance(value, Mapping) and SCHEMA.is_free_form(name):
        return [word_for(f"+{key}", each) for key, each in flat(value, f"{name}.").items()]
    return [word_for(name, value)]


def _is_outside(value: Any, folder: Path) -> bool:
    """Whether a value, or an entry of a mapping, names something on this machine that is no file in a folder."""
    if isinstance(value, Mapping):
        return any(_is_outside(each, folder) for each in value.values())
    if not isinstance(value, str) or value.startswith("re:"):
        return False
    try:
        path = Path(value.removeprefix("file:")).expanduser()
        whole = path.resolve()
        inside = whole.is_file() and whole.is_relative_to(folder.resolve())
        return not inside and (path.is_absolute() or path.exists() or bool(set("*?[") & set(value)))
    except (OSError, ValueError, RuntimeError):  # no path, which its reader explains
        return False


def _saved(folder: Path, key: str) -> DictConfig:
    """The config in a run folder, with the types of the schema."""
    try:
        saved = OmegaConf.merge(OmegaConf.structured(RunOptions), _without_interpolations(read_config(folder)))
        OmegaConf.to_object(saved)
    except (InputError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{key}={folder}: expected the folder of a run, with its config: {one_line(error)}") from error
    assert isinstance(saved, DictConfig)
    return saved


def _without_interpolations(value: Any) -> Any:
    """A resolved config as it is: `${oc.env:HOME}` in it is text, not a request for a variable of this machine."""
    if isinstance(value, dict):
        return {key: _without_interpolations(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_interpolations(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


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
    """The metrics of a completed run."""
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
        f"reproduction: {equal} of {len(differences)} numbers are the same; the largest relative difference is "
        f"{number(differences[worst], digits=2)}, in {metric_title(worst)}: {number(before[worst], digits=9)} then, "
        f"{number(now[worst], digits=9)} now"
    )


def _value(config: DictConfig, name: str) -> Any:
    value = OmegaConf.select(config, name)
    return _plain(value) if OmegaConf.is_config(value) else value


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=True, enum_to_str=True)
