"""Mixing ratios: how much of a token's vector comes from others? (Kobayashi et al. 2021)

Five methods take in more and more of the attention block. Ratios of norms do not add up; the signed shares beside them do.
"""

from collections.abc import Collection, Mapping

import pandas as pd
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.declarations.mixing import MIXING, PARTS, MixingOptions
from normscope.analyses.ratio_table import (
    RatioTable,
    caption_by_category,
    overall_rows,
    ratio_lines,
    ratio_maps,
    reported_rows,
)
from normscope.data.batching import Batch
from normscope.maths.mixing import OF_STAGE, Method
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.results.codes import METHODS, bracketed
from normscope.results.figures import Heatmaps, Lines
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import brief_share, compared, in_points, number, shares_differ
from normscope.statistics.intervals import Interval

_ROUNDING = 1e-3
"""How far signed shares in float32 may be from adding up to 1, relative to the sum of their magnitudes."""


class MixingAnalysis(Analysis):
    """Mixing ratios by layer, method and token category."""

    info = MIXING

    def __init__(self, options: MixingOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        # Methods by weights alone have no vectors, so no shares.
        self._shared = [method for method in context.methods if method in OF_STAGE.values()]
        self._ratios = RatioTable(
            [str(method) for method in context.methods], context, [str(method) for method in self._shared]
        )
        self.accumulators = self._ratios.accumulators
        self._errors: dict[int, Tensor] = {}
        """By how much shares on the first batch miss 1, by layer; read at the end, so that nothing waits for a device.

        No accumulator: it checks the code and is no result, and a resumed run checks its own first batch.
        """

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the mixing ratios of a block's tokens."""
        if block.layer not in self._errors:
            self._errors[block.layer] = block.share_error()
        of_groups = GroupedBlock(block, batch.partition, batch.keys.partition)
        ratios, shares = of_groups.mixing_ratios(), of_groups.shares()
        self._ratios.update(
            block.layer,
            [ratios[method] for method in self.context.methods],
            batch.measured,
            [shares[method] for method in self._shared],
        )

    def result(self) -> Result:
        """Tables, figures, and a summary by token category."""
        table = self._ratios.compute()
        self._check_shares()
        shares = self._ratios.compute_shares()
        # Numbers and curves cover all tokens, whether or not `all` is among the categories that tables report.
        overall, shown = overall_rows(table), reported_rows(table, self.context.categories)
        counted = {"by_layer": overall, "shares": overall_rows(shares)}
        rolled = roll_up(self.info.declared, counted)
        summary = self._ratios.by_category()
        method = bracketed(METHODS[self.context.methods[-1]])
        title = f"how much of a token's output vector comes from other tokens {method}"
        return Result(
            tables={
                "by_layer": shown,
                "shares": reported_rows(shares, self.context.categories),
                "sequences": self._ratios.by_sequence([str(method) for method in self.context.methods]),
            },
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics, self._beside_weights(), self._ratios.number),
            curves=rolled.curves,
            figures=_figures(shown, overall, counted["shares"], rolled.metrics),
            summaries={self.info.name: Summary(summary, digits=1, caption=caption_by_category(title, summary))},
        )

    def _beside_weights(self) -> Interval | None:
        """The mean ratio of the attention blocks less what the weights suggest; None if one of them is not defined."""
        methods = [str(method) for method in self.context.methods]
        whole = _whole(methods)
        return None if whole is None or _WEIGHTS not in methods else self._ratios.difference(whole, _WEIGHTS)

    def _check_shares(self) -> None:
        for layer, error in self._errors.items():
            if float(error) > _ROUNDING:
                raise RuntimeError(
                    f"in layer {layer}, signed shares add up to 1 only within {number(float(error), digits=2)}"
                )


def _figures(
    shown: pd.DataFrame, overall: pd.DataFrame, shares: pd.DataFrame, metrics: Mapping[str, float]
) -> dict[str, Heatmaps | Lines]:
    whole = _whole([name.removesuffix("/mean") for name in metrics])
    ends = "" if whole is None else f" Single tokens in single layers range from {_range(whole, metrics)}."
    return {
        "heatmap": ratio_maps(
            shown,
            METHODS,
            "Mean mixing ratio by layer (deepest at the top) and token category: the norm of what a token takes from the "
            "others, divided by the sum of this norm and that of what it preserves of itself. The titles say what each method "
            f"takes into account. Below 50%, tokens preserve more than they take.{ends}",
        ),
        "by_layer": ratio_lines(
            overall,
            METHODS,
            "Mean mixing ratio over all tokens, by layer and method. The gaps between the lines show what the vectors, the "
            "residual connection and the normalisation change, as far as the model's blocks have them.",
        ),
        "shares": _figure_of_shares(shares),
    }


def _figure_of_shares(overall: pd.DataFrame) -> Lines:
    """The shares of all tokens by layer, a panel for each method."""
    long = overall.melt(["layer", "method"], list(PARTS), var_name="part", value_name="mean")
    # The output of attention alone has no residual connection in it: its share is 0 by definition, and no line.
    long = long[(long["part"] != "residual") | (long["method"] != Method.ATTN_N)]
    methods = dict.fromkeys(overall["method"])
    return Lines(
        table=long.assign(mean=long["mean"] * 100),
        x="layer",
        y="mean",
        series="part",
        series_titles=PARTS,
        panel="method",
        panel_titles={method: METHODS[method] for method in methods},
        sharey=True,
        y_label="mean share of the output (%)",
        caption=(
            "Where the output of attention, with or without the rest of the block, comes from: the mean signed share of each "
            "part, by layer. The shares of a panel add up to 100% in every layer. Below 0%, a part points against the output."
        ),
    )


_INCLUDED = {
    "attnresln_n": "the vectors, the residual connection and the layer normalisation",
    "attnres_n": "the vectors and the residual connection",
}
"""What the methods of whole blocks include; the first that is defined counts."""

_HALF = 0.5


_WEIGHTS = "attn_w"
"""The method by attention weights alone."""


def _whole(methods: Collection[str]) -> str | None:
    """The method that includes the most of the block; None if only weights are known."""
    return next((name for name in _INCLUDED if name in methods), None)


def sentences_of(
    metrics: Mapping[str, float], beside_weights: Interval | None = None, sequences: int = 0
) -> list[Sentence]:
    """The mixing ratio of the attention block beside that of the weights alone, and its range over tokens.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        beside_weights: The first ratio less the second, with its interval over sequences.
        sequences: The number of these.
    """
    by_weights = metrics.get(f"{_WEIGHTS}/mean")
    method = _whole([name.removesuffix("/mean") for name in metrics])
    if method is None:
        if by_weights is None:
            return []
        text = f"By attention weights alone, the mean mixing ratio is {brief_share(by_weights)}."
        return [Sentence(text, figure="by_layer", table="by_layer")]
    # Numbers of one sentence are written with enough digits to show which is larger (`compared`).
    mean = metrics[f"{method}/mean"]
    written, half, suggested = compared(brief_share, mean, _HALF, mean if by_weights is None else by_weights)
    suggestion, interval = "", None
    if by_weights is not None:
        suggestion = f"; attention weights alone suggest {suggested}"
        if beside_weights is not None:
            interval = beside_weights.ends
            suggestion += in_points(*beside_weights, sequences)
    others = "other tokens" if by_weights is not None else "the source"  # cross-attention has no ratio by weights alone
    # Nothing that is written as 50%, or differs too little from it to matter, is called more or less than half.
    amount = f"{'' if written == half else 'about '}as much from {others} as"
    if shares_differ(mean, _HALF):
        amount = f"{'less' if mean < _HALF else 'more'} from {others} than"
    return [
        Sentence(
            f"On average, tokens take {amount} they preserve of themselves: the mean mixing ratio of the attention blocks is "
            f"{written}{suggestion}.",
            figure="by_layer",
            table="by_layer",
            measure=method,
            effect=mean - (_HALF if by_weights is None else by_weights),
            interval=interval,
        ),
        Sentence(
            f"The mixing ratio, which includes {_INCLUDED[method]}, ranges from {_range(method, metrics)} over "
            "tokens and layers.",
            figure="heatmap",
            table="by_layer",
        ),
        *_sentence_of_shares(method, metrics, others),
    ]


def _range(method: str, metrics: Mapping[str, float]) -> str:
    """The smallest and the largest ratio of any token in any layer."""
    return " to ".join(compared(brief_share, metrics[f"{method}/min"], metrics[f"{method}/max"]))


def _sentence_of_shares(method: str, metrics: Mapping[str, float], others: str) -> list[Sentence]:
    parts = [metrics.get(f"{method}/{part}") for part in ("share", "own", "residual", "bias")]
    if None in parts:
        return []
    share, own, residual, bias = compared(brief_share, *(part for part in parts if part is not None))
    through = "" if others == "the source" else f"{own} from the token itself through attention, "
    return [
        Sentence(
            f"Measured along the output vectors, where parts add up to 100%, {share} comes from {others}, {through}{residual} "
            f"from the residual connection and {bias} from biases.",
            figure="shares",
            table="shares",
            surprising=True,
        )
    ]
