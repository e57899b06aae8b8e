"""The interface that every analysis implements."""

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.data.batching import Batch
from normscope.data.categories import ALL, CATEGORIES
from normscope.data.encoders import Prompts
from normscope.data.nouns import TEXTS, Nouns
from normscope.data.resources import Resource
from normscope.data.token_texts import Vocabulary
from normscope.maths.choices import Pooling
from normscope.maths.composition import NormPosition
from normscope.maths.embedder import Embedder
from normscope.maths.mixing import Method
from normscope.maths.tensors import to_device
from normscope.models.blocks.block import AttentionBlock, BlockParameters
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.reading import ObservedStack
from normscope.results.result import Result
from normscope.statistics.accumulator import Accumulator

C = TypeVar("C", bound=AnalysisConfig)


HELD_ROUTING = "the weights that routers give to experts are held fixed"
"""A note for decompositions of mixtures of experts."""


@dataclasses.dataclass(frozen=True)
class Requirements:
    """What an analysis needs beyond the attention blocks of the chosen layers."""

    hidden: bool = False
    """Whether it needs the hidden vectors: the embedding output and the output of every layer."""
    returned: bool = False
    """Whether, of a model of images, it needs what leaves the last layer and what the model returns."""
    feed_forward: bool = False
    """Whether it needs the feed-forward networks of its layers."""
    vectors_of_keys: bool = False
    """Whether it measures one vector f(x_j) for each key, which does not exist if heads have gates."""
    weights_of_keys: bool = False
    """Whether it needs W_Q and W_K, which latent attention does not have."""
    token_maps: int = 0
    """Number of maps per layer that it adds to the report's explorer (`Analysis.token_maps`), at most."""
    classifier: bool = False
    """Whether it uses the checkpoint's head that classifies whole texts, if there is one."""
    language_head: bool = False
    """Whether it uses the checkpoint's language-modelling head (masked tokens, or next tokens), if there is one."""
    translator: bool = False
    """Whether it uses the checkpoint's head that predicts translations, if there is one."""
    all_layers: bool = False
    """Whether it needs every layer, regardless of which `layers` the user has chosen."""
    keeps_layers: bool = False
    """Whether it keeps what autograd records of a batch. Batches are then split so that this fits into memory."""
    prompts: Callable[[Callable[[], Embedder]], Prompts] | None = None
    """Returns the prompts of pairs of texts that are compared, given a function that returns the model's embedder."""
    words: Callable[[str], list[tuple[int, int]]] | None = None
    """Splits a text into words (start, end), if batches must record the word of each token."""
    resources: Mapping[str, Resource[Any]] = dataclasses.field(default_factory=dict)
    """Resources to prepare before the first batch, by name; see `AnalysisContext.resources`."""


@dataclasses.dataclass(frozen=True)
class AnalysisContext:
    """What an analysis knows about the run before the first batch."""

    layers: Sequence[int]
    """The layers whose blocks it will see, counted from 1."""
    categories: Sequence[str]
    """Token categories to report, including `all` if it is reported."""

    parameters: Mapping[int, BlockParameters]
    """Weights of the blocks, by layer."""

    names: Sequence[str] = CATEGORIES
    """All token categories, reported or not."""
    vocabulary: Vocabulary = dataclasses.field(default_factory=Vocabulary)
    """The tokenizer's tokens."""
    methods: Sequence[Method] = tuple(Method)
    """The methods that are defined for the model's blocks."""
    has_position_terms: bool = False
    """Whether attention scores have position terms besides q·k, which cannot be observed."""
    width: int | None = None
    """Number of dimensions of the hidden vectors; by default, that of the blocks."""
    depth: int = 0
    """Number of layers of the model."""
    observed: ObservedStack | None = None
    """The base model, for passes of the analysis's own."""
    own_embedder: Callable[[], Embedder] = lambda: Embedder(Pooling.mean)
    """Returns what makes the model's embeddings, by its own files; raises InputError if they do not say."""
    dtype: torch.dtype = torch.float32
    """The type in which the model computes."""
    has_feed_forward: bool = True
    """Whether a feed-forward network follows the attention of every layer; see `ModelFacts.has_networks`."""
    has_experts: bool = False
    """Whether feed-forward networks are mixtures of experts, whose routing decompositions hold."""
    options: Sequence[AnalysisConfig] = ()
    """The options of all analyses, enabled or not."""
    resources: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The resources that the analysis requires, by name."""
    files_sha256: str | None = None
    """Digest of the weight files; None for random weights and for a model that was in memory already."""
    nouns: Nouns = TEXTS
    """What the model reads, in words."""
    input_length: int | None = None
    """Number of tokens of every input, if all have as many, as images do."""

    def options_of(self, kind: type[C]) -> C:
        """The options of another analysis whose definitions this one shares, or its defaults."""
        return next((options for options in self.options if isinstance(options, kind)), kind())

    @cached_property
    def heads_of(self) -> Mapping[int, int]:
        """Number of heads of each layer."""
        if self.observed is None:
            return {layer: len(parameters.output_weight) for layer, parameters in self.parameters.items()}
        return self.observed.facts.heads_of

    @cached_property
    def heads(self) -> int:
        """The largest number of heads of a layer."""
        return max(self.heads_of.values())

    @cached_property
    def norm_positions(self) -> Collection[NormPosition]:
        """The positions of the blocks' norms, each once."""
        if self.observed is None:
            return {parameters.norm_position for parameters in self.parameters.values()}
        return self.observed.facts.norm_positions

    def with_heads(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table whose head exists in their layer."""
        if len({*self.heads_of.values()}) == 1:
            return table
        return table[table["head"] <= table["layer"].map(self.heads_of)].reset_index(drop=True)

    @cached_property
    def model(self) -> int:
        """Size of the hidden vectors."""
        if self.width is not None:
            return self.width
        return int(next(iter(self.parameters.values())).output_weight.shape[2])

    def index(self, layer: int) -> int:
        """Position of a layer among `layers`."""
        return self.layers.index(layer)

    def members(self, batch: Batch) -> Bool[Tensor, "group batch token"]:
        """Which tokens of a batch belong to each reported category."""

        def members() -> Tensor:
            groups = [
                batch.token_mask if category == ALL else batch.categories == self.names.index(category)
                for category in self.categories
            ]
            return torch.stack(groups) if groups else batch.token_mask.new_zeros(0, *batch.token_mask.shape)

        return batch.once(("members", *self.categories), members)

    def parts(self, batch: Batch) -> Sequence[Int[Tensor, " _"]]:
        """The tokens of each reported category but `all`, as indices into the flattened batch, on its device.

        If `all` is reported, the last part is the tokens of none of the others, so that the parts cover all tokens.

        They come from the batch on the host: counting tokens on the device would make the host wait.
        """

        def parts() -> list[Tensor]:
            own = dataclasses.replace(self, categories=[category for category in self.categories if category != ALL])
            groups = own.members(batch.host)
            others = [batch.host.token_mask & ~groups.any(dim=0)] if ALL in self.categories else []
            return [to_device(group.flatten().nonzero()[:, 0], batch.input_ids.device) for group in (*groups, *others)]

        return batch.once(("parts", *self.categories), parts)


class Analysis(abc.ABC):
    """Sees every batch of a corpus, layer by layer, and turns its accumulated statistics into findings.

    An analysis does three things: it chooses the maths, updates accumulators, and writes findings. It keeps nothing between
    batches except its `accumulators`, so runs can be saved, resumed and merged without any knowledge of the analyses.

    For each batch the methods are called in this order: `start_batch`; then, layer by layer, `update_hidden` with what enters
    the layer, `update_attention` with its block and `update_feed_forward` with its network; `update_hidden` with the output of
    the last layer; `end_batch`; `settle`; `layers_to_see_again`. A batch that does not fit into memory is split, and every part
    counts as a batch.
    """

    info: ClassVar[AnalysisInfo]
    """Declares its name, title, options and papers."""
    accumulators: Mapping[str, Accumulator]
    """All state that it keeps between batches, by name. Set by `__init__`."""

    def __init__(self, options: Any, context: AnalysisContext) -> None:
        """Prepare for the first batch.

        Args:
            options: An instance of `info.options`.

        Raises:
            InputError: If an option does not fit the model.
        """
        self.options, self.context = options, context
        self.accumulators = {}

    @classmethod
    def suited_to(cls, _facts: ModelFacts) -> "type[Analysis]":
        """The class that measures such a model: this one, unless it leaves some to another."""
        return cls

    @classmethod
    def requirements(cls, _options: Any, _facts: ModelFacts) -> Requirements:
        """What the analysis needs, given its options and the model. Called before the weights are loaded."""
        return Requirements()

    @classmethod
    def observes_the_pass(cls) -> bool:
        """Whether it takes blocks or vectors from the pass over the corpus.

        If no analysis of a run does, the corpus is read, but the model does not run on it.
        """
        updates = ("update_attention", "update_feed_forward", "update_hidden")
        return any(getattr(cls, name) is not getattr(Analysis, name) for name in updates)

    def start_batch(self, batch: Batch) -> None:  # noqa: B027 - optional, as are the next ones
        """Reset state that lives until `end_batch` only. It is not saved."""

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:  # noqa: B027
        """Add an attention block. Do not keep the block: it holds the activations of its layer."""

    def update_feed_forward(self, block: FeedForwardBlock, batch: Batch) -> None:  # noqa: B027
        """Add a feed-forward network, if `requirements` asks for them. Do not keep the block.

        Called when the model leaves the layer. `block.attention` is the block that `update_attention` received.
        """

    def update_hidden(  # noqa: B027
        self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch
    ) -> None:
        """Add the hidden vectors of a layer (0: the embedding output), if `requirements` asks for them."""

    def update_returned(  # noqa: B027
        self, vectors: Float[Tensor, "batch token model"], batch: Batch
    ) -> None:
        """Add the vectors that the model returns, after its last norm, if `requirements` asks for them."""

    def end_batch(self, batch: Batch) -> None:  # noqa: B027
        """Add statistics that depend on several layers of the batch."""

    def settle(self) -> None:
        """Let the accumulators read what they have left on the device during a batch."""
        for accumulator in self.accumulators.values():
            accumulator.settle()

    def layers_to_see_again(self, _batch: Batch) -> Collection[int]:
        """Layers whose hidden vectors it must see again, because it could not tell what to add without waiting for the device.

        Called after `settle`. If there are any, the model is run once more, and `update_hidden_again` gets their vectors.
        """
        return ()

    def update_hidden_again(  # noqa: B027
        self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch
    ) -> None:
        """Add what could not be added by `update_hidden`. The host may wait for the device here."""

    def intervene(self, runner: InterventionRunner) -> None:  # noqa: B027
        """Run the model again with something replaced, after the whole corpus has been read."""

    def token_maps(
        self, _runner: InterventionRunner, _batch: Batch
    ) -> Mapping[str, Float[np.ndarray, "layer query key"]]:
        """Maps of a batch of one sequence for the report's explorer, of the chosen layers.

        Called after `intervene`, or without it in a run that was resumed when its interventions were done.

        Returns:
            Maps by their names in the explorer's list of measures.
        """
        return {}

    @abc.abstractmethod
    def result(self) -> Result:
        """Tables, metrics, figures and sentences.

        Raises:
            InputError: If the numbers are invalid (NaN in a layer, for example); the message names the layer.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """The accumulated state as CPU tensors, named by accumulator and part."""
        return {
            f"{name}/{part}": tensor
            for name, accumulator in self.accumulators.items()
            for part, tensor in accumulator.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of an analysis with the same options and context."""
        for name, accumulator in self.accumulators.items():
            accumulator.load_state_dict(_below(name, state))

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of the same analysis of another part of the corpus."""
        for name, accumulator in self.accumulators.items():
            accumulator.merge_state_dict(_below(name, state))


def _below(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}


def state_of(analyses: Iterable[Analysis]) -> dict[str, Tensor]:
    """The accumulated state of several analyses, named by analysis, accumulator and part."""
    return {
        f"{analysis.info.name}/{key}": tensor.contiguous()
        for analysis in analyses
        for key, tensor in analysis.state_dict().items()
    }


def load_state(analyses: Iterable[Analysis], state: Mapping[str, Tensor]) -> None:
    """Restore the state that `state_of` returned."""
    for analysis in analyses:
        analysis.load_state_dict(_below(analysis.info.name, state))


def merge_state(analyses: Iterable[Analysis], state: Mapping[str, Tensor]) -> None:
    """Add the state that `state_of` returned for the same analyses in another process."""
    for analysis in analyses:
        analysis.merge_state_dict(_below(analysis.info.name, state))
