"""What an analysis declares about itself. Nothing here imports torch, so that `--help` and shell completion stay instant."""

import dataclasses
import importlib
from typing import TYPE_CHECKING

from normscope.analyses.papers import Paper

if TYPE_CHECKING:
    from normscope.analyses.base import Analysis
    from normscope.config.schema import RunOptions


@dataclasses.dataclass
class AnalysisConfig:
    """Base class for the options of an analysis, which are the keys below `analysis.<name>`."""

    enabled: bool = False

    def validate(self, run: "RunOptions") -> None:
        """Check what types cannot express. Called before the model is loaded, whether or not the analysis is enabled.

        Args:
            run: The whole config.

        Raises:
            InputError: If an option is invalid; the message names its key.
        """


@dataclasses.dataclass(frozen=True)
class AnalysisInfo:
    """All that the rest of the program needs to know of an analysis before it runs."""

    name: str
    """Its name in `analysis=<name>`, and the prefix of its tables, figures and metrics."""
    title: str
    """Heading of its section in reports."""
    options: type[AnalysisConfig]
    """Dataclass of its options."""
    implementation: str
    """Where the `Analysis` subclass is: `package.module:Class`. It is imported only when the analysis is enabled."""
    papers: tuple[Paper, ...] = ()
    """What to cite."""
    supports_cross_attention: bool = False
    """Whether it can analyse cross-attention, where keys and queries come from different sequences."""
    requires_cross_attention: bool = False
    """Whether it can analyse nothing else. The run then uses `model.stack=cross`."""

    def load(self) -> "type[Analysis]":
        """Import the `Analysis` subclass.

        Raises:
            ImportError, AttributeError: If `implementation` names nothing that exists.
        """
        module, _, name = self.implementation.partition(":")
        analysis: type[Analysis] = getattr(importlib.import_module(module), name)
        return analysis
