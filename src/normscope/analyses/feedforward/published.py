"""What the feed-forward analysis publishes."""

from normscope.results.axes import (
    CATEGORY_OF_TOKEN,
    LAYER,
    MIXING,
    SHARES,
    TOKENS,
    mixing_curves,
    mixing_metrics,
    share_curves,
    share_metrics,
)
from normscope.results.declare import Axis, Column, Published, Rollup, Table

TITLES = {
    "attn_w": "Attn-W: weights",
    "attn_n": "Attn-N: vectors",
    "attnres_n": "AttnRes-N: + residual",
    "atb_n": "Atb: the attention block",
    "atbff_n": "AtbFf: the network",
    "atbffres_n": "AtbFfRes: + residual",
    "atbffresln_n": "AtbFfResLn: + norm",
}
"""The methods from the attention weights to the end of the layer."""

FLATTENED = "flattened"
"""All pairs of a sequence are ranked together."""

_METHOD = Axis(
    "method",
    "How far through the layer: `atb_n` (the attention block), `atbff_n` (the feed-forward network), `atbffres_n` (with its "
    "residual connection) or `atbffresln_n` (with its normalisation).",
    titles=TITLES,
)
_STEP = Axis("step", "What lies between the two maps: `ff`, `res`, `ln`, `ff+res` or `ff+res+ln`.")
_SCOPE = Axis(
    "scope", f"Whether all pairs of a sequence are ranked together (`{FLATTENED}`) or query by query (`row-wise`)."
)
_CHANGE = "1 − Spearman's ρ of the flattened maps before and after the step."

_PARTS = {"share": "the other tokens", "own": "the token itself", "bias": "biases"}

PUBLISHED = Published(
    tables={
        "mixing_by_layer": Table(rows=(LAYER, _METHOD, CATEGORY_OF_TOKEN), values=MIXING),
        "shares": Table(
            rows=(LAYER, _METHOD, CATEGORY_OF_TOKEN),
            values={
                "share": SHARES["share"],
                "own": Column(
                    "Mean share of the token itself, the residual connections included.",
                    label="share of the token itself (%)",
                ),
                "bias": Column(
                    "Mean share of what comes from no token: biases and β. The three shares add up to 1.",
                    label="share of biases (%)",
                ),
                "count": TOKENS,
            },
        ),
        "change": Table(
            rows=(LAYER, _STEP, _SCOPE),
            values={
                "mean": Column(
                    "Mean over sequences of 1 − Spearman's ρ of the maps before and after the step.",
                    label="1 − Spearman’s ρ",
                ),
                "std": "Standard deviation over sequences (of the population).",
                "count": Column("Number of sequences.", kind="whole"),
            },
        ),
        "amplified": Table(
            rows=(
                LAYER,
                Axis("query_token", "The token that receives."),
                Axis("key_token", "The token that contributes."),
            ),
            per="layer and pair of tokens, beginning with those whose share the network raises most",
            values={
                "category": Column(
                    "Kind of pair: `special` (one is a special token), `same token`, `adjacent` or `other`.",
                    kind="text",
                ),
                "before": "Share of the pair in the sum over the query's keys, after the attention block.",
                "after": "Share of the pair after the feed-forward network.",
            },
            repeats=True,
        ),
    },
    metrics=(
        *mixing_metrics("mixing_by_layer"),
        *share_metrics("shares", _PARTS),
        Rollup(
            "change/<step>",
            f"Mean over layers and sequences of {_CHANGE}",
            of="change.mean",
            where={"scope": FLATTENED},
        ),
        Rollup(
            "maps/sequences",
            "Number of sequences whose maps were compared, excluding those whose maps are constant.",
            of="change.count",
            how="max",
            where={"scope": FLATTENED},
            label="sequences whose maps were compared",
        ),
    ),
    curves=(
        mixing_curves("mixing_by_layer"),
        share_curves("shares"),
        Rollup("change/<step>", f"Mean over sequences of {_CHANGE}", of="change.mean", where={"scope": FLATTENED}),
    ),
)
