"""What distinguishes the runs of a comparison: the config keys that differ, the runs' labels, and the page's title."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normscope.config.schema import INCIDENTAL
from normscope.errors import visible
from normscope.results.run_files import FUNCTION

# Config keys left out of labels: those that affect no result, and those that `analysis` and `model` imply.
_UNLABELLED = re.compile(rf"^(({'|'.join(INCIDENTAL)}|model\.pin)(\.|$)|analysis\..*enabled$)")
SEED = re.compile(r"(^|\.)seed$")
"""The config keys that are seeds."""
_ABBREVIATED = 8
"""Characters of a commit or checksum in a label."""

Config = Mapping[str, Any]
"""The config of a run, flat."""

_NULL = "null"

_NOUNS = {
    "model.name": "models",
    "model.revision": "checkpoints",
    "model.sha256": "checkpoints",
    "model.step": "checkpoints",
    "dataset.name": "datasets",
    "dataset.path": "datasets",
    "weights": "sets of weights",
    "text": "texts",
    "texts": "sets of texts",
    "layers": "choices of layers",
    "analysis": "sets of analyses",
}


def keys(configs: Sequence[Config]) -> list[str]:
    """The config keys in which runs differ, without those whose values follow from the model's or data set's name."""
    every = sorted({key for config in configs for key in config if not _UNLABELLED.match(key)}, key=_order)
    differing = [key for key in every if len({str(config.get(key)) for config in configs}) > 1]
    if "seed" in differing:  # other seeds inherit it unless they are set
        own = {key for key in differing if any(config.get(key) != config.get("seed") for config in configs)}
        differing = [key for key in differing if key == "seed" or key in own or not SEED.search(key)]
    for kind in ("model", "dataset"):
        name = f"{kind}.name"
        if name in differing:
            differing = [key for key in differing if not (key.startswith(f"{kind}.") and _follows(key, name, configs))]
    return [key for key in differing if key not in DIGESTS or not _is_named(key, differing, configs)]


DIGESTS = {"weights": ("model", "seed"), "texts": ("model", "dataset", "seed")}
"""Digests, and the sections of the config that may already tell their values apart, in words."""


def _is_named(digest: str, differing: Sequence[str], configs: Sequence[Config]) -> bool:
    named = [key for key in differing if key.split(".")[0] in DIGESTS[digest]]
    words = [str([config.get(key) for key in named]) for config in configs]
    digests = [str(config.get(digest)) for config in configs]
    return len(set(words)) == len(set(zip(words, digests, strict=True)))


def columns(configs: Sequence[Config], differing: Sequence[str]) -> dict[str, list[str]]:
    """The values of the given config keys as people write them, by key, in the runs' order."""
    return {key: _values(key, configs) for key in differing}


def labels(configs: Sequence[Config], *, seeds: bool = True, analyses: bool = True, steps: bool = True) -> list[str]:
    """Short labels made of the config values in which runs differ.

    Args:
        configs: Those of the runs to label; see `runs.settings`.
        seeds: Whether runs that differ only in seeds get different labels.
        analyses: The same for runs that differ only in their analyses.
        steps: The same for runs that differ only in their training steps.
    """
    differing = [
        key
        for key in keys(configs)
        if (seeds or not SEED.search(key))
        and (analyses or not key.startswith("analysis"))
        and (steps or key != "model.step")
    ]
    short = short_keys(keys(configs))
    parts = {key: _values(key, configs) for key in differing}
    named = [
        " ".join(filter(None, (_part(key, short[key], values[at]) for key, values in parts.items())))
        for at in range(len(configs))
    ]
    return [name or last_part(str(config.get("model.name"))) for name, config in zip(named, configs, strict=True)]


def short_keys(differing: Iterable[str], parts: int = 2) -> dict[str, str]:
    """The last parts of each config key, such as `sinks.threshold`, or the whole key if another ends alike."""
    ends = {key: ".".join(key.split(".")[-parts:]) for key in differing}
    return {key: end if list(ends.values()).count(end) == 1 else key for key, end in ends.items()}


def _part(key: str, short_key: str, value: str) -> str:
    """What a config value adds to a label."""
    if key in ("model.name", "analysis"):
        return value
    if key == "text":  # of one that a function has measured
        return f"“{value}”"
    if value == _NULL and key in ("model.step", "model.revision"):
        return ""
    return f"step {int(value):,}" if key == "model.step" else f"{short_key}={value}"


def title(configs: Sequence[Config]) -> str:
    """What varies and what does not: `2 models × 3 seeds on the sample corpus`, or `5 runs over 2 models and 3 seeds on …`."""
    swept = columns(configs, keys(configs))
    short = short_keys(swept)
    counts: dict[str, int] = {}
    for key, values in swept.items():
        plural = "seeds" if SEED.search(key) else _NOUNS.get(key, f"values of {short[key]}")
        counts[plural] = max(counts.get(plural, 0), len(set(values)))
    each = [f"{count} {plural}" for plural, count in counts.items()]
    words = " × ".join(each)
    if len(each) > 1 and math.prod(counts.values()) > len(configs):  # not every combination has been run
        words = f"{len(configs)} runs over {', '.join(each[:-1])} and {each[-1]}"
    if not words:
        words = f"{len(configs)} {'run' if len(configs) == 1 else 'runs'}"
    if all(FUNCTION in config for config in configs):
        return f"Comparison of {words}"
    if "models" not in counts:
        words += f" of {last_part(str(configs[0].get('model.name')))}"
    if all(config.get("model.random_init") for config in configs):
        words += " with random weights"
    return words if "datasets" in counts else f"{words} on {_corpus(configs[0])}"


def _follows(key: str, name: str, configs: Sequence[Config]) -> bool:
    """Whether runs with one value of `name` have one value of `key`."""
    if key == name:
        return False
    pairs = {(str(config.get(name)), str(config.get(key))) for config in configs}
    return len(pairs) == len({value for value, _ in pairs})


def _values(key: str, configs: Sequence[Config]) -> list[str]:
    values = [_typed(config.get(key)) for config in configs]
    if key in ("model.name", "dataset.name", "dataset.path"):
        short = _shortened(values)
    elif key in ("model.revision", "model.sha256", "dataset.revision", *DIGESTS):
        short = {value: value[:_ABBREVIATED] for value in values}
    else:
        short = {}
    return [short[value] for value in values] if len(set(short.values())) == len(set(values)) else values


def _typed(value: object) -> str:
    """A config value as it is typed on the command line."""
    if value is None:
        return _NULL
    return str(value).lower() if isinstance(value, bool) else visible(str(value))


def _shortened(names: Iterable[str]) -> dict[str, str]:
    """Names without the folders or owners that they do not need to be told apart."""
    parts = {name: name.rstrip("/").split("/") for name in names}
    short = {}
    for name, own in parts.items():
        length = next(
            (
                count
                for count in range(1, len(own))
                if all(other[-count:] != own[-count:] for key, other in parts.items() if key != name)
            ),
            len(own),
        )
        short[name] = "/".join(own[-length:])
    return short


def _corpus(config: Config) -> str:
    name = str(config.get("dataset.name") or config.get("dataset.path") or config.get("dataset.kind"))
    return "the sample corpus" if name == "sample" else last_part(name)


def last_part(name: str) -> str:
    """A name without the owner or folder before it."""
    return name.rstrip("/").rsplit("/", 1)[-1]


_FIRST = ("model.name", "model.revision", "model.step", "analysis")


def _order(key: str) -> tuple[int, str]:
    first = _FIRST.index(key) if key in _FIRST else len(_FIRST)
    return (first if first < len(_FIRST) or key.startswith("dataset") else first + 1, key)
