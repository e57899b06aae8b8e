"""Vector norms: what keys contribute, ‖αf(x)‖, beside the weight they get, α (Kobayashi et al. 2020, section 4)."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import torch

from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.findings import Findings
from normscope.analyses.norms.figures import MEASURES, describe_figures
from normscope.analyses.norms.options import NORMS, NormsOptions
from normscope.analyses.norms.pair_correlation import PairCorrelation
from normscope.analyses.norms.pair_sample import PairSample
from normscope.analyses.norms.sentences import sentences_of
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.errors import InputError
from normscope.maths.norms import expansion_rate, singular_values
from normscope.models.block import AttentionBlock
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.sequence_means import SequenceMeans


class NormsAnalysis(Analysis):
    """Weights and vector norms per layer, head and category of the key; their spread and their rank correlation."""

    info = NORMS

    def __init__(self, options: NormsOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        # `all` is always counted: the dispersion is that of all tokens, whichever categories are reported.
        self._groups = [*(category for category in context.categories if category != ALL), ALL]
        self._counted = dataclasses.replace(context, categories=self._groups)
        layers, heads = len(context.layers), context.heads
        self._shares = SequenceMeans(layers, 2 * heads, len(self._groups))
        self._norms = GroupedMoments(layers, heads, len(self._groups))
        self._per_key = GroupedMoments(layers, heads, len(self._groups))
        self._inputs = GroupedMoments(layers, 1, 1)
        self._pairs = PairCorrelation(options, layers, len(context.names))
        self._sample = PairSample(options.scatter_pairs, options.seed)
        self.accumulators = {
            "shares": self._shares,
            "norms": self._norms,
            "per_key": self._per_key,
            "inputs": self._inputs,
            "pairs": self._pairs.correlation,
            "sample": self._sample.accumulator,
            "queries": self._pairs.queries,
        }

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the weights and norms of one block."""
        layer = self.context.index(block.layer)
        members = self._counted.members(batch.keys)
        lengths = batch.token_mask.sum(dim=-1)
        # First, since it may build the weights, and the weight received is then at hand.
        self._pairs.update(layer, block, batch)
        norms = block.transformed_norms
        # Per query, Σ over the category's keys of α (and of α‖f‖), averaged over the queries of a sequence.
        per_key = block.received / lengths[:, None, None]
        received = torch.cat([per_key, per_key * norms], dim=1)
        shares = torch.einsum("brk,gbk->rbg", received, members.to(received.dtype))
        self._per_key.update(layer, per_key.transpose(0, 1), members)
        self._shares.update(layer, shares, lengths)
        self._norms.update(layer, norms.transpose(0, 1), members)
        self._inputs.update(layer, torch.linalg.vector_norm(block.inputs, dim=-1)[None], batch.token_mask[None])
        self._sample.update(block, batch)

    def result(self) -> Findings:
        """Tables and figures of sections 4.1 to 4.3, and of the weights alone."""
        by_head = self._by_head()
        broken = by_head[~np.isfinite(by_head[list(MEASURES)].to_numpy()).all(axis=1)]
        if len(broken):
            raise InputError(f"NaN or infinity in layer {broken['layer'].min()}; try device.dtype=float32")
        by_layer, per_key = self._by_layer(by_head), self._mean_per_key()
        dispersion, inputs = self._dispersion(self._norms, "head"), self._dispersion(self._inputs, None)
        correlation = self._correlation()
        values, rates = self._spectra()
        sample = self._sample.table(self.context.names)
        curves = {
            f"{measure}/{category}": rows.set_index("layer")["sequence_mean"]
            for measure in MEASURES
            for category, rows in by_layer[by_layer["measure"] == measure].groupby("category", sort=False)
        }
        pooled = correlation[correlation["layer"] == 0].set_index("category")["spearman"].dropna()
        metrics = {
            **{f"spearman/{category}": float(value) for category, value in pooled.items()},
            **{name: float(curve.mean()) for name, curve in curves.items()},
            "f/cv_max": float(dispersion["cv"].max()),
            "f/cv_min": float(dispersion["cv"].min()),
            "f/cv_mean": float(dispersion["cv"].mean()),
            "f/mean": float(dispersion["mean"].mean()),
            "f/std": float(dispersion["std"].mean()),
            **{f"x/cv_{name}": float(getattr(inputs["cv"], name)()) for name in ("max", "min", "mean")},
            "expansion/mean": float(rates["rate"].mean()),
            "expansion_with_output_bias/mean": float(rates["rate_with_output_bias"].mean()),
            **{
                f"expansion_with_output_bias/layer_{layer}": float(rate)
                for layer, rate in zip(rates["layer"], rates["rate_with_output_bias"], strict=True)
            },
        }
        return Findings(
            tables={
                "by_layer": by_layer,
                "by_head": by_head,
                "per_key": per_key,
                "dispersion": dispersion,
                "dispersion_summary": _extremes(dispersion),
                "input_dispersion": inputs,
                "input_dispersion_summary": _extremes(inputs),
                "correlation": correlation,
                "singular_values": values,
                "expansion": rates,
                "sample": sample,
            },
            metrics=metrics,
            sentences=sentences_of(metrics),
            curves=curves | {"expansion": rates.set_index("layer")["rate"]},
            figures=describe_figures(by_layer, by_head, per_key, sample, values, rates),
            summary=_summary(by_layer, pooled),
            notes=self._pairs.notes(),
        )

    def _by_head(self) -> pd.DataFrame:
        shares, norms = self._shares.compute().sequence_mean, self._norms.compute()
        heads = self.context.heads
        return pd.DataFrame(
            {
                "layer": layer,
                "head": head + 1,
                "category": category,
                "alpha": shares[i, head, c].item(),
                "alpha_f": shares[i, heads + head, c].item(),
                "f": norms.sequence_mean[i, head, c].item(),
                "count": norms.count[i, c].item(),
            }
            for (i, layer), head, (c, category) in itertools.product(
                enumerate(self.context.layers), range(heads), enumerate(self._groups)
            )
            if category in self.context.categories and norms.count[i, c]
        )

    @staticmethod
    def _by_layer(by_head: pd.DataFrame) -> pd.DataFrame:
        """Means over the heads; every head has seen the same tokens."""
        means = by_head.groupby(["layer", "category"], sort=False)[list(MEASURES)].mean().reset_index()
        long = means.melt(["layer", "category"], var_name="measure", value_name="sequence_mean")
        return long[["layer", "measure", "category", "sequence_mean"]].sort_values(
            "layer", kind="stable", ignore_index=True
        )

    def _mean_per_key(self) -> pd.DataFrame:
        """The weight that a single key of a category gets on average, instead of the sum over the category's keys."""
        found = self._per_key.compute()
        return pd.DataFrame(
            (layer, category, found.mean[i, :, c].mean().item(), found.sequence_mean[i, :, c].mean().item(), count)
            for (i, layer), (c, category) in itertools.product(enumerate(self.context.layers), enumerate(self._groups))
            if category in self.context.categories and (count := found.count[i, c].item())
        ).set_axis(["layer", "category", "mean", "sequence_mean", "count"], axis=1)

    def _dispersion(self, moments: GroupedMoments, row: str | None) -> pd.DataFrame:
        """Spread over all tokens."""
        summary = moments.compute()
        last = summary.mean.shape[2] - 1  # `all`
        return pd.DataFrame(
            {
                "layer": layer,
                **({} if row is None else {row: r + 1}),
                "mean": summary.mean[i, r, last].item(),
                "std": summary.deviation[i, r, last].item(),
                "cv": (summary.deviation[i, r, last] / summary.mean[i, r, last]).item(),
                "max": summary.maximum[i, r, last].item(),
                "min": summary.minimum[i, r, last].item(),
            }
            for (i, layer), r in itertools.product(enumerate(self.context.layers), range(summary.mean.shape[1]))
        )

    def _correlation(self) -> pd.DataFrame:
        try:
            results = self._pairs.correlation.compute(union=True)
        except EmptyAccumulatorError:
            results = []
        table = pd.DataFrame(
            [
                (layer, category, found.spearman, found.count, found.error_bound, found.reason)
                for layer, row in zip((0, *self.context.layers), results, strict=False)
                for category, found in zip((*self.context.names, ALL), row, strict=True)
                if category in self.context.categories and found.count
            ],
            columns=["layer", "category", "spearman", "count", "error_bound", "reason"],
        )
        return table.astype({"spearman": "Float64"})

    def _spectra(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        values, rates = [], []
        for layer in self.context.layers:
            weights = self.context.parameters[layer]
            affine = weights.value_weight, weights.value_bias, weights.output_weight
            spectrum = singular_values(*affine).cpu().numpy()
            heads, ranks = np.indices(spectrum.shape)
            values.append(
                pd.DataFrame(
                    {"layer": layer, "head": heads.ravel() + 1, "index": ranks.ravel() + 1, "value": spectrum.ravel()}
                )
            )
            rates.append((layer, expansion_rate(*affine), expansion_rate(*affine, weights.output_bias)))
        return pd.concat(values, ignore_index=True), pd.DataFrame(
            rates, columns=["layer", "rate", "rate_with_output_bias"]
        )


def _extremes(dispersion: pd.DataFrame) -> pd.DataFrame:
    """The row of the largest and of the smallest coefficient of variation, and the average of all rows (numbered 0)."""
    average = pd.DataFrame([dispersion.mean(numeric_only=True)])
    places = [column for column in ("layer", "head") if column in dispersion]
    average[places] = 0
    rows = pd.concat(
        [dispersion.loc[[dispersion["cv"].idxmax()]], dispersion.loc[[dispersion["cv"].idxmin()]], average],
        ignore_index=True,
    ).astype(dict.fromkeys(places, int))
    rows.insert(0, "row", ["max_cv", "min_cv", "average"])
    return rows


def _summary(by_layer: pd.DataFrame, spearman: "pd.Series[float]") -> pd.DataFrame:
    means = by_layer.pivot_table(index="category", columns="measure", values="sequence_mean", sort=False)
    means.columns.name = None
    return means.rename(columns={"alpha": "α", "alpha_f": "‖αf‖", "f": "‖f‖"}).join(
        spearman.astype(float).rename("ρ(α, ‖f‖)")
    )
