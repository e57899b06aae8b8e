"""Which runs measured the same, by the facts of what they read: weights, texts and seeds. Names only label."""

import collections
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from normscope.analyses.registry import analyses
from normscope.reporting.comparison.swept import SEED, Config
from normscope.results.result import Result

_CHOSEN = ("layers", "categories", "level", "model.stack", "dataset.mask_fraction", "dataset.categories")
"""The keys that say what is measured, beside options of analyses. What is read follows from facts, whatever it is called."""

_SAME = 1e-3
"""Relative difference up to which one computation may differ between devices and libraries."""


class Identity(NamedTuple):
    """What a run is, as far as comparisons are concerned."""

    group: Hashable
    """What runs have in common that differ in nothing but their seeds."""
    run: Hashable
    """The same with the seeds: runs that share it have measured the same twice, or in parts."""


def is_random(result: Result) -> bool:
    """Whether the weights are those that a seed gave the model, before any training."""
    return bool(result.facts.get("weights_from", "") == "seed")


def identities(runs: Sequence[Result], configs: Sequence[Config]) -> list[Identity]:
    """The identity of each of several runs; a run whose facts do not say what it read is none of the others."""
    parts = [_parts(result, config, place) for place, (result, config) in enumerate(zip(runs, configs, strict=True))]
    values = {(name, repr(value)) for part in parts for name, value in part.items()}
    differing = {name for name, count in collections.Counter(name for name, _ in values).items() if count > 1}
    found: list[Identity] = []
    for place, (result, config, part) in enumerate(zip(runs, configs, parts, strict=True)):
        # What only some runs have, such as the options of an analysis or a head, distinguishes those that have it.
        group: frozenset[tuple[str, object]] = frozenset((name, repr(part[name])) for name in differing & part.keys())
        seeds = {key: value for key, value in config.items() if SEED.search(key)} | {"weights": _weights(result, place)}
        run: Hashable = (group, repr(sorted(seeds.items(), key=str)))
        twins = [runs[other] for other, each in enumerate(found) if each.run == run]
        if not all(_agree(result, twin) for twin in twins):  # something differs that no fact shows
            group, run = group | {("run", place)}, (run, place)
        found.append(Identity(group, run))
    return found


def _weights(result: Result, place: int) -> Hashable:
    known = "weights_from" in result.facts and result.facts.get("model_sha256")
    return result.facts["model_sha256"] if known else ("unknown", place)


def _parts(result: Result, config: Config, place: int) -> dict[str, Any]:
    """What a run measured, apart from seeds, by the name of each part."""
    facts = result.facts
    weights = _weights(result, place)
    of_seeds = {
        "seed": ("drawn", facts.get("config_sha256"), facts.get("dtype")),
        "files": facts.get("training") and (facts["training"], facts.get("training_step")),
    }
    parts: dict[str, Any] = {"weights": of_seeds.get(str(facts.get("weights_from"))) or weights}
    parts |= {f"{weights} {head}": digest for head, digest in (facts.get("heads_sha256") or {}).items()}
    compared: Mapping[str, Any] = facts.get("compared") or {}
    # The texts of pairs, and the pairs that the same run may also read as sequences, have digests of their own.
    infos = [analyses()[name] for name in result.analyses if name in analyses()]
    only_pairs = bool(infos) and all(info.requires_pairs for info in infos)
    parts["compared" if only_pairs else "texts"] = facts.get("texts_digest") or ("unknown", place)
    parts |= {"compared": compared["texts_digest"]} if "texts_digest" in compared else {}
    for key, value in config.items():
        section, _, rest = key.partition(".")
        own = section == "analysis" and rest.partition(".")[0] in result.analyses
        if key in _CHOSEN or (own and not SEED.search(key)):
            parts[key] = value
    return parts


def _agree(one: Result, other: Result) -> bool:
    """Whether what two runs have both measured is the same number."""
    common = one.metrics.keys() & other.metrics.keys()
    return all(math.isclose(one.metrics[name], other.metrics[name], rel_tol=_SAME, abs_tol=_SAME**2) for name in common)
