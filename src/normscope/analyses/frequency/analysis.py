"""Token frequency against weight, vector length and mixing ratio (K20 section 4.3; K21 section 4.3 and Figure 4)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.finite import require_finite
from normscope.analyses.frequency.options import FREQUENCY, FrequencyOptions
from normscope.analyses.frequency.resource import TokenFrequencyResource
from normscope.analyses.frequency.sentences import sentences_of
from normscope.data.batching import Batch
from normscope.data.token_frequencies import TokenFrequencies
from normscope.maths.mixing import Method
from normscope.maths.tensors import to_device
from normscope.models.block import AttentionBlock
from normscope.models.model_info import ModelInfo
from normscope.results.figures import Figure, Scatter
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.pair_histogram import Axis, PairsPart
from normscope.statistics.rank_correlation import RankCorrelation, rounded
from normscope.statistics.uniform_sample import UniformSample


def _papers_name(method: Method) -> str:
    """A mixing ratio's name in its paper, such as AttnRes-N for `attnres_n`."""
    name, vectors = str(method).rsplit("_", 1)
    return f"{name.replace('attn', 'Attn').replace('res', 'Res').replace('ln', 'Ln')}-{vectors.upper()}"


_NAMES = {"alpha": "α received", "f": "‖f(x)‖"} | {
    str(method): f"mixing ratio {_papers_name(method)}" for method in Method
}
"""Names of the measures."""
TITLES = _NAMES | {str(method): f"mixing ratio (%), {_papers_name(method)}" for method in Method}
"""Titles of their panels."""
SPECIALS = ("with", "without")

FREQUENCIES = "token_frequencies"
"""Name of the resource."""

RANK_AXIS = Axis(0, 18, 4)
MEASURE_AXIS = Axis(-16, 10, 5)
# Enough to show the shape of the cloud.
_POINTS = 5_000


class _Tokens(NamedTuple):
    """The tokens of a batch without its padding, looked up before the first layer."""

    on_host: Int[Tensor, " token"]
    places: Int[Tensor, " token"]
    """Their indices into the flattened batch, padding included."""
    ranks: Int[Tensor, " token"]
    groups: Sequence[Int[Tensor, "measure token"]]
    """With and without special tokens: the group of each measure of each token; −1 for none."""


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
        groups = len(self._measures) * len(SPECIALS)
        # The mean over layers, then every layer.
        self._ranks = RankCorrelation(1 + len(context.layers), groups, rounded(MEASURE_AXIS, context.dtype), RANK_AXIS)
        self._types = KeyedMeans(1, len(self._measures))  # by token id
        self._sample = UniformSample(_POINTS, 1 + len(self._measures), options.seed)
        self.accumulators = {"ranks": self._ranks, "types": self._types, "sample": self._sample}
        self._tokens: _Tokens | None = None
        """The tokens of the current batch."""
        self._sums: Tensor | None = None
        """Sums over the layers of the current batch."""

    @classmethod
    def requirements(cls, options: FrequencyOptions, _model: ModelInfo) -> Requirements:
        """The frequency of every token."""
        return Requirements(vectors_of_keys=True, resources={FREQUENCIES: TokenFrequencyResource(options)})

    def start_batch(self, batch: Batch) -> None:
        """Look up the tokens of a batch, and reset the sums over layers."""
        self._sums = None
        host, device = batch.host, batch.input_ids.device
        tokens = host.input_ids[host.token_mask]
        ranks, special = self._rank[tokens], self._special[tokens]
        number = torch.arange(len(self._measures))[:, None] * len(SPECIALS)
        groups = [
            to_device(torch.where(counted, number + offset, -1), device)
            for offset, counted in enumerate((ranks > 0, (ranks > 0) & ~special))
        ]
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
        table = pd.DataFrame(
            [
                (layer, measure, specials, rho.spearman, rho.count, rho.error_bound, rho.reason)
                for layer, correlations in zip((0, *self.context.layers), self._ranks.compute()[1:], strict=True)
                for (measure, specials), rho in zip(self._groups(), correlations, strict=True)
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
            "sample": self._sampled(),
        }
        rolled = roll_up(self.info.published, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics),
            curves=rolled.curves,
            figures=self._figures(),
            summaries={self.info.name: self._summary(overall)},
            notes=[f"frequency: ρ is undefined, {reason}" for reason in sorted(set(overall["reason"]) - {""})],
        )

    def _summary(self, overall: pd.DataFrame) -> Summary:
        by_measure = (
            overall.assign(spearman=overall["spearman"].astype(float))
            .pivot(index="measure", columns="specials", values="spearman")
            .loc[list(self._measures)]
            .rename(columns=lambda name: f"ρ {name} special tokens", index=_NAMES)
            .rename_axis(columns=None)
        )
        return Summary(
            by_measure,
            caption="rank correlation ρ of each measure with the frequency rank of the token (1: the most frequent); above 0, "
            "rarer tokens have larger values",
        )

    def _groups(self) -> list[tuple[str, str]]:
        return [(measure, specials) for measure in self._measures for specials in SPECIALS]

    def _correlate(self, row: int, measures: Tensor, tokens: "_Tokens") -> None:
        # The measures lie along the batch axis, and each is a group.
        first = measures[:, None, None]
        second = tokens.ranks.to(measures.dtype).expand(len(self._measures), 1, -1)
        for group in tokens.groups:
            self._ranks.update(row, second, group, [PairsPart(first)])

    def _add_to_sample(self, means: Tensor, tokens: Tensor, batch: Batch) -> None:
        rows = torch.cat([self._rank[tokens].double()[None], means.double()]).T
        # The figure shows ordinary tokens with a rank: special tokens are in every sequence and would dominate it.
        ordinary = ~self._special[tokens] & (rows[:, 0] > 0)
        sequences = batch.host.token_mask.nonzero()[:, 0][ordinary]
        counts = torch.bincount(sequences, minlength=batch.sequences)
        before, ordinary_rows = (counts.cumsum(0) - counts).numpy(), rows[ordinary]

        def take(which: np.ndarray, positions: np.ndarray) -> Tensor:
            return ordinary_rows[torch.from_numpy(before[which] + positions)]

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
            rows = torch.zeros(0, 1 + len(self._measures))
        return pd.DataFrame(rows.numpy(), columns=["rank", *self._measures]).astype({"rank": int})

    def _figures(self) -> dict[str, Figure]:
        sample = self._sampled()
        ratios = [str(method) for method in self.context.methods]
        percentages = sample.assign(**{ratio: 100 * sample[ratio] for ratio in ratios})
        drawn, left_out = list(self._measures), ""
        weights, with_residual = str(Method.ATTN_W), str(Method.ATTNRES_W)
        if {weights, with_residual} <= set(ratios) and np.allclose(sample[with_residual], sample[weights] / 2):
            drawn.remove(with_residual)  # weights that add up to 1: the same cloud twice
            left_out = (
                f" {_papers_name(Method.ATTNRES_W)} is half of {_papers_name(Method.ATTN_W)}, and is left out as well."
            )
        return {
            "scatter": Scatter(
                table=percentages.melt("rank", var_name="measure", value_name="value"),
                x="rank",
                y="value",
                panel="measure",
                panel_titles={measure: TITLES[measure] for measure in drawn},
                x_label="frequency rank",
                y_label="mean over layers",
                log_x=True,
                sharey=False,
                medians=True,
                caption=(
                    "Each measure of a token occurrence against its token's frequency rank (1: the most frequent). The line is "
                    "the median in bins of rank: where it rises, rarer tokens have larger values. Special tokens are left "
                    f"out.{left_out}"
                ),
            )
        }
