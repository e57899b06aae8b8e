"""What an analysis needs to run the model again, as an interface: no analysis knows how a model is run."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from normscope.data.batching import Batch
from normscope.models.block import AttentionBlock

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Ablation:
    """Dimensions of the residual stream that are replaced where a layer reads it."""

    dimensions: Sequence[int]
    values: Mapping[int, Float[Tensor, " dimension"]]
    """What stands in them, by the layer (from 1) that reads it; layers that are left out read what the model computed."""


class InterventionRunner(abc.ABC):
    """The model of a run, to be run again on some of its sequences."""

    @abc.abstractmethod
    def batches(self, sequences: Sequence[Int[Tensor, "kind token"]]) -> list[Batch]:
        """Batches of sequences that a `SequenceSample` has kept."""

    @abc.abstractmethod
    def observe(self, batch: Batch, visit: Callable[[AttentionBlock], None], ablation: Ablation | None = None) -> None:
        """Show the blocks of the chosen layers in one forward pass."""

    @property
    @abc.abstractmethod
    def predicts_masked_tokens(self) -> bool:
        """Whether the model has a head that predicts masked tokens."""

    @abc.abstractmethod
    def masked_token_loss(self, batch: Batch, ablation: Ablation | None = None) -> tuple[float, int]:
        """Cross-entropy (nats, summed) of 15 % of the ordinary tokens when they are masked, and how many they are.

        Which ones follows from the sequences alone: they are the same whatever is ablated.
        """

    @abc.abstractmethod
    def progress(self, steps: Iterable[T], total: int, what: str) -> Iterable[T]:
        """The steps, with a progress bar."""
