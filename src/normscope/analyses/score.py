"""Score contributions: which dimensions decide attention, and do they cause it? (Maruta & Matsuzaki 2024, section 4)

Dimension j contributes C_j = (q W_Kᵀ)_j x_j to the score of a query and a key. Its share of the variance of a query's scores
over the keys tells how much it decides; attention without the outlier dimensions' part of the scores tells whether they cause
it.
"""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.score import SCORE, ScoreOptions
from normscope.analyses.finite import require_finite
from normscope.analyses.hidden_moments import HiddenMoments
from normscope.analyses.removals import beside_controls, random_sets, weight_by_category, without_all
from normscope.analyses.samples import steps_until_precise
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.masks import Mask
from normscope.maths.scores import (
    causal_score_spread,
    contribution_sums,
    covariances,
    masked_sum,
    score_spread,
    seen_by,
    visible_contribution_sums,
    visible_score_spread,
)
from normscope.maths.tensors import lengthened
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.results.axes import TOGETHER
from normscope.results.codes import category_name
from normscope.results.figures import Figure, Heatmaps, Lines, Profiles
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.rounding import (
    brief,
    brief_share,
    compared,
    enumeration,
    in_points,
    movement,
    numbered,
    shares_differ,
)
from normscope.statistics.accumulator import accumulation_device
from normscope.statistics.intervals import Interval, interval_over_texts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.mean import Mean, MeanSummary
from normscope.statistics.precision import half_width
from normscope.statistics.tidy import tidy

ALONE = 8
"""Largest number of outlier dimensions that are also removed one at a time. Hundreds would take hours and add little."""

_FAVOURED = 0.1
"""Standard deviations of a query's scores by which a dimension must raise those of a category, to be said to favour it. Less
hardly changes the softmax."""

_READINGS = {"sum": "all keys of a category", "one_key": "one key of a category"}
"""The weight on a category: the columns of the table."""

_DRAWN_DIMENSIONS = 6
"""With more columns of panels, they become too small to read."""


class ScoreAnalysis(Analysis):
    """C_j by layer, head, category of the key and dimension, its share of the spread of the scores, and interventions."""

    info = SCORE

    def __init__(self, options: ScoreOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._moments = HiddenMoments(context, [ALL])
        layers, heads, model = len(context.layers), context.heads, context.model
        self._weights = Mean(layers, 1, len(context.categories))
        self._weights_of_keys = Mean(layers, len(context.categories))
        self._contributions = Mean(layers, len(context.categories), heads, model)
        # After the dimensions: the contribution of b_K to the spread, and the spread itself.
        self._spread = Mean(layers, 1, heads, model + 2)
        self._sample = KeptTensors(torch.int64, max(options.intervention_sequences, options.sequences or 0))
        self._interventions: pd.DataFrame | None = None
        self._changed: dict[str, Interval] = {}
        """By category, the change of its weight without the outlier dimensions: a mean over layers, then over sequences."""
        self.accumulators = {
            "moments": self._moments.accumulator,
            "weights": self._weights,
            "weights_of_keys": self._weights_of_keys,
            "contributions": self._contributions,
            "spread": self._spread,
            "sample": self._sample,
        }

    @classmethod
    def requirements(cls, _options: ScoreOptions, _facts: ModelFacts) -> Requirements:
        """W_K, and the hidden vectors, from which the outlier dimensions are determined."""
        return Requirements(hidden=True, weights_of_keys=True)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the sample for interventions, and find the tokens of each category."""
        self.context.parts(batch)
        self._sample.update(*batch.for_samples(self.options.seed))

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the weights of a block, and its scores unless they are averaged over a sample."""
        self._weigh(block, batch)
        if self.options.sequences is None:
            self._add(block, batch)

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of one layer."""
        self._moments.update(layer, vectors, batch)

    def intervene(self, runner: InterventionRunner) -> None:
        """Measure contributions, if they are averaged over a sample; then remove the outlier dimensions from the scores."""
        options = self.options
        sample = self._sample.compute().tensors
        if options.sequences is not None:
            batches = runner.batches(sample[: options.sequences])
            for batch in runner.progress(batches, len(batches), "contributions to scores"):
                runner.observe(batch, lambda block, batch=batch: self._add(block, batch))  # type: ignore[misc]
        hidden = self._moments.compute()
        if hidden.outliers and options.interventions:
            prominent = sorted(hidden.outliers, key=lambda j: -float(hidden.scores[:, j].abs().max()))
            self._interventions = self._remove(runner, sample[: options.intervention_sequences], prominent)

    def result(self) -> Result:
        """Weights, contributions, how concentrated the spread is, and the interventions: Table 1, figures 2, 4 and 5."""
        contributions, spread = self._contributions.compute(), self._spread.compute()
        require_finite(spread.mean, "the scores of layer {layer}", self.context.layers)
        outliers = self._moments.compute().outliers
        tables = {
            "weights": self._by_layer(),
            "contributions": self._contributed(contributions),
            "concentration": self._concentration(spread.mean[:, 0].numpy(), outliers),
        }
        if outliers:
            tables["by_category"] = _by_category(tables["contributions"], tables["concentration"], outliers)
        notes = [f"{'' if outliers else 'no '}outlier dimensions: {self._moments.criterion}"]
        if self._interventions is not None:
            tables["intervention"] = self._interventions
            if len(outliers) > ALONE:
                notes.append(
                    f"only the {ALONE} most prominent of the {len(outliers)} outlier dimensions are removed individually"
                )
        if self.context.has_position_terms:
            notes.append("scores of this family also have position terms: contributions cover only q·k")
        rolled = roll_up(self.info.declared, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(
                rolled.metrics,
                outliers if len(outliers) <= ALONE else (),
                favoured(tables["by_category"]) if 0 < len(outliers) <= ALONE else None,
                self._changed,
            ),
            curves=rolled.curves,
            figures=describe_figures(tables, outliers),
            summaries={
                self.info.name: Summary(
                    _summary(tables),
                    caption="mean over a layer's heads: how few dimensions make up 50% and 90% of the variance of attention "
                    "scores, the share of this variance that comes from the outlier dimensions and from b_K, and α with all "
                    "dimensions, without the outlier dimensions, and without the same number of random ones",
                )
            },
            notes=notes,
        )

    def _weigh(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the mean weights over heads by category of the key: of all its keys in a sequence, and of each."""
        layer, members = self.context.index(block.layer), self.context.members(batch)
        received = block.received.to(accumulation_device(block.received.device)).double().mean(dim=1)
        members, queries = members.to(received), batch.token_mask.sum(dim=-1, keepdim=True).to(received)
        weights, keys = torch.einsum("bk,gbk->bg", received, members) / queries, members.sum(dim=-1).T
        self._weights.update(layer, weights.sum(dim=0)[None], torch.tensor([batch.sequences]))
        self._weights_of_keys.update(layer, (weights / keys.clamp(min=1)).sum(dim=0), (keys > 0).sum(dim=0))

    def _add(self, block: AttentionBlock, batch: Batch) -> None:
        layer = self.context.index(block.layer)
        members = self.context.members(batch)
        weights, inputs = block.parameters, block.attention_inputs
        groups = members.to(block.query.dtype)
        mask = block.mask or Mask()
        if block.alpha.seen.is_complete and block.key_map.same_for_all_keys:
            query_sums = masked_sum(block.query, batch.token_mask)
            sums = contribution_sums(query_sums, weights.key_weight, torch.einsum("gbk,bkm->gbm", groups, inputs))
            pairs = (members.sum(dim=-1) * batch.token_mask.sum(dim=-1)).sum(dim=-1)
        else:
            queries_of_key = block.key_map.back(seen_by(block.query, batch.token_mask, mask))
            parts = visible_contribution_sums(queries_of_key, weights.key_weight, inputs, self.context.parts(batch))
            of_part = iter(parts)
            sums = torch.stack(
                [parts.sum(dim=0) if category == ALL else next(of_part) for category in self.context.categories]
            )
            counts = seen_by(groups.new_ones(batch.token_mask.shape)[:, None, :, None], batch.token_mask, mask)
            pairs = (counts[:, 0, :, 0].long() * members).sum(dim=(1, 2))
        if block.alpha.seen.is_complete:
            spread = score_spread(block.query, block.key, batch.token_mask)
        elif mask.causal and mask.keys is None:  # padding at the end
            spread = causal_score_spread(block.query, block.key, batch.token_mask)
        else:
            spread = visible_score_spread(block.query, block.key, batch.token_mask, mask)
        directions = block.key_map.back(spread.directions)
        shares = covariances(directions, weights.key_weight, inputs)
        # A bias that all keys share adds no spread. Computing it would only add rounding errors.
        key_bias = torch.zeros_like(shares[:, 0])
        if not block.key_map.same_for_all_keys:
            key_bias = torch.einsum("bhkd,hd->h", directions, weights.key_bias)
        self._contributions.update(layer, lengthened(sums, self.context.heads, 1), pairs)
        columns = torch.cat([shares, key_bias[:, None], spread.variance[:, None]], dim=-1)
        self._spread.update(layer, lengthened(columns, self.context.heads, 0)[None], batch.token_mask.sum()[None])

    def _remove(
        self, runner: InterventionRunner, sample: Sequence[Int[Tensor, "kind _"]], outliers: Sequence[int]
    ) -> pd.DataFrame:
        """Attention by category of the key with and without some dimensions' part of the scores, one block at a time.

        The softmax is computed again from scores − scale·Σ_j C_j: the queries stay the same, and x_j W_K[j] is subtracted from
        the keys. The change does not propagate to later layers.

        Args:
            sample: Sequences, as `InterventionRunner.batches` takes them.
            outliers: The outlier dimensions, the most prominent first.
        """
        options, counted, together = self.options, without_all(self.context), tuple(sorted(outliers))
        removed = [(str(j), (j,)) for j in sorted(outliers[:ALONE])] + [(TOGETHER, together)]
        sizes = sorted({1, len(outliers)})
        controls = random_sets(outliers, counted.model, sizes, options.controls, options.seed)
        # A lone outlier occurs twice, and random sets may: each set is removed once.
        totals = {
            dimensions: torch.zeros(len(counted.layers), len(counted.categories), dtype=torch.float64)
            for dimensions in ((), *(dimensions for _, dimensions in removed), *controls)
        }
        changes: list[Float[Tensor, "sequence group"]] = []
        precision, title = options.intervention_precision, "attention without some dimensions"

        def known() -> float:
            return half_width(torch.cat(changes).numpy())

        for batch in steps_until_precise(runner, sample, runner.batches, known, precision, title):
            members, of_batch = counted.members(batch), totals[()].new_zeros(batch.sequences, len(counted.categories))

            def visit(block: AttentionBlock, members: Tensor = members, of_batch: Tensor = of_batch) -> None:
                layer = counted.index(block.layer)
                weights = {dimensions: weight_by_category(block, members, dimensions) for dimensions in totals}
                for dimensions, weight in weights.items():
                    totals[dimensions][layer] += weight.sum(dim=0)
                of_batch += (weights[together] - weights[()]) / len(counted.layers)

            runner.observe(batch, visit)
            changes.append(of_batch)
        of_sequences = torch.cat(changes).numpy()
        sequences = len(of_sequences)
        self._changed = dict(zip(counted.categories, map(interval_over_texts, of_sequences.T), strict=True))
        means = {dimensions: (total / sequences).numpy() for dimensions, total in totals.items()}
        before, parts = means[()], []
        for name, dimensions in removed:
            alike = [means[random] - before for random in controls if len(random) == len(dimensions)]
            beside = np.stack(alike, axis=-1) if alike else np.empty((*before.shape, 0))
            columns = {"before": before, "after": means[dimensions]}
            columns |= beside_controls(means[dimensions] - before, beside)
            part = tidy(columns, layer=counted.layers, category=counted.categories)
            part.insert(1, "removed", name)
            part.insert(2, "dimensions", " ".join(map(str, dimensions)))
            parts.append(part)
        table = pd.concat(parts, ignore_index=True)
        occurs = table.groupby("category")["before"].transform("max") > 0
        return table[occurs].reset_index(drop=True).assign(sequences=sequences)

    def _by_layer(self) -> pd.DataFrame:
        """Weights by layer and category. Categories that never occurred are left out."""
        of_keys = self._weights_of_keys.compute()
        columns = {"sum": self._weights.compute().mean[:, 0], "one_key": of_keys.mean}
        table = tidy(columns, layer=self.context.layers, category=self.context.categories)
        return table[of_keys.count.flatten().numpy() > 0].reset_index(drop=True)

    def _contributed(self, contributions: MeanSummary) -> pd.DataFrame:
        """Mean contributions of all dimensions. Categories that never occurred are left out."""
        occurs = contributions.count.any(dim=0)
        names = list(itertools.compress(self.context.categories, occurs.tolist()))
        table = tidy(
            {"mean": contributions.mean[:, occurs].transpose(1, 2)},
            layer=self.context.layers,
            head=range(1, self.context.heads + 1),
            # There are hundreds of thousands of rows: strings would take more memory than the numbers.
            category=pd.Categorical(names, categories=names),
            dimension=range(self.context.model),
        )
        return self.context.with_heads(table)

    def _concentration(self, spread: Float[np.ndarray, "layer head part"], outliers: Sequence[int]) -> pd.DataFrame:
        """How many of the shares of the spread, the largest first, make up half and 90% of it.

        Shares are missing for heads without any spread, where each query gives all its keys the same score.
        """
        variance = spread[..., -1]
        shares = np.full_like(spread[..., :-1], np.nan)
        np.divide(spread[..., :-1], variance[..., None], out=shares, where=variance[..., None] > 0)
        shares, key_bias = shares[..., :-1], shares[..., -1]
        order = np.argsort(-shares, axis=-1, kind="stable")
        ranked = np.take_along_axis(shares, order, axis=-1)
        cumulative = ranked.cumsum(axis=-1)
        first = pd.array(order[..., 0].ravel(), dtype="Int64")
        first[~(variance > 0).ravel()] = pd.NA
        table = tidy({"variance": variance}, layer=self.context.layers, head=range(1, self.context.heads + 1)).assign(
            half=_needed(cumulative, 0.5),
            ninety=_needed(cumulative, 0.9),
            outliers=np.where(variance > 0, shares[..., outliers].sum(axis=-1), np.nan).ravel(),
            key_bias=key_bias.ravel(),
            first=first,
            first_share=ranked[..., 0].ravel(),
        )
        return self.context.with_heads(table)


def _by_category(contributions: pd.DataFrame, concentration: pd.DataFrame, outliers: Sequence[int]) -> pd.DataFrame:
    """Table 1 of the paper: mean contributions of the outlier dimensions by category of the key, a column for each head."""
    rows = contributions[contributions["dimension"].isin(outliers)]
    index = ["layer", "dimension", "category"]
    wide = rows.pivot_table("mean", index, "head", observed=True)
    deviation = concentration.set_index(["layer", "head"])["variance"].pow(0.5).unstack("head")
    advantage = pd.Series(np.nan, wide.index)
    if ALL in wide.index.get_level_values("category"):
        of_all = wide.xs(ALL, level="category").reindex(wide.reset_index("category").index)
        scale = deviation[deviation > 0].reindex(wide.index.get_level_values("layer"))
        advantage = ((wide - of_all.to_numpy()) / scale.to_numpy()).mean(axis=1)
    return wide.add_prefix("head_").assign(advantage=advantage).reset_index().astype({"category": object})


def favoured(by_category: pd.DataFrame) -> dict[int, dict[str, list[int]]] | None:
    """For each outlier dimension, the category that it favours most in a layer, with these layers; none where it favours none.

    Args:
        by_category: The table.

    Returns:
        Layers by dimension and category; None if there are not several categories to tell apart.
    """
    rows = by_category[by_category["category"] != ALL].dropna(subset="advantage")
    if rows.empty:
        return None
    rows = rows[rows["advantage"] >= _FAVOURED]
    most = rows.loc[rows.groupby(["dimension", "layer"])["advantage"].idxmax()]
    layers: dict[int, dict[str, list[int]]] = {}
    for dimension, category, layer in zip(most["dimension"], most["category"], most["layer"], strict=True):
        layers.setdefault(int(dimension), {}).setdefault(category, []).append(int(layer))
    return layers


def _needed(cumulative: np.ndarray, share: float) -> pd.arrays.IntegerArray:
    """Smallest number of dimensions whose shares add up to `share`, for each head; missing if all of them fall short."""
    reached = cumulative >= share - 1e-12
    needed = pd.array((reached.argmax(axis=-1) + 1).ravel(), dtype="Int64")
    needed[~reached.any(axis=-1).ravel()] = pd.NA
    return needed


def _summary(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """By layer: how few dimensions explain the scores, and attention to one category with and without the outliers."""
    titles = {
        "half": "dimensions for 50%",
        "ninety": "dimensions for 90%",
        "outliers": "outlier dimensions' share",
        "key_bias": "b_K's share",
    }
    by_head = tables["concentration"].astype(dict.fromkeys(titles, float))
    table = by_head.groupby("layer")[list(titles)].mean().rename(columns=titles)
    if "intervention" in tables:
        together = tables["intervention"].query("removed == @TOGETHER")
        for category in together["category"].unique()[:1]:  # [CLS] where there is one
            by_layer = together[together["category"] == category].set_index("layer")
            table[f"α on {category_name(category)}"] = by_layer["before"]
            table["without outlier dimensions"] = by_layer["after"]
            table["without random dimensions"] = by_layer["before"] + by_layer["controls_mean"]
    return table


def describe_figures(tables: Mapping[str, pd.DataFrame], outliers: Sequence[int]) -> dict[str, Figure]:
    """Figures 2, 4 and 5 of the paper, its Table 1 as a heatmap, and the interventions."""
    contributions = tables["contributions"]
    everything = contributions[contributions["category"] == ALL]
    figures: dict[str, Figure] = {"weights": _weights_figure(tables["weights"])}
    if len(everything):
        figures["contributions"] = Profiles(
            table=everything,
            panel="layer",
            x="dimension",
            y="mean",
            series="head",
            labelled=outliers,
            y_label="mean Cⱼ",
            caption=(
                "Mean contribution Cⱼ of every dimension to q·k (before scaling and softmax) over all query–key pairs, in "
                "every head, one panel per layer. Labels mark the outlier dimensions where they stand out."
            ),
        )
    by_category = contributions[contributions["dimension"].isin(outliers) & (contributions["category"] != ALL)]
    strongest = by_category["mean"].abs().groupby(by_category["dimension"]).max().nlargest(_DRAWN_DIMENSIONS)
    drawn = sorted(strongest.index)
    if len(by_category):
        wide = by_category.pivot_table(
            index=["layer", "head", "category"], columns="dimension", values="mean", observed=True, sort=False
        ).reset_index()
        figures["by_category"] = Heatmaps(
            table=wide.rename(columns={j: str(j) for j in drawn}),
            panel="category",
            values={str(j): f"j = {j}" for j in drawn},
            row="layer",
            column="head",
            diverging=True,
            value_label="mean Cⱼ",
            caption=(
                "Mean contribution Cⱼ of up to six outlier dimensions j by category of the key. If a category is more "
                "orange than the others in a head, the dimension favours its keys, on average over queries."
            ),
        )
    if "intervention" in tables and len(tables["intervention"]):
        figures["intervention"] = _intervention_figure(tables["intervention"])
    return figures


def _weights_figure(table: pd.DataFrame) -> Lines:
    """Both readings of figure 2 of the paper: one panel each."""
    parts = [category for category in dict.fromkeys(table["category"]) if category != ALL] or [ALL]
    return Lines(
        table=table.melt(["layer", "category"], list(_READINGS), "reading", "alpha"),
        x="layer",
        y="alpha",
        series="category",
        series_titles={category: category for category in parts},
        panel="reading",
        panel_titles=_READINGS,
        y_label="α, mean over queries and heads",
        caption=(
            "Attention weight by layer and category of the key: what all keys of a category in a text receive together, and "
            "what one of them receives. Many keys that receive little each can receive much together."
        ),
    )


def _intervention_figure(table: pd.DataFrame) -> Lines:
    """Attention by layer, one panel per category: unchanged, without the outliers, and without random dimensions."""
    rows = table[table["removed"] == TOGETHER]
    titles = {"before": "unchanged", "after": "without the outliers"}
    parts = [
        rows[["layer", "category"]].assign(line=line, alpha=rows[line], low=np.nan, high=np.nan) for line in titles
    ]
    caption = (
        "Attention to each category (sum over its keys): unchanged, and without the outlier dimensions' part of the block's "
        "scores."
    )
    if rows["controls_mean"].notna().any():
        titles["controls"] = "without random dimensions"
        ends = {"alpha": "controls_mean", "low": "controls_low", "high": "controls_high"}
        of_controls = {end: rows["before"] + rows[column] for end, column in ends.items()}
        parts.append(rows[["layer", "category"]].assign(line="controls", **of_controls))
        caption += (
            " A third line leaves out the part of as many random dimensions instead; its band covers 95% of the random "
            "choices. Where only removing the outliers moves the line, the attention depends on them."
        )
    return Lines(
        table=pd.concat(parts, ignore_index=True),
        x="layer",
        y="alpha",
        band=("low", "high"),
        series="line",
        series_titles=titles,
        panel="category",
        panel_titles={category: category for category in dict.fromkeys(rows["category"])},
        y_label="α, summed over keys",
        sharey=True,
        caption=caption,
    )


_REMAINDER = ("other", "all")
"""What the outliers do to the attention on special tokens is the finding; ordinary tokens get what those lose."""


def sentences_of(
    metrics: Mapping[str, float],
    outliers: Sequence[int] = (),
    favoured: Mapping[int, Mapping[str, Sequence[int]]] | None = None,
    changed: Mapping[str, Interval] = MappingProxyType({}),
) -> list[Sentence]:
    """The effect of removing the outliers, what they favour, how few dimensions explain the scores, and the outliers' share.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        outliers: The outlier dimensions, if they are few enough to be named.
        favoured: By outlier dimension and category of the key, the layers in which it favours the category most; None if that
            is not known.
        changed: By category, the change of its weight without the outlier dimensions, with its interval over sequences.
    """
    sentences = [
        *_removed(metrics, changed),
        *([] if favoured is None else [_favours(favoured)]),
        *_concentrated(metrics),
    ]
    if metrics.get("share_of_outliers/mean"):  # exactly 0 if there are no outliers
        share = brief_share(metrics["share_of_outliers/mean"])
        named = f" ({enumeration([str(dimension) for dimension in outliers])})" if outliers else ""
        text = f"The share of the outlier dimensions{named} in the variance of a query's scores is {share}."
        sentences.append(Sentence(text, table="concentration"))
    return [*sentences, *_weighed(metrics)]


def _favours(favoured: Mapping[int, Mapping[str, Sequence[int]]]) -> Sentence:
    """Which outlier dimension favours which category in which layers: section 4.3 and appendix A of the paper."""
    least = "by at least a tenth of the standard deviation of a query's scores"
    parts = [
        f"{dimension} favours "
        + enumeration([f"{category_name(category)} in {_layers(layers)}" for category, layers in of_dimension.items()])
        for dimension, of_dimension in favoured.items()
    ]
    text = f"Of the outlier dimensions, {'; '.join(parts)} ({least})." if parts else ""
    return Sentence(
        text or f"No outlier dimension favours the keys of a category {least}.",
        figure="by_category",
        table="by_category",
    )


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'' if len(layers) == 1 else 's'} {numbered(layers)}"


def _weighed(metrics: Mapping[str, float]) -> list[Sentence]:
    """The category that receives most by either reading of figure 2: one of its keys, and all of them."""
    single, together = (by_axes(f"weights/<category>/{reading}", metrics) for reading in ("one_key", "sum"))
    parts = [category for category in single if category != ALL and category in together]
    if not parts:
        return []
    one, most = max(parts, key=single.__getitem__), max(parts, key=together.__getitem__)
    weight, whole = single[one], brief_share(together[most])
    of_any = f" (to any token: {brief_share(single[ALL], weight)})" if ALL in single else ""
    text = (
        f"On average over layers, a query gives {brief_share(weight)} of its attention weight to one {category_name(one)} "
        f"token{of_any}; summed over keys, it gives most to {category_name(most)} tokens, {whole}."
    )
    return [Sentence(text, figure="weights", table="weights", place={"category": one})]


def _concentrated(metrics: Mapping[str, float]) -> list[Sentence]:
    """How many dimensions make up half and 90% of the spread, and what b_K adds to it, if that is not zero."""
    half, ninety = metrics.get("dimensions_for_half/mean"), metrics.get("dimensions_for_90_percent/mean")
    bias = metrics.get("share_of_key_bias/mean", 0.0)
    of_bias = f"{brief_share(bias)}" if abs(bias) >= 0.0005 else ""  # below, it is written 0.0%
    if half is None:
        text = f"The key bias b_K makes up {of_bias} of the variance of a query's scores over its keys."
        return [Sentence(text, table="concentration")] if of_bias else []
    dimensions, *of_ninety = compared(brief, half, *([] if ninety is None else [ninety]))
    more = f", and {of_ninety[0]} make up 90%" if of_ninety else ""
    some = any(metrics.get(f"heads_below_{part}/share") for part in ("half", "90_percent"))
    left_out = " (heads whose dimensions never reach that share are left out)" if some else ""
    besides = f"; the key bias b_K makes up {of_bias}" if of_bias else ""
    text = (
        f"On average over heads, {dimensions} dimensions make up half of the variance of a query's scores over its keys"
        f"{more}{left_out}{besides}."
    )
    return [Sentence(text, table="concentration")]


def _removed(metrics: Mapping[str, float], changed: Mapping[str, Interval]) -> list[Sentence]:
    """The attention weight of the category that changes most without the outliers."""
    befores, afters = (by_axes(f"intervention/<category>/{column}", metrics) for column in ("before", "after"))
    weights = {category: (before, afters[category]) for category, before in befores.items() if category in afters}
    special = {category: pair for category, pair in weights.items() if category not in _REMAINDER} or weights
    if not special:
        return []
    most = max(special, key=lambda category: abs(special[category][1] - special[category][0]))
    before, after = special[most]
    change, beside = changed.get(most), ""
    if change is not None and (change.contains_zero or shares_differ(before, after)):
        beside = in_points(*change, int(metrics.get("intervention/sequences", 0)))
    controls = metrics.get(f"intervention/{most}/controls_mean")
    controlled = [] if controls is None else [before + controls]
    comparison = "".join(
        f"; with as many random dimensions removed instead, it is {brief_share(weight, before, after)}"
        for weight in controlled
    )
    moved = movement(before, after, *controlled)
    if change is not None and change.contains_zero:
        moved = f"stays at about {brief_share(after, *controlled)}"
    text = (
        f"Without the outlier dimensions' part of the scores, in one block at a time, the attention weight on "
        f"{category_name(most)} tokens {moved}{beside}{comparison}."
    )
    interval = None if change is None else change.ends
    return [
        Sentence(
            text,
            figure="intervention",
            table="intervention",
            effect=after - before,
            interval=interval,
            place={"category": most},
        )
    ]
