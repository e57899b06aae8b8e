"""What the config's types cannot say, as one clear line each."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normscope.alignment.symmetrisation import Heuristic
from normscope.analyses.options import OutliersOptions, ScoreOptions
from normscope.config.schema import (
    NAME_LENGTH,
    DatasetKind,
    DatasetOptions,
    ModelStack,
    ReportOptions,
    RunOptions,
    Segmentation,
    TrackingOptions,
    enabled_analyses,
    flat,
    plain,
)
from normscope.errors import InputError

# Characters that W&B takes in a tag.
_TAG_LENGTH = 64

# What the explorer of a report can show. No tokenizer adds more special tokens than the fewest.
MOST_EXAMPLES = 100
FEWEST_TOKENS, MOST_TOKENS = 8, 512

# Mappings whose values are the user's own: a transformers config, lists of tokens.
_OWN = ("model.architecture.", "dataset.categories.")
_PATHS = {
    *("model.name", "model.tokenizer", "dataset.path", "dataset.pair_path", "output_dir", "resume", "reproduce"),
    *(
        "analysis.frequency.path",
        "analysis.frequency.source",
        "analysis.alignment.gold.path",
        "analysis.alignment.reverse",
    ),
}
# White space is a value of these.
_SIGNS = ("dataset.delimiter", "dataset.separator")
_LONGEST_NAME, _LONGEST_PATH = 255, 4095  # bytes, on every file system in use


def check_strings(config: Mapping[str, Any]) -> None:
    """Refuse strings that mean nothing: an empty one is not the same as none, and no file has a NUL in its name.

    Args:
        config: The whole config or a part of it, nested or flat.

    Raises:
        InputError: Naming the key.
    """
    for key, text in _strings(flat(config)):
        if not text or (not text.strip() and key not in _SIGNS):
            raise InputError(f"{key}={text!r}: expected a value, got an empty one; leave {key} out, or set {key}=null")
        if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
            raise InputError(f"{key}={text!r}: expected text, got a character that no text or file name has")
        if key in _PATHS:
            _check_path(key, text)


def _strings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if not key.startswith(_OWN):
            yield from (
                (key, item) for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)
            )


def _check_path(key: str, text: str) -> None:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{key}={text}: {error}") from error
    if len(str(path).encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        raise InputError(
            f"{key}={text[:60]}…: expected a path with names of at most {_LONGEST_NAME} bytes, {_LONGEST_PATH:,} in all"
        )


def check(options: RunOptions) -> None:
    """Check what types cannot say, as far as it is known before a model is loaded.

    Raises:
        InputError: Naming the key, what was expected and what came.
    """
    check_strings(plain(options))
    if not enabled_analyses(options.analysis):
        names = ", ".join(node.name for node in dataclasses.fields(options.analysis))
        raise InputError(f"analysis=[]: expected at least one of {names}, for example analysis=mixing")
    _check_dataset(options.dataset)
    if options.model.sha256 is not None and (options.model.random_init or options.model.architecture):
        raise InputError("model.sha256 is set, but random weights are asked for; drop one of the two")
    _positive("device.batch_tokens", options.device.batch_tokens)
    if options.dataset.limit is not None:
        _positive("dataset.limit", options.dataset.limit)
    if options.dataset.max_length is not None and options.dataset.max_length < 3:
        raise InputError(f"dataset.max_length={options.dataset.max_length}: expected at least 3 tokens")
    if not 0 <= options.dataset.mask_fraction < 1:
        raise InputError(f"dataset.mask_fraction={options.dataset.mask_fraction}: expected a share in [0, 1)")
    for key, value in (
        ("analysis.norms.exact_pairs", options.analysis.norms.exact_pairs),
        ("analysis.frequency.exact_pairs", options.analysis.frequency.exact_pairs),
    ):
        if value < 0:
            raise InputError(f"{key}={value}: expected a number of pairs, or 0 to estimate")
    _positive("analysis.norms.scatter_pairs", options.analysis.norms.scatter_pairs)
    if options.analysis.norms.sampled_queries is not None:
        _positive("analysis.norms.sampled_queries", options.analysis.norms.sampled_queries)
    _check_outliers(options.analysis.outliers)
    _check_score(options.analysis.score)
    _check_alignment(options)
    _check_report(options.report)
    check_tracking(options.tracking)
    if not options.checkpoint.every_seconds >= 0:
        raise InputError(f"checkpoint.every_seconds={options.checkpoint.every_seconds}: expected seconds, 0 or more")
    for key, value in (
        ("seed", options.seed),
        ("dataset.seed", options.dataset.seed),
        ("model.seed", options.model.seed),
        ("analysis.norms.seed", options.analysis.norms.seed),
        ("analysis.frequency.seed", options.analysis.frequency.seed),
        ("analysis.score.seed", options.analysis.score.seed),
    ):
        if not 0 <= value < 2**63:
            raise InputError(f"{key}={value}: expected a whole number from 0 to 2^63 − 1")


def chosen_layers(layers: Any, count: int) -> list[int]:
    """The `layers` key as sorted layer numbers.

    Raises:
        InputError: If it is neither `all` nor a list of numbers from 1 to `count`.
    """
    if layers == "all":
        return list(range(1, count + 1))
    numbers = layers if isinstance(layers, list) else [layers]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= count:
            raise InputError(
                f"layers={layers}: expected all or numbers from 1 to {count} (this model's layers), got {number!r}"
            )
    if not numbers:
        raise InputError(f"layers=[]: expected all or numbers from 1 to {count}")
    return sorted(set(numbers))


def chosen_categories(categories: Any, known: list[str]) -> list[str]:
    """The `categories` key as names, in the order of `known`.

    Raises:
        InputError: If it is neither `all` nor a list of known categories.
    """
    if categories == "all":
        return known
    names = categories if isinstance(categories, list) else [categories]
    for name in names:
        if name not in known:
            raise InputError(
                f"categories={categories}: unknown category {name!r}; expected all or some of {', '.join(known)}"
            )
    if not names:
        raise InputError(f"categories=[]: expected all or some of {', '.join(known)}")
    return [name for name in known if name in names]


_READ_BY = {
    "path": {DatasetKind.text, DatasetKind.parallel, DatasetKind.hub, DatasetKind.clark},
    "text_column": {DatasetKind.text, DatasetKind.parallel, DatasetKind.hub},
    "pair_column": {DatasetKind.text, DatasetKind.hub},
    "pair_path": {DatasetKind.text, DatasetKind.parallel},
    "separator": {DatasetKind.parallel},
    "delimiter": {DatasetKind.text, DatasetKind.parallel},
    "quoting": {DatasetKind.text, DatasetKind.parallel},
    "config": {DatasetKind.hub},
    "revision": {DatasetKind.hub},
}


def _check_dataset(options: DatasetOptions) -> None:
    for key, kinds in _READ_BY.items():
        if getattr(options, key) is not None and options.kind not in kinds:
            raise InputError(
                f"dataset.{key} is set, but dataset={options.kind} does not read it; add dataset={max(kinds, key=str)}"
            )
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise InputError(f"dataset.delimiter={options.delimiter!r}: expected one character")
    if options.stride and options.segmentation is not Segmentation.window:
        raise InputError(f"dataset.stride={options.stride} is for dataset.segmentation=window")


def _check_outliers(options: OutliersOptions) -> None:
    if not options.threshold > 0:
        raise InputError(f"analysis.outliers.threshold={options.threshold}: expected a number above 0")
    if not 0 <= options.share <= 1:
        raise InputError(f"analysis.outliers.share={options.share}: expected a share of the layers in [0, 1]")


def _check_score(options: ScoreOptions) -> None:
    if options.sequences is not None:
        _positive("analysis.score.sequences", options.sequences)
    _positive("analysis.score.intervention_sequences", options.intervention_sequences)
    _positive("analysis.score.ablation_sequences", options.ablation_sequences)
    for key, value in (("controls", options.controls), ("ablation_controls", options.ablation_controls)):
        if value < 0:
            raise InputError(f"analysis.score.{key}={value}: expected a number of random sets, 0 for none")


def _check_alignment(options: RunOptions) -> None:
    alignment = options.analysis.alignment
    if not alignment.enabled:
        return
    if options.model.stack not in (None, ModelStack.cross):
        raise InputError(
            f"model.stack={options.model.stack}: analysis=alignment looks at cross-attention; leave it out"
        )
    if alignment.gold.path is None and options.dataset.kind is not DatasetKind.toy:
        raise InputError(
            "analysis.alignment.gold.path is not set: expected a file of word alignments, `1-2 3p4` a line, beside "
            "dataset=parallel"
        )
    if alignment.symmetrisation not in list(Heuristic):
        raise InputError(
            f"analysis.alignment.symmetrisation={alignment.symmetrisation}: expected one of {', '.join(Heuristic)}"
        )
    if not isinstance(alignment.baselines, dict | None):
        raise InputError(f"analysis.alignment.baselines={alignment.baselines}: expected {{NAME: FILE, ...}}")
    for name in alignment.baselines or {}:
        if not re.fullmatch(r"[\w.+-]+", str(name)) or name in ("attn_w", "attn_n"):
            raise InputError(f"analysis.alignment.baselines.{name}: expected a name of letters, digits, _, ., + and -")


def _check_report(options: ReportOptions) -> None:
    if not 0 <= options.examples <= MOST_EXAMPLES:
        raise InputError(
            f"report.examples={options.examples}: expected 0 to {MOST_EXAMPLES} texts for the explorer of the report"
        )
    if not FEWEST_TOKENS <= options.tokens <= MOST_TOKENS:
        raise InputError(
            f"report.tokens={options.tokens}: expected {FEWEST_TOKENS} to {MOST_TOKENS} tokens of a text in the explorer"
        )


def check_tracking(options: TrackingOptions) -> None:
    """Check the names that are handed to Weights & Biases by its own rules, which it applies only once a run starts.

    Raises:
        InputError: Naming the key, what was expected and what came.
    """
    for key in ("project", "entity", "group", "name"):
        name = getattr(options, key)
        if name is not None and not 1 <= len(name.strip()) <= len(name) <= NAME_LENGTH:
            raise InputError(f"tracking.{key}={name!r}: expected a name of 1 to {NAME_LENGTH} characters")
    if options.project is not None and re.search(r"[/\\#?%:]", options.project):
        raise InputError(f"tracking.project={options.project!r}: expected a name without / \\ # ? % and :")
    if options.entity is not None and not re.fullmatch(r"[\w.-]+", options.entity):
        raise InputError(f"tracking.entity={options.entity!r}: expected a user or team: letters, digits, -, _ and .")
    for tag in options.tags:
        if not 1 <= len(tag.strip()) <= len(tag) <= _TAG_LENGTH:
            raise InputError(f"tracking.tags: expected tags of 1 to {_TAG_LENGTH} characters, got {tag!r}")


def _positive(key: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{key}={value}: expected a whole number of at least 1")
