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
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from normscope.maths.norms import pair_norms, weighted_norms
from normscope.maths.tensors import to_device
from normscope.models.block import AttentionBlock
from normscope.models.model_info import ModelInfo
from normscope.results.result import Result
from normscope.statistics.counts import Counts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.mean import Mean

# Maps are kept for this many sentence pairs unless `sentences` selects some.
_DEFAULT_SENTENCES = 3

REFERENCE = "alignment_reference"
"""Name of the resource that holds the reference."""


class AlignmentAnalysis(Analysis):
    """Error rates of alignments by weights and by vector norms, for each layer, head and setting."""

    info = ALIGNMENT

    def __init__(self, options: AlignmentOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._reference: Reference = context.resources[REFERENCE]
        rows = list(self._reference.pairs)
        self._selected = options.sentences or rows[:_DEFAULT_SENTENCES]
        unknown = [row for row in self._selected if row not in self._reference.pairs]
        if unknown:
            raise InputError(
                f"analysis.alignment.sentences={options.sentences}: the corpus has no sentence pair in row {unknown[0]}; "
                f"expected rows from {rows[0]} to {rows[-1]}"
            )
        layers, maps = len(context.layers), 1 + context.heads
        # Number of links, and of those that are sure and possible.
        self._counts = Counts(layers, len(METHODS), len(SETTINGS), maps, 3)
        self._norms = Mean(layers, 1, len(METHODS), maps)
        self._links = KeptTensors(torch.int16)
        self._maps = KeptTensors(torch.float64)  # a few sentences, whatever the precision of the run
        self._dropped = Counts(1, 2)
        # The current batch's numbers of target and source words, and its sure and possible links.
        self._word_counts = 0, 0
        self._batch_gold = torch.zeros(2, 0, 0, 0, dtype=torch.bool)
        # The current batch's links, and the maps of its selected sentences by row, layer by layer.
        self._batch_links: list[Tensor] = []
        self._batch_maps: dict[int, list[Tensor]] = {}
        self.accumulators = {
            "counts": self._counts,
            "norms": self._norms,
            "links": self._links,
            "maps": self._maps,
            "lost": self._dropped,
        }

    @classmethod
    def requirements(cls, options: AlignmentOptions, _model: ModelInfo) -> Requirements:
        """The words of both sides, and the reference alignments."""
        return Requirements(
            vectors_of_keys=True, words=SEGMENTERS[options.words], resources={REFERENCE: ReferenceResource(options)}
        )

    def start_batch(self, batch: Batch) -> None:
        """Look up the words and links of the sentences of a batch."""
        pairs = [self._reference.pairs[row] for row in batch.rows]
        target, source = _word_tensors(batch.host)
        self._dropped.update(0, _dropped_words(pairs, source, target))
        self._word_counts = int(target.max()) + 1, int(source.max()) + 1
        gold = _gold(pairs, self._word_counts[0], self._word_counts[1] + 1)
        self._batch_gold = to_device(gold, batch.input_ids.device)
        self._batch_links, self._batch_maps = [], {row: [] for row in batch.rows if row in self._selected}

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Align the words of a batch by the maps of one layer, and count the links that agree with the reference."""
        layer = self.context.index(block.layer)
        target, source = _word_tensors(batch)
        maps = _maps(block)
        self._add_norms(layer, maps, block)
        by_setting = [
            word_maps(maps.flatten(1, 2), row_words(target, setting), source, self._word_counts) for setting in SETTINGS
        ]
        words = torch.stack([setting.unflatten(1, maps.shape[1:3]) for setting in by_setting], dim=2)
        # Axes: batch, method, setting, map (the whole layer, then its heads), target word.
        aligned = aligned_words(words.flatten(1, 3)).unflatten(1, words.shape[1:4])
        self._counts.update(layer, _agreement(aligned, self._batch_gold))
        self._batch_links.append(aligned[:, :, :, 0].to(torch.int16))
        for row, by_layer in self._batch_maps.items():
            pair, of_pair = self._reference.pairs[row], words[batch.rows.index(row)]
            columns = torch.cat([_padded(of_pair[..., :-1], len(pair.source), 0.0), of_pair[..., -1:]], dim=-1)
            by_layer.append(_padded(columns.transpose(-1, -2), len(pair.target), 0.0).transpose(-1, -2))

    def end_batch(self, batch: Batch) -> None:
        """Keep the links of a batch, and the maps of the selected sentences."""
        lengths = [len(self._reference.pairs[row].target) for row in batch.rows]
        links = torch.stack(self._batch_links, dim=1).cpu()
        self._links.update(batch.rows, (_padded(*own, -1.0) for own in zip(links, lengths, strict=True)))
        self._maps.update(self._batch_maps, (torch.stack(by_layer) for by_layer in self._batch_maps.values()))

    def result(self) -> Result:
        """Error rates, links, and the maps of a few sentences."""
        norms = self._norms.compute().mean[:, 0]
        require_finite(norms, "the activations of layer {layer}", self.context.layers)
        links = self._links.compute().by_number()
        return AlignmentReport(
            layers=self.context.layers,
            reference=self._reference,
            counts=self._counts.compute(),
            norms=norms,
            links=links,
            maps=self._maps.compute().by_number() if links.keys() & set(self._selected) else {},
            dropped=self._dropped.compute()[0],
        ).findings()

    def _add_norms(self, layer: int, maps: Float[Tensor, "batch method map query key"], block: AttentionBlock) -> None:
        pairs = block.token_mask[:, :, None] & block.key_mask[:, None, :]
        sums = torch.einsum("bmhqk,bqk->mh", maps, pairs.to(maps))
        self._norms.update(layer, sums[None], pairs.sum()[None])


def _word_tensors(batch: Batch) -> tuple[Int[Tensor, "batch query"], Int[Tensor, "batch key"]]:
    assert batch.words is not None
    assert batch.source is not None
    assert batch.source.words is not None
    return batch.words, batch.source.words


def _maps(block: AttentionBlock) -> Float[Tensor, "batch method map query key"]:
    """The map of the whole layer and then of each head, by method; zero at padded keys."""
    norms = pair_norms(block.weights, block.value, block.parameters.output_weight)
    of_weights = torch.cat([block.weights.mean(dim=1, keepdim=True), block.weights], dim=1)
    of_norms = torch.cat([norms[:, None], weighted_norms(block.weights, block.transformed_norms)], dim=1)
    return torch.stack([of_weights, of_norms], dim=1)


def _gold(
    pairs: Sequence[SentencePair], targets: int, sources: int
) -> Bool[Tensor, "kind batch target_word source_word"]:
    """Sure and possible links. The last source word is the end of the sentence, which has none."""
    gold = torch.zeros(2, len(pairs), targets, sources, dtype=torch.bool)
    for index, pair in enumerate(pairs):
        for kind, links in enumerate((pair.links.sure, pair.links.possible)):
            for source, target in links:
                if source < sources - 1 and target < targets:  # otherwise the tokenizer dropped the word
                    gold[kind, index, target, source] = True
    return gold


def _agreement(
    aligned: Int[Tensor, "batch method setting map target_word"],
    gold: Bool[Tensor, "kind batch target_word source_word"],
) -> Int[Tensor, "method setting map 3"]:
    """The number of links, and of those that are sure and possible."""
    is_link = aligned >= 0
    source = aligned.clamp(min=0)[..., None]
    in_gold = [
        kind[:, None, None, None].expand(*aligned.shape, -1).gather(-1, source)[..., 0] & is_link for kind in gold
    ]
    return torch.stack([links.sum(dim=(0, 4)) for links in (is_link, *in_gold)], dim=-1)


def _dropped_words(
    pairs: Sequence[SentencePair], source: Int[Tensor, "batch key"], target: Int[Tensor, "batch query"]
) -> Int[Tensor, " side"]:
    """The number of source and target words that the tokenizer dropped."""
    sides = ([pair.source for pair in pairs], source), ([pair.target for pair in pairs], target)
    return torch.tensor(
        [
            sum(
                len(sentence) - len(set(row.tolist()) - {NO_WORD})
                for sentence, row in zip(sentences, of_token, strict=True)
            )
            for sentences, of_token in sides
        ]
    )


def _padded(values: Tensor, length: int, filling: float) -> Tensor:
    """The values with a last axis of this length: cut if the batch has longer sentences, filled if words were dropped."""
    return torch.nn.functional.pad(values, (0, length - values.shape[-1]), value=filling)
