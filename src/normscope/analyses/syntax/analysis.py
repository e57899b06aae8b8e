"""Which heads, layers and probes follow dependency relations (Clark et al. 2019), by weights and by vectors."""

import torch
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.findings import Findings
from normscope.analyses.finite import require_finite
from normscope.analyses.syntax.arcs import Arcs, arcs_of
from normscope.analyses.syntax.maps import HEAD_MEASURES, block_maps, block_measures, head_maps
from normscope.analyses.syntax.options import SYNTAX, SyntaxOptions
from normscope.analyses.syntax.probes import ProbeResult, probe_results
from normscope.analyses.syntax.scoring import (
    CANDIDATES,
    DIRECTIONS,
    LONGEST_OFFSET,
    by_half,
    by_relation,
    correct_arcs,
    edge_weights,
    in_trees,
    products,
    spanning_trees,
)
from normscope.analyses.syntax.tables import SyntaxReport
from normscope.analyses.syntax.treebank import Treebank, TreebankResource
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.models.block import AttentionBlock
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.statistics.counts import Counts

TREEBANK = "treebank"
"""Name of the resource that knows the relations."""


class SyntaxAnalysis(Analysis):
    """Counts, for every map, the arcs that its largest entries find and those that are edges of its spanning trees."""

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
        self._edges = Counts(layers, moments, maps)
        # Of the corpus: n, n² and the number of sentences with arcs.
        self._arcs = Counts(1, moments, 2, relations)
        self._tree_arcs = Counts(1, moments)
        self._offsets = Counts(1, moments, 2 * LONGEST_OFFSET + 1, 2, relations)
        self._chains = Counts(1, moments)
        self._dropped = Counts(1, 2)
        self._probes: list[ProbeResult] = []
        self.accumulators = {
            "correct": self._correct,
            "edges": self._edges,
            "arcs": self._arcs,
            "tree_arcs": self._tree_arcs,
            "offsets": self._offsets,
            "chains": self._chains,
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
        self._edge_weights: dict[int, Tensor] = {}
        self._zeros: dict[int, Tensor] = {}
        arcs, relations = self._batch_arcs, len(self._relations)
        counts = by_relation(torch.ones_like(arcs.counted), arcs, relations)
        self._counts = counts
        self._arcs.update(0, by_half(torch.stack([counts, counts.square(), (counts > 0).long()]), arcs.halves))
        joined = counts[:, 0]
        self._tree_arcs.update(0, torch.stack([joined, joined.square(), (joined > 0).long()]).sum(dim=-1))
        offsets = torch.arange(-LONGEST_OFFSET, LONGEST_OFFSET + 1, device=arcs.offset.device)
        correct = by_relation(offsets[:, None] == arcs.offset, arcs, relations)
        self._offsets.update(0, by_half(torch.stack(products(correct, counts)), arcs.halves))
        neighbours = self._sum_edges(_neighbours(arcs)[None])
        self._chains.update(0, neighbours[:, 0])
        self._dropped.update(0, arcs.dropped)

    def update_attention(self, block: AttentionBlock, _batch: Batch) -> None:
        """Add the maps of a layer whose feed-forward network is not observed."""
        if not self._has_networks:
            self._add(block, None)

    def update_feed_forward(self, block: FeedForwardBlock, _batch: Batch) -> None:
        """Add the maps of a layer."""
        self._add(block.attention, block)

    def end_batch(self, _batch: Batch) -> None:
        """Find the spanning trees of all layers.

        Raises:
            InputError: If a map is not finite; the message names the layer.
        """
        require_finite(torch.stack(list(self._zeros.values())), "the maps of layer {layer}", self.context.layers)
        arcs = self._batch_arcs
        for layer, weights in self._edge_weights.items():
            trees = spanning_trees(weights, arcs.edges, *arcs.words.shape)
            self._edges.update(layer, self._sum_edges(in_trees(trees, arcs)))
        self._edge_weights.clear()

    def intervene(self, runner: InterventionRunner) -> None:
        """Train and score the probes."""
        if self.options.probes:
            self._probes = probe_results(runner, self._treebank, self._find_arcs, self.options)

    def result(self) -> Findings:
        """Accuracies by head and relation, the best heads, trees and probes.

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
            heads=self.context.heads,
            measures=self._measures,
            relations=self._treebank.relations,
            correct=self._correct.compute().numpy(),
            arcs=self._arcs.compute()[0].numpy(),
            edges=self._edges.compute().numpy(),
            tree_arcs=self._tree_arcs.compute()[0].numpy(),
            offsets=self._offsets.compute()[0].numpy(),
            chains=self._chains.compute()[0].numpy(),
            dropped=self._dropped.compute()[0].tolist(),
            without_tree=self._treebank.without_tree,
            probes=self._probes,
        ).findings()

    def _find_arcs(self, batch: Batch) -> Arcs:
        return arcs_of(batch, self._relations, punctuation=self.options.punctuation, subtypes=self.options.subtypes)

    def _add(self, block: AttentionBlock, network: FeedForwardBlock | None) -> None:
        arcs, layer = self._batch_arcs, self.context.index(block.layer)
        heads = head_maps(block, arcs).flatten(1, 2)
        maps = torch.cat([heads, block_maps(block, network, arcs, self._measures).to(heads)], dim=1)
        correct = by_relation(correct_arcs(maps, arcs), arcs, len(self._relations))
        self._correct.update(layer, by_half(torch.stack(products(correct, self._counts)), arcs.halves))
        # Trees are found in CPU memory: the device would wait for them in every layer.
        self._edge_weights[layer] = edge_weights(maps, arcs)
        # Zero, or NaN unless every number is finite.
        self._zeros[layer] = (maps * 0).sum()

    def _sum_edges(self, edges: Tensor) -> Tensor:
        """Moments of the arcs that are edges of trees: moment, map."""
        correct = by_relation(edges, self._batch_arcs, len(self._relations))[..., 0]
        return torch.stack(products(correct, self._counts[:, 0])).sum(dim=-1)


def _neighbours(arcs: Arcs) -> Tensor:
    """Whether an arc joins words that are neighbours in the sentence, without the words that trees leave out."""
    places = (arcs.nodes.long().cumsum(dim=1) - 1).masked_fill(~arcs.nodes, -2)
    dependent, head = places[arcs.sentence, arcs.dependent], places[arcs.sentence, arcs.head]
    return (dependent >= 0) & (head >= 0) & ((dependent - head).abs() == 1)
