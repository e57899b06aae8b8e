"""What the norms analysis publishes."""

from normscope.results.axes import CATEGORY_OF_KEY, ERROR_BOUND, HEAD, LAYER, REASON, SPEARMAN, STREAM, in_stream
from normscope.results.declare import Axis, Column, Published, Rollup, Table

_ALPHA = "α summed over the category's keys, averaged over a sequence's queries, then over sequences."
_ALPHA_F = "‖αf(x)‖ summed over the category's keys, averaged over a sequence's queries, then over sequences."
_SHARE = (
    "Signed share of αf(x) in the attention output of all heads, summed over the category's keys, averaged over a sequence's "
    "queries, then over sequences. Over all keys and heads, shares add up to 1 less the share of b_O."
)
_F = "‖f(x)‖ averaged over a sequence's keys of the category, then over the sequences that have any."
_ROW = Axis(
    "row",
    "`max_cv` and `min_cv`: the row with the largest and the smallest coefficient of variation; `average`: the mean row.",
)
_LAYER_OR_AVERAGE = Column("Layer, from 1; 0 in the average.", kind="whole")
_EXTREMES = "extreme, and one for the average"


def _dispersion(norm: str) -> dict[str, Column | str]:
    return {
        "mean": in_stream(f"Mean of {norm} over all tokens."),
        "std": in_stream("Population standard deviation."),
        "cv": "Coefficient of variation, `std` / `mean`.",
        "max": in_stream("Largest value."),
        "min": in_stream("Smallest value."),
    }


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
                    "Mean of the measure over heads; of `share`, which adds up over heads, the sum.",
                    unit=f"{STREAM} for `alpha_f` and `f`",
                )
            },
        ),
        "by_head": Table(
            rows=(LAYER, HEAD, CATEGORY_OF_KEY),
            values={
                "alpha": _ALPHA,
                "alpha_f": in_stream(_ALPHA_F),
                "f": in_stream(_F),
                "share": _SHARE,
                "count": Column("Number of keys.", kind="whole"),
            },
        ),
        "head_shares": Table(
            rows=(LAYER, HEAD),
            values={
                "share": "Signed share of what the head takes from all keys in the attention output of all heads. Below 0, the "
                "head writes against the output."
            },
        ),
        "dispersion": Table(rows=(LAYER, HEAD), values=_dispersion("‖f(x)‖")),
        "dispersion_summary": Table(
            rows=(_ROW,),
            per=_EXTREMES,
            values={
                "layer": _LAYER_OR_AVERAGE,
                "head": Column("Head, from 1; 0 in the average.", kind="whole"),
                **_dispersion("‖f(x)‖"),
            },
        ),
        "input_dispersion": Table(rows=(LAYER,), values=_dispersion("‖x‖")),
        "input_dispersion_summary": Table(
            rows=(_ROW,), per=_EXTREMES, values={"layer": _LAYER_OR_AVERAGE, **_dispersion("‖x‖")}
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
        "expansion": Table(
            rows=(LAYER,),
            values={
                "rate": Column(
                    "Root mean square singular value of the map from x to Σ_h f(x): how much the map lengthens a vector.",
                    label="expansion rate",
                ),
                "rate_with_output_bias": "Expansion rate with b_O in the map, as in the published numbers.",
            },
        ),
        "sample": Table(
            rows=(LAYER, HEAD, CATEGORY_OF_KEY.but("Category of the key.")),
            per="sampled pair of a query and a visible key",
            values={"alpha": "α of the pair.", "f": in_stream("‖f(x)‖ of the key.")},
            repeats=True,
        ),
    },
    metrics=(
        Rollup(
            "alpha/<category>",
            "α summed over the category's keys, averaged over queries, heads and layers.",
            of="by_layer.sequence_mean",
            where={"measure": "alpha"},
        ),
        Rollup(
            "alpha_f/<category>",
            "‖αf(x)‖ summed over the category's keys, averaged over queries, heads and layers.",
            of="by_layer.sequence_mean",
            where={"measure": "alpha_f"},
        ),
        Rollup(
            "f/<category>",
            "‖f(x)‖ of the category's keys, averaged over keys, heads and layers.",
            of="by_layer.sequence_mean",
            where={"measure": "f"},
        ),
        Rollup(
            "share/<category>",
            "Signed share of the category's keys in the attention output, summed over heads, averaged over queries and layers.",
            of="by_layer.sequence_mean",
            where={"measure": "share"},
        ),
        Rollup(
            "share/negative_heads",
            "Number of heads that write against the attention output: those whose mean share is negative.",
            of="head_shares.share",
            how=lambda rows, column: int((rows[column] < 0).sum()),
        ),
        Rollup("share/heads", "Number of heads of all chosen layers.", of="head_shares.share", how="count"),
        Rollup(
            "spearman/<category>",
            "Spearman's ρ between α and ‖f(x)‖ over the pairs of all chosen layers.",
            of="correlation.spearman",
            where={"layer": 0},
        ),
        Rollup("f/cv_max", "Largest coefficient of variation of ‖f(x)‖ in any head.", of="dispersion.cv", how="max"),
        Rollup("f/cv_min", "Smallest coefficient of variation of ‖f(x)‖ in any head.", of="dispersion.cv", how="min"),
        Rollup("f/cv_mean", "Mean coefficient of variation of ‖f(x)‖ over heads.", of="dispersion.cv"),
        Rollup(
            "f/uniform",
            "‖f(x)‖ averaged over the keys that a query sees, then over queries, heads and layers: what `alpha_f/all` would be "
            "if all weights of a query were equal. For tokens, not for words.",
        ),
        Rollup("f/mean", "Mean of ‖f(x)‖ over tokens, averaged over heads.", of="dispersion.mean"),
        Rollup("f/std", "Standard deviation of ‖f(x)‖ over tokens, averaged over heads.", of="dispersion.std"),
        Rollup(
            "x/cv_max", "Largest coefficient of variation of ‖x‖ in any layer.", of="input_dispersion.cv", how="max"
        ),
        Rollup(
            "x/cv_min", "Smallest coefficient of variation of ‖x‖ in any layer.", of="input_dispersion.cv", how="min"
        ),
        Rollup("x/cv_mean", "Mean coefficient of variation of ‖x‖ over layers.", of="input_dispersion.cv"),
        Rollup("expansion/mean", "Mean expansion rate over layers.", of="expansion.rate"),
        Rollup(
            "expansion_with_output_bias/mean",
            "Mean expansion rate over layers, with b_O in the map.",
            of="expansion.rate_with_output_bias",
        ),
        Rollup(
            "expansion_with_output_bias/layer_<layer>",
            "Expansion rate of a layer, with b_O in the map.",
            of="expansion.rate_with_output_bias",
        ),
    ),
    curves=(
        Rollup(
            "alpha/<category>",
            "α summed over the category's keys, averaged over queries and heads.",
            of="by_layer.sequence_mean",
            where={"measure": "alpha"},
            label="α, summed",
        ),
        Rollup(
            "alpha_f/<category>",
            "‖αf(x)‖ summed over the category's keys.",
            of="by_layer.sequence_mean",
            where={"measure": "alpha_f"},
            label="‖αf(x)‖, summed",
        ),
        Rollup(
            "f/<category>",
            "‖f(x)‖ of the category's keys.",
            of="by_layer.sequence_mean",
            where={"measure": "f"},
            label="‖f(x)‖",
        ),
        Rollup(
            "share/<category>",
            "Signed share of the category's keys in the attention output, summed over heads.",
            of="by_layer.sequence_mean",
            where={"measure": "share"},
            label="share of the attention output",
        ),
        Rollup("expansion", "Expansion rate.", of="expansion.rate"),
    ),
)
