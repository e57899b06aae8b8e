"""Word alignment from the cross-attention of translation models (Kobayashi et al. 2020, section 5)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.alignment.gold import SEGMENTERS, Reference, ReferenceResource, SentencePair
from normscope.alignment.options import ALIGNMENT, AlignmentOptions
from normscope.alignment.tables import METHODS, SETTINGS, AlignmentReport
from normscope.alignment.word_maps import aligned_words, row_words, word_maps
from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.findings import Findings
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.maths.norms import pair_norms, weighted_norms
from normscope.models.block import AttentionBlock
from normscope.models.model_info import ModelInfo
from normscope.statistics.counts import Counts
from normscope.statistics.mean import Mean
from normscope.statistics.per_example import PerExampleTensors

# Pairs whose maps are shown unless others are asked for.
_SHOWN = 3

REFERENCE = "alignment_reference"
"""Name of the resource."""


class AlignmentAnalysis(Analysis):
    """Error rates of the alignments that weights and vector norms make, by layer, head and setting."""

    info = ALIGNMENT

    def __init__(self, options: AlignmentOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._reference: Reference = context.resources[REFERENCE]
        rows = list(self._reference.pairs)
        self._shown = options.sentences or rows[:_SHOWN]
        unknown = [row for row in self._shown if row not in self._reference.pairs]
        if unknown:
            raise InputError(
                f"analysis.alignment.sentences={options.sentences}: the corpus has no sentence pair in row {unknown[0]}; "
                f"expected rows from {rows[0]} to {rows[-1]}"
            )
        layers, maps = len(context.layers), 1 + context.heads
        # Links, those that are sure, those that are possible.
        self._counts = Counts(layers, len(METHODS), len(SETTINGS), maps, 3)
        self._norms = Mean(layers, 1, len(METHODS), maps)
        self._links = PerExampleTensors(layers, torch.int16)
        self._maps = PerExampleTensors(layers, torch.float64)  # a few sentences, in whatever precision the run has
        self._lost = Counts(1, 2)
        self.accumulators = {
            "counts": self._counts,
            "norms": self._norms,
            "links": self._links,
            "maps": self._maps,
            "lost": self._lost,
        }

    @classmethod
    def requirements(cls, options: AlignmentOptions, _model: ModelInfo) -> Requirements:
        """Words of both sides, and the reference."""
        return Requirements(words=SEGMENTERS[options.words], resources={REFERENCE: ReferenceResource(options)})

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Align the words of a batch's pairs as one layer does it, and count what agrees with the reference."""
        layer = self.context.index(block.layer)
        pairs = [self._reference.pairs[row] for row in batch.rows]
        target, source = _word_tensors(batch)
        if layer == 0:
            self._lost.update(0, _lost_words(pairs, source, target))
        maps = _maps(block)
        self._add_norms(layer, maps, block)
        by_setting = [word_maps(maps.flatten(1, 2), row_words(target, setting), source) for setting in SETTINGS]
        words = torch.stack([found.unflatten(1, maps.shape[1:3]) for found in by_setting], dim=2)
        # Axes: batch, method, setting, map (the layer's own, then its heads), target word.
        chosen = aligned_words(words.flatten(1, 3)).unflatten(1, words.shape[1:4])
        self._counts.update(layer, _agreement(chosen, _gold(pairs, *words.shape[-2:]).to(chosen.device)))
        for index, (row, pair) in enumerate(zip(batch.rows, pairs, strict=True)):
            self._links.update(layer, row, _padded(chosen[index, :, :, 0], len(pair.target), -1.0))
            if row in self._shown:
                ends = words[index, ..., -1:]
                columns = torch.cat([_padded(words[index, ..., :-1], len(pair.source), 0.0), ends], dim=-1)
                self._maps.update(
                    layer, row, _padded(columns.transpose(-1, -2), len(pair.target), 0.0).transpose(-1, -2)
                )

    def result(self) -> Findings:
        """Error rates, links, and the maps of a few sentences."""
        links = self._links.compute()
        return AlignmentReport(
            layers=self.context.layers,
            reference=self._reference,
            counts=self._counts.compute(),
            norms=self._norms.compute().mean[:, 0],
            links=links,
            maps=self._maps.compute() if links.keys() & set(self._shown) else {},
            lost=self._lost.compute()[0],
        ).findings()

    def _add_norms(self, layer: int, maps: Float[Tensor, "batch method map query key"], block: AttentionBlock) -> None:
        if not bool(torch.isfinite(maps).all()):
            raise InputError(f"NaN or infinity in the activations of layer {block.layer}; try device.dtype=float32")
        pairs = block.token_mask[:, :, None] & block.key_mask[:, None, :]
        sums = torch.einsum("bmhqk,bqk->mh", maps, pairs.to(maps))
        self._norms.update(layer, sums[None], pairs.sum()[None])


def _word_tensors(batch: Batch) -> tuple[Int[Tensor, "batch query"], Int[Tensor, "batch key"]]:
    assert batch.words is not None
    assert batch.source is not None
    assert batch.source.words is not None
    return batch.words, batch.source.words


def _maps(block: AttentionBlock) -> Float[Tensor, "batch method map query key"]:
    """By method, the layer's map and then those of its heads; zero where a key is padding."""
    norms = pair_norms(block.weights, block.value, block.parameters.output_weight)
    of_weights = torch.cat([block.weights.mean(dim=1, keepdim=True), block.weights], dim=1)
    of_norms = torch.cat([norms[:, None], weighted_norms(block.weights, block.transformed_norms)], dim=1)
    return torch.stack([of_weights, of_norms], dim=1)


def _gold(
    pairs: Sequence[SentencePair], targets: int, sources: int
) -> Bool[Tensor, "kind batch target_word source_word"]:
    """Sure and possible links; none is with the end of the sentence, which is the last source word."""
    gold = torch.zeros(2, len(pairs), targets, sources, dtype=torch.bool)
    for index, pair in enumerate(pairs):
        for kind, links in enumerate((pair.links.sure, pair.links.possible)):
            for source, target in links:
                if source < sources - 1 and target < targets:  # else the tokenizer has lost the word
                    gold[kind, index, target, source] = True
    return gold


def _agreement(
    chosen: Int[Tensor, "batch method setting map target_word"],
    gold: Bool[Tensor, "kind batch target_word source_word"],
) -> Int[Tensor, "method setting map 3"]:
    """How many links there are, and how many of them are sure and possible."""
    aligned = chosen >= 0
    agree = [
        (
            kind[:, None, None, None].expand(*chosen.shape, -1).gather(-1, chosen.clamp(min=0)[..., None])[..., 0]
            & aligned
        )
        for kind in gold
    ]
    return torch.stack([found.sum(dim=(0, 4)) for found in (aligned, *agree)], dim=-1)


def _lost_words(
    pairs: Sequence[SentencePair], source: Int[Tensor, "batch key"], target: Int[Tensor, "batch query"]
) -> Int[Tensor, " side"]:
    """How many words of sources and targets the tokenizer has left no token of."""
    return torch.tensor(
        [
            sum(
                len(pair.source) - len(set(tokens.tolist()) - {-1}) for pair, tokens in zip(pairs, source, strict=True)
            ),
            sum(
                len(pair.target) - len(set(tokens.tolist()) - {-1}) for pair, tokens in zip(pairs, target, strict=True)
            ),
        ]
    )


def _padded(values: Tensor, length: int, filling: float) -> Tensor:
    """The values with a last axis of a length: cut where a batch has longer sentences, filled where words were lost."""
    return torch.nn.functional.pad(values, (0, length - values.shape[-1]), value=filling)
