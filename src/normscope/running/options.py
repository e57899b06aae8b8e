"""The whole config of a run: the options of every package, and those of the run itself; from Python, too."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field

from normscope.analyses.info import AnalysisConfig
from normscope.analyses.registry import analyses
from normscope.config.composition import explain
from normscope.config.rules import Expected, Options, PathText, Seed
from normscope.config.schema import Schema, check_options
from normscope.data.options import DatasetOptions, Level, check_dataset
from normscope.errors import InputError
from normscope.maths.choices import AttentionRule
from normscope.models.options import DeviceOptions, ModelOptions, ModelStack, check_device, check_model
from normscope.reporting.options import FigureOptions, RecipeOptions, ReportOptions, TrackingOptions, Verbosity


@dataclass
class CheckpointOptions(Options):
    """Checkpoints, from which an interrupted run can be resumed."""

    every_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Minimum number of seconds between two checkpoints; 0 saves after every batch."""


if TYPE_CHECKING:
    AnalysisOptions = Any
else:
    # One field per analysis, plug-ins included, so that their options are typed keys as well.
    AnalysisOptions = dataclasses.make_dataclass(
        "AnalysisOptions",
        [(info.name, info.options, field(default_factory=info.options)) for info in analyses().values()],
        bases=(Options,),
        namespace={"__doc__": "The options of every analysis, enabled or not.", "__module__": __name__},
    )


LocalFolder = Annotated[PathText, Expected("a folder on this machine", lambda path: "://" not in path)]


@dataclass
class LiveOptions(Options):
    """The live page of `normscope serve`."""

    __pydantic_config__ = Options.__pydantic_config__ | ConfigDict(json_schema_extra={"own": True})

    host: str = "127.0.0.1"
    """Address to listen on: `0.0.0.0` for every one of this machine. Whatever it is, the page opens only with the token in the
    address that is printed."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """Port to listen on; 0 takes any free one."""
    models: list[str] = field(default_factory=list)
    """More models to compare with, by Hub name or local folder; with `model.checkpoints`, all checkpoints."""


@dataclass
class RunOptions(Options):
    """The whole config."""

    model: ModelOptions = field(default_factory=ModelOptions)
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)
    device: DeviceOptions = field(default_factory=DeviceOptions)
    tracking: TrackingOptions = field(default_factory=TrackingOptions)
    layers: Annotated[Any, Expected("all, or a list of layer numbers from 1")] = "all"
    """Which layers to measure."""
    categories: Annotated[Any, Expected("all, or a list of token categories")] = "all"
    """Which categories of tokens to report."""
    level: Level = Level.token
    """Whether to measure tokens (`token`) or whole words (`word`). The vectors of a word's tokens are merged before they are
    measured. Words are those of the corpus if it is annotated, otherwise those of the tokenizer."""
    seed: Seed = 0
    """Seed of all random choices, unless a more specific one is set."""
    attention: AttentionRule = AttentionRule.held
    """What attributions do with attention weights, in a run, `explain` and `serve`: hold them at their values (`held`), or
    follow them to queries and keys as well (`through`)."""
    output_dir: LocalFolder | None = None
    """The run directory itself; in a multirun, the sweep's directory."""
    resume: PathText | None = None
    """Directory of a stopped run to resume."""
    reproduce: PathText | None = None
    """Directory of a run to repeat; the numbers are compared."""
    verbosity: Verbosity = Verbosity.normal
    """`normal`, or `quiet` (`--quiet`): only the folder of the results and errors are printed."""
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    figures: FigureOptions = field(default_factory=FigureOptions)
    recipe: RecipeOptions = field(default_factory=RecipeOptions)
    live: LiveOptions = field(default_factory=LiveOptions)


def enabled_analyses(options: AnalysisOptions) -> list[str]:
    """Names of the enabled analyses, in the order of the registry."""
    return [node.name for node in dataclasses.fields(options) if getattr(options, node.name).enabled]


def all_options(options: AnalysisOptions) -> list[AnalysisConfig]:
    """The options of every analysis, in the order of the registry."""
    return [getattr(options, node.name) for node in dataclasses.fields(options)]


SCHEMA = Schema(RunOptions)
"""All keys of a config."""


def settled(options: RunOptions) -> RunOptions:
    """The options with what the enabled analyses decide: cross-attention is observed if one of them requires it.

    Raises:
        InputError: If another one would observe the encoder.
    """
    known = analyses()
    enabled = enabled_analyses(options.analysis)
    aligning = [name for name in enabled if known[name].requires_cross_attention]
    others = [name for name in enabled if not known[name].requires_cross_attention]
    if aligning and others and options.model.stack is None:
        raise InputError(
            f"analysis={aligning[0]} measures cross-attention, and analysis={others[0]} the encoder unless model.stack is set; "
            "set model.stack=cross to measure both on cross-attention, or start a run for each"
        )
    if not aligning or options.model.stack is not None:
        return options
    return dataclasses.replace(options, model=dataclasses.replace(options.model, stack=ModelStack.cross))


def check(options: RunOptions) -> None:
    """Check what types cannot say, as far as it is known before a model is loaded."""
    check_options(options)
    if not enabled_analyses(options.analysis):
        names = ", ".join(node.name for node in dataclasses.fields(options.analysis))
        raise InputError(f"analysis=[]: expected at least one of {names}, for example analysis=mixing")
    check_dataset(options.dataset)
    check_model(options.model)
    check_device(options.device)
    for name in enabled_analyses(options.analysis):
        getattr(options.analysis, name).validate(options)
    settled(options)
    _check_level(options.level, options.analysis)


def _check_level(level: Level, options: AnalysisOptions) -> None:
    if level is Level.token:
        return
    known = analyses()
    for name in enabled_analyses(options):
        if not known[name].supports_words:
            others = [other for other, info in known.items() if info.supports_words]
            raise InputError(
                f"level=word: analysis={name} is not defined for words; set level=token, or choose from "
                f"{', '.join(others)}"
            )


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


def run_options(settings: Mapping[str, Any]) -> RunOptions:
    """The config with these values, and its defaults for the rest.

    Args:
        settings: Nested mappings, as in a config file. Paths may be `Path` objects.

    Raises:
        InputError: If a key is unknown or a value has the wrong type; the message names the key.
    """
    try:
        values = _plain(settings)
        SCHEMA.check(values)
        options = OmegaConf.to_object(OmegaConf.merge(_defaults(), values))
    except OmegaConfBaseException as error:
        raise InputError(explain(error, SCHEMA)) from error
    except RecursionError as error:
        raise InputError("expected values as in a config file, got a list that contains itself") from error
    assert isinstance(options, RunOptions)
    return options


@functools.cache
def _defaults() -> DictConfig:
    """The config with its defaults, which takes longer to make than a small run; `merge` leaves it as it is."""
    made = OmegaConf.structured(RunOptions)
    assert isinstance(made, DictConfig)
    return made


def _plain(value: Any) -> Any:
    """The value with lists for tuples and strings for paths."""
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple() | range():
            return [_plain(item) for item in value]
        case Path():
            return str(value)
        case _:
            return value
