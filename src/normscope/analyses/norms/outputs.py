"""What the norms analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_KEY, ERROR_BOUND, HEAD, LAYER, REASON, SPEARMAN
from normscope.analyses.info import Outputs, TableInfo

_ROW = "`max_cv` and `min_cv`: the row with the largest and the smallest coefficient of variation; `average`: the mean row."
_LAYER_OR_AVERAGE = "Layer, from 1; 0 in the average."
_ALPHA = "α summed over the category's keys, averaged over a sequence's queries, then over sequences."
_ALPHA_F = "‖αf(x)‖ summed over the category's keys, averaged over a sequence's queries, then over sequences."
_F = "‖f(x)‖ averaged over a sequence's keys of the category, then over the sequences that have any."


def _dispersion(norm: str) -> dict[str, str]:
    return {
        "mean": f"Mean of {norm} over all tokens.",
        "std": "Population standard deviation.",
        "cv": "Coefficient of variation, `std` / `mean`.",
        "max": "Largest value.",
        "min": "Smallest value.",
    }


OUTPUTS = Outputs(
    tables={
        "by_layer": TableInfo(
            row="layer, measure and category",
            columns={
                "layer": LAYER,
                "measure": "`alpha`: α; `alpha_f`: ‖αf(x)‖; `f`: ‖f(x)‖, each as defined for `norms_by_head`.",
                "category": CATEGORY_OF_KEY,
                "sequence_mean": "Mean of the measure over heads.",
            },
        ),
        "by_head": TableInfo(
            row="layer, head and category",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "category": CATEGORY_OF_KEY,
                "alpha": _ALPHA,
                "alpha_f": _ALPHA_F,
                "f": _F,
                "count": "Number of keys.",
            },
        ),
        "per_key": TableInfo(
            row="layer and category",
            columns={
                "layer": LAYER,
                "category": CATEGORY_OF_KEY,
                "mean": "Mean weight of a single key of the category, over queries, keys and heads.",
                "sequence_mean": "Mean over each sequence's keys of the category first, then over the sequences that have any.",
                "count": "Number of keys.",
            },
        ),
        "dispersion": TableInfo(
            row="layer and head",
            columns={"layer": LAYER, "head": HEAD, **_dispersion("‖f(x)‖")},
        ),
        "dispersion_summary": TableInfo(
            row="extreme, and one for the average",
            columns={
                "row": _ROW,
                "layer": _LAYER_OR_AVERAGE,
                "head": "Head, from 1; 0 in the average.",
                **_dispersion("‖f(x)‖"),
            },
            cells={"row": "text", "layer": "whole", "head": "whole"},
            key=("row",),
        ),
        "input_dispersion": TableInfo(row="layer", columns={"layer": LAYER, **_dispersion("‖x‖")}),
        "input_dispersion_summary": TableInfo(
            row="extreme, and one for the average",
            columns={"row": _ROW, "layer": _LAYER_OR_AVERAGE, **_dispersion("‖x‖")},
            cells={"row": "text", "layer": "whole"},
            key=("row",),
        ),
        "correlation": TableInfo(
            row="layer and category",
            columns={
                "layer": "Layer, from 1; 0 stands for the pairs of all chosen layers.",
                "category": CATEGORY_OF_KEY,
                "spearman": f"{SPEARMAN} Between α and ‖f(x)‖, over all triples of head, query and visible key.",
                "count": "Number of pairs.",
                "error_bound": ERROR_BOUND,
                "reason": REASON,
            },
            cells={"layer": "whole", "category": "text", "count": "whole", "reason": "text"},
            key=("layer", "category"),
        ),
        "singular_values": TableInfo(
            row="layer, head and singular value",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "index": "Rank of the singular value, from 1, the largest.",
                "value": "Singular value of the head's map from x to f(x). It depends only on the weights.",
            },
        ),
        "expansion": TableInfo(
            row="layer",
            columns={
                "layer": LAYER,
                "rate": "Root mean square singular value of the map from x to Σ_h f(x): how much the map lengthens a vector.",
                "rate_with_output_bias": "Expansion rate with b_O in the map, as in the published numbers.",
            },
            cells={"layer": "whole"},
            key=("layer",),
        ),
        "sample": TableInfo(
            row="sampled pair of a query and a visible key",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "category": "Category of the key.",
                "alpha": "α of the pair.",
                "f": "‖f(x)‖ of the key.",
            },
        ),
    },
    metrics={
        "alpha/<category>": "α summed over the category's keys, averaged over queries, heads and layers.",
        "alpha_f/<category>": "‖αf(x)‖ summed over the category's keys, averaged over queries, heads and layers.",
        "f/<category>": "‖f(x)‖ of the category's keys, averaged over keys, heads and layers.",
        "spearman/<category>": "Spearman's ρ between α and ‖f(x)‖ over the pairs of all chosen layers.",
        "f/cv_max": "Largest coefficient of variation of ‖f(x)‖ in any head.",
        "f/cv_min": "Smallest coefficient of variation of ‖f(x)‖ in any head.",
        "f/cv_mean": "Mean coefficient of variation of ‖f(x)‖ over heads.",
        "f/mean": "Mean of ‖f(x)‖ over tokens, averaged over heads.",
        "f/std": "Standard deviation of ‖f(x)‖ over tokens, averaged over heads.",
        "x/cv_max": "Largest coefficient of variation of ‖x‖ in any layer.",
        "x/cv_min": "Smallest coefficient of variation of ‖x‖ in any layer.",
        "x/cv_mean": "Mean coefficient of variation of ‖x‖ over layers.",
        "expansion/mean": "Mean expansion rate over layers.",
        "expansion_with_output_bias/mean": "Mean expansion rate over layers, with b_O in the map.",
        "expansion_with_output_bias/layer_<layer>": "Expansion rate of a layer, with b_O in the map.",
    },
    curves={
        "alpha/<category>": "α summed over the category's keys, averaged over queries and heads.",
        "alpha_f/<category>": "‖αf(x)‖ summed over the category's keys.",
        "f/<category>": "‖f(x)‖ of the category's keys.",
        "expansion": "Expansion rate.",
    },
    labels={
        "alpha/<category>": "α, summed",
        "alpha_f/<category>": "‖αf(x)‖, summed",
        "f/<category>": "‖f(x)‖",
        "expansion": "expansion rate",
    },
)
