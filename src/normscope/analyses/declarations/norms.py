"""Vector norms: what do tokens contribute, as opposed to their weight? Options, and what the analysis publishes."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import Count, Seed
from normscope.results.axes import CATEGORY_OF_KEY, ERROR_BOUND, HEAD, LAYER, REASON, SPEARMAN, STREAM, in_stream
from normscope.results.declare import Axis, Column, Published, Rollup, Table


@dataclasses.dataclass
class NormsOptions(AnalysisConfig):
    """Vector norms (Kobayashi et al. 2020)."""

    sampled_queries: Count | None = 512
    """Maximum number of queries per sequence for the rank correlation, drawn at random; null uses all."""
    scatter_pairs: Count = 10_000
    """Number of pairs in the scatter plot."""
    seed: Seed = II("seed")
    """Seed of the sampled queries and pairs."""


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


def _variation(measure: str, symbol: str, anywhere: str, over: str) -> tuple[Rollup, ...]:
    """The largest, smallest and mean coefficient of variation of norms."""
    what = f"coefficient of variation of {symbol}"
    return (
        Rollup(f"{measure}/cv_max", f"Largest {what} {anywhere}.", label=f"largest {what}"),
        Rollup(f"{measure}/cv_min", f"Smallest {what} {anywhere}.", label=f"smallest {what}"),
        Rollup(f"{measure}/cv_mean", f"Mean {what} {over}.", label=f"mean {what}"),
    )


PUBLISHED = Published(
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
        *_variation("f", "‖f(x)‖", "in any head", "over heads"),
        Rollup(
            "f/uniform",
            "‖f(x)‖ averaged over the keys that a query sees, then over queries, heads and layers: what `alpha_f/all` would be "
            "if all weights of a query were equal. For tokens, not for words.",
            label="sum of ‖αf(x)‖ under equal weights",
        ),
        Rollup("f/mean", "Mean of ‖f(x)‖ over tokens, averaged over heads.", label="mean ‖f(x)‖"),
        Rollup(
            "f/std",
            "Standard deviation of ‖f(x)‖ over tokens, averaged over heads.",
            label="standard deviation of ‖f(x)‖",
        ),
        *_variation("x", "‖x‖", "in any layer", "over layers"),
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
    published=PUBLISHED,
)
