"""Word alignment: which source word does each translated word come from? (Kobayashi et al. 2020, section 5)

The cross-attention of a translation model links target words with source words, by weights or by vector norms. These links are
compared with human annotations.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.alignment.figures import describe_figures
from normscope.alignment.links import RATES, error_rates, evaluate, pharaoh
from normscope.alignment.reference import SEGMENTERS, Reference, ReferenceResource, SentencePair
from normscope.alignment.word_maps import aligned_words, row_words, words_and_end
from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.alignment import ALIGNMENT, METHOD, SETTING, SMOOTHGRAD, AlignmentOptions, Setting
from normscope.analyses.finite import require_finite
from normscope.attribution.smooth_gradients import smooth_gradients
from normscope.data.batching import Batch
from normscope.data.examples import Link
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from normscope.maths.norms import pair_norms, weighted_norms
from normscope.maths.partition import Partition, merged_weights
from normscope.maths.tensors import to_device
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.rounding import brief_share, compared, counted, enumeration, in_points
from normscope.statistics.counts import Counts
from normscope.statistics.intervals import Interval, interval_over_texts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.mean import Mean
from normscope.statistics.tidy import tidy

METHODS = ("attn_w", "attn_n")

OTHER = "none"
"""The setting of other aligners, which have none."""

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
        self._counts = Counts(layers, len(METHODS), len(Setting), maps, 3)
        self._norms = Mean(layers, 1, len(METHODS), maps)
        self._links = KeptTensors(torch.int16)
        self._maps = KeptTensors(torch.float64)  # a few sentences, whatever the precision of the run
        # Ids and words of the tokens of both sides, if gradients are wanted, and what they align.
        self._sides = {side: KeptTensors(torch.int64) for side in ("source", "target")}
        self._by_gradients: dict[int, frozenset[Link]] = {}
        self._dropped = Counts(1, 2)
        # The current batch's sure and possible links.
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
            **self._sides,
        }

    @classmethod
    def suited_to(cls, facts: ModelFacts) -> type[Analysis]:
        """`SpeechAlignment` for a model that reads sounds."""
        if not facts.reads_vectors:
            return cls
        from normscope.alignment.speech import SpeechAlignment

        return SpeechAlignment

    @classmethod
    def requirements(cls, options: AlignmentOptions, _facts: ModelFacts) -> Requirements:
        """The words of both sides, the reference alignments, and for gradients the head that predicts translations."""
        return Requirements(
            vectors_of_keys=True,
            words=SEGMENTERS[options.words],
            translator=options.smoothgrad is not None,
            resources={REFERENCE: ReferenceResource(options)},
        )

    def start_batch(self, batch: Batch) -> None:
        """Look up the words and links of the sentences of a batch."""
        pairs = [self._reference.pairs[row] for row in batch.rows]
        target, source = _word_tensors(batch.host)
        self._dropped.update(0, _dropped_words(pairs, source, target))
        device, words = batch.input_ids.device, (int(target.max()) + 1, int(source.max()) + 1)
        self._targets = [Partition.of(row_words(target, setting), words[0]).to(device) for setting in Setting]
        self._sources = words_and_end(source, words[1]).to(device)
        self._batch_gold = to_device(_gold(pairs, words[0], words[1] + 1), device)
        self._batch_links, self._batch_maps = [], {row: [] for row in batch.rows if row in self._selected}

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Align the words of a batch by the maps of one layer, and count the links that agree with the reference."""
        layer = self.context.index(block.layer)
        maps = _maps(block)
        self._add_norms(layer, maps, block)
        by_setting = [merged_weights(maps.flatten(1, 2), targets, self._sources) for targets in self._targets]
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
        """Keep the links of a batch, the maps of the selected sentences, and the tokens if gradients are wanted."""
        lengths = [len(self._reference.pairs[row].target) for row in batch.rows]
        links = torch.stack(self._batch_links, dim=1).cpu()
        self._links.update(batch.rows, (_padded(*own, -1.0) for own in zip(links, lengths, strict=True)))
        self._maps.update(self._batch_maps, (torch.stack(by_layer) for by_layer in self._batch_maps.values()))
        if self.options.smoothgrad is not None:
            assert batch.host.source is not None
            for side, own in (("source", batch.host.source), ("target", batch.host)):
                self._sides[side].update(batch.rows, _tokens(own))

    def intervene(self, runner: InterventionRunner) -> None:
        """Align the words of every pair by gradients, if they are wanted.

        Raises:
            InputError: If the checkpoint has no head that predicts translations.
        """
        samples = self.options.smoothgrad
        if samples is None:
            return
        head = runner.model.translator
        if head is None:
            raise InputError(
                f"analysis.alignment.smoothgrad={samples}: expected a model that predicts translations, but "
                f"{runner.model.name} has no weights of such a head; leave it out"
            )
        sources, targets = (kept.compute().by_number() for kept in self._sides.values())
        for row in runner.progress(list(sources), len(sources), "alignment by gradients"):
            pair, source, target = self._reference.pairs[row], sources[row][None], targets[row][None]
            ids = {"input_ids": source[:, 0], "decoder_input_ids": target[:, 0]}
            scores = smooth_gradients(
                head,
                {name: tensor.to(head.device) for name, tensor in ids.items()},
                samples,
                self.options.noise,
                np.random.default_rng([self.options.seed, row]),
            )
            target_words = Partition.of(target[:, 1, :-1], len(pair.target))
            source_words = words_and_end(source[:, 1], len(pair.source))
            words = merged_weights(scores[None, None], target_words, source_words)
            words[..., -1] = 0  # the method does without the end of the sentence
            self._by_gradients[row] = _as_links(aligned_words(words)[0, 0])

    def result(self) -> Result:
        """Error rates, links, and the maps of a few sentences."""
        norms = self._norms.compute().mean[:, 0]
        require_finite(norms, "the activations of layer {layer}", self.context.layers)
        links = self._links.compute().by_number()
        maps = self._maps.compute().by_number() if links.keys() & set(self._selected) else {}
        rates, baselines = self._rates(norms, links), self._baselines(links)
        tables = {
            "aer": pd.concat([rates, baselines], ignore_index=True),
            "links": self._link_table(links),
        }
        if maps:
            tables["maps"] = pd.concat([self._maps_of(row, own) for row, own in maps.items()], ignore_index=True)
        rolled = roll_up(self.info.declared, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics, self._apart(rates, links), len(links)),
            curves=rolled.curves,
            figures=describe_figures(rates, tables.get("maps"), self.options.setting),
            summaries={
                "alignment": Summary(
                    _summary(rates[rates["head"] == 0], baselines),
                    digits=1,
                    caption="alignment error rate (AER, lower is better), precision and recall (higher is better) of the best "
                    "layer, by weights and by vectors, from the row that predicts a target word (output) or reads it (input)",
                )
            },
            notes=self._notes(len(links)),
        )

    def _rates(self, norms: Float[Tensor, "layer method map"], read: Collection[int]) -> pd.DataFrame:
        """Error rates of every layer and head, by method and setting.

        Args:
            norms: Mean α and ‖αf(x)‖ over pairs of tokens.
            read: The rows that the model has read.
        """
        counts = self._counts.compute()
        links, in_sure, in_possible = counts.numpy().transpose(4, 0, 1, 2, 3)
        sure = sum(len(self._reference.pairs[row].links.sure) for row in read)
        table = tidy(
            {
                **error_rates(links, in_sure, in_possible, sure),
                "sentences": np.array(len(read)),
                "mean_norm": norms[:, :, None],
            },
            **self._axes,
            head=range(counts.shape[3]),
        )
        return table[["layer", "head", "method", "setting", *RATES, "sentences", "mean_norm"]]

    def _baselines(self, read: Collection[int]) -> pd.DataFrame:
        """Error rates of gradients and of other aligners, on the pairs that the model has read."""
        gold = [self._reference.pairs[row].links for row in read]
        gradients = {SMOOTHGRAD: self._by_gradients} if self._by_gradients else {}
        return pd.DataFrame(
            {"layer": 0, "head": 0, "method": name, "setting": OTHER}
            | evaluate((alignments[row] for row in read), gold)
            | {"sentences": len(read)}
            for name, alignments in (gradients | {**self._reference.baselines}).items()
        )

    def _apart(
        self, rates: pd.DataFrame, links: Mapping[int, Int[Tensor, "layer method setting target_word"]]
    ) -> dict[str, Interval]:
        """By setting, the error rate of vectors less that of weights, each in its best layer, with its interval over pairs.

        Over pairs i, the rate e = 1 − Σn/Σd varies as the mean of ((1 − e) dᵢ − nᵢ)/d̄ does. That layers are chosen on the same
        pairs is left out of account.
        """
        layers, intervals = rates[rates["head"] == 0], {}
        for place, setting in enumerate(map(str, Setting)):
            of_methods = []
            for number, method in enumerate(METHODS):
                errors = layers[(layers["method"] == method) & (layers["setting"] == setting)]["aer"].to_numpy()
                best = int(errors.argmin())
                counts = [self._counts_of(row, own[best, number, place]) for row, own in links.items()]
                agreed, total = np.array(counts, dtype=float).T
                of_methods.append(errors[best] + ((1 - errors[best]) * total - agreed) / total.mean())
            weights, vectors = of_methods
            intervals[setting] = interval_over_texts(vectors - weights)
        return intervals

    def _counts_of(self, row: int, targets: Int[Tensor, " target_word"]) -> tuple[int, int]:
        """|A∩S| + |A∩P| and |A| + |S| of a pair."""
        aligned, gold = _as_links(targets), self._reference.pairs[row].links
        return len(aligned & gold.sure) + len(aligned & gold.possible), len(aligned) + len(gold.sure)

    def _link_table(self, links: Mapping[int, Int[Tensor, "layer method setting target_word"]]) -> pd.DataFrame:
        table = tidy({}, row=list(links), **self._axes)
        # Sentences differ in length, so the links are no one tensor.
        alignments = (targets for by_layer in links.values() for targets in by_layer.flatten(0, 2))
        table = table.assign(links=[pharaoh(_as_links(targets)) for targets in alignments])
        gradients = pd.DataFrame(
            {"row": row, "layer": 0, "method": SMOOTHGRAD, "setting": OTHER, "links": pharaoh(found)}
            for row, found in self._by_gradients.items()
        )
        return pd.concat([table, gradients], ignore_index=True)

    def _maps_of(
        self, row: int, maps: Float[Tensor, "layer method setting map target_word source_word"]
    ) -> pd.DataFrame:
        """Every cell of the maps of one sentence pair; the last source word is the end of the sentence."""
        pair = self._reference.pairs[row]
        sources = [*pair.source, "</s>"]
        heads, targets = range(maps.shape[3]), range(len(pair.target))
        aligned = aligned_words(maps.flatten(0, 2)).unflatten(0, maps.shape[:3])
        table = tidy(
            {"value": maps, "link": aligned[..., None] == torch.arange(len(sources))},
            **self._axes,
            head=heads,
            target=targets,
            source=range(len(sources)),
        )
        values, linked = table.pop("value"), table.pop("link")
        table.insert(0, "row", row)
        return table.assign(
            target_word=table["target"].map(dict(enumerate(pair.target))),
            source_word=table["source"].map(dict(enumerate(sources))),
            value=values,
            gold=[_kind(pair, link) for link in zip(table["source"], table["target"], strict=True)],
            link=linked,
        )

    @property
    def _axes(self) -> dict[str, Sequence[int | str]]:
        """Labels of the axes that counts, links and maps begin with."""
        return {"layer": self.context.layers, "method": METHODS, "setting": [str(setting) for setting in Setting]}

    def _notes(self, read: int) -> list[str]:
        notes, pairs = [], len(self._reference.pairs)
        for side, number in zip(("source", "target"), self._dropped.compute()[0].tolist(), strict=True):
            if number:
                notes.append(
                    f"the tokenizer drops {counted(number, f'{side} word: it is', f'{side} words: they are')} never aligned"
                )
        if read < pairs:
            notes.append(f"error rates cover only the {read:,} of {pairs:,} pairs that were read")
        return notes

    def _add_norms(self, layer: int, maps: Float[Tensor, "batch method map query key"], block: AttentionBlock) -> None:
        pairs = block.token_mask[:, :, None] & block.key_mask[:, None, :]
        sums = torch.einsum("bmhqk,bqk->mh", maps, pairs.to(maps))
        self._norms.update(layer, sums[None], pairs.sum()[None])


def _word_tensors(batch: Batch) -> tuple[Int[Tensor, "batch query"], Int[Tensor, "batch key"]]:
    assert batch.words is not None
    assert batch.source is not None
    assert batch.source.words is not None
    return batch.words, batch.source.words


def _tokens(side: Batch) -> Iterator[Int[Tensor, "kind token"]]:
    """The ids and the words of the tokens of each sentence, without padding."""
    assert side.words is not None
    for ids, words, mask in zip(side.input_ids, side.words, side.token_mask, strict=True):
        yield torch.stack([ids[mask], words[mask]])


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


def _summary(layers: pd.DataFrame, baselines: pd.DataFrame) -> pd.DataFrame:
    """The best layer by each method and setting, and other aligners, in per cent."""
    rows = {}
    for (method, setting), group in layers.groupby(["method", "setting"], sort=False):
        best = group.iloc[group["aer"].argmin()]
        rows[f"{METHOD.title(str(method))} {SETTING.title(str(setting))}"] = {
            "layer mean AER %": group["aer"].mean() * 100,
            "best layer": str(best["layer"]),
            **{f"{rate.replace('aer', 'AER')} %": best[rate] * 100 for rate in RATES},
        }
    for _, row in baselines.iterrows():
        rows[METHOD.titles.get(row["method"], row["method"])] = {
            "best layer": "",
            **{f"{rate.replace('aer', 'AER')} %": row[rate] * 100 for rate in RATES},
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _as_links(targets: Int[Tensor, " target_word"]) -> frozenset[Link]:
    """Links from the source word of each target word, −1 for none."""
    return frozenset((source, target) for target, source in enumerate(targets.tolist()) if source >= 0)


def _kind(pair: SentencePair, link: Link) -> str:
    """What the reference says about a link."""
    if link in pair.links.sure:
        return "sure"
    return "possible" if link in pair.links.possible else "none"


def sentences_of(
    metrics: Mapping[str, float], apart: Mapping[str, Interval] = MappingProxyType({}), pairs: int = 0
) -> list[Sentence]:
    """Whether norms align better than weights, and how other aligners compare.

    Args:
        metrics: Numbers by name; missing ones are left out.
        apart: By setting, the error rate of vectors less that of weights, each in its best layer, with its interval over pairs.
        pairs: The number of these.
    """
    sentences: list[Sentence] = []
    for setting, name in (("awo", "output"), ("awi", "input")):
        weights, vectors = (metrics.get(f"{method}/{setting}/best_layer/aer") for method in METHODS)
        if weights is not None and vectors is not None:
            means = compared(brief_share, *(metrics[f"{method}/{setting}/layer_mean/aer"] for method in METHODS[::-1]))
            beside = in_points(*apart[setting], pairs) if setting in apart else ""
            text = (
                f"Alignment with {name}: vector norms have an alignment error rate of "
                f"{brief_share(vectors, weights)} and attention weights of {brief_share(weights, vectors)}{beside}, "
                f"each in its best layer; averaged over layers, {means[0]} and {means[1]}."
            )
            ends = apart[setting].ends if setting in apart else None
            sentences.append(Sentence(text, figure="by_layer", table="aer", effect=vectors - weights, interval=ends))
    others = [
        f"{brief_share(value)} by {METHOD.titles.get(name, name)}"
        for name, value in by_axes("<aligner>/aer", metrics).items()
    ]
    if others:
        text = f"On the same pairs, the alignment error rate is {enumeration(others)}."
        sentences.append(Sentence(text, table="aer"))
    return sentences
