"""Rules that the config's types cannot express. Each violation is explained in one line."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normscope.analyses.registry import analyses
from normscope.config.rules import at_least
from normscope.config.schema import (
    NAME_LENGTH,
    TAG_LENGTH,
    DatasetKind,
    DatasetOptions,
    DeviceOptions,
    FigureOptions,
    Level,
    ReportOptions,
    RunOptions,
    Segmentation,
    TrackerName,
    TrackingMode,
    TrackingOptions,
    all_options,
    enabled_analyses,
    flat,
    plain,
)
from normscope.config.sizes import size_in_bytes
from normscope.errors import InputError

# What the explorer of a report can show. No tokenizer adds more special tokens than the fewest.
MOST_EXAMPLES = 100
FEWEST_TOKENS, MOST_TOKENS = 8, 512

# Inches: below the first, labels would not fit; the second is a poster's.
NARROWEST_FIGURE, WIDEST_FIGURE = 3, 40
LOWEST_DPI, HIGHEST_DPI = 50, 1200

# Mappings that users fill in: a transformers config, lists of tokens.
_OWN = ("model.architecture.", "dataset.categories.")
_PATHS = {
    *("model.name", "model.tokenizer", "dataset.path", "dataset.pair_path", "output_dir", "resume", "reproduce"),
    "figures.style",
    *(f"analysis.{info.name}.{key}" for info in analyses().values() for key in info.path_keys),
}
# Keys that may be null, as they are unless somebody sets them.
_OPTIONAL = frozenset(key for key, value in flat(plain(RunOptions())).items() if value is None)
# White space is a valid value of these.
_SIGNS = ("dataset.delimiter", "dataset.separator")
_LONGEST_NAME, _LONGEST_PATH = 255, 4095  # bytes, on every file system in use


def check_strings(config: Mapping[str, Any]) -> None:
    """Refuse strings and lists without a meaning: an empty string is not the same as null, and no file name contains NUL.

    Args:
        config: The whole config or a part of it, nested or flat.

    Raises:
        InputError: Naming the key.
    """
    settings = flat(config)
    for key, value in settings.items():
        if isinstance(value, list) and not key.startswith(
            _OWN
        ):  # OmegaConf takes any item for a list of numbers or words
            _check_items(key, value)
    for key, text in _strings(settings):
        if not text or (not text.strip() and key not in _SIGNS):
            null = f", or set {key}=null" if key in _OPTIONAL else ""
            raise InputError(f"{key}={text!r}: expected a value, got an empty one; leave {key} out{null}")
        if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
            raise InputError(f"{key}={text!r}: expected text, got a character that no text or file name has")
        if key in _PATHS:
            _check_path(key, text)


def _check_items(key: str, items: list[Any]) -> None:
    for item in items:
        if isinstance(item, list | dict):
            raise InputError(f"{key}={items}: expected a list of single values, got {item!r} in it")


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


def _check_device(options: DeviceOptions) -> None:
    at_least(1, "device.batch_tokens", options.batch_tokens)
    for place, size in vars(options.max_memory).items():
        if size is not None:
            size_in_bytes(f"device.max_memory.{place}", size)
            if options.map is None:
                raise InputError(f"device.max_memory.{place}={size} is only used with device.map=auto; set it as well")


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
    if options.model.step is not None:
        at_least(0, "model.step", options.model.step)
    if options.model.checkpoints is not None:
        raise InputError(
            f"model.checkpoints={options.model.checkpoints}: expected on the command line, where it makes a sweep; in a file, "
            "set model.name to one folder"
        )
    if options.model.sha256 is not None and (options.model.random_init or options.model.architecture):
        raise InputError("model.sha256 is set, but random weights are asked for; drop one of the two")
    _check_device(options.device)
    if options.dataset.limit is not None:
        at_least(1, "dataset.limit", options.dataset.limit)
    if options.dataset.max_length is not None and options.dataset.max_length < 3:
        raise InputError(f"dataset.max_length={options.dataset.max_length}: expected at least 3 tokens")
    if not 0 <= options.dataset.mask_fraction < 1:
        raise InputError(f"dataset.mask_fraction={options.dataset.mask_fraction}: expected a share in [0, 1)")
    for analysis in all_options(options.analysis):
        analysis.validate(options)
    _check_report(options.report)
    check_figures(options.figures)
    check_tracking(options.tracking)
    if not options.checkpoint.every_seconds >= 0:
        raise InputError(f"checkpoint.every_seconds={options.checkpoint.every_seconds}: expected seconds, 0 or more")
    _check_level(options)
    _check_shards(options)
    _check_seeds(flat(plain(options)))


def _check_shards(options: RunOptions) -> None:
    at_least(1, "shards", options.shards)
    if options.prepare and (options.shard is not None or options.merge is not None or options.prepared is not None):
        raise InputError("prepare=true: expected no shard, merge or prepared, since it prepares the whole corpus")
    if options.shard is None and options.shards > 1:
        raise InputError(f"shards={options.shards}: expected shard as well, from 0 to {options.shards - 1}")
    if options.shard is not None and not 0 <= options.shard < options.shards:
        raise InputError(f"shard={options.shard}: expected a number from 0 to {options.shards - 1} (shards - 1)")


def _check_level(options: RunOptions) -> None:
    if options.level is Level.token:
        return
    known = analyses()
    for name in enabled_analyses(options.analysis):
        if not known[name].supports_words:
            others = [other for other, info in known.items() if info.supports_words]
            raise InputError(
                f"level=word: analysis={name} is not defined for words; set level=token, or choose from "
                f"{', '.join(others)}"
            )


def _check_seeds(config: Mapping[str, Any]) -> None:
    # The others follow the run's, which is therefore the one to name.
    for key, value in sorted(config.items(), key=lambda item: item[0] != "seed"):
        if key.rpartition(".")[2] == "seed" and not 0 <= value < 2**63:
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
            raise InputError(f"categories={categories}: unknown category {name!r}; expected some of {', '.join(known)}")
    if not names:
        raise InputError(f"categories=[]: expected some of {', '.join(known)}")
    return [name for name in known if name in names]


_READ_BY = {
    "path": {DatasetKind.text, DatasetKind.parallel, DatasetKind.hub, DatasetKind.clark, DatasetKind.conllu},
    "text_column": {DatasetKind.text, DatasetKind.parallel, DatasetKind.hub},
    "pair_column": {DatasetKind.text, DatasetKind.hub},
    "score_column": {DatasetKind.text, DatasetKind.hub},
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
    if options.score_column is not None and options.pair_path is not None:
        raise InputError(
            "dataset.score_column is set, but the texts of a pair come from two files (dataset.pair_path); expected one file "
            "with both texts and the score"
        )
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise InputError(f"dataset.delimiter={options.delimiter!r}: expected one character")
    if not isinstance(options.categories, str | Mapping):
        raise InputError(
            f"dataset.categories={options.categories}: expected the name of a column of annotated words, or categories by "
            "name: +dataset.categories.NAME=[token,token]"
        )
    if options.kind is DatasetKind.conllu and (options.segmentation is not Segmentation.none or options.wikitext):
        raise InputError(
            "dataset=conllu has sentences of annotated words; leave out dataset.segmentation and dataset.wikitext"
        )
    if options.chat_template:
        _check_conversations(options)
    if options.stride and options.segmentation is not Segmentation.window:
        raise InputError(f"dataset.stride={options.stride} is for dataset.segmentation=window")


def _check_conversations(options: DatasetOptions) -> None:
    if options.kind is not DatasetKind.text:
        raise InputError(f"dataset.chat_template=true: expected dataset=text, got dataset={options.kind}")
    unusable = {
        "segmentation": options.segmentation is not Segmentation.none,
        "wikitext": options.wikitext,
        "pair_path": options.pair_path is not None,
        "pair_column": options.pair_column is not None,
        "score_column": options.score_column is not None,
        "categories": isinstance(options.categories, str),
    }
    for key, given in unusable.items():
        if given:
            raise InputError(
                f"dataset.chat_template=true: a conversation is one example with categories of its own; leave out dataset.{key}"
            )


def _check_report(options: ReportOptions) -> None:
    if not 0 <= options.examples <= MOST_EXAMPLES:
        raise InputError(
            f"report.examples={options.examples}: expected 0 to {MOST_EXAMPLES} texts for the explorer of the report"
        )
    if not FEWEST_TOKENS <= options.tokens <= MOST_TOKENS:
        raise InputError(
            f"report.tokens={options.tokens}: expected {FEWEST_TOKENS} to {MOST_TOKENS} tokens of a text in the explorer"
        )


def check_figures(options: FigureOptions) -> None:
    """Check how figures should be drawn, except for the style.

    Raises:
        InputError: Naming the key, what was expected and what came.
    """
    if not options.format:
        raise InputError("figures.format=[]: expected some of png, svg and pdf, for example [pdf,png]")
    if len(set(options.format)) < len(options.format):
        raise InputError(f"figures.format=[{','.join(options.format)}]: expected each format once")
    width = options.width
    named = isinstance(width, str) and width in ("column", "page")
    if not named and (isinstance(width, str | bool) or not NARROWEST_FIGURE <= width <= WIDEST_FIGURE):
        raise InputError(
            f"figures.width={width}: expected column, page or {NARROWEST_FIGURE} to {WIDEST_FIGURE} inches"
        )
    if not LOWEST_DPI <= options.dpi <= HIGHEST_DPI:
        raise InputError(f"figures.dpi={options.dpi}: expected {LOWEST_DPI} to {HIGHEST_DPI:,} pixels per inch")


def check_tracking(options: TrackingOptions) -> None:
    """Check the keys of other trackers, and names by the rules of Weights & Biases, which it applies only once a run starts.

    Raises:
        InputError: Naming the key, what was expected and what came.
    """
    if options.tracker is not TrackerName.wandb:
        if options.mode not in (None, TrackingMode.disabled):
            raise InputError(f"tracking.mode={options.mode} is for W&B; drop it, or set tracking.tracker=wandb")
        if options.entity is not None:
            raise InputError(f"tracking.entity={options.entity} is for W&B; drop it, or set tracking.tracker=wandb")
    for key in ("project", "entity", "group", "name", "job_type"):
        name = getattr(options, key)
        if name is not None and not 1 <= len(name.strip()) <= len(name) <= NAME_LENGTH:
            raise InputError(f"tracking.{key}={name!r}: expected a name of 1 to {NAME_LENGTH} characters")
    if options.project is not None and re.search(r"[/\\#?%:]", options.project):
        raise InputError(f"tracking.project={options.project!r}: expected a name without / \\ # ? % and :")
    if options.entity is not None and not re.fullmatch(r"[\w.-]+", options.entity):
        raise InputError(f"tracking.entity={options.entity!r}: expected a user or team: letters, digits, -, _ and .")
    for tag in options.tags:
        if not 1 <= len(tag.strip()) <= len(tag) <= TAG_LENGTH:
            raise InputError(f"tracking.tags: expected tags of 1 to {TAG_LENGTH} characters, got {tag!r}")
