"""Which heads and layers follow dependency relations (Clark et al. 2019), by weights and by vectors."""

import torch
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.finite import require_finite
from normscope.analyses.syntax.arcs import Arcs, arcs_of
from normscope.analyses.syntax.maps import HEAD_MEASURES, block_maps, block_measures, head_maps
from normscope.analyses.syntax.options import SYNTAX, SyntaxOptions
from normscope.analyses.syntax.scoring import (
    CANDIDATES,
    DIRECTIONS,
    LONGEST_OFFSET,
    by_half,
    by_relation,
    correct_arcs,
    products,
)
from normscope.analyses.syntax.tables import SyntaxReport
from normscope.analyses.syntax.treebank import Treebank, TreebankResource
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.maths.tensors import lengthened
from normscope.models.block import AttentionBlock
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.model_info import ModelInfo
from normscope.results.result import Result
from normscope.statistics.counts import Counts

TREEBANK = "treebank"
"""Name of the resource that knows the relations."""


class SyntaxAnalysis(Analysis):
    """Counts, for every map, the arcs that its largest entries find."""

    info = SYNTAX

    def __init__(self, options: SyntaxOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._treebank: Treebank = context.resources[TREEBANK]
        self._relations = {relation: index for index, relation in enumerate(self._treebank.relations)}
        self._has_networks = context.has_feed_forward
        self._measures = block_measures(
            context.parameters[context.layers[0]], [str(method) for method in context.methods], layer=self._has_networks
        )
        layers, relations = len(context.layers), len(self._relations)
        maps = len(HEAD_MEASURES) * context.heads + len(self._measures)
        moments = 3  # c, c² and c n of sentences
        self._correct = Counts(layers, moments, len(CANDIDATES), len(DIRECTIONS), maps, 2, relations)
        # Of the corpus: n, n² and the number of sentences with arcs.
        self._arcs = Counts(1, moments, 2, relations)
        self._offsets = Counts(1, moments, 2 * LONGEST_OFFSET + 1, 2, relations)
        self._dropped = Counts(1, 2)
        self.accumulators = {
            "correct": self._correct,
            "arcs": self._arcs,
            "offsets": self._offsets,
            "dropped": self._dropped,
        }

    @classmethod
    def requirements(cls, options: SyntaxOptions, model: ModelInfo) -> Requirements:
        """The treebank, and feed-forward networks where there are any."""
        return Requirements(
            vectors_of_keys=True, feed_forward=model.has_feed_forward, resources={TREEBANK: TreebankResource(options)}
        )

    def start_batch(self, batch: Batch) -> None:
        """Find the arcs of a batch, and score the baselines."""
        self._batch_arcs = self._find_arcs(batch)
        self._zeros: dict[int, Tensor] = {}
        arcs, relations = self._batch_arcs, len(self._relations)
        counts = by_relation(torch.ones_like(arcs.counted), arcs, relations)
        self._counts = counts
        self._arcs.update(0, by_half(torch.stack([counts, counts.square(), (counts > 0).long()]), arcs.halves))
        offsets = torch.arange(-LONGEST_OFFSET, LONGEST_OFFSET + 1, device=arcs.offset.device)
        correct = by_relation(offsets[:, None] == arcs.offset, arcs, relations)
        self._offsets.update(0, by_half(torch.stack(products(correct, counts)), arcs.halves))
        self._dropped.update(0, arcs.dropped)

    def update_attention(self, block: AttentionBlock, _batch: Batch) -> None:
        """Add the maps of a layer whose feed-forward network is not observed."""
        if not self._has_networks:
            self._add(block, None)

    def update_feed_forward(self, block: FeedForwardBlock, _batch: Batch) -> None:
        """Add the maps of a layer."""
        self._add(block.attention, block)

    def end_batch(self, _batch: Batch) -> None:
        """Check the maps of all layers.

        Raises:
            InputError: If a map is not finite; the message names the layer.
        """
        require_finite(torch.stack(list(self._zeros.values())), "the maps of layer {layer}", self.context.layers)

    def result(self) -> Result:
        """Accuracies by head and relation, and the best heads.

        Raises:
            InputError: If no arc joins words with different tokens.
        """
        if not self._arcs.compute()[0, 0].any():
            raise InputError(
                "analysis=syntax: expected arcs between words with different tokens, got none: all arcs join words that share "
                "the same tokens or were truncated (dataset.max_length)"
            )
        return SyntaxReport(
            layers=self.context.layers,
            heads_of=[self.context.heads_of[layer] for layer in self.context.layers],
            measures=self._measures,
            relations=self._treebank.relations,
            correct=self._correct.compute().numpy(),
            arcs=self._arcs.compute()[0].numpy(),
            offsets=self._offsets.compute()[0].numpy(),
            dropped=self._dropped.compute()[0].tolist(),
            without_tree=self._treebank.without_tree,
        ).findings()

    def _find_arcs(self, batch: Batch) -> Arcs:
        return arcs_of(batch, self._relations, punctuation=self.options.punctuation, subtypes=self.options.subtypes)

    def _add(self, block: AttentionBlock, network: FeedForwardBlock | None) -> None:
        arcs, layer = self._batch_arcs, self.context.index(block.layer)
        heads = lengthened(head_maps(block, arcs), self.context.heads, 2).flatten(1, 2)
        maps = torch.cat([heads, block_maps(block, network, arcs, self._measures).to(heads)], dim=1)
        correct = by_relation(correct_arcs(maps, arcs), arcs, len(self._relations))
        self._correct.update(layer, by_half(torch.stack(products(correct, self._counts)), arcs.halves))
        # Zero, or NaN unless every number is finite.
        self._zeros[layer] = (maps * 0).sum()
