"""Vector norms: what do tokens contribute, as opposed to their weight? Options, and what the analysis returns."""

import dataclasses
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import Count, Seed
from normscope.results.axes import CATEGORY_OF_KEY, ERROR_BOUND, HEAD, LAYER, REASON, SPEARMAN, STREAM, in_stream
from normscope.results.declare import Axis, Column, Declared, Rollup, Table, at_largest, at_smallest
from normscope.rounding import begun

if TYPE_CHECKING:
    import pandas as pd


class NormsOpening(enum.StrEnum):
    """What the results of the analysis begin with."""

    weights = "weights"
    dispersion = "dispersion"


@dataclasses.dataclass
class NormsOptions(AnalysisConfig):
    """Vector norms (Kobayashi et al. 2020)."""

    opens_with: NormsOpening = NormsOpening.weights
    """What findings, summary and figures begin with: what tokens contribute as opposed to their weight (`weights`), or how much
    norms vary over tokens (`dispersion`)."""

    sampled_queries: Count | None = 512
    """Maximum number of queries per sequence for the rank correlation, drawn at random; null uses all."""
    scatter_pairs: Count = 10_000
    """Number of pairs in the scatter plot, divided among the categories."""
    singular_value_heads: Count = 12
    """Number of heads in the figure of singular values, drawn at random from each layer in turn."""
    seed: Seed = II("seed")
    """Seed of the sampled queries, pairs and heads."""


_MEANINGS = {
    "alpha": "α summed over the category's keys, averaged over queries",
    "alpha_f": "‖αf(x)‖ summed over the category's keys, averaged over queries",
    "f": "‖f(x)‖ of the category's keys, averaged over keys",
    "share": "Signed share of the category's keys in the attention output, averaged over queries",
}
_LABELS = {
    "alpha": "α, summed",
    "alpha_f": "‖αf(x)‖, summed",
    "f": "‖f(x)‖",
    "share": "signed share of the attention output",
}
_OVER_HEADS = {"share": "summed over heads"}
_EXPANSION = "expansion rate"
_EXPANSION_WITH_BIAS = f"{_EXPANSION} with b_O"


_STATISTICS = {"mean": "mean", "std": "standard deviation", "max": "largest value", "min": "smallest value"}


def _dispersion(norm: str, over: str) -> dict[str, Column | str]:
    """The columns of a table of dispersion."""
    return {
        "mean": in_stream(f"Mean of {norm} over {over}."),
        "std": in_stream("Standard deviation over the same tokens."),
        "cv": Column("Coefficient of variation: `std` divided by `mean`.", label=f"coefficient of variation of {norm}"),
        "max": in_stream("Largest value of a token."),
        "min": in_stream("Smallest value of a token."),
    }


def _variation(letter: str, norm: str, table: str, axes: tuple[str, ...]) -> tuple[Rollup, ...]:
    """Where norms vary most and least over tokens, and how they vary on average: the rows of the paper's tables."""
    what, over = f"coefficient of variation of {norm}", f"{axes[-1]}s"
    rollups = []
    for name, find, size, how in (
        ("cv_max", at_largest, "largest", "most"),
        ("cv_min", at_smallest, "smallest", "least"),
    ):
        labels = {"": f"{size} {what}"}
        labels |= {f"/{column}": f"{words} of {norm} where it varies {how}" for column, words in _STATISTICS.items()}
        labels |= {f"/{axis}": f"{axis} where {norm} varies {how}" for axis in axes}
        rollups += [
            Rollup(
                f"{letter}/{name}{column}",
                f"{begun(label)}, relative to its mean." if column else f"{begun(label)} of any {axes[-1]}.",
                of=f"{table}.{column[1:] or 'cv'}",
                how=find("cv"),
                where={"cv": lambda variation: variation.notna()},  # no norm varies relative to a mean of 0
                label=label,
            )
            for column, label in labels.items()
        ]
    averages = {"cv_mean": ("cv", f"mean {what}"), "mean": ("mean", f"mean {norm}")}
    averages["std"] = "std", f"mean standard deviation of {norm}"
    rollups += [
        Rollup(f"{letter}/{name}", f"{begun(label)} over {over}.", of=f"{table}.{column}", label=label)
        for name, (column, label) in averages.items()
    ]
    return tuple(rollups)


def _ratio(how: str) -> Callable[["pd.DataFrame", str], Any]:
    """The smallest or largest ratio of a head's largest to its smallest singular value."""

    def ratio(rows: "pd.DataFrame", column: str) -> Any:
        ends = rows.groupby(["layer", "head"])[column].agg(["max", "min"])
        regular = ends[ends["min"] > 0]
        return getattr(regular["max"] / regular["min"], how)()

    return ratio


DECLARED = Declared(
    tables={
        "by_layer": Table(
            rows=(
                LAYER,
                Axis(
                    "measure",
                    "`alpha`: α; `alpha_f`: ‖αf(x)‖; `f`: ‖f(x)‖; `share`: the signed share; each as defined for "
                    "`norms_by_head`.",
                ),
                CATEGORY_OF_KEY,
            ),
            values={
                "sequence_mean": Column(
                    "Mean of the measure over heads; for `share`, which adds up over heads, the sum.",
                    unit=f"{STREAM} for `alpha_f` and `f`",
                )
            },
        ),
        "by_head": Table(
            rows=(LAYER, HEAD, CATEGORY_OF_KEY),
            values={
                "alpha": "α summed over the category's keys, averaged over a sequence's queries, then over sequences.",
                "alpha_f": in_stream(
                    "‖αf(x)‖ summed over the category's keys, averaged over a sequence's queries, then over sequences."
                ),
                "f": in_stream(
                    "‖f(x)‖ averaged over a sequence's keys of the category, then over the sequences that have any."
                ),
                "share": "Signed share of αf(x) in the attention output of all heads, summed over the category's keys, "
                "averaged over a sequence's queries, then over sequences. Over all keys and heads, shares add up to 1 less the "
                "share of b_O; a head whose share of all keys is below 0 writes against the output.",
                "count": Column("Number of keys.", kind="whole"),
            },
        ),
        "correlation": Table(
            rows=(LAYER.but("Layer, from 1; 0 stands for the pairs of all chosen layers."), CATEGORY_OF_KEY),
            values={
                "spearman": f"{SPEARMAN} Between α and ‖f(x)‖, over all triples of head, query and visible key.",
                "count": Column("Number of pairs.", kind="whole"),
                "error_bound": ERROR_BOUND,
                "reason": REASON,
            },
        ),
        "dispersion": Table(
            rows=(LAYER, HEAD), values=_dispersion("‖f(x)‖", "all tokens, whatever categories are reported")
        ),
        "input_dispersion": Table(rows=(LAYER,), values=_dispersion("‖x‖", "all tokens")),
        "returned": Table(
            rows=(
                Axis(
                    "place",
                    "`before`: the output of the last layer; `after`: the model's output, after its last norm if it has one.",
                    titles={"before": "before the last norm", "after": "after the last norm"},
                ),
                Axis("category", "Category of the token; `all` stands for every token."),
            ),
            per="place and category, for images",
            values={
                "mean": in_stream("Mean norm of the vectors over all tokens."),
                "max": in_stream("Largest norm of a token."),
                "high": Column(
                    "Share of the tokens whose norm is more than twice the median over the tokens of their image.",
                    label="share of high-norm tokens",
                ),
                "count": Column("Number of tokens.", kind="whole"),
            },
        ),
        "singular_values": Table(
            rows=(LAYER, HEAD, Axis("index", "Place of the value, from 1 for the largest.", kind="whole")),
            per="layer, head and singular value",
            values={
                "value": "Singular value of the head's map from x to f(x), which is affine, as a linear map of one more "
                "dimension. Values that are 0 because a head is smaller than the model have no row."
            },
        ),
    },
    metrics=(
        *(
            Rollup(
                f"{measure}/<category>",
                f"{meaning}, {_OVER_HEADS.get(measure, 'heads')} and layers.",
                of="by_layer.sequence_mean",
                where={"measure": measure},
                label=_LABELS[measure],
            )
            for measure, meaning in _MEANINGS.items()
        ),
        Rollup(
            "share/negative_heads",
            "Number of heads that write against the attention output: those whose mean share of all keys is negative.",
            of="by_head.share",
            how=lambda rows, column: int((rows[column] < 0).sum()),
            where={"category": "all"},
            label="heads that write against the attention output",
        ),
        Rollup(
            "share/heads",
            "Number of heads of all chosen layers.",
            of="by_head.share",
            how="count",
            where={"category": "all"},
            label="number of heads",
        ),
        Rollup(
            "spearman/<category>",
            "Spearman's ρ between α and ‖f(x)‖ over the pairs of all chosen layers.",
            of="correlation.spearman",
            where={"layer": 0},
            label="Spearman’s ρ of α and ‖f(x)‖",
        ),
        Rollup(
            "pairs/<category>",
            "Number of these pairs.",
            of="correlation.count",
            where={"layer": 0},
            label="number of pairs of α and ‖f(x)‖",
        ),
        *_variation("f", "‖f(x)‖", "dispersion", ("layer", "head")),
        Rollup(
            "f/uniform",
            "‖f(x)‖ averaged over the keys that a query sees, then over queries, heads and layers: what `alpha_f/all` would be "
            "if all weights of a query were equal. For tokens, not for words.",
            label="sum of ‖αf(x)‖ under equal weights",
        ),
        *_variation("x", "‖x‖", "input_dispersion", ("layer",)),
        Rollup(
            "returned/<place>/<category>",
            "For images: mean norm of the vectors before and after the last norm.",
            of="returned.mean",
            label="mean norm",
        ),
        Rollup(
            "high/<place>/<category>",
            "For images: share of the tokens whose norm is more than twice the median of their image.",
            of="returned.high",
            label="share of high-norm tokens",
        ),
        *(
            Rollup(
                f"singular_values/ratio_{how}",
                f"{begun(size)} ratio of a head's largest to its smallest singular value, of heads in which no value is 0.",
                of="singular_values.value",
                how=_ratio(how),
                label=f"{size} ratio of a head’s singular values",
            )
            for how, size in (("min", "smallest"), ("max", "largest"))
        ),
        Rollup(
            "expansion/mean",
            "Mean over layers of the expansion rate, the root mean square singular value of the map from x to Σ_h f(x).",
            label=_EXPANSION,
        ),
        Rollup(
            "expansion_with_output_bias/mean",
            "Mean expansion rate over layers, with b_O in the map.",
            label=f"mean {_EXPANSION_WITH_BIAS}",
        ),
        Rollup(
            "expansion_with_output_bias/layer_<layer>",
            "Expansion rate of a layer, with b_O in the map, as in the published numbers.",
            label=_EXPANSION_WITH_BIAS,
        ),
    ),
    curves=(
        *(
            Rollup(
                f"{measure}/<category>",
                f"{meaning}, {_OVER_HEADS.get(measure, 'and over heads')}.",
                of="by_layer.sequence_mean",
                where={"measure": measure},
                label=_LABELS[measure],
            )
            for measure, meaning in _MEANINGS.items()
        ),
        Rollup("expansion", "Expansion rate: how much the map from x to f(x) lengthens a vector.", label=_EXPANSION),
    ),
)

NORMS = AnalysisInfo(
    name="norms",
    title="Vector norms",
    question="How much does each token contribute, as opposed to how much weight it gets?",
    options=NormsOptions,
    implementation="normscope.analyses.norms:NormsAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021, CUNNINGHAM_2026),
    supports_words=True,
    supports_cross_attention=True,
    declared=DECLARED,
)
