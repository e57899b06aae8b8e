"""The interface that every analysis keeps."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.alignment.gold import Reference
from normscope.analyses.findings import Findings
from normscope.analyses.intervention_runner import InterventionRunner
from normscope.analyses.options import AlignmentOptions, FrequencyOptions, OutliersOptions
from normscope.data.batching import Batch
from normscope.data.categories import ALL, CATEGORIES
from normscope.data.token_frequencies import TokenFrequencies
from normscope.maths.mixing import Method
from normscope.maths.normalisation import Normalisation
from normscope.models.block import AttentionBlock, BlockParameters
from normscope.statistics.accumulator import Accumulator


def _unknown(options: object) -> Any:
    raise ValueError(f"this subject does not know {options}")


@dataclasses.dataclass(frozen=True)
class AnalysisContext:
    """What is looked at: known before the first batch, the same for every analysis of a run."""

    layers: Sequence[int]
    """Numbers of the layers that are shown, from 1."""
    categories: Sequence[str]
    """Token categories to report, `all` among them where it is wanted."""

    parameters: Mapping[int, BlockParameters]
    """Weights of the blocks, by layer."""

    names: Sequence[str] = CATEGORIES
    """All token categories, those that are not reported among them."""
    special_tokens: frozenset[int] = frozenset()
    """Ids of the tokenizer's special tokens."""
    token: Callable[[int], str] = str
    """The text of a token, by its id."""
    hidden_norms: Mapping[int, Normalisation] = dataclasses.field(default_factory=dict)
    """The norms whose outputs are hidden vectors, by layer from 0."""
    methods: Sequence[Method] = tuple(Method)
    """The methods that the model's blocks have."""
    content_only: bool = False
    """Whether scores have terms beside q·k that are not looked at."""
    depth: int = 0
    """Layers of the model."""
    outliers: OutliersOptions = dataclasses.field(default_factory=OutliersOptions)
    """Which dimensions are outliers."""
    frequencies: Callable[[FrequencyOptions], TokenFrequencies] = _unknown
    """How frequent tokens are, where the options say; may read a whole corpus."""
    reference: Callable[[AlignmentOptions], Reference] = _unknown
    """The pairs of sentences and their word alignments, where the options say; reads a whole corpus."""

    @property
    def heads(self) -> int:
        """Heads of a layer."""
        return len(next(iter(self.parameters.values())).value_bias)

    @property
    def model(self) -> int:
        """Size of the hidden vectors."""
        return int(next(iter(self.parameters.values())).key_weight.shape[1])

    def index(self, layer: int) -> int:
        """Where a layer stands among those that are shown."""
        return self.layers.index(layer)

    def members(self, batch: Batch) -> Bool[Tensor, "group batch token"]:
        """Which tokens of a batch are in which reported category."""
        groups = [
            batch.token_mask if category == ALL else batch.categories == self.names.index(category)
            for category in self.categories
        ]
        return torch.stack(groups) if groups else batch.token_mask.new_zeros(0, *batch.token_mask.shape)


class Analysis(abc.ABC):
    """Watches the blocks of every batch and says in the end what they amount to.

    An analysis does three things: it chooses maths, fills accumulators, and writes findings. Everything that it remembers
    between batches is in `accumulators`, so that a run can be saved, merged and continued without knowing which analyses
    are in it.
    """

    name: ClassVar[str]
    accumulators: dict[str, Accumulator]
    supports_cross_attention: ClassVar[bool] = False
    """Whether it can look at cross-attention, whose keys are another sequence than its queries."""
    requires_cross_attention: ClassVar[bool] = False
    """Whether it can look at nothing else."""
    hidden: ClassVar[bool] = False
    """Whether the hidden vectors are looked at as well."""

    @abc.abstractmethod
    def __init__(self, options: Any, context: AnalysisContext) -> None:
        """Make ready for the first batch.

        Raises:
            InputError: If an option does not fit the subject.
        """

    @abc.abstractmethod
    def observe(self, block: AttentionBlock, batch: Batch) -> None:
        """Look at one block of one batch. The block must not be kept."""

    def observe_hidden(  # noqa: B027 - most analyses have no use for it
        self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch
    ) -> None:
        """Look at the hidden vectors of one layer (from 0, the embedding output) of one batch, where `hidden` asks for them."""

    def experiment(self, runner: InterventionRunner) -> None:  # noqa: B027 - nor for this
        """Run the model again in another way, once the whole corpus has been seen."""

    @abc.abstractmethod
    def findings(self) -> Findings:
        """What has been found.

        Raises:
            InputError: If the numbers cannot be right (NaN in a layer, say); the message names where.
        """
