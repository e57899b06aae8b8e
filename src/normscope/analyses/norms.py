"""Vector norms: what do tokens contribute, as opposed to their weight? (Kobayashi et al. 2020, section 4)

A large weight on a short vector contributes little: ‖αf(x)‖ stands beside α. Norms of several keys do not add up; the signed
shares beside them do.
"""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses import dispersion, returned_norms
from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.norms import NORMS, NormsOpening, NormsOptions
from normscope.analyses.finite import require_finite
from normscope.analyses.pairs import Pairs
from normscope.analyses.ratio_table import SEQUENCES, keys_of, margins
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.data.nouns import IMAGES
from normscope.maths.norms import expansion_rate
from normscope.maths.tensors import lengthened
from normscope.models.blocks.block import NOT_LINEAR, AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.results.codes import category_name
from normscope.results.figures import Dots, Figure, Heatmaps, Lines, Scatter
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.rounding import (
    VISIBLE,
    begun,
    brief,
    brief_share,
    compared,
    enumeration,
    estimate,
    in_points,
    percentage,
    shares_differ,
)
from normscope.statistics.accumulator import EmptyAccumulatorError, accumulation_device
from normscope.statistics.counts import Counts
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.intervals import Interval
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean
from normscope.statistics.pair_histogram import Axis
from normscope.statistics.rank_correlation import RankCorrelation, rounded
from normscope.statistics.tidy import tidy
from normscope.statistics.uniform_sample import UniformSample

T = TypeVar("T")

MEASURES = {
    "alpha": "α: attention weight",
    "alpha_f": "‖αf(x)‖: weighted vector",
    "f": "‖f(x)‖: vector",
    "share": "signed share of the output",
}

# Where most pairs are, a cell covers a few thousandths of the ranks. For many pairs, ρ is within about 1e-4 of the exact value,
# and always within the reported bound.
WEIGHT_AXIS = Axis(-30, 0, 5)
NORM_AXIS = Axis(-10, 12, 6)

_SAMPLED = ("layer", "head", "alpha", "f")
"""Columns of the sampled pairs."""


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
        self._of_images = context.nouns is IMAGES
        self._returned = returned_norms.ReturnedNorms(self._counted)
        self._alike = Mean(layers, 1)
        # By sequence: α and ‖αf(x)‖ by category, means over heads and layers.
        self._of_sequences = KeyedMeans(1, 2 * len(self._groups), size=SEQUENCES)
        axes = rounded(WEIGHT_AXIS, context.dtype), rounded(NORM_AXIS, context.dtype)
        self._correlation = RankCorrelation(layers, len(context.names), *axes)
        self._queries = Counts(1, 2)  # of the correlation, and of all
        # As many pairs of each category: a sample of all pairs would have few with keys that are in every sequence once.
        strata = [category for category in context.categories if category != ALL] or [ALL]
        self._strata = dataclasses.replace(context, categories=strata)
        size = -(-options.scatter_pairs // len(strata))
        self._samples = [UniformSample(size, len(_SAMPLED), options.seed) for _ in strata]
        self.accumulators = {
            "shares": self._shares,
            "norms": self._norms,
            "inputs": self._inputs,
            "alike": self._alike,
            "sequences": self._of_sequences,
            "pairs": self._correlation,
            "queries": self._queries,
            "returned": self._returned.accumulator,
            **{f"sample_{number}": sample for number, sample in enumerate(self._samples)},
        }

    @classmethod
    def requirements(cls, _options: NormsOptions, _facts: ModelFacts) -> Requirements:
        """One vector f(x) for each key; of images, the vectors before and after the last norm."""
        return Requirements(vectors_of_keys=True, returned=True)

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the lengths of what leaves the last layer."""
        if self._of_images and layer == self.context.depth:
            self._returned.update("before", vectors, batch)

    def update_returned(self, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the lengths of what the model returns."""
        self._returned.update("after", vectors, batch)

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the weights and norms of a block."""
        layer = self.context.index(block.layer)
        pairs = Pairs(block, batch)
        members = self._counted.members(pairs.keys)
        lengths = pairs.batch.token_mask.sum(dim=-1)
        # This comes first: where it builds all of α, `received` is its sum.
        self._correlate(layer, pairs)
        received_shares, norms = pairs.received_shares, pairs.norms
        # For each query, α (‖αf‖, the share) summed over the keys of the category; then the mean over the sequence's queries.
        weights = pairs.received / lengths[:, None, None]
        others = torch.cat([pairs.received_norms, received_shares.to(pairs.received_norms)], dim=1)
        received = torch.cat([weights, others / lengths[:, None, None]], dim=1)
        shares = torch.einsum("brk,gbk->rbg", received, members.to(received.dtype))
        sequences = torch.tensor([len(lengths)])
        of_heads = _sums(shares.transpose(0, 1)).unflatten(1, (3, -1))
        weight, norm, _ = shares.unflatten(0, (3, -1)).mean(dim=1)
        self._of_sequences.update(keys_of(batch), torch.cat([weight, norm], dim=1), torch.ones_like(lengths))
        self._shares.update(layer, lengthened(of_heads, self.context.heads, 2), sequences)
        self._norms.update(layer, lengthened(norms.transpose(0, 1), self.context.heads, 0), members)
        self._inputs.update(layer, pairs.input_norms[None], pairs.batch.token_mask[None])
        if (alike := pairs.received_alike) is not None:
            means = torch.einsum("bhk,bk->b", norms, alike) / (norms.shape[1] * lengths)
            self._alike.update(layer, _sums(means), sequences)
        self._draw(pairs)

    def _correlate(self, layer: int, pairs: Pairs) -> None:
        """Add the pairs of a block to the rank correlation; for long sequences, those of sampled queries.

        Whether a sequence is sampled depends only on its length, and the draw only on its text and the seed, so batching makes
        no difference.
        """
        batch, limit = pairs.batch, self.options.sampled_queries
        used = batch.lengths if limit is None else batch.lengths.clip(max=limit)
        if layer == 0:
            self._queries.update(0, torch.tensor([used.sum(), batch.lengths.sum()]))
        parts = pairs.parts()
        if (used < batch.lengths).any():
            drawn = map(self._drawn, batch.fingerprints, batch.lengths.tolist(), used.tolist())
            parts = (part for row, queries in enumerate(drawn) for part in pairs.of_queries(row, queries))
        self._correlation.update(layer, pairs.norms, pairs.keys.host.categories, parts)

    def _drawn(self, fingerprint: int, length: int, size: int) -> Int[np.ndarray, " query"]:
        """The indices of the queries drawn from a sequence."""
        if size == length:
            return np.arange(length)
        return np.sort(np.random.default_rng([self.options.seed, fingerprint]).choice(length, size, replace=False))

    def _draw(self, pairs: Pairs) -> None:
        """Offer the visible pairs of a block to the samples, each of which draws uniformly from those of all layers and heads.

        The visible pairs of a sequence with keys of a category are numbered by head, query and key, so neither its padding nor
        the other sequences of its batch change the sample.
        """
        block, batch = pairs.block, pairs.batch
        for number, (sample, chosen) in enumerate(
            zip(self._samples, self._strata.members(pairs.keys.host), strict=True)
        ):
            count = functools.partial(pairs.visible_counts, chosen)
            # Pairs of one head, up to and including each query.
            ends = batch.once(("visible pairs", block.mask, number), count).cumsum(axis=-1)
            populations = [
                ((fingerprint, block.layer), block.query.shape[1] * int(of_head))
                for fingerprint, of_head in zip(batch.fingerprints, ends[:, -1], strict=True)
            ]
            sample.update(populations, functools.partial(self._take, pairs, chosen, ends))

    @staticmethod
    def _take(pairs: Pairs, chosen: Tensor, ends: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> Tensor:
        """Some visible pairs with the chosen keys, given their sequences and their numbers in these."""
        of_head = ends[:, -1]
        before = of_head.cumsum() - of_head  # pairs of one head in the sequences before
        head, pair = np.divmod(positions, of_head[rows])
        # One search in the pairs of all sequences, one after the other.
        within = (ends + before[:, None]).ravel()
        query = np.searchsorted(within, pair + before[rows], side="right") - rows * ends.shape[1]
        rank = pair - np.where(query > 0, ends[rows, query - 1], 0)
        return _rows(pairs, torch.from_numpy(np.stack([rows, head, query, rank])), chosen)

    def result(self) -> Result:
        """Tables and figures of sections 4.1 to 4.3, and the expansion rates of the weights."""
        of_heads = self._of_heads()
        by_head = self._reported(of_heads)
        by_layer = self._by_layer(by_head)
        correlation = self._correlations()
        spread, of_inputs = self._dispersion()
        maps = dispersion.singular_values_table(self.context)
        tables = {
            "by_layer": by_layer,
            "by_head": by_head,
            "correlation": correlation,
            "dispersion": spread,
            "input_dispersion": of_inputs,
            "singular_values": maps,
        }
        if self._of_images:
            tables["returned"] = self._returned.table()
        rolled = roll_up(self.info.declared, tables | {"by_head": of_heads})
        expansion = self._expansion()
        metrics = {**rolled.metrics, **self._with_equal_weights(), **_mean_rates(expansion)}
        curves = rolled.curves if expansion is None else {**rolled.curves, "expansion": expansion["rate"]}
        drawn = dispersion.drawn_heads(maps, self.options.singular_value_heads, self.options.seed)
        shares = _shares_by_layer(by_layer, self._by_layer(of_heads))
        figures = (
            describe_figures(shares, by_head, self._sampled(), rolled.metrics),
            dispersion.figures(spread, drawn, metrics),
        )
        overall = correlation[correlation["layer"] == 0].set_index("category")
        bounds = {str(category): bound for category, bound in overall["error_bound"].items()}
        summary = dispersion.summary(spread, of_inputs)
        if self.options.opens_with is NormsOpening.weights:
            summary = _summary(by_layer, overall, has_output_bias=self._has_output_bias())
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=[
                *sentences_of(
                    metrics, self._unseen(by_head, correlation), bounds, self.options.opens_with, *self._apart()
                ),
                *(returned_norms.sentences(tables["returned"]) if self._of_images else []),
            ],
            curves=curves,
            figures=dict(itertools.chain(*(some.items() for some in _in_order(figures, self.options.opens_with)))),
            summaries={self.info.name: summary},
            notes=self._notes(expansion),
        )

    def _notes(self, expansion: pd.DataFrame | None) -> list[str]:
        notes = []
        used, total = self._queries.compute()[0].tolist()
        if used < total:
            notes.append(
                f"rank correlations use {used:,} of {total:,} queries: at most {self.options.sampled_queries} are drawn from "
                "each sequence (analysis.norms.sampled_queries)"
            )
        if expansion is None:
            notes.append(f"{NOT_LINEAR.format('values')}, so W_V has no expansion rate")
        return notes

    def _apart(self) -> tuple[dict[str, Interval], int]:
        """By category, its share of the weight less that of the norms, with its interval; and the number of sequences.

        The share of the norms is a ratio of means, r = n/N. Over sequences s, it varies as the mean of (n_s − r N_s)/N does.
        """
        found = self._of_sequences.compute()
        counts = found.count.double().numpy()
        weights, norms = (part.numpy() for part in found.mean.chunk(2, dim=1))
        means = [np.average(values, axis=0, weights=counts) for values in (weights, norms)]
        whole = means[1][-1]  # `all` is the last group
        intervals = {}
        for place, category in enumerate(self._groups if whole else ()):
            ratio = means[1][place] / whole
            linear = weights[:, place] - (norms[:, place] - ratio * norms[:, -1]) / whole
            below, above = margins(linear * counts, counts)
            apart = float(means[0][place] - ratio)
            intervals[category] = Interval(apart, apart - below, apart + above)
        return intervals, len(counts)

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
            require_finite(rows[list(MEASURES)].to_numpy(), f"layer {layer}")
        return table

    def _reported(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the reported categories that occurred."""
        return table[table["category"].isin(self.context.categories) & (table["count"] > 0)].reset_index(drop=True)

    @staticmethod
    def _by_layer(by_head: pd.DataFrame) -> pd.DataFrame:
        """Means over the heads, which have all seen the same tokens; of shares, which add up over heads, sums."""
        of_layers = by_head.groupby(["layer", "category"], sort=False)
        means = of_layers[["alpha", "alpha_f", "f"]].mean().join(of_layers["share"].sum()).reset_index()
        long = means.melt(["layer", "category"], var_name="measure", value_name="sequence_mean")
        return long[["layer", "measure", "category", "sequence_mean"]].sort_values(
            "layer", kind="stable", ignore_index=True
        )

    def _dispersion(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """How much ‖f(x)‖ varies over all tokens, by layer and head, and how much ‖x‖ does, by layer."""
        of_heads = self.context.with_heads(dispersion.dispersion_table(self._norms, self.context))
        return of_heads, dispersion.dispersion_table(self._inputs, self.context).drop(columns="head")

    def _correlations(self) -> pd.DataFrame:
        try:
            groups = [[group] for group in range(len(self.context.names))]
            results = self._correlation.compute([*groups, list(range(len(groups)))])
        except EmptyAccumulatorError:
            results = []
        table = pd.DataFrame(
            [
                (layer, category, rho.spearman, rho.count, rho.error_bound, rho.reason)
                for layer, row in zip((0, *self.context.layers), results, strict=False)
                for category, rho in zip((*self.context.names, ALL), (each.stated for each in row), strict=True)
                if category in self.context.categories and rho.count
            ],
            columns=["layer", "category", "spearman", "count", "error_bound", "reason"],
        )
        return table.astype({"spearman": "Float64"})

    def _expansion(self) -> pd.DataFrame | None:
        """Expansion rates of W_V W_O by layer, without and with b_O; None if there is no W_V."""
        rates = []
        for layer in self.context.layers:
            weights = self.context.parameters[layer]
            if weights.value is None:
                return None
            affine = weights.value_weight, weights.value_bias, weights.output_weight
            rates.append((layer, expansion_rate(*affine), expansion_rate(*affine, weights.output_bias)))
        return pd.DataFrame(rates, columns=["layer", "rate", "rate_with_output_bias"]).set_index("layer")

    def _sampled(self) -> pd.DataFrame:
        tables = []
        for category, sample in zip(self._strata.categories, self._samples, strict=True):
            try:
                rows = sample.compute().numpy()
            except EmptyAccumulatorError:
                continue
            table = pd.DataFrame(rows, columns=list(_SAMPLED)).astype({"layer": int, "head": int})
            tables.append(table.assign(category=category))
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*_SAMPLED, "category"])


def _mean_rates(expansion: pd.DataFrame | None) -> dict[str, float]:
    """Mean expansion rates over layers, and those with b_O layer by layer."""
    if expansion is None:
        return {}
    means = {"expansion/mean": expansion["rate"], "expansion_with_output_bias/mean": expansion["rate_with_output_bias"]}
    by_layer = expansion["rate_with_output_bias"].items()
    return {name: float(rates.mean()) for name, rates in means.items()} | {
        f"expansion_with_output_bias/layer_{layer}": float(rate) for layer, rate in by_layer
    }


def _sums(values: Float[Tensor, "batch *shape"]) -> Float[Tensor, "1 *shape"]:
    """Sums over the sequences of a batch, in float64."""
    return values.to(accumulation_device(values.device)).double().sum(dim=0, keepdim=True)


def _summary(by_layer: pd.DataFrame, correlation: pd.DataFrame, *, has_output_bias: bool) -> Summary:
    """By category; if tokens of all categories are reported, the last row is what b_O adds to the attention output."""
    means = by_layer.pivot_table(index="category", columns="measure", values="sequence_mean", sort=False)
    means.columns.name = None
    means["share"] *= 100
    whole = float(means["alpha_f"].get("all", 0.0))
    if whole:
        means.insert(2, "‖αf‖, % of total", means["alpha_f"] / whole * 100)
    titles = {"alpha": "α", "alpha_f": "‖αf‖", "f": "‖f‖", "share": "% of the output"}
    rho = correlation[["spearman", "error_bound"]].astype(float)
    rho["error_bound"] = rho["error_bound"].where((rho["error_bound"] >= VISIBLE) & rho["spearman"].notna())
    table = means.rename(columns=titles).join(rho.set_axis(["ρ(α, ‖f‖)", "±"], axis=1))
    if has_output_bias and ALL in table.index:
        table.loc["b_O", "% of the output"] = 100 - float(table["% of the output"][ALL])
    return Summary(
        table.rename(index=category_name),
        caption="what a query receives from all keys of a category, on average: their weight α, the norms ‖αf‖ of their "
        "weighted vectors, and their signed share of the attention output; also the mean norm ‖f‖ of a key's vector, and the "
        "rank correlation ρ of weights with norms",
    )


def _shares_by_layer(by_layer: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
    """What each category has of α, of Σ‖αf(x)‖ and of the attention output, in per cent.

    Args:
        by_layer: The table `by_layer`.
        every: The same for all categories, with the norms of all tokens.

    Returns:
        layer, category, measure (`alpha`, `alpha_f`, `share`), percent.
    """
    wide = by_layer.pivot(index=["layer", "category"], columns="measure", values="sequence_mean")
    of_all = every[(every["category"] == ALL) & (every["measure"] == "alpha_f")].set_index("layer")["sequence_mean"]
    norms = wide["alpha_f"].div(of_all, level="layer")
    parts = 100 * wide[["alpha", "share"]].assign(alpha_f=norms)
    long = (
        parts.rename_axis(columns=None)
        .reset_index()
        .melt(["layer", "category"], var_name="measure", value_name="percent")
    )
    order = {category: place for place, category in enumerate(dict.fromkeys(by_layer["category"]))}
    return long.sort_values(
        ["category", "layer"], key=lambda own: own.map(order) if own.name == "category" else own, ignore_index=True
    )


def describe_figures(
    shares: pd.DataFrame, by_head: pd.DataFrame, sample: pd.DataFrame, metrics: Mapping[str, float]
) -> dict[str, Figure]:
    """Shares of weight, norm and output by category; then figures 3, 4 (and 10 to 12) and 5 of the paper.

    Args:
        shares: See `_shares_by_layer`.
        by_head: The table `by_head`.
        sample: Pairs of a query and a visible key.
        metrics: Numbers by name.
    """
    reported = list(dict.fromkeys(by_head["category"]))
    categories = [category for category in reported if category != ALL] or reported
    points = sample.assign(category=ALL) if categories == [ALL] else sample
    overall = _shares(metrics)
    drawn: dict[str, Figure] = {"shares": _shares_figure(overall)} if overall else {}
    return drawn | {
        "by_layer": _by_layer_figure(_rows_of(categories, shares)),
        "by_head": _by_head_figure(_rows_of(categories, by_head)),
        "scatter": _scatter_figure(_rows_of(categories, points), categories, metrics),
    }


def _rows_of(categories: Sequence[str], table: pd.DataFrame) -> pd.DataFrame:
    return table[table["category"].isin(categories)]


_OF_SHARES = {"alpha": "of the weight α", "alpha_f": "of Σ‖αf(x)‖", "share": "along the output"}
"""What all tokens together have 100% of, by measure."""


_IN_WORDS = {
    "alpha": "the attention weight α",
    "alpha_f": "the norms ‖αf(x)‖ of what heads contribute",
    "share": "what comes from all tokens along the output vectors (below 0, a category points against them)",
}


def _shares(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The share of each category in what all tokens have, by measure; nothing unless all tokens are reported.

    Along the output, b_O has a share as well; where tokens have next to nothing of it, theirs say nothing.
    """
    by_measure = {measure: by_axes(f"{measure}/<category>", metrics) for measure in _OF_SHARES}
    of_all = {measure: values.get(ALL, 0.0) for measure, values in by_measure.items()} | {"alpha": 1.0}
    if not of_all["alpha_f"]:
        return {}
    if of_all["share"] < _LEAST_OF_TOKENS:
        del by_measure["share"]
    shares = {}
    for category in by_measure["alpha"]:
        if category != ALL:
            shares[category] = {measure: values[category] / of_all[measure] for measure, values in by_measure.items()}
    return shares


def _shares_figure(shares: Mapping[str, Mapping[str, float]]) -> Dots:
    """A row for each category, which has its numbers in its name."""
    rows = [
        {"category": category, "measure": measure, "share": 100 * share}
        for category, of_category in shares.items()
        for measure, share in of_category.items()
    ]
    measures = [*dict.fromkeys(measure for of_category in shares.values() for measure in of_category)]
    return Dots(
        table=pd.DataFrame(rows),
        row="category",
        value="share",
        panel="measure",
        panel_titles={measure: _OF_SHARES[measure] for measure in measures},
        row_titles={
            category: f"{category_name(category)}: {', '.join(percentage(share) for share in of_category.values())}"
            for category, of_category in shares.items()
        },
        value_label="share (%)",
        caption=(
            f"The share of each token category in {enumeration([_IN_WORDS[measure] for measure in measures])}, averaged over "
            "queries, heads and layers. The label of each row gives its numbers. A category with much of the weight but little "
            "of the norms receives attention but contributes little."
        ),
    )


_PARTS = {"alpha": "attention weight α", "alpha_f": "norms Σ‖αf(x)‖", "share": "signed share of the output"}
"""What a category has parts of."""


def _by_layer_figure(table: pd.DataFrame) -> Lines:
    return Lines(
        table=table,
        x="layer",
        y="percent",
        series="measure",
        series_titles=_PARTS,
        panel="category",
        panel_titles={category: category for category in dict.fromkeys(table["category"])},
        sharey=True,
        y_label="share of all tokens (%)",
        leading="alpha_f",
        behind=["share"],
        caption=(
            "The share of the keys of each category in the attention weight α, in the norms Σ‖αf(x)‖ (thick) and, along the "
            "output vectors, in the attention output (grey; below 0, they point against it), by layer. Where the thick line "
            "lies below that of α, the category receives weight but contributes little."
        ),
    )


def _by_head_figure(table: pd.DataFrame) -> Heatmaps:
    return Heatmaps(
        table=table,
        panel="category",
        values={"alpha": "α, summed over keys", "alpha_f": "‖αf(x)‖, summed over keys", "f": "‖f(x)‖, mean"},
        row="layer",
        column="head",
        own_scales=True,
        caption=(
            "Weight α, norm of the weighted vector ‖αf(x)‖ and norm of the vector ‖f(x)‖ by layer and head. Where a category "
            "has large weights but short weighted vectors, the heads attend to tokens that contribute little."
        ),
    )


def _scatter_figure(table: pd.DataFrame, categories: Sequence[str], metrics: Mapping[str, float]) -> Scatter:
    rho, lengths = metrics.get("spearman/all"), [metrics.get(name) for name in ("alpha_f/all", "f/uniform")]
    numbers = (
        "" if rho is None else f" Over all pairs of query and key, the rank correlation is {brief(rho, signed=True)}."
    )
    if None not in lengths:
        weighted, alike = compared(brief, *(length for length in lengths if length is not None))
        numbers += f" The mean ‖f(x)‖ of a query's keys is {weighted} weighted by α, and {alike} with equal weights."
    counted = ""
    if table["category"].value_counts().nunique() > 1:  # panels of the same size have no number in their titles
        counted = " (n: number of pairs)"
    return Scatter(
        table=table,
        x="f",
        y="alpha",
        panel="category",
        panel_titles={category: category for category in categories},
        x_label="‖f(x)‖",
        y_label="α",
        log_y=True,
        trim=0.01,
        caption=(
            "Weight against vector norm by category of the key, for a uniform sample of each category's visible query–key "
            f"pairs of all layers and heads{counted}. Where the cloud falls to the right, large weights go to short vectors. "
            f"The axes leave out at most 1% of each category's points at either end.{numbers}"
        ),
    )


def _rows(pairs: Pairs, places: Int[Tensor, "4 pair"], chosen: Tensor) -> Float[Tensor, "pair column"]:
    """One row per pair, given its sequence, head, query and rank among the chosen keys that the query sees."""
    row, head, key, weights = pairs.single(places, chosen)
    columns = torch.full_like(weights, pairs.block.layer), head + 1, weights, pairs.norms[row, head, key]
    device = accumulation_device(weights.device)
    return torch.stack([column.to(device).double() for column in columns], dim=1)


_LEAST_OF_TOKENS = 0.05
"""The share of all tokens in the output below which it is mostly b_O, and their shares of what is left say nothing."""
_MATTERS = 0.1
"""The relative difference of two lengths that is worth a sentence."""
_NO_SINK = 0.999
"""Weight on all keys together above which no learned sink takes part of it: such a part would be missing from ‖αf(x)‖."""


def sentences_of(
    metrics: Mapping[str, float],
    unseen: Collection[str] = (),
    bounds: Mapping[str, float] = MappingProxyType({}),
    opens_with: NormsOpening = NormsOpening.weights,
    apart: Mapping[str, Interval] = MappingProxyType({}),
    sequences: int = 0,
) -> list[Sentence]:
    """What special tokens contribute beside their weight, where norms mislead, whether short vectors get the weight; how much
    norms vary.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        unseen: Categories whose tokens no other token sees, as a [SEP] at the end of the texts of a causal model: nothing is
            said about them.
        bounds: The largest possible error of the rank correlations, by category.
        opens_with: What comes first.
        apart: By category, its share of the weight less that of the norms, with its interval over sequences.
        sequences: The number of these.
    """
    seen = {name: value for name, value in metrics.items() if name.rpartition("/")[2] not in unseen}
    of_weights = [
        *_weight_and_norm(seen, apart, sequences),
        *_norm_and_share(seen),
        *_shorter(seen, bounds.get(ALL, 0.0)),
    ]
    return list(itertools.chain(*_in_order((of_weights, dispersion.sentences(metrics)), opens_with)))


def _in_order(parts: tuple[T, T], opens_with: NormsOpening) -> tuple[T, T]:
    """What is about weights and what is about dispersion, in the order that was asked for."""
    return parts if opens_with is NormsOpening.weights else (parts[1], parts[0])


def _weight_and_norm(metrics: Mapping[str, float], apart: Mapping[str, Interval], sequences: int) -> list[Sentence]:
    """Weight and contribution of each category that stands out in the paper, beginning with the one where they differ most."""
    weights, norms = (by_axes(f"{measure}/<category>", metrics) for measure in ("alpha", "alpha_f"))
    every = norms.get(ALL)
    pairs = {
        category: (weights[category], norms[category] / every)
        for category in ("cls", "sep", "first", "punctuation")
        if every and category in weights and category in norms
    }
    order = sorted(pairs, key=lambda name: -abs(pairs[name][0] - pairs[name][1]))
    return [_of_category(category, *pairs[category], apart.get(category), sequences) for category in order]


def _of_category(category: str, weight: float, norm: float, apart: Interval | None, sequences: int) -> Sentence:
    received, contributed = compared(brief_share, weight, norm)
    detectable = apart is None or not apart.contains_zero
    little = norm < weight / 2 and shares_differ(norm, weight) and detectable
    beside = "" if apart is None else in_points(*apart, sequences)
    text = (
        f"The {category_name(category)} tokens receive {received} of the attention weight "
        f"{'but contribute only' if little else 'and contribute'} {contributed} of Σ‖αf(x)‖{beside}."
    )
    interval = None if apart is None else apart.ends
    return Sentence(
        text,
        figure="shares",
        table="by_layer",
        surprising=little,
        effect=weight - norm,
        interval=interval,
        place={"category": category},
    )


def _norm_and_share(metrics: Mapping[str, float]) -> list[Sentence]:
    """The category whose share of what comes from all tokens is furthest from what the norms suggest.

    The norms are those of tokens alone, and so are the shares beside them: in the output, b_O has a share as well.
    """
    norms, shares = (by_axes(f"{measure}/<category>", metrics) for measure in ("alpha_f", "share"))
    all_norm, all_share = norms.get(ALL), shares.get(ALL)
    if not all_norm or all_share is None or all_share < _LEAST_OF_TOKENS:
        return []
    pairs = {
        category: (norms[category] / all_norm, share / all_share)
        for category, share in shares.items()
        if category != ALL and category in norms
    }
    apart = {name: abs(norm - share) for name, (norm, share) in pairs.items() if shares_differ(norm, share)}
    misleading = {name: distance for name, distance in apart.items() if distance > pairs[name][0] / 2}
    if not misleading:
        return []
    category = max(misleading, key=lambda name: misleading[name])
    norm, along = compared(brief_share, *pairs[category])
    stated = "overstate" if pairs[category][1] < pairs[category][0] else "understate"
    text = (
        f"Norms {stated} what {category_name(category)} tokens contribute: these have {norm} of Σ‖αf(x)‖, but {along} of what "
        "comes from all tokens along the output vectors, where contributions add up."
    )
    return [Sentence(text, figure="shares", table="by_layer", surprising=True, place={"category": category})]


def _shorter(metrics: Mapping[str, float], bound: float) -> list[Sentence]:
    """Whether keys with larger weights have shorter vectors: over all pairs as in the paper, and within a query.

    Pairs of all texts cannot tell: weights are smaller in longer texts, whichever vectors these have.
    """
    parts, shorter = [], False
    if "spearman/all" in metrics:
        rho = estimate(metrics["spearman/all"], bound)
        parts.append(f"weights have a rank correlation of {rho} with ‖f(x)‖ over all pairs of query and key")
    weighted, alike = metrics.get("alpha_f/all"), metrics.get("f/uniform")
    without_sinks = metrics.get("alpha/all", 0.0) > _NO_SINK
    if weighted is not None and alike is not None and without_sinks and _apart(weighted, alike):
        shorter = weighted < alike
        lengths = compared(brief, weighted, alike)
        parts.append(
            f"{'shorter' if shorter else 'longer'} vectors tend to get larger weights: the keys that a query sees have a mean "
            f"‖f(x)‖ of {lengths[0]} weighted by α, and of {lengths[1]} with equal weights"
        )
    if not parts:
        return []
    text = f"{'; '.join(parts)}."
    return [Sentence(begun(text), figure="scatter", table="correlation", surprising=shorter)]


def _apart(one: float, other: float) -> bool:
    return abs(one - other) >= _MATTERS * max(one, other)
