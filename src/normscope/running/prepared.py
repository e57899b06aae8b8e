"""What `normscope prepare` has saved, in the runs of shards."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.data.resources import Resource, State
from normscope.errors import InputError, one_line
from normscope.running.state_file import DAMAGE, unpacked

FILE = "prepared.safetensors"


def identity(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The keys that prepared resources depend on.

    Args:
        config: The config of the run, flat.
        names: The analyses that need the resources, by resource.
    """
    groups = ("model.", "dataset.", *(f"analysis.{name}." for name in names.values()))
    return {key: value for key, value in config.items() if key.startswith(groups)}


def saved_states(
    folder: str | None,
    config: Mapping[str, Any],
    resources: Mapping[str, Resource[Any]],
    names: Mapping[str, str],
    *,
    of_shard: bool,
) -> dict[str, State]:
    """The states of the resources that have been prepared for a run; none without a folder.

    Args:
        folder: What `normscope prepare` has written, as `prepared` gives it.
        config: The config of the run, flat.
        resources: What the run needs, by name.
        names: The analyses that need them, by resource.
        of_shard: Whether the run analyses only a shard of the corpus.

    Raises:
        InputError: If a shard needs something of the whole corpus that has not been prepared, or for another config.
    """
    wanted = [name for name, resource in resources.items() if resource.reads_corpus]
    if folder is None:
        if wanted and of_shard:
            raise InputError(
                f"analysis={names[wanted[0]]} needs {resources[wanted[0]].content} of the whole corpus: make them once with "
                "`normscope prepare` and the options of the shards, then add prepared=DIR to every shard"
            )
        return {}
    content, states = _read(Path(folder).expanduser() / FILE)
    missing = [name for name in wanted if name not in states]
    if missing:
        raise InputError(
            f"prepared={folder}: it has nothing for analysis={names[missing[0]]}; prepare it with this analysis"
        )
    saved = content["identity"]
    for key, value in identity(config, {name: names[name] for name in wanted}).items():
        if saved.get(key) != value:
            raise InputError(f"prepared={folder}: {key} was {saved.get(key)!r} there and is {value!r} now")
    return {name: states[name] for name in wanted}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, State]]:
    if not os.path.lexists(path):
        raise InputError(f"prepared={path.parent}: expected the folder that `normscope prepare` has written")
    try:
        content, tensors = unpacked(path)
        states: dict[str, State] = {
            name: {
                part.removeprefix(f"{name}/"): tensor for part, tensor in tensors.items() if part.startswith(f"{name}/")
            }
            for name in content["resources"]
        }
        if not isinstance(content["identity"], dict):
            raise TypeError("its header has no config")
    except DAMAGE as error:
        raise InputError(f"{path}: cannot be read: {one_line(error)}; prepare it again") from error
    return content, states
