"""Recomputes attention weights from scores, for models that do not call transformers' attention function.

Only the final weights of such a model are observed. Analyses that change scores also need query, key and scale, so verification
checks that scale·q·k plus the other terms of the scores, such as positions, gives the model's weights. To find the other terms,
the model's own operations are run with q·k = 0.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.models.blocks.block import AttentionBlock, full_precision
from normscope.models.infer.graph import Graph
from normscope.models.infer.infer import softmaxes_by_layer
from normscope.models.infer.infer_scores import scores_of
from normscope.models.infer.layouts import plain_attention
from normscope.models.infer.trace import Operation, trace
from normscope.models.sites.layout import ModelLayout


@dataclasses.dataclass(frozen=True)
class ScoreTerms:
    """The other terms of the scores of all layers, for one batch."""

    terms: Mapping[int, Tensor]
    """By layer."""

    def weights(self, block: AttentionBlock) -> Float[Tensor, "batch head query key"]:
        """The weights of a block, recomputed from its query, key and scale and the other terms."""
        scores = block.alpha.scale * block.query @ block.key.transpose(-1, -2)
        scores = scores + self._of(block)
        seen = block.alpha.seen.of() | ~block.token_mask[:, None, :, None]  # a softmax over nothing would be NaN
        return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)

    def differ(self, block: AttentionBlock) -> bool:
        """Whether the terms of some query differ between the keys that it sees."""
        seen, terms = block.alpha.seen.of(), self._of(block)
        highest = terms.masked_fill(~seen, -torch.inf).amax(dim=-1)
        lowest = terms.masked_fill(~seen, torch.inf).amin(dim=-1)
        return bool((highest - lowest > _SAME).any())

    def _of(self, block: AttentionBlock) -> Float[Tensor, "batch head query key"]:
        # Some models fold the heads into the batch axis, or have the same terms for all heads.
        terms, heads = full_precision(self.terms[block.layer]), block.query.shape[1]
        return terms.view(len(block.token_mask), -1, *terms.shape[-2:]).expand(-1, heads, -1, -1)


_SAME = 1e-3
"""Terms that differ by less are masks, up to rounding; DeBERTa's or T5's position terms differ by far more."""


def score_terms(model: PreTrainedModel, layout: ModelLayout, inputs: Mapping[str, Tensor]) -> ScoreTerms:
    """The other terms of the scores of a model.

    Args:
        model: A base model in evaluation mode.
        inputs: The batch.
    """
    target = inputs.get("decoder_input_ids" if layout.reads_target else "input_ids")
    assert target is not None
    keys = inputs["input_ids"] if layout.is_cross_attention else target
    with plain_attention(model):
        graph = Graph(trace(model, inputs))
    # Source and target may be equally long, so the other attention of a decoder has weights of the same shape.
    observed = {model.get_submodule(site.attention.module) for site in layout.sites}
    layers = softmaxes_by_layer(graph, target.shape[1], keys.shape[1])
    terms = (
        _terms_of([_other_terms(graph, softmax) for softmax in heads])
        for heads in layers
        if _runs_in(observed, heads[0])
    )
    return ScoreTerms(dict(zip(layout.attends, terms, strict=False)))


def _runs_in(modules: Collection[nn.Module], operation: Operation) -> bool:
    """Whether an operation runs inside one of the modules."""
    call = operation.call
    while call is not None and call.module not in modules:
        call = call.parent
    return call is not None


def _terms_of(heads: Sequence[Tensor]) -> Tensor:
    """The terms of a layer; if heads are separate modules, they have no axis of heads."""
    return heads[0] if len(heads) == 1 else torch.stack([*heads], dim=1)


def _other_terms(graph: Graph, softmax: Operation) -> Tensor:
    product = scores_of(graph, softmax).product
    without = torch.zeros_like(product.outputs[0].tensor)
    if product.name == "baddbmm":  # it also adds a term to the product
        without = without + product.kwargs.get("beta", 1) * product.args[0].tensor
    return graph.replay(softmax.reads[0], {product.outputs[0]: without})
