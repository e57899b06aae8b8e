"""What `normscope prepare` has saved, in the runs of shards."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normscope.config.sections import flat, plain
from normscope.data.resources import Resource, State
from normscope.errors import InputError, one_line
from normscope.running.options import RunOptions
from normscope.running.state_file import DAMAGE, unpacked

FILE = "prepared.safetensors"


def identity(options: RunOptions, names: Mapping[str, str]) -> dict[str, Any]:
    """The keys that prepared resources depend on.

    Args:
        names: The analyses that need the resources, by resource.
    """
    groups = ("model.", "dataset.", *(f"analysis.{name}." for name in names.values()))
    return {key: value for key, value in flat(plain(options)).items() if key.startswith(groups)}


def saved_states(
    options: RunOptions, resources: Mapping[str, Resource[Any]], names: Mapping[str, str]
) -> dict[str, State]:
    """The states of the resources that have been prepared for a run; none unless `prepared` is set.

    Args:
        resources: What the run needs, by name.
        names: The analyses that need them, by resource.

    Raises:
        InputError: If a shard needs something of the whole corpus that has not been prepared, or for another config.
    """
    wanted = [name for name, resource in resources.items() if resource.reads_corpus]
    if options.prepared is None:
        if wanted and options.shards > 1:
            raise InputError(
                f"analysis={names[wanted[0]]} needs {resources[wanted[0]].content} of the whole corpus: make them once with "
                "`normscope prepare` and the options of the shards, then add prepared=DIR to every shard"
            )
        return {}
    content, states = _read(Path(options.prepared).expanduser() / FILE)
    missing = [name for name in wanted if name not in states]
    if missing:
        raise InputError(
            f"prepared={options.prepared}: it has nothing for analysis={names[missing[0]]}; prepare it with this analysis"
        )
    saved = content["identity"]
    for key, value in identity(options, {name: names[name] for name in wanted}).items():
        if saved.get(key) != value:
            raise InputError(f"prepared={options.prepared}: {key} was {saved.get(key)!r} there and is {value!r} now")
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
