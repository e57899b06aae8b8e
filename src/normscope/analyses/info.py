"""What an analysis declares about itself. Nothing here imports torch, to keep `--help` and shell completion instant."""

import dataclasses
import importlib
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from normscope.analyses.papers import Paper
from normscope.config.rules import Options
from normscope.results.declare import Declared

if TYPE_CHECKING:
    from normscope.data.options import DatasetOptions
    from normscope.models.options import ModelOptions


class RunSettings(Protocol):
    """What an analysis can check its options against."""

    model: "ModelOptions"
    dataset: "DatasetOptions"


@dataclasses.dataclass
class AnalysisConfig(Options):
    """Base class for the options of an analysis: the config keys below `analysis.<name>`."""

    # No docstring: pydantic reads those of the class itself alone, not of its bases.
    enabled: Annotated[bool, Field(description="Whether the analysis runs; `analysis=<name>` sets it.")] = False

    def validate(self, run: RunSettings) -> None:
        """Check how options go together; rules for single values are annotations of their fields (`config.rules`).

        Called before the model is loaded, if the analysis is enabled.

        Args:
            run: The config of the run.

        Raises:
            InputError: If an option is invalid; the message names its key.
        """


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
    question: str = ""
    """What it answers, as a question. It opens the section."""
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
    requires_pairs: bool = False
    """Whether it compares the texts of pairs: it sees each text as a separate sequence, one after the other in a batch. The
    other analyses of the run see other batches, in which a pair is one sequence."""
    declared: Declared = dataclasses.field(default_factory=Declared, hash=False)
    """What it declares: its tables, and the numbers and curves that follow from them."""

    def load(self) -> type[Any]:
        """Import the `Analysis` subclass.

        Raises:
            ImportError, AttributeError: If `implementation` does not exist.
        """
        module, _, name = self.implementation.partition(":")
        analysis: type[Any] = getattr(importlib.import_module(module), name)
        return analysis
