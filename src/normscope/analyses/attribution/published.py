"""What the attribution analysis publishes."""

from typing import Any

from normscope.results.axes import CATEGORY_OF_TOKEN, LAYER, TOKENS
from normscope.results.declare import Axis, Column, Published, Rollup, Table, Where

_INTERVAL = "{} end of the 95% interval over sequences (Student's t); missing for one sequence."
_LOW, _HIGH = _INTERVAL.format("Lower"), _INTERVAL.format("Upper")
_SEQUENCES = Column("Number of sequences.", kind="whole")

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
    "probability": "the probability of the predicted class or token",
    "cosine": "the cosine with the untouched embedding",
}
"""What `<quantity>` stands for, in sentences."""

_METHOD = Axis("method", "The attribution method.", titles=METHODS)
_SCORES: Where = {"scope": "scores"}
_ALL: Where = {"category": "all"}


def _deepest(layers: Any) -> Any:
    return layers == layers.max()


PUBLISHED = Published(
    tables={
        "by_layer": Table(
            rows=(
                LAYER,
                _METHOD,
                Axis(
                    "scope",
                    "`layer`: the map of the layer by itself; `cumulative`: the map from the input up to the layer.",
                ),
            ),
            values={
                "itself": "Mean share of a token's vector that comes from the token itself, in [0, 1].",
                "effective_tokens": "Mean effective number of tokens that a vector comes from: the exponential of the "
                "entropy of the tokens' shares.",
                "count": TOKENS,
            },
        ),
        "by_category": Table(
            rows=(
                LAYER,
                _METHOD,
                CATEGORY_OF_TOKEN.but(f"{CATEGORY_OF_TOKEN.meaning} The token is the one whose vector is split."),
                Axis(
                    "source",
                    "Where the vector comes from: the token `itself`, another token of a category (`cls`, `sep`, "
                    "`punctuation`, …), or, of the remaining tokens, the two `neighbours` or the `others`; for `decompx`, also "
                    "the `bias`.",
                ),
            ),
            values={
                "share": "Mean share of a token's vector, from the input up to the layer; the shares of all sources add up to "
                "1.",
                "count": TOKENS,
            },
        ),
        "scores": Table(
            rows=(
                _METHOD,
                Axis(
                    "source",
                    "The category of the scored tokens (`cls`, `sep`, `first`, `punctuation`, `other`, …).",
                ),
            ),
            values={
                "share": "Mean over sequences of the share of the sum of all tokens' absolute scores that the tokens of this "
                "category have; shares of all categories add up to 1.",
                "low": _LOW,
                "high": _HIGH,
                "count": _SEQUENCES,
            },
        ),
        "agreement": Table(
            rows=(
                _METHOD,
                Axis("other", "The method that it is compared with.", titles=METHODS),
                Axis(
                    "scope",
                    "What is ranked: the ordinary tokens of a sequence by their `scores`, or the keys of each row of the "
                    "`map` through all layers, averaged over rows.",
                ),
            ),
            per="pair of methods and scope",
            values={
                "spearman": "Mean over sequences of Spearman's ρ.",
                "low": _LOW,
                "high": _HIGH,
                "count": Column("Number of sequences for which ρ is defined.", kind="whole"),
            },
        ),
        "faithfulness": Table(
            rows=(
                _METHOD.but("The method, or `random` for the mean over random orders."),
                Axis(
                    "measure",
                    "`comprehensiveness`: the tokens with the highest scores are erased. `sufficiency`: all other ordinary "
                    "tokens are erased.",
                ),
                Axis("share", "Percentage of the ordinary tokens that are erased or kept.", kind="number"),
            ),
            values={
                "mean": "Mean fall over sequences of the probability of the predicted class or next token, or of the cosine "
                "with the untouched embedding.",
                "low": _LOW,
                "high": _HIGH,
                "count": _SEQUENCES,
            },
        ),
        "ranking": Table(
            rows=(
                Axis("rank", "Rank by comprehensiveness, from 1.", kind="whole"),
                _METHOD.but("The method, or `random`."),
            ),
            per="method, the largest comprehensiveness first",
            values={
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
    metrics=(
        Rollup(
            "<method>/share/<source>",
            "Mean share of a token's vector that comes from a source, from the input up to the deepest chosen layer.",
            of="by_category.share",
            where={**_ALL, "layer": _deepest},
        ),
        Rollup(
            "<method>/score/<source>",
            "Mean share of the absolute scores that tokens of a category have.",
            of="scores.share",
        ),
        Rollup(
            "agreement/<method>/<other>",
            "Mean over sequences of Spearman's ρ between the scores of two methods.",
            of="agreement.spearman",
            where=_SCORES,
        ),
        Rollup(
            "<quantity>/comprehensiveness/<method>",
            "AOPC of comprehensiveness; the quantity is the `probability` of the predicted class or next token, or the "
            "`cosine` with the untouched embedding.",
            of="ranking.comprehensiveness",
        ),
        Rollup("<quantity>/sufficiency/<method>", "AOPC of sufficiency.", of="ranking.sufficiency"),
    ),
    curves=(
        Rollup(
            "<method>/itself",
            "Mean share of a token's vector that comes from the token itself, from the input up to the layer.",
            of="by_category.share",
            where={**_ALL, "source": "itself"},
            label="share from the token itself (%)",
        ),
    ),
)
