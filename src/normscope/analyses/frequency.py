"""Token frequency: are frequent tokens discounted? (K20 section 4.3; K21 section 4.3 and Figure 4)

Every token occurrence has a frequency rank, which is compared with the weight that it receives, with the length of its vectors
and with its mixing ratio.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.frequency import FREQUENCY, MEASURES, FrequencyOptions
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch, windows
from normscope.data.examples import Example
from normscope.data.resources import Resource, ResourceContext, State
from normscope.data.text_files import TextFile
from normscope.data.token_frequencies import TokenCounter, TokenFrequencies, conventional, read
from normscope.maths.mixing import Method
from normscope.maths.tensors import to_device
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.results.codes import METHODS, SPECIAL_TOKENS, plain
from normscope.results.figures import Figure, Scatter
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import VISIBLE, begun, brief, enumeration, estimate
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.pair_histogram import Axis, PairsPart
from normscope.statistics.rank_correlation import RankCorrelation, rounded
from normscope.statistics.uniform_sample import UniformSample

SPECIALS = ("with", "without")

FREQUENCIES = "token_frequencies"
"""Name of the resource."""

RANK_AXIS = Axis(0, 18, 4)
MEASURE_AXIS = Axis(-16, 10, 5)
# Enough to show the shape of the cloud.
_POINTS = 5_000


class TokenFrequencyResource(Resource[TokenFrequencies]):
    """Counts the tokens of the corpus or of a text file, or reads their ranks from a file.

    Args:
        options: Where frequencies come from.
    """

    divisible = True
    content = "the token counts"

    def __init__(self, options: FrequencyOptions) -> None:
        self._options = options
        self.reads_corpus = options.path is None and options.source == "corpus"

    def start(self, context: ResourceContext) -> None:
        """Prepare to count."""
        self._context = context
        self._counter = TokenCounter(context.encoder, context.vocabulary)

    def read(self, examples: Sequence[Example | str]) -> None:
        """Count the tokens of some examples."""
        self._counter.update(examples)

    def state(self) -> dict[str, Tensor]:
        """The counts so far."""
        return {"counts": torch.from_numpy(self._counter.counts.copy())}

    def add(self, state: State) -> None:
        """Add the counts of another part of the corpus.

        Raises:
            ValueError: If they are those of another vocabulary.
        """
        counts = state["counts"].numpy()
        if counts.shape != self._counter.counts.shape:
            raise ValueError(f"expected the counts of {self._counter.counts.size:,} tokens, got {counts.size:,}")
        self._counter.counts += counts

    def finish(self) -> TokenFrequencies:
        """Rank and count of every token.

        Raises:
            InputError: If a file cannot be read.
        """
        frequencies = self._frequencies()
        return conventional(frequencies, self._context.encoder) if self._options.conventional else frequencies

    def digest(self, value: TokenFrequencies) -> str:
        """A hash of ranks and counts."""
        return hashlib.sha256(value.rank.tobytes() + value.count.tobytes()).hexdigest()

    def _frequencies(self) -> TokenFrequencies:
        if self._options.path is not None:
            return read(Path(self._options.path).expanduser(), self._context.vocabulary, "analysis.frequency.path")
        if self._options.source != "corpus":
            dataset = self._context.dataset
            text = TextFile(
                Path(self._options.source).expanduser(),
                dataset.text_column,
                dataset.pair_column,
                dataset.header,
                key="analysis.frequency.source",
            )
            for window in windows(text.examples()):
                self._counter.update(window)
        return self._counter.compute()


class _Tokens(NamedTuple):
    """The tokens of a batch without its padding, looked up before the first layer."""

    on_host: Int[Tensor, " token"]
    places: Int[Tensor, " token"]
    """Their indices into the flattened batch, padding included."""
    ranks: Int[Tensor, " token"]
    groups: Int[Tensor, "measure token"]
    """The group of each measure of each token, in CPU memory: those of ordinary and of special tokens, one after the other; −1
    for none."""


class FrequencyAnalysis(Analysis):
    """Spearman's ρ between the frequency rank of every token occurrence and its measures.

    A measure is a mean over queries (α received), heads (α and ‖f‖) and layers. The table by layer does not average layers.
    """

    info = FREQUENCY

    def __init__(self, options: FrequencyOptions, context: AnalysisContext) -> None:
        frequencies: TokenFrequencies = context.resources[FREQUENCIES]
        super().__init__(options, context)
        self._frequencies = frequencies
        self._rank = torch.from_numpy(frequencies.rank)
        self._special = torch.from_numpy(np.isin(np.arange(len(frequencies.rank)), list(context.vocabulary.special)))
        self._measures = ("alpha", "f", *(str(method) for method in context.methods))
        groups = len(self._measures) * 2
        # The mean over layers, then every layer.
        self._ranks = RankCorrelation(1 + len(context.layers), groups, rounded(MEASURE_AXIS, context.dtype), RANK_AXIS)
        self._types = KeyedMeans(1, len(self._measures))  # by token id
        self._sample = UniformSample(_POINTS, 2 + len(self._measures), options.seed)
        self.accumulators = {"ranks": self._ranks, "types": self._types, "sample": self._sample}
        self._tokens: _Tokens | None = None
        """The tokens of the current batch."""
        self._sums: Tensor | None = None
        """Sums over the layers of the current batch."""

    @classmethod
    def requirements(cls, options: FrequencyOptions, _facts: ModelFacts) -> Requirements:
        """The frequency of every token."""
        return Requirements(vectors_of_keys=True, resources={FREQUENCIES: TokenFrequencyResource(options)})

    def start_batch(self, batch: Batch) -> None:
        """Look up the tokens of a batch, and reset the sums over layers."""
        self._sums = None
        host, device = batch.host, batch.input_ids.device
        tokens = host.input_ids[host.token_mask]
        ranks, special = self._rank[tokens], self._special[tokens]
        number = torch.arange(len(self._measures))[:, None] * 2
        groups = torch.where(ranks > 0, number + special.long(), -1)
        places = to_device(host.token_mask.flatten().nonzero()[:, 0], device)
        self._tokens = _Tokens(tokens, places, to_device(ranks, device), groups)

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the measures of a block."""
        assert self._tokens is not None
        lengths = batch.token_mask.sum(dim=-1, keepdim=True)
        ratios = block.mixing_ratios
        measures = torch.stack(
            [
                block.received.mean(dim=1) / lengths,
                block.transformed_norms.mean(dim=1),
                *(ratios[method] for method in self.context.methods),
            ]
        ).flatten(1)[:, self._tokens.places]
        self._sums = measures if self._sums is None else self._sums + measures
        self._correlate(1 + self.context.index(block.layer), measures, self._tokens)

    def end_batch(self, batch: Batch) -> None:
        """Add the means over layers of the batch's tokens."""
        assert self._sums is not None
        assert self._tokens is not None
        means = self._sums / len(self.context.layers)
        self._correlate(0, means, self._tokens)
        tokens, on_host = self._tokens.on_host, means.cpu()
        self._types.update(tokens[:, None], on_host.T, torch.ones_like(tokens))
        self._add_to_sample(on_host, tokens, batch)

    def result(self) -> Result:
        """Correlations for all layers together and by layer, and the means of every token type."""
        of_columns = [(measure, specials) for measure in self._measures for specials in SPECIALS]
        columns = [some for first in range(0, 2 * len(self._measures), 2) for some in ([first, first + 1], [first])]
        table = pd.DataFrame(
            [
                (layer, measure, specials, rho.spearman, rho.count, rho.error_bound, rho.reason)
                for layer, correlations in zip((0, *self.context.layers), self._ranks.compute(columns)[1:], strict=True)
                for (measure, specials), rho in zip(of_columns, (each.stated for each in correlations), strict=True)
            ],
            columns=["layer", "measure", "specials", "spearman", "count", "error_bound", "reason"],
        ).astype({"spearman": "Float64"})
        overall = table[table["layer"] == 0].drop(columns="layer").reset_index(drop=True)
        by_layer = table[table["layer"] > 0].reset_index(drop=True)
        by_token = self._by_token()
        require_finite(by_token[list(self._measures)].to_numpy(), "the activations")
        tables = {
            "correlation": overall,
            "correlation_by_layer": by_layer,
            "by_token": by_token,
        }
        rolled = roll_up(self.info.declared, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics, _bounds(overall)),
            curves=rolled.curves,
            figures=self._figures(rolled.metrics),
            summaries={self.info.name: self._summary(overall)},
            notes=[f"frequency: ρ is undefined, {reason}" for reason in sorted(set(overall["reason"]) - {""})],
        )

    def _summary(self, overall: pd.DataFrame) -> Summary:
        bounds = overall["error_bound"].where((overall["error_bound"] >= VISIBLE) & overall["spearman"].notna())
        numbers = overall.assign(spearman=overall["spearman"].astype(float), error_bound=bounds)
        by_measure = numbers.pivot(index="measure", columns="specials", values=["spearman", "error_bound"])
        titles = {"spearman": "{} special tokens", "error_bound": "± {}"}
        by_measure.columns = by_measure.columns.map(lambda names: titles[names[0]].format(names[1]))
        return Summary(
            by_measure.loc[list(self._measures)].rename(index=MEASURES),
            caption="rank correlation of frequency rank (1: the most frequent token) with each measure of a token, averaged "
            "over layers; above 0, rarer tokens have larger values",
        )

    def _correlate(self, row: int, measures: Tensor, tokens: "_Tokens") -> None:
        # The measures lie along the batch axis. Half precision would round ranks.
        second = tokens.ranks.float().expand(len(self._measures), 1, -1)
        self._ranks.update(row, second, tokens.groups, [PairsPart(measures[:, None, None])])

    def _add_to_sample(self, means: Tensor, tokens: Tensor, batch: Batch) -> None:
        ranks = self._rank[tokens]
        ranked = ranks > 0
        host = batch.host
        kinds = host.categories[host.token_mask].masked_fill(~self._special[tokens], -1)
        rows = torch.cat([ranks.double()[None], kinds.double()[None], means.double()]).T[ranked]
        counts = torch.bincount(host.token_mask.nonzero()[:, 0][ranked], minlength=batch.sequences)
        before = (counts.cumsum(0) - counts).numpy()

        def take(which: np.ndarray, positions: np.ndarray) -> Tensor:
            return rows[torch.from_numpy(before[which] + positions)]

        names = [(fingerprint,) for fingerprint in batch.fingerprints]
        self._sample.update(list(zip(names, counts.tolist(), strict=True)), take)

    def _by_token(self) -> pd.DataFrame:
        types = self._types.compute()
        seen = types.keys[:, 0].numpy()
        return pd.DataFrame(
            {
                "token": [self.context.vocabulary.text(token) for token in seen.tolist()],
                "token_id": seen,
                "rank": pd.Series(self._frequencies.rank[seen]).replace(0, None).astype("Int64"),
                "reference_count": self._frequencies.count[seen],
                "count": types.count.numpy(),
                **{measure: types.mean[:, column].numpy() for column, measure in enumerate(self._measures)},
            }
        ).sort_values(["count", "token_id"], ascending=[False, True], ignore_index=True)

    def _sampled(self) -> pd.DataFrame:
        try:
            rows = self._sample.compute()
        except EmptyAccumulatorError:
            rows = torch.zeros(0, 2 + len(self._measures))
        sample = pd.DataFrame(rows.numpy(), columns=["rank", "tokens", *self._measures])
        kinds = [_ORDINARY if kind < 0 else _kind(self.context.names[kind]) for kind in sample["tokens"].astype(int)]
        return sample.assign(tokens=kinds).astype({"rank": int})

    def _figures(self, metrics: Mapping[str, float]) -> dict[str, Figure]:
        sample = self._sampled()
        ratios = [str(method) for method in self.context.methods]
        percentages = sample.assign(**{ratio: 100 * sample[ratio] for ratio in ratios})
        titles, left_out = {measure: _panel_title(measure) for measure in self._measures}, ""
        weights, with_residual = str(Method.ATTN_W), str(Method.ATTNRES_W)
        if {weights, with_residual} <= set(ratios) and np.allclose(sample[with_residual], sample[weights] / 2):
            del titles[with_residual]  # weights that add up to 1: the same cloud twice
            half, whole = plain(METHODS[with_residual]), plain(METHODS[weights])
            left_out = f" The ratio of {half} is half that of {whole}, and is left out."
        known = [
            f"{brief(metrics[name], signed=True)} ({plain(title)})"
            for measure, title in titles.items()
            if (name := f"spearman/{measure}/with_specials") in metrics
        ]
        correlations = f" The rank correlations, special tokens included, are {enumeration(known)}." if known else ""
        return {
            "scatter": Scatter(
                table=percentages.melt(["rank", "tokens"], var_name="measure", value_name="value"),
                x="rank",
                y="value",
                panel="measure",
                panel_titles=titles,
                x_label="frequency rank",
                y_label="mean over layers",
                log_x=True,
                sharey=False,
                medians=True,
                series="tokens",
                series_titles={kind: kind for kind in (_ORDINARY, *SPECIAL_TOKENS, _OTHER_SPECIAL)},
                caption=(
                    "Each measure of a token occurrence against its token's frequency rank (1: the most frequent). The line is "
                    f"the median in bins of rank: where it rises, rarer tokens have larger values.{correlations}{left_out}"
                ),
            )
        }


def _panel_title(measure: str) -> str:
    return f"mixing ratio (%), {plain(MEASURES[measure])}" if measure in set(Method) else MEASURES[measure]


_ORDINARY, _OTHER_SPECIAL = "ordinary tokens", "other special tokens"


def _kind(category: str) -> str:
    """What the figure calls special tokens of a category."""
    return category if category in SPECIAL_TOKENS else _OTHER_SPECIAL


_APART = 0.1
"""Rank correlations nearer to 0 say that there is no order to speak of."""


def _bounds(overall: pd.DataFrame) -> dict[str, float]:
    """The error bounds of rank correlations, by their names."""
    names = "spearman/" + overall["measure"] + "/" + overall["specials"] + "_specials"
    return dict(zip(names, overall["error_bound"], strict=True))


def sentences_of(metrics: Mapping[str, float], bounds: Mapping[str, float] = MappingProxyType({})) -> list[Sentence]:
    """Whether frequent tokens have shorter vectors, and the rank correlations with the frequency rank.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        bounds: By how much they may be wrong, by the same names.
    """
    titles = {"alpha": "the weight that it receives", "f": "‖f(x)‖", "attnresln_n": "its mixing ratio"}
    parts = [
        f"{estimate(metrics[key], bounds.get(key, 0.0))} with {title}"
        for measure, title in titles.items()
        if (key := f"spearman/{measure}/with_specials") in metrics
    ]
    if not parts:
        return []
    text = (
        f"{_answer(metrics.get('spearman/f/with_specials'))}special tokens included, a token's frequency rank (1: most "
        f"frequent) has a rank correlation of {enumeration(parts)}."
    )
    effect = abs(metrics.get("spearman/f/with_specials", 0.0))
    return [Sentence(begun(text), figure="scatter", table="correlation", effect=effect)]


def _answer(lengths: float | None) -> str:
    """What the rank correlation with ‖f(x)‖ says of frequent tokens."""
    if lengths is None:
        return ""
    if lengths > _APART:
        return "frequent tokens are discounted (their vectors are shorter): "
    if lengths < -_APART:
        return "frequent tokens are not discounted (their vectors are longer): "
    return "frequent tokens have vectors of about the same length as rare ones: "
