"""Vector norms: the contribution of each key, ‖αf(x)‖, next to its weight, α (Kobayashi et al. 2020, section 4)."""

import dataclasses
from collections.abc import Mapping

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.categories import category_name
from normscope.analyses.finite import require_finite
from normscope.analyses.norms.figures import MEASURES, describe_figures
from normscope.analyses.norms.options import NORMS, NormsOptions
from normscope.analyses.norms.pair_correlation import PairCorrelation
from normscope.analyses.norms.pair_sample import PairSample
from normscope.analyses.norms.pairs import pairs_of
from normscope.analyses.norms.sentences import sentences_of
from normscope.analyses.ratio_table import overall_rows
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.norms import expansion_rate
from normscope.maths.tensors import lengthened
from normscope.models.block import NOT_LINEAR, AttentionBlock
from normscope.models.model_info import ModelInfo
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.statistics.accumulator import EmptyAccumulatorError, accumulation_device
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.mean import Mean
from normscope.statistics.tidy import tidy


class NormsAnalysis(Analysis):
    """Weights and vector norms by layer, head and category of the key, their dispersion and their rank correlation."""

    info = NORMS

    def __init__(self, options: NormsOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        # `all` is always counted: the dispersion covers all tokens, whichever categories are reported.
        self._groups = [*(category for category in context.categories if category != ALL), ALL]
        self._counted = dataclasses.replace(context, categories=self._groups)
        layers, heads = len(context.layers), context.heads
        # Over sequences: α, ‖αf(x)‖ and the share, by head and category.
        self._shares = Mean(layers, 1, 3, heads, len(self._groups))
        self._norms = GroupedMoments(layers, heads, len(self._groups))
        self._inputs = GroupedMoments(layers, 1, 1)
        self._pairs = PairCorrelation(options, layers, len(context.names), context.dtype)
        self._alike = Mean(layers, 1)
        self._sample = PairSample(options.scatter_pairs, options.seed)
        self.accumulators = {
            "shares": self._shares,
            "norms": self._norms,
            "inputs": self._inputs,
            "alike": self._alike,
            "pairs": self._pairs.correlation,
            "sample": self._sample.accumulator,
            "queries": self._pairs.queries,
        }

    @classmethod
    def requirements(cls, _options: NormsOptions, _model: ModelInfo) -> Requirements:
        """One vector f(x) for each key."""
        return Requirements(vectors_of_keys=True)

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the weights and norms of a block."""
        layer = self.context.index(block.layer)
        pairs = pairs_of(block, batch)
        members = self._counted.members(pairs.keys)
        lengths = pairs.batch.token_mask.sum(dim=-1)
        # This comes first: where it builds all of α, `received` is its sum.
        self._pairs.update(layer, pairs)
        received_shares, norms = pairs.received_shares, pairs.norms
        # For each query, α (‖αf‖, the share) summed over the keys of the category; then the mean over the sequence's queries.
        weights = pairs.received / lengths[:, None, None]
        others = torch.cat([pairs.received_norms, received_shares.to(pairs.received_norms)], dim=1)
        received = torch.cat([weights, others / lengths[:, None, None]], dim=1)
        shares = torch.einsum("brk,gbk->rbg", received, members.to(received.dtype))
        sequences = torch.tensor([len(lengths)])
        of_heads = _sums(shares.transpose(0, 1)).unflatten(1, (3, -1))
        self._shares.update(layer, lengthened(of_heads, self.context.heads, 2), sequences)
        self._norms.update(layer, lengthened(norms.transpose(0, 1), self.context.heads, 0), members)
        self._inputs.update(layer, pairs.input_norms[None], pairs.batch.token_mask[None])
        if (alike := pairs.received_alike) is not None:
            means = torch.einsum("bhk,bk->b", norms, alike) / (norms.shape[1] * lengths)
            self._alike.update(layer, _sums(means), sequences)
        self._sample.update(pairs)

    def result(self) -> Result:
        """Tables and figures of sections 4.1 to 4.3, and the expansion rates of the weights."""
        of_heads = self._of_heads()
        by_head = self._reported(of_heads)
        by_layer = self._by_layer(by_head)
        dispersion = self.context.with_heads(self._dispersion(self._norms))
        inputs = self._dispersion(self._inputs).drop(columns="head")
        correlation = self._correlation()
        expansion = self._expansion()
        sample = self._sample.table(self.context.names)
        tables = {
            "by_layer": by_layer,
            "by_head": by_head,
            "head_shares": overall_rows(of_heads)[["layer", "head", "share"]].reset_index(drop=True),
            "dispersion": dispersion,
            "dispersion_summary": _extremes(dispersion),
            "input_dispersion": inputs,
            "input_dispersion_summary": _extremes(inputs),
            "correlation": correlation,
            **({} if expansion is None else {"expansion": expansion}),
            "sample": sample,
        }
        figures = describe_figures(by_layer, by_head, tables["head_shares"], sample, expansion)
        rolled = roll_up(self.info.published, tables)
        metrics = rolled.metrics | self._with_equal_weights()
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(metrics, self._unseen(by_head, correlation)),
            curves=rolled.curves,
            figures=figures,
            summaries={
                self.info.name: Summary(
                    _summary(by_layer, rolled.metrics, has_output_bias=self._has_output_bias()),
                    caption="what a query receives from all keys of a category, on average: their weight α, the norms ‖αf‖ of "
                    "their weighted vectors, and their signed share of the attention output; beside it, the mean norm ‖f‖ of "
                    "a vector, and the rank correlation ρ of weights with norms",
                )
            },
            notes=[
                *self._pairs.notes(),
                *([] if expansion is not None else [f"{NOT_LINEAR.format('values')}, so W_V has no expansion rate"]),
            ],
        )

    @staticmethod
    def _unseen(by_head: pd.DataFrame, correlation: pd.DataFrame) -> list[str]:
        """The categories whose tokens no other token sees: no more pairs than keys."""
        keys = by_head.groupby("category", observed=True)["count"].sum()
        pairs = correlation[correlation["layer"] == 0].set_index("category")["count"]
        return [
            str(category) for category, count in pairs.items() if category != ALL and count <= keys.get(category, 0)
        ]

    def _has_output_bias(self) -> bool:
        return any(self.context.parameters[layer].output_bias is not None for layer in self.context.layers)

    def _with_equal_weights(self) -> dict[str, float]:
        """What Σ‖αf(x)‖ would be on average if all weights of a query were equal; not defined for words."""
        try:
            return {"f/uniform": float(self._alike.compute().mean.mean())}
        except EmptyAccumulatorError:
            return {}

    def _of_heads(self) -> pd.DataFrame:
        """Weights, norms and shares by head, for all categories."""
        norms = self._norms.compute()
        alpha, alpha_f, share = self._shares.compute().mean[:, 0].unbind(dim=1)
        table = tidy(
            {
                "alpha": alpha,
                "alpha_f": alpha_f,
                "f": norms.sequence_mean,
                "share": share,
                "count": norms.count[:, None],
            },
            layer=self.context.layers,
            head=range(1, self.context.heads + 1),
            category=self._groups,
        )
        table = self.context.with_heads(table)
        for layer, rows in self._reported(table).groupby("layer"):
            require_finite(rows[[*MEASURES, "share"]].to_numpy(), f"layer {layer}")
        return table

    def _reported(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the reported categories that occurred."""
        return table[table["category"].isin(self.context.categories) & (table["count"] > 0)].reset_index(drop=True)

    @staticmethod
    def _by_layer(by_head: pd.DataFrame) -> pd.DataFrame:
        """Means over the heads, which have all seen the same tokens; of shares, which add up over heads, sums."""
        of_layers = by_head.groupby(["layer", "category"], sort=False)
        means = of_layers[list(MEASURES)].mean().join(of_layers["share"].sum()).reset_index()
        long = means.melt(["layer", "category"], var_name="measure", value_name="sequence_mean")
        return long[["layer", "measure", "category", "sequence_mean"]].sort_values(
            "layer", kind="stable", ignore_index=True
        )

    def _dispersion(self, moments: GroupedMoments) -> pd.DataFrame:
        """Dispersion over all tokens, by layer and row of the moments (`head`)."""
        summary = moments.compute()
        columns = {
            "mean": summary.mean,
            "std": summary.deviation,
            "cv": summary.deviation / summary.mean,
            "max": summary.maximum,
            "min": summary.minimum,
        }
        return tidy(
            {name: values[..., -1] for name, values in columns.items()},  # the last group is `all`
            layer=self.context.layers,
            head=range(1, summary.mean.shape[1] + 1),
        )

    def _correlation(self) -> pd.DataFrame:
        try:
            results = self._pairs.correlation.compute(union=True)
        except EmptyAccumulatorError:
            results = []
        table = pd.DataFrame(
            [
                (layer, category, rho.spearman, rho.count, rho.error_bound, rho.reason)
                for layer, row in zip((0, *self.context.layers), results, strict=False)
                for category, rho in zip((*self.context.names, ALL), row, strict=True)
                if category in self.context.categories and rho.count
            ],
            columns=["layer", "category", "spearman", "count", "error_bound", "reason"],
        )
        return table.astype({"spearman": "Float64"})

    def _expansion(self) -> pd.DataFrame | None:
        """Expansion rates of W_V W_O; None if there is no W_V."""
        rates = []
        for layer in self.context.layers:
            weights = self.context.parameters[layer]
            if weights.value is None:
                return None
            affine = weights.value_weight, weights.value_bias, weights.output_weight
            rates.append((layer, expansion_rate(*affine), expansion_rate(*affine, weights.output_bias)))
        return pd.DataFrame(rates, columns=["layer", "rate", "rate_with_output_bias"])


def _sums(values: Float[Tensor, "batch *shape"]) -> Float[Tensor, "1 *shape"]:
    """Sums over the sequences of a batch, in float64."""
    return values.to(accumulation_device(values.device)).double().sum(dim=0, keepdim=True)


def _extremes(dispersion: pd.DataFrame) -> pd.DataFrame:
    """The rows with the largest and the smallest coefficient of variation, and the average row (layer and head 0)."""
    average = pd.DataFrame([dispersion.mean(numeric_only=True)])
    axes = [column for column in ("layer", "head") if column in dispersion]
    average[axes] = 0
    rows = pd.concat(
        [dispersion.loc[[dispersion["cv"].idxmax()]], dispersion.loc[[dispersion["cv"].idxmin()]], average],
        ignore_index=True,
    ).astype(dict.fromkeys(axes, int))
    rows.insert(0, "row", ["max_cv", "min_cv", "average"])
    return rows


def _summary(by_layer: pd.DataFrame, metrics: Mapping[str, float], *, has_output_bias: bool) -> pd.DataFrame:
    """By category; if tokens of all categories are reported, the last row is what b_O adds to the attention output."""
    means = by_layer.pivot_table(index="category", columns="measure", values="sequence_mean", sort=False)
    means.columns.name = None
    means["share"] *= 100
    whole = float(means["alpha_f"].get("all", 0.0))
    if whole:
        means.insert(2, "‖αf‖, % of its sum", means["alpha_f"] / whole * 100)
    titles = {"alpha": "α", "alpha_f": "‖αf‖", "f": "‖f‖", "share": "% of the output"}
    table = means.rename(columns=titles).join(
        pd.Series(by_axes("spearman/<category>", metrics), dtype=float, name="ρ(α, ‖f‖)")
    )
    if has_output_bias and ALL in table.index:
        table.loc["b_O", "% of the output"] = 100 - float(table["% of the output"][ALL])
    return table.rename(index=category_name)
