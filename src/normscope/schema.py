"""The config as types: a typo in a key or a wrong type is an error when the config is composed, not a surprise later."""

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import II, MISSING

from normscope.errors import InputError


@dataclass
class Pin:
    """Where a preset's model comes from. It holds for the model that it names, not for one set over it."""

    name: str | None = None
    package: str | None = None
    revision: str | None = None
    sha256: str | None = None


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
    tokenizer: str | None = None
    """Hub name or local folder of another tokenizer."""
    architecture: dict[str, Any] = field(default_factory=dict)
    """A transformers config written here instead of one that is downloaded; its weights are random."""
    random_init: bool = False
    """Random weights in the model's shapes: the control."""
    seed: int = II("seed")
    allow_pickle: bool = False
    trust_remote_code: bool = False


class DatasetKind(enum.StrEnum):
    """Where examples come from."""

    sample = "sample"
    text = "text"


class Segments(enum.StrEnum):
    """What a model is told of the two texts of a pair."""

    pair = "pair"
    zero = "zero"


@dataclass
class DatasetOptions:
    """Which text is read, and how."""

    kind: DatasetKind = MISSING
    path: str | None = None
    """File of `text`: .txt, .jsonl, .csv or .parquet."""
    text_column: str | int | None = None
    """Column of the text; `text`, or the first column of a file without a header."""
    pair_column: str | int | None = None
    """Column of the second text of a pair; `text_pair` where there is one."""
    header: bool = True
    """Whether the first line of a .csv names the columns."""
    limit: int | None = None
    """Examples to read at most."""
    max_length: int | None = None
    """Tokens of an example at most, pairs cut longest first; as many as the model takes by default."""
    mask_fraction: float = 0.0
    """Share of the ordinary tokens that the mask token replaces."""
    segments: Segments = Segments.pair
    """Segment ids of a pair's second text: 1 (`pair`), or 0 as those of the first (`zero`)."""
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


@dataclass
class TrackingOptions:
    """Weights & Biases."""

    mode: TrackingMode = TrackingMode.offline
    project: str = "normscope"
    entity: str | None = None
    group: str | None = None
    """Runs that belong together; the sweep's folder in a multirun."""
    name: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class MixingOptions:
    """Mixing ratios (Kobayashi et al. 2021)."""

    enabled: bool = False


@dataclass
class NormsOptions:
    """Vector norms (Kobayashi et al. 2020)."""

    enabled: bool = False
    exact_pairs: int = 50_000_000
    """Pairs of α and ‖f‖ that are kept for an exact rank correlation; with more it is estimated."""
    scatter_pairs: int = 10_000
    """Pairs in the scatter plot's sample."""
    seed: int = II("seed")


@dataclass
class FrequencyOptions:
    """Token frequency (Kobayashi et al. 2020 and 2021)."""

    enabled: bool = False
    source: str = "corpus"
    """Where tokens are counted: `corpus`, or a text file like those of dataset.path."""
    path: str | None = None
    """A file of `rank count token_id` lines instead."""
    conventional: bool = False
    """Whether [CLS], [SEP], comma and period count as the four most frequent, and other special tokens and single
    characters are left out (K20, footnote 5)."""
    exact_pairs: int = 50_000_000
    """Pairs of rank and measure that are kept for exact rank correlations; with more they are estimated."""
    seed: int = II("seed")


@dataclass
class AnalysisOptions:
    """Every analysis, whether or not it is chosen."""

    mixing: MixingOptions = field(default_factory=MixingOptions)
    norms: NormsOptions = field(default_factory=NormsOptions)
    frequency: FrequencyOptions = field(default_factory=FrequencyOptions)


@dataclass
class RecipeOptions:
    """The recipe of a paper's result, where `experiment` chose one."""

    name: str | None = None
    paper: str | None = None
    """Folder below `experiments/` whose published numbers the metrics are compared with."""


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
    recipe: RecipeOptions = field(default_factory=RecipeOptions)


def register() -> None:
    """Make the schema known to Hydra under the name that `conf/config.yaml` begins with."""
    ConfigStore.instance().store(name="schema", node=RunOptions)


def enabled_analyses(options: AnalysisOptions) -> list[str]:
    """Names of the chosen analyses, in the order in which they are declared."""
    return [node.name for node in dataclasses.fields(options) if getattr(options, node.name).enabled]


def plain(options: RunOptions) -> dict[str, Any]:
    """The config as words, numbers, lists and dicts, ready for any file format."""

    def simplified(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: simplified(item) for key, item in value.items()}
        if isinstance(value, list):
            return [simplified(item) for item in value]
        return str(value) if isinstance(value, enum.Enum) else value

    return {key: simplified(value) for key, value in dataclasses.asdict(options).items()}


def check(options: RunOptions) -> None:
    """Check what types cannot say, as far as it is known before a model is loaded.

    Raises:
        InputError: Naming the key, what was expected and what came.
    """
    if not enabled_analyses(options.analysis):
        names = ", ".join(node.name for node in dataclasses.fields(options.analysis))
        raise InputError(f"analysis=[]: expected at least one of {names}, for example analysis=mixing")
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
    for key, value in (
        ("seed", options.seed),
        ("dataset.seed", options.dataset.seed),
        ("model.seed", options.model.seed),
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


def _positive(key: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{key}={value}: expected a whole number of at least 1")
