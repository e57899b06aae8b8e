"""What an analysis declares about itself. Nothing here imports torch, to keep `--help` and shell completion instant."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from normscope.analyses.papers import Paper

if TYPE_CHECKING:
    from normscope.analyses.base import Analysis
    from normscope.config.schema import RunOptions


@dataclasses.dataclass
class AnalysisConfig:
    """Base class for the options of an analysis: the config keys below `analysis.<name>`."""

    enabled: bool = False
    """Whether the analysis runs; `analysis=<name>` sets it."""

    def validate(self, run: "RunOptions") -> None:
        """Check what types cannot express. Called before the model is loaded, even if the analysis is disabled.

        Args:
            run: The whole config.

        Raises:
            InputError: If an option is invalid; the message names its key.
        """


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """What a published table contains. A name such as `head_<head>` stands for several columns."""

    row: str
    """What there is one row for: "layer and method"."""
    columns: Mapping[str, str]
    """The meaning of each column, in order."""
    cells: Mapping[str, Literal["text", "whole"]] = dataclasses.field(default_factory=dict)
    """The columns that hold something else than numbers with decimals, if a comparison reads the table for a paper's table."""
    key: tuple[str, ...] = ()
    """The columns whose values no two rows share, if a comparison reads the table."""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Everything that an analysis publishes, by name, with its meaning. `<method>/mean` stands for several names."""

    tables: Mapping[str, TableInfo] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The numbers in results.json."""
    curves: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Values by layer."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is on the y-axis of the curves, by the same names. Values are drawn in per cent where it ends in `(%)`."""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Titles of what placeholders stand for: of `attn_w`, say, in `<method>/mean`. Others are their own titles."""


@dataclasses.dataclass(frozen=True)
class AnalysisInfo:
    """Everything that the rest of the program needs to know about an analysis before it runs."""

    name: str
    """The name in `analysis=<name>`, and the prefix of tables, figures and metrics."""
    title: str
    """Heading of the section in reports."""
    options: type[AnalysisConfig]
    """Dataclass of the options."""
    implementation: str
    """Path of the `Analysis` subclass, `package.module:Class`. It is imported only if the analysis is enabled."""
    papers: tuple[Paper, ...] = ()
    """Papers to cite."""
    supports_cross_attention: bool = False
    """Whether it can analyse cross-attention, where keys and queries come from different sequences."""
    requires_cross_attention: bool = False
    """Whether it can analyse only cross-attention. The run then uses `model.stack=cross`."""
    supports_words: bool = False
    """Whether it can measure whole words (`level=word`)."""
    requires_annotation: bool = False
    """Whether it can analyse only sentences with annotated words, such as those of `dataset=conllu`."""
    path_keys: tuple[str, ...] = ()
    """Options that are paths, relative to `analysis.<name>`, so that they are checked like all paths."""
    paper_tables: str = ""
    """Path of a function from its results to the papers' tables, `package.module:function`; see `analyses/paper_tables.py`."""
    outputs: Outputs = dataclasses.field(default_factory=Outputs, hash=False)
    """What it publishes. Names have no prefix; the analysis's name is added when they are published."""

    def load(self) -> "type[Analysis]":
        """Import the `Analysis` subclass.

        Raises:
            ImportError, AttributeError: If `implementation` does not exist.
        """
        module, _, name = self.implementation.partition(":")
        analysis: type[Analysis] = getattr(importlib.import_module(module), name)
        return analysis
