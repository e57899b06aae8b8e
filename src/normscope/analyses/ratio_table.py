"""Mixing ratios by layer, method and token category: accumulators, tables and figures of every analysis that reports them."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.shares import PARTS, Shares
from normscope.results.codes import category_name
from normscope.results.figures import Heatmaps, Lines
from normscope.results.parts import tidy_sequences
from normscope.statistics.accumulator import Accumulator, accumulation_device
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.intervals import FEWEST, Interval, Sample, mean_test
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean
from normscope.statistics.tidy import tidy

_COLUMNS = {"others": "share"}
"""Columns of parts with other names."""

SEQUENCES = 10_000
"""Sequences whose means are kept, so that they can be resampled."""

_BITS = 62
"""Bits of a fingerprint that tell sequences apart; they fit into an integer of 64 bits."""

_RESAMPLES = 999
"""Resamples of an interval in the terminal; comparisons of runs, which report p-values, draw more."""

_ROUNDING = 1e-6
"""Ratios that differ by no more than this may differ by rounding alone."""


class RatioTable:
    """Mean, extremes and count of the ratios of each method, over the tokens of each category, and mean signed shares.

    Args:
        methods: The methods that have ratios. The last one covers the most of the layer.
        context: The layers and categories.
        shared: The methods that have shares.
    """

    def __init__(self, methods: Sequence[str], context: AnalysisContext, shared: Sequence[str] = ()) -> None:
        # `all` is always counted: the metrics cover all tokens, whichever categories are reported.
        categories = [*(category for category in context.categories if category != ALL), ALL]
        self._counted = dataclasses.replace(context, categories=categories)
        self._reported = context.categories
        self._methods, self._shared = methods, shared
        self.moments = GroupedMoments(len(context.layers), len(methods), len(categories))
        self.shares = Mean(len(context.layers), len(categories), len(shared), len(PARTS))
        # By sequence. After the methods, by category: sums of the last method's ratios, and numbers of terms.
        self.sequences = KeyedMeans(1, len(methods) + len(shared) + 2 * len(categories), size=SEQUENCES)

    @property
    def accumulators(self) -> dict[str, Accumulator]:
        """The state."""
        kept: dict[str, Accumulator] = {"moments": self.moments, "sequences": self.sequences}
        return kept | ({"shares": self.shares} if self._shared else {})

    def update(
        self, layer: int, ratios: Sequence[Float[Tensor, "batch token"]], batch: Batch, shares: Sequence[Shares] = ()
    ) -> None:
        """Add the ratios of one layer's tokens, one tensor per method, and their shares, by the methods that have any."""
        place, members = self._counted.index(layer), self._counted.members(batch)
        self.moments.update(place, torch.stack(list(ratios)), members)
        # What is left of the ratios and of all parts, method by method, is only added up.
        values = torch.stack([*ratios, *(part for each in shares for part in each)])
        values = values.to(accumulation_device(values.device)).double()
        members = members.to(values)
        mask = batch.token_mask.to(values.device)
        values = values.masked_fill_(~mask, 0.0)
        counts = members.sum(dim=-1)
        if shares:
            sums = members.flatten(1) @ values[len(ratios) :].flatten(1).T
            self.shares.update(place, sums.unflatten(1, (len(shares), -1)), counts.sum(dim=-1).long())
        kept = torch.cat([values[: len(ratios)], values[len(ratios) :: len(PARTS)]])  # of parts, the first: the others
        by_category = torch.einsum("gbt,bt->gb", members, values[len(ratios) - 1])
        sums = torch.cat([kept.sum(dim=-1), by_category, counts])
        sequences = keys_of(batch)
        self.sequences.update(sequences, sums.T, mask.sum(dim=-1))

    def by_sequence(self, methods: Collection[str]) -> pd.DataFrame:
        """Means over the tokens and layers of single sequences, of the metrics that average them.

        Args:
            methods: The methods to return.

        Returns:
            The table `sequences` of an analysis: `<method>/mean` for each method, and `<method>/share` if it has shares.
        """
        means, layers = self.sequences.compute(), len(self._counted.layers)
        columns = {"sequence": means.keys[:, 0].numpy(), "count": (means.count // layers).numpy()}
        names = [(method, "mean") for method in self._methods] + [(method, "share") for method in self._shared]
        for place, (method, name) in enumerate(names):
            if method in methods:
                columns[f"{method}/{name}"] = means.mean[:, place].numpy()
        return tidy_sequences(pd.DataFrame(columns))

    @property
    def number(self) -> int:
        """Number of sequences whose means are kept."""
        return len(self.sequences.compute().count)

    def difference(self, one: str, other: str) -> Interval:
        """The mean ratio by one method less that by another, over all tokens and layers, with its interval over sequences.

        Differences are those of each sequence, which has both ratios. Without a valid interval, its ends are NaN.
        """
        means, overall = self.sequences.compute(), overall_rows(self.compute())
        ratios = overall.groupby("method")["mean"].mean().to_dict()
        first, second = (self._methods.index(method) for method in (one, other))
        terms = means.count.double()
        below, above = margins(((means.mean[:, first] - means.mean[:, second]) * terms).numpy(), terms.numpy())
        mean = ratios[one] - ratios[other]
        return Interval(mean, mean - below, mean + above)

    def by_category(self) -> pd.DataFrame:
        """The last method's mean over all tokens and layers, by reported category, with its interval over sequences.

        Returns:
            By category, those with tokens: `mean %`, `low %` and `high %`, and the number of `tokens`. The ends are NaN where
            no interval is valid: with fewer than FEWEST sequences, or if nothing varies between them. Sequences beyond
            the first SEQUENCES narrow no interval.
        """
        table, means = self.compute(), self.sequences.compute()
        table = table[table["method"] == self._methods[-1]]
        first = len(self._methods) + len(self._shared)
        sums, terms = (means.mean[:, first:] * means.count[:, None]).numpy().T.reshape(2, -1, len(means.count))
        rows = {}
        for place, category in enumerate(self._counted.categories):
            of_category = table[table["category"] == category]
            count = int(of_category["count"].iloc[0])
            if count and category in self._reported:
                mean = float(of_category["mean"].mean())  # every layer has the same tokens
                below, above = margins(sums[place], terms[place].round())
                low, high = np.clip([mean - below, mean + above], 0.0, 1.0)  # of few sequences, they may lie beyond
                rows[category_name(category)] = (100 * mean, 100 * float(low), 100 * float(high), count)
        columns = ["mean %", "low %", "high %", "tokens"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("category")

    def compute(self) -> pd.DataFrame:
        """One row per layer, method and category (`all` included): mean, sequence_mean, max, min, count.

        Raises:
            InputError: If the activations of a layer are not finite.
        """
        moments, layers = self.moments.compute(), self._counted.layers
        count = moments.count[:, None]
        require_finite(moments.mean.masked_fill(count == 0, 0.0), "the activations of layer {layer}", layers)
        return tidy(
            {
                "mean": moments.mean,
                "sequence_mean": moments.sequence_mean,
                "max": moments.maximum,
                "min": moments.minimum,
                "count": count,
            },
            layer=layers,
            method=self._methods,
            category=self._counted.categories,
        )

    def compute_shares(self) -> pd.DataFrame:
        """One row per layer, method with shares, and category (`all` included): share, own, residual, bias, count."""
        shares = self.shares.compute()
        means = shares.mean.permute(3, 0, 2, 1)  # part, layer, method, category
        columns = {_COLUMNS.get(part, part): mean for part, mean in zip(PARTS, means, strict=True)}
        return tidy(
            columns | {"count": shares.count[:, None]},
            layer=self._counted.layers,
            method=self._shared,
            category=self._counted.categories,
        )


def overall_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows over all tokens."""
    return table[table["category"] == ALL]


def reported_rows(table: pd.DataFrame, categories: Sequence[str]) -> pd.DataFrame:
    """The rows of the given categories that have tokens."""
    return table[(table["count"] > 0) & table["category"].isin(categories)].reset_index(drop=True)


def caption_by_category(title: str, summary: pd.DataFrame) -> str:
    """The caption of `RatioTable.by_category`, which mentions intervals if there are any."""
    interval = "; low and high bound the 95% interval over sequences" if summary["low %"].notna().any() else ""
    return f"{title}, by token category{interval}"


def keys_of(batch: Batch) -> Int[Tensor, "sequence 1"]:
    """What tells the sequences of a batch apart: it depends on their tokens alone."""
    return torch.tensor([[fingerprint % 2**_BITS] for fingerprint in batch.fingerprints])


def margins(sums: np.ndarray, terms: np.ndarray) -> tuple[float, float]:
    """By how much the interval of a mean over terms extends below and above it, from the sums of single sequences."""
    present = terms > 0
    means, weights = sums[present] / terms[present], terms[present]
    if len(means) < FEWEST or np.ptp(means) <= _ROUNDING:
        return np.nan, np.nan
    order = np.lexsort((means, weights))  # draws do not depend on the sequences' numbers
    test = mean_test(Sample(means[order], weights[order]), resamples=_RESAMPLES)
    return float(test.mean - test.low), float(test.high - test.mean)


def ratio_maps(shown: pd.DataFrame, titles: Mapping[str, str], caption: str) -> Heatmaps:
    """A heat map for each method: its mean ratios by layer and category.

    Args:
        shown: The ratios of the reported categories.
        titles: Titles of the methods.
        caption: What the maps show, and how to read them.
    """
    return Heatmaps(
        table=_in_percent(shown),
        panel="method",
        row="layer",
        column="category",
        values={"mean": ""},
        panel_titles=titles,
        value_label="mixing ratio (%)",
        limits=(0.0, 100.0),
        numbered=True,
        caption=caption,
    )


def ratio_lines(
    overall: pd.DataFrame, titles: Mapping[str, str], caption: str, beside: Collection[str] | None = None
) -> Lines:
    """A line for each method: its mean ratios over all tokens, by layer.

    Args:
        overall: The ratios over all tokens.
        titles: Titles of the methods. The last one that was measured includes most of the block, and leads.
        caption: What the lines show, and how to read them.
        beside: The methods that the last one is compared with; None for all.
    """
    measured = set(overall["method"])
    leading = next((method for method in reversed([*titles]) if method in measured), "")
    return Lines(
        table=_in_percent(overall),
        x="layer",
        y="mean",
        series="method",
        series_titles=titles,
        y_label="mean mixing ratio (%)",
        limits=(0.0, 100.0),
        caption=caption,
        leading=leading,
        behind=[] if beside is None else [method for method in titles if method not in (*beside, leading)],
    )


def _in_percent(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(mean=table["mean"] * 100)
