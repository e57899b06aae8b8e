"""The config as types: a typo in a key or a wrong type is an error when the config is composed, not a surprise later."""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import II, MISSING

from normscope.analyses.info import AnalysisConfig
from normscope.analyses.registry import analyses, plug_ins

INCIDENTAL = ("resume", "reproduce", "output_dir", "tracking", "report", "checkpoint", "recipe")
"""Keys that no number depends on: where results go, how they are shown, what they are compared with. They alone may differ
when a run goes on or is made again, and they tell no runs apart."""


@dataclass
class Pin:
    """Where a preset's model comes from. It holds for the model that it names, not for one set over it."""

    name: str | None = None
    package: str | None = None
    revision: str | None = None
    sha256: str | None = None


class ModelStack(enum.StrEnum):
    """Which attention of an encoder–decoder is looked at."""

    encoder = "encoder"
    decoder = "decoder"
    cross = "cross"


@dataclass
class ModelOptions:
    """Which model is looked at."""

    name: str = MISSING
    """Hub name or local folder."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    sha256: str | None = None
    """Digest that the weights must have."""
    pin: Pin = field(default_factory=Pin)
    stack: ModelStack | None = None
    """Which attention of an encoder–decoder; the encoder's own by default."""
    tokenizer: str | None = None
    """Hub name or local folder of another tokenizer."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """A transformers config written here instead of one that is downloaded; its weights are random."""
    random_init: bool = False
    """Random weights in the model's shapes: the control."""
    toy: bool = False
    """Whether it is the toy translation model, which is trained before it is looked at."""
    seed: int = II("seed")
    source_language: str | None = None
    """Code of the language that a multilingual translation model reads, as its tokenizer writes it."""
    target_language: str | None = None
    """The same of the language that it writes."""
    allow_pickle: bool = False
    trust_remote_code: bool = False


class DatasetKind(enum.StrEnum):
    """Where examples come from."""

    sample = "sample"
    text = "text"
    hub = "hub"
    clark = "clark"
    parallel = "parallel"
    toy = "toy"


class Segmentation(enum.StrEnum):
    """What of a document is an example."""

    none = "none"
    sentence = "sentence"
    pair = "pair"
    window = "window"


class Quoting(enum.StrEnum):
    """What quotation marks mean in a .csv or .tsv."""

    standard = "standard"
    """They enclose a cell, as in RFC 4180. A row of very many lines is taken for one that lacks its closing mark."""
    multiline = "multiline"
    """The same, with rows of any number of lines."""
    none = "none"
    """They are characters like any other: every line is a row."""


class Compat(enum.StrEnum):
    """What becomes of a corpus that comes as tokens: they themselves, as its authors did it, or their text."""

    official = "official"
    clean = "clean"


class Segments(enum.StrEnum):
    """What a model is told of the two texts of a pair."""

    pair = "pair"
    zero = "zero"


@dataclass
class DatasetOptions:
    """Which text is read, and how."""

    kind: DatasetKind = MISSING
    path: str | None = None
    """File of `text` (.txt, .jsonl, .csv, .tsv, also gzipped; .parquet), a folder or a pattern; name of `hub`."""
    pair_path: str | None = None
    """File of the second texts, line by line beside those of `path`."""
    separator: str | None = None
    """What stands between a text and its translation where `parallel` has both on one line."""
    config: str | None = None
    """Configuration of a Hub data set."""
    split: str = "train"
    """Split of a Hub data set."""
    revision: str | None = None
    """Revision of a Hub data set."""
    text_column: str | int | None = None
    """Column of the text; `text`, or the first column of a file without a header."""
    pair_column: str | int | None = None
    """Column of the second text of a pair; `text_pair` where there is one."""
    header: bool = True
    """Whether the first line of a .csv or .tsv names the columns."""
    delimiter: str | None = None
    """What stands between the cells of a .csv."""
    quoting: Quoting | None = None
    """What quotation marks mean in a .csv or .tsv; `standard` in .csv, `none` in .tsv."""
    wikitext: bool = False
    """Whether the lines are WikiText's: headings are left out, and its signs are put back."""
    segmentation: Segmentation = Segmentation.none
    """What of a document is an example: all of it (`none`), a `sentence`, a `pair` of paragraphs, a `window` of tokens."""
    stride: int = 0
    """Tokens that a window has in common with the one before it."""
    compat: Compat = Compat.official
    """What becomes of a corpus that comes as tokens: they themselves, or their text."""
    limit: int | None = None
    """Examples to read at most."""
    max_length: int | None = None
    """Tokens of an example at most, pairs cut longest first; as many as the model takes by default."""
    mask_fraction: float = 0.0
    """Share of the ordinary tokens that the mask token replaces."""
    segments: Segments = Segments.pair
    """Segment ids of a pair's second text: 1 (`pair`), or 0 as those of the first (`zero`)."""
    categories: dict[str, Any] = field(default_factory=dict)
    """Token categories of the user's: a list of tokens, `re:` and a regular expression, or `file:` and a file of tokens."""
    name: str | None = None
    """What the data is, where it is known: published numbers are compared on their own data only."""
    seed: int = II("seed")


class DType(enum.StrEnum):
    """Number format of weights and activations."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass
class DeviceOptions:
    """Where the model runs."""

    name: str = "auto"
    dtype: DType = DType.float32
    batch_tokens: int = 4096
    """Tokens of a batch at most, padding included."""


class TrackingMode(enum.StrEnum):
    """Whether Weights & Biases is told, and how."""

    offline = "offline"
    online = "online"
    disabled = "disabled"


NAME_LENGTH = 128
"""Characters that W&B takes in the name of a run, a project, a group or an entity."""


@dataclass
class TrackingOptions:
    """Weights & Biases."""

    mode: TrackingMode | None = None
    """By default WANDB_MODE, or else offline."""
    project: str | None = None
    """By default WANDB_PROJECT, or else normscope."""
    entity: str | None = None
    group: str | None = None
    """Runs that belong together; the sweep's folder in a multirun."""
    name: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class CheckpointOptions:
    """What is kept so that a run can go on after any end."""

    every_seconds: float = 60.0
    """Seconds between two savings at least; 0 saves after every batch."""


@dataclass
class ReportOptions:
    """The page that a run ends with."""

    enabled: bool = True
    examples: int = 3
    """Texts of the corpus in the explorer: the first that are short enough, then the first longer ones."""
    tokens: int = 64
    """Tokens of such a text at most; longer ones are cut."""
    text: str | None = None
    """A text to explore in their place; `text ||| second text` is a pair."""


@dataclass
class RecipeOptions:
    """The recipe of a paper's result, where `experiment` chose one."""

    name: str | None = None
    paper: str | None = None
    """Folder below `experiments/` whose published numbers the metrics are compared with."""


if TYPE_CHECKING:
    AnalysisOptions = Any
else:
    # One field per analysis, plug-ins included, so that their options are typed keys as well.
    AnalysisOptions = dataclasses.make_dataclass(
        "AnalysisOptions",
        [(info.name, info.options, field(default_factory=info.options)) for info in analyses().values()],
        namespace={"__doc__": "The options of every analysis, enabled or not.", "__module__": __name__},
    )


@dataclass
class RunOptions:
    """The whole config."""

    model: ModelOptions = field(default_factory=ModelOptions)
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)
    device: DeviceOptions = field(default_factory=DeviceOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)
    layers: Any = "all"
    """`all`, or a list of layer numbers from 1 (no union of a word and a list exists for structured configs)."""
    categories: Any = "all"
    """`all`, or a list of token categories to report."""
    seed: int = 0
    output_dir: str | None = None
    """The run folder itself; in a multirun, the sweep's."""
    resume: str | None = None
    """A run folder: the run goes on where it was stopped."""
    reproduce: str | None = None
    """A run folder: its run is made again, and the numbers are compared."""
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    recipe: RecipeOptions = field(default_factory=RecipeOptions)


def register() -> None:
    """Register the schema with Hydra under the name that `conf/config.yaml` starts from, and the presets of plug-ins."""
    store = ConfigStore.instance()
    store.store(name="schema", node=RunOptions)
    for info in plug_ins():
        store.store(group="analysis", name=info.name, node={info.name: {"enabled": True}})


def enabled_analyses(options: AnalysisOptions) -> list[str]:
    """Names of the enabled analyses, in the order of the registry."""
    return [node.name for node in dataclasses.fields(options) if getattr(options, node.name).enabled]


def all_options(options: AnalysisOptions) -> list[AnalysisConfig]:
    """The options of every analysis, in the order of the registry."""
    return [getattr(options, node.name) for node in dataclasses.fields(options)]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config with keys as on the command line."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def plain(options: RunOptions) -> dict[str, Any]:
    """The config as words, numbers, lists and dicts, ready for any file format."""

    def simplified(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: simplified(item) for key, item in value.items()}
        if isinstance(value, list):
            return [simplified(item) for item in value]
        return str(value) if isinstance(value, enum.Enum) else value

    return {key: simplified(value) for key, value in dataclasses.asdict(options).items()}
