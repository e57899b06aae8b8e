"""What the attribution analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_TOKEN, LAYER, TOKENS
from normscope.analyses.info import Outputs, TableInfo

_METHOD = "The attribution method."
_INTERVAL = "{} end of the 95% interval over sequences (Student's t); missing for one sequence."
_LOW, _HIGH = _INTERVAL.format("Lower"), _INTERVAL.format("Upper")
_SEQUENCES = "Number of sequences."

METHODS = {
    "rollout": "rollout of weights",
    "norm_rollout": "rollout of norms",
    "globenc": "GlobEnc",
    "alti": "ALTI",
    "value_zeroing": "value zeroing",
    "decompx": "DecompX",
    "gradient_x_input": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "random": "random order",
}
"""Titles of the methods."""

QUANTITIES = {
    "probability": "the probability of the predicted class",
    "cosine": "the cosine with the untouched embedding",
}
"""What `<quantity>` stands for, in sentences."""

OUTPUTS = Outputs(
    tables={
        "by_layer": TableInfo(
            row="layer, method and scope",
            columns={
                "layer": LAYER,
                "method": _METHOD,
                "scope": "`layer`: the map of the layer by itself; `cumulative`: the map from the input up to the layer.",
                "itself": "Mean share of a token's vector that comes from the token itself, in [0, 1].",
                "effective_tokens": "Mean effective number of tokens that a vector comes from: the exponential of the "
                "entropy of the tokens' shares.",
                "count": TOKENS,
            },
        ),
        "by_category": TableInfo(
            row="layer, method, category and source",
            columns={
                "layer": LAYER,
                "method": _METHOD,
                "category": f"{CATEGORY_OF_TOKEN} The token is the one whose vector is split.",
                "source": "Where the vector comes from: the token `itself`, another token of a category (`cls`, `sep`, "
                "`punctuation`, …), or, of "
                "the remaining tokens, the two `neighbours` or the `others`; for `decompx`, also the `bias`.",
                "share": "Mean share of a token's vector, from the input up to the layer; the shares of all sources add up to "
                "1.",
                "count": TOKENS,
            },
        ),
        "agreement": TableInfo(
            row="pair of methods and scope",
            columns={
                "method": _METHOD,
                "other": "The method that it is compared with.",
                "scope": "What is ranked: the ordinary tokens of a sequence by their `scores`, or the keys of each row of the "
                "`map` through all layers, averaged over rows.",
                "spearman": "Mean over sequences of Spearman's ρ.",
                "low": _LOW,
                "high": _HIGH,
                "count": "Number of sequences for which ρ is defined.",
            },
        ),
        "faithfulness": TableInfo(
            row="method, measure and share",
            columns={
                "method": "The method, or `random` for the mean over random orders.",
                "measure": "`comprehensiveness`: the tokens with the highest scores are erased. `sufficiency`: all other "
                "ordinary tokens are erased.",
                "share": "Percentage of the ordinary tokens that are erased or kept.",
                "mean": "Mean fall over sequences of the probability of the predicted class, or of the cosine with the "
                "untouched embedding.",
                "low": _LOW,
                "high": _HIGH,
                "count": _SEQUENCES,
            },
        ),
        "ranking": TableInfo(
            row="method, the largest comprehensiveness first",
            columns={
                "rank": "Rank by comprehensiveness, from 1.",
                "method": "The method, or `random`.",
                "comprehensiveness": "AOPC: mean fall over all shares when the tokens with the highest scores are erased. "
                "Higher is more faithful.",
                "comprehensiveness_low": _LOW,
                "comprehensiveness_high": _HIGH,
                "sufficiency": "AOPC: mean fall over all shares when all other ordinary tokens are erased. Lower is more "
                "faithful.",
                "sufficiency_low": _LOW,
                "sufficiency_high": _HIGH,
                "above_random": "Mean over sequences of comprehensiveness minus that of random orders; missing for `random`.",
                "above_random_low": _LOW,
                "above_random_high": _HIGH,
                "below_best": "Mean over sequences of the best method's comprehensiveness minus this one's; missing for the "
                "best method. If the interval contains 0, the sample cannot tell the two apart.",
                "below_best_low": _LOW,
                "below_best_high": _HIGH,
                "count": _SEQUENCES,
            },
        ),
    },
    metrics={
        "<method>/share/<source>": "Mean share of a token's vector that comes from a source, from the input up to the deepest "
        "chosen layer.",
        "agreement/<method>/<other>": "Mean over sequences of Spearman's ρ between the scores of two methods.",
        "<quantity>/comprehensiveness/<method>": "AOPC of comprehensiveness; the quantity is the `probability` of the "
        "predicted class, or the `cosine` with the untouched embedding.",
        "<quantity>/sufficiency/<method>": "AOPC of sufficiency.",
    },
    curves={
        "<method>/itself": "Mean share of a token's vector that comes from the token itself, from the input up to the layer.",
    },
    labels={"<method>/itself": "share from the token itself (%)"},
    names=METHODS,
)
