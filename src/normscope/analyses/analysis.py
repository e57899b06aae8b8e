"""The interface that every analysis keeps."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from normscope.analyses.findings import Findings
from normscope.data.batching import Batch
from normscope.data.categories import ALL, CATEGORIES
from normscope.data.frequency import TokenFrequencies
from normscope.models.block import AttentionBlock, BlockParameters
from normscope.schema import FrequencyOptions
from normscope.statistics.accumulator import Accumulator


def _unknown(options: FrequencyOptions) -> TokenFrequencies:
    raise ValueError(f"no frequencies are known: {options}")


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is looked at: known before the first batch, the same for every analysis of a run."""

    layers: Sequence[int]
    """Numbers of the layers that are shown, from 1."""
    categories: Sequence[str]
    """Token categories to report, `all` among them where it is wanted."""

    parameters: Mapping[int, BlockParameters]
    """Weights of the blocks, by layer."""

    special_tokens: frozenset[int] = frozenset()
    """Ids of the tokenizer's special tokens."""
    token: Callable[[int], str] = str
    """The text of a token, by its id."""
    frequencies: Callable[[FrequencyOptions], TokenFrequencies] = _unknown
    """How frequent tokens are, where the options say; may read a whole corpus."""

    @property
    def heads(self) -> int:
        """Heads of a layer."""
        return len(next(iter(self.parameters.values())).value_bias)

    def index(self, layer: int) -> int:
        """Where a layer stands among those that are shown."""
        return self.layers.index(layer)

    def members(self, batch: Batch) -> Bool[Tensor, "group batch token"]:
        """Which tokens of a batch are in which reported category."""
        groups = [
            batch.real if category == ALL else batch.categories == CATEGORIES.index(category)
            for category in self.categories
        ]
        return torch.stack(groups)


class Analysis(abc.ABC):
    """Watches the blocks of every batch and says in the end what they amount to.

    An analysis does three things: it chooses maths, fills accumulators, and writes findings. Everything that it remembers
    between batches is in `accumulators`, so that a run can be saved, merged and continued without knowing which analyses
    are in it.
    """

    name: ClassVar[str]
    accumulators: dict[str, Accumulator]

    @abc.abstractmethod
    def observe(self, block: AttentionBlock, batch: Batch) -> None:
        """Look at one block of one batch. The block must not be kept."""

    @abc.abstractmethod
    def findings(self) -> Findings:
        """What has been found.

        Raises:
            InputError: If the numbers cannot be right (NaN in a layer, say); the message names where.
        """
