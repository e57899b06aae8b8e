"""The config as types: a misspelled key or a wrong type is an error when the config is composed."""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from omegaconf import II, MISSING

from normscope.analyses.info import AnalysisConfig
from normscope.analyses.registry import analyses, plug_ins
from normscope.config.rules import RUNS_CODE

INCIDENTAL = (
    *("resume", "reproduce", "prepared", "merge"),
    *("output_dir", "tracking", "report", "figures", "checkpoint", "recipe"),
)
"""Keys that no number depends on: where results go, how they are shown, and what they are compared with. Only they may change
when a run is resumed or reproduced, and they do not distinguish runs."""


@dataclass
class Pin:
    """The source of a preset's model. It is ignored if another `model.name` overrides the preset's."""

    name: str | None = None
    """The model's name; the other values hold only for this model."""
    package: str | None = None
    """An installed package that has the model's files."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    sha256: str | None = None
    """SHA-256 digest of the weights."""


class Level(enum.StrEnum):
    """What maps and norms are about: tokens, or the words that they spell."""

    token = "token"
    word = "word"


class ModelStack(enum.StrEnum):
    """Which stack of an encoder–decoder is analysed."""

    encoder = "encoder"
    decoder = "decoder"
    cross = "cross"


class Quantization(enum.StrEnum):
    """How the weights of linear layers are quantised when they are loaded."""

    torchao_int8 = "torchao_int8"
    """Eight bits, row by row; on any device."""
    bitsandbytes_8bit = "bitsandbytes_8bit"
    """Eight bits, and activations as well (LLM.int8); on CUDA."""
    bitsandbytes_4bit = "bitsandbytes_4bit"
    """Four bits (NF4); on CUDA."""


@dataclass
class ModelOptions:
    """Which model is analysed."""

    name: str = MISSING
    """Hub name or local folder."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    sha256: str | None = None
    """Expected SHA-256 digest of the weights."""
    step: int | None = None
    """Training step of the checkpoint, the x-axis of a comparison; by default read from the revision, the name or the file
    `trainer_state.json`. With `model=multiberts-steps`, which checkpoint."""
    checkpoints: str | None = None
    """Pattern of a training run's checkpoint folders, such as `/path/run/checkpoint-*`: a sweep over all of them, in the order
    of their steps."""
    pin: Pin = field(default_factory=Pin)
    stack: ModelStack | None = None
    """Which attention of an encoder–decoder to analyse; by default, the encoder's."""
    tokenizer: str | None = None
    """Hub name or local folder of another tokenizer."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """An inline transformers config instead of a downloaded model; the weights are random."""
    random_init: bool = False
    """Use random weights of the same shapes, as a control."""
    quantization: Quantization | None = None
    """Quantise linear layers: `torchao_int8` (any device), `bitsandbytes_8bit` or `bitsandbytes_4bit` (CUDA)."""
    toy: bool = False
    """Use the toy translation model, which is trained on first use."""
    seed: int = II("seed")
    """Seed of random weights; with `model=multiberts`, which of the 25 models."""
    source_language: str | None = None
    """Source language of a multilingual translation model, as a language code of its tokenizer."""
    target_language: str | None = None
    """Target language of a multilingual translation model, as a language code of its tokenizer."""
    allow_pickle: bool = field(default=False, metadata=RUNS_CODE)
    """Accept weights that are not safetensors."""
    trust_remote_code: bool = field(default=False, metadata=RUNS_CODE)
    """Run code that comes with the model."""


class DatasetKind(enum.StrEnum):
    """Where examples come from."""

    sample = "sample"
    text = "text"
    hub = "hub"
    clark = "clark"
    conllu = "conllu"
    parallel = "parallel"
    toy = "toy"


class Segmentation(enum.StrEnum):
    """How documents are split into examples."""

    none = "none"
    sentence = "sentence"
    pair = "pair"
    window = "window"


class Quoting(enum.StrEnum):
    """What quotation marks mean in a .csv or .tsv."""

    standard = "standard"
    """They enclose a cell, as in RFC 4180. A row of many lines is an error: its closing mark is probably missing."""
    multiline = "multiline"
    """They enclose a cell, and a row may have any number of lines."""
    none = "none"
    """They are ordinary characters, and every line is a row."""


class Compat(enum.StrEnum):
    """What is read from a corpus of tokens: the tokens, as its authors did (`official`), or their text (`clean`)."""

    official = "official"
    clean = "clean"


class Segments(enum.StrEnum):
    """Segment ids of the second text of a pair."""

    pair = "pair"
    zero = "zero"


@dataclass
class DatasetOptions:
    """Which texts are read, and how."""

    kind: DatasetKind = MISSING
    """Where examples come from; presets set it."""
    path: str | None = None
    """For `text`, a file (.txt, .jsonl, .csv or .tsv, optionally gzipped; .parquet), a folder or a glob pattern; for `hub`,
    the dataset's name; for `conllu`, the treebank."""
    pair_path: str | None = None
    """File of the second texts, line by line with those of `path`."""
    separator: str | None = None
    """Separates a text from its translation, if `parallel` has both on one line."""
    config: str | None = None
    """Configuration of a Hub dataset."""
    split: str = "train"
    """Split of a Hub dataset."""
    revision: str | None = None
    """Revision of a Hub dataset."""
    text_column: str | int | None = None
    """Column of the text; by default `text`, or the first column of a file without a header."""
    pair_column: str | int | None = None
    """Column of the second text of a pair; by default `text_pair`, if it exists."""
    score_column: str | int | None = None
    """Column of the gold score of a pair: a number that says how similar its texts are."""
    header: bool = True
    """Whether the first line of a .csv or .tsv names the columns."""
    delimiter: str | None = None
    """Separates the cells of a .csv or .tsv."""
    quoting: Quoting | None = None
    """What quotation marks mean; by default `standard` in .csv, `none` in .tsv."""
    wikitext: bool = False
    """Whether the lines are WikiText: headings are dropped, and punctuation is detokenized."""
    segmentation: Segmentation = Segmentation.none
    """What makes an example: the whole document (`none`), a `sentence`, a `pair` of paragraphs, or a `window` of tokens."""
    chat_template: bool = False
    """Whether rows hold conversations (`messages`), which are written in the tokenizer's chat template."""
    stride: int = 0
    """Tokens by which a window overlaps the one before it."""
    compat: Compat = Compat.official
    """What is read from a corpus of tokens: the tokens (`official`), or their text (`clean`)."""
    limit: int | None = None
    """Maximum number of examples."""
    max_length: int | None = None
    """Maximum number of tokens in an example (by default, the model's); in a pair, the longer text is truncated first."""
    mask_fraction: float = 0.0
    """Fraction of the ordinary tokens that are masked."""
    segments: Segments = Segments.pair
    """Segment ids of the second text of a pair: 1 (`pair`), or 0 as in the first text (`zero`)."""
    categories: Any = field(default_factory=dict)
    """User-defined token categories, each a list of tokens, `re:` and a regular expression, or `file:` and a file of tokens;
    or a column of annotated words (`upos`, `deprel`), whose values become categories."""
    name: str | None = None
    """Name of the data, if known: published numbers are compared only with numbers on the same data."""
    seed: int = II("seed")
    """Seed of everything that is drawn at random: masked tokens and pairs of paragraphs."""


class DType(enum.StrEnum):
    """Number format of weights and activations."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class DeviceMap(enum.StrEnum):
    """How weights are spread over devices."""

    auto = "auto"


@dataclass
class MaxMemory:
    """Sizes such as `20GiB` or `500MB`; by default, the free memory."""

    accelerator: str | None = None
    """On the accelerator on which the model runs, and on each other GPU of the process."""
    cpu: str | None = None
    """In CPU memory. Weights that fit nowhere stay on disk."""


@dataclass
class DeviceOptions:
    """Where the model runs."""

    name: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:<number>` or `mps`."""
    dtype: DType = DType.float32
    """Number format of weights and activations."""
    batch_tokens: int = 4096
    """Maximum number of tokens in a batch, padding included."""
    map: DeviceMap | None = None
    """`auto` keeps weights that do not fit on the device on the process's other GPUs, then in CPU memory, then on disk
    (accelerate)."""
    max_memory: MaxMemory = field(default_factory=MaxMemory)
    """How much memory weights may take with `map`."""


class TrackerName(enum.StrEnum):
    """Where runs are tracked."""

    wandb = "wandb"
    mlflow = "mlflow"
    tensorboard = "tensorboard"


class TrackingMode(enum.StrEnum):
    """Whether to track a run, and whether Weights & Biases sends it to its server."""

    offline = "offline"
    online = "online"
    disabled = "disabled"


NAME_LENGTH = 128
"""Maximum length that W&B allows for the name of a run, project, group or entity."""

TAG_LENGTH = 64
"""Maximum length of a tag in W&B."""


@dataclass
class TrackingOptions:
    """Weights & Biases, MLflow or TensorBoard."""

    tracker: TrackerName = TrackerName.wandb
    """`wandb`, `mlflow` or `tensorboard`. The latter two only write files."""
    mode: TrackingMode | None = None
    """`online` or `offline` for W&B (by default WANDB_MODE, or else `offline`), or `disabled`."""
    project: str | None = None
    """W&B project (by default WANDB_PROJECT) or MLflow experiment (by default MLFLOW_EXPERIMENT_NAME), or else `normscope`."""
    entity: str | None = None
    """W&B user or team."""
    group: str | None = None
    """Group of runs; in a multirun, by default the name of the sweep's directory."""
    name: str | None = None
    """Name of the run; by default its analyses, model, data and seed (in W&B, WANDB_NAME if it is set)."""
    job_type: str | None = None
    """Type of the run; by default `analysis`, `experiment` or `reproduction` (in W&B, WANDB_JOB_TYPE if it is set)."""
    notes: str | None = None
    """Notes on the run; by default its command line (in W&B, WANDB_NOTES if it is set)."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run in addition to its model family, data and analyses; in W&B, by default WANDB_TAGS."""


@dataclass
class CheckpointOptions:
    """Checkpoints, from which an interrupted run can be resumed."""

    every_seconds: float = 60.0
    """Minimum number of seconds between two checkpoints; 0 saves after every batch."""


@dataclass
class ReportOptions:
    """The report of a run."""

    enabled: bool = True
    """Whether to write the report."""
    examples: int = 3
    """Number of texts with token maps: the first texts that are short enough, then the first longer ones."""
    tokens: int = 64
    """Maximum number of tokens in such a text; longer ones are truncated."""
    text: str | None = None
    """A text to show instead; `text ||| second text` is a pair."""


class FigureFormat(enum.StrEnum):
    """File format of a figure."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


@dataclass
class FigureOptions:
    """The figures of a run, ready for a paper."""

    format: list[FigureFormat] = field(default_factory=lambda: [FigureFormat.png, FigureFormat.svg])
    """File formats: some of `png`, `svg` and `pdf`, as in `[pdf,png]`."""
    width: str | int | float = "page"
    """`page` (6.9 inches, both columns of a paper), `column` (3.35 inches), or a number of inches."""
    caption: bool = True
    """Whether to write the caption below the panels; otherwise, it is written to a text file beside the figure."""
    dpi: int = 200
    """Pixels per inch of .png, and of point clouds in the other formats."""
    style: str | None = None
    """Style that overrides the default one: a matplotlib style sheet (.mplstyle), or the name of an installed style."""


@dataclass
class RecipeOptions:
    """The preset of a paper's result, if `experiment` selects one."""

    name: str | None = None
    """Name of the preset."""
    paper: str | None = None
    """Folder in `experiments/` whose published numbers the metrics are compared with."""


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
    """`all`, or a list of layer numbers from 1. (Structured configs have no union of a string and a list.)"""
    categories: Any = "all"
    """`all`, or a list of token categories to report."""
    level: Level = Level.token
    """Whether to measure tokens (`token`) or whole words (`word`). The vectors of a word's tokens are merged before they are
    measured. Words are those of the corpus if it is annotated, otherwise those of the tokenizer."""
    seed: int = 0
    """Seed of all random choices, unless a more specific one is set."""
    output_dir: str | None = None
    """The run directory itself; in a multirun, the sweep's directory."""
    resume: str | None = None
    """Directory of a stopped run to resume."""
    reproduce: str | None = None
    """Directory of a run to repeat; the numbers are compared."""
    shard: int | None = None
    """The part of the corpus to analyse, from 0; null analyses all of it. `normscope merge RUN…` combines all shards."""
    shards: int = 1
    """The number of parts into which the corpus is divided."""
    prepare: bool = False
    """Only prepare what shards need from the whole corpus; `normscope prepare` sets it."""
    prepared: str | None = None
    """Directory that `normscope prepare` has written."""
    merge: list[str] | None = None
    """Run directories of all shards; `normscope merge` sets it."""
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    figures: FigureOptions = field(default_factory=FigureOptions)
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


def keys_that_run_code(options: Any = None, prefix: str = "") -> dict[str, Any]:
    """The default of every key that lets third-party code run, those of plug-ins included; see `RUNS_CODE`."""
    section = RunOptions() if options is None else options
    keys: dict[str, Any] = {}
    for node in dataclasses.fields(section):
        value = getattr(section, node.name)
        if dataclasses.is_dataclass(value):
            keys |= keys_that_run_code(value, f"{prefix}{node.name}.")
        elif node.metadata.get("runs_code"):
            keys[f"{prefix}{node.name}"] = value
    return keys


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config with dotted keys, as on the command line."""
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        dotted |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return dotted


def plain(options: RunOptions | ModelOptions | DeviceOptions) -> dict[str, Any]:
    """A config, or a group of one, as strings, numbers, lists and dicts, ready for any file format."""

    def simplified(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {field.name: simplified(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {key: simplified(item) for key, item in value.items()}
        if isinstance(value, list):
            return [simplified(item) for item in value]
        return str(value) if isinstance(value, enum.Enum) else value

    content: dict[str, Any] = simplified(options)
    return content
