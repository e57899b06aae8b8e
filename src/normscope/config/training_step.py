"""The training step of a checkpoint, and the checkpoints of a training in the order of their steps."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.errors import InputError, one_line
from normscope.untrusted.plain_data import MIB, text

_NAMED = r"(?<![a-z0-9])(?:global[-_]?)?(?:steps?|checkpoint|ckpt|iter(?:ation)?)[-_=]?(\d+)([km]?)(?![a-z0-9])"
_STEP = re.compile(_NAMED, re.IGNORECASE)
# OLMo's revisions also give the number of tokens: step1000-tokens4B.
_SAID = re.compile(rf"[-_/]?(?:{_NAMED}|(?<![a-z0-9])tokens?[-_]?\d+[kmbt]?(?![a-z0-9]))", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}
_TRAINER_STATE = "trainer_state.json"
_MOST = 64 * MIB


def step_in(text: str | None) -> int | None:
    """The training step that a revision or a name gives: 1000 for `step1000`, 20000 for `multiberts-seed_0-step_20k`.

    Of a path, only the last two parts count.
    """
    parts = (text or "").rstrip("/").rsplit("/", 2)[-2:]
    for part in reversed(parts):
        found = _STEP.findall(part)
        if found:
            digits, factor = found[-1]
            return int(digits) * _FACTORS[factor.lower()]
    return None


def training_step(config: Mapping[str, Any], folder: Path | None) -> int | None:
    """The training step of a model; None if nothing gives it, and for random weights.

    Args:
        config: The keys `step`, `revision`, `name` and `random_init` of the model's options. The first of them that gives a
            step wins.
        folder: Its files, among which a `trainer_state.json` gives the step if nothing else does.
    """
    if config["step"] is not None:
        return int(config["step"])
    if config["random_init"]:
        return None
    named = [step for step in map(step_in, (config["revision"], config["name"])) if step is not None]
    return named[0] if named else _step_of_trainer(folder)


def without_step(name: str) -> str:
    """A name or revision without the training step in it, which all checkpoints of a training share: `multiberts-seed_0`."""
    rest = _SAID.sub("", name).rstrip("/-_").lstrip("-_")
    return re.sub(r"(?<=.)/(checkpoints?|ckpts?)$", "", rest)  # a folder of checkpoints says nothing of its training


def checkpoints(pattern: str) -> list[Path]:
    """The folders that a pattern matches, in the order of their training steps."""
    path = Path(pattern).expanduser()
    try:
        # A pattern may be absolute, which Path.glob does not allow.
        found = [folder for folder in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if folder.is_dir()]
    except (OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"model.checkpoints={pattern}: cannot be read: {one_line(error)}") from error
    if not found:
        raise InputError(
            f"model.checkpoints={pattern}: expected a pattern of folders, such as '/path/run/checkpoint-*', got one that "
            "matches none"
        )
    return sorted(found, key=_order)


def _order(folder: Path) -> tuple[float, list[tuple[int, str]]]:
    step = step_in(str(folder))
    # Names without a step: numbers in them by value.
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(folder)) if part]
    return (float("inf") if step is None else float(step), parts)


def _step_of_trainer(folder: Path | None) -> int | None:
    """What transformers' trainer wrote beside a checkpoint. Files of another kind say nothing."""
    if folder is None:
        return None
    try:
        step = json.loads(text(folder / _TRAINER_STATE, _MOST))["global_step"]
    except (InputError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
