"""Maps of the whole model: which tokens each output comes from, by several methods in one pass."""

import dataclasses
from collections.abc import Collection, Mapping

from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.layer_maps import attention_map, layer_map
from normscope.attribution.methods import NEEDS_FEED_FORWARD, MapMethod, MapStage, check_defined
from normscope.attribution.vectors import vector_maps
from normscope.maths.choices import ValueBias
from normscope.maths.partition import Partition, merged_weights
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.observe.check import Check
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer


@dataclasses.dataclass
class ModelMaps:
    """The maps of a model by one method, in float64. Rows are the outputs."""

    total: Float[Tensor, "batch query key"]
    """Through all layers. `decompx` has one more column, for the bias."""
    layers: list[Float[Tensor, "batch query key"]] | None = None
    """Of each layer alone; None where a method has no such maps, or they are not kept."""
    cumulative: list[Float[Tensor, "batch query key"]] | None = None
    """From the input up to each layer; None if they are not kept."""
    shares: Float[Tensor, "batch query key"] | None = None
    """The signed share of each source in each output, through all layers, with a column for the bias; of `decompx` alone."""

    def merged(self, groups: Partition) -> "ModelMaps":
        """Shares of groups: summed over the tokens of a source, averaged over those of an output. Rows keep their sums."""

        def merged(maps: Tensor) -> Tensor:
            return merged_weights(maps, groups, groups)

        def each(maps: list[Tensor] | None) -> list[Tensor] | None:
            return None if maps is None else [merged(layer) for layer in maps]

        return ModelMaps(merged(self.total), each(self.layers), each(self.cumulative))


def model_maps(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    methods: Collection[MapMethod],
    *,
    stage: MapStage = MapStage.BLOCK,
    bias: ValueBias = ValueBias.token,
    keep: bool = False,
    groups: Partition | None = None,
) -> dict[MapMethod, ModelMaps]:
    """The maps of a batch by each method.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        stage: The stage of `norm_rollout`.
        bias: Where `decompx` puts the value biases of the first layer.
        keep: Whether to keep the maps of every layer as well as their product.
        groups: Words, for instance, whose shares are merged (see `ModelMaps.merged`), and whose vectors `decompx` merges; the
            tokens by default.

    Raises:
        InputError: If a method is not defined for the family.
    """
    for method in methods:
        check_defined(method, stage, facts)
    chained = [method for method in methods if method is not MapMethod.DECOMPX]
    maps = _chained_maps(model, facts, inputs, chained, stage, keep=keep) if chained else {}
    if groups is not None and groups.places is None:
        maps = {method: of_tokens.merged(groups) for method, of_tokens in maps.items()}
    if MapMethod.DECOMPX in methods:
        norms, shares = vector_maps(model, facts, inputs, bias, keep=keep, groups=groups)
        maps[MapMethod.DECOMPX] = ModelMaps(norms[-1], cumulative=norms if keep else None, shares=shares)
    return {method: maps[method] for method in methods}


def _chained_maps(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    methods: Collection[MapMethod],
    stage: MapStage,
    *,
    keep: bool,
) -> dict[MapMethod, ModelMaps]:
    maps: dict[MapMethod, ModelMaps] = {}

    def add(method: MapMethod, layer: Tensor) -> None:
        if method not in maps:
            maps[method] = ModelMaps(layer, [layer], [layer]) if keep else ModelMaps(layer)
            return
        so_far = maps[method]
        so_far.total = layer @ so_far.total
        if so_far.layers is not None and so_far.cumulative is not None:
            so_far.layers.append(layer)
            so_far.cumulative.append(so_far.total)

    def visit(block: AttentionBlock) -> None:
        for method in methods:
            if method not in whole:
                add(method, attention_map(method, stage, block))

    def visit_feed_forward(block: FeedForwardBlock) -> None:
        for method in whole:
            add(method, layer_map(method, block))

    whole = {m for m in methods if m in NEEDS_FEED_FORWARD or (m is MapMethod.NORM_ROLLOUT and stage is MapStage.LAYER)}
    with Observer(model, facts, feed_forward=bool(whole), projections=False) as observer:
        observer.run(inputs, visit, None, visit_feed_forward if whole else None, check=Check.TEXTS)
    return maps
