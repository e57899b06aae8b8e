"""What the feed-forward analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_TOKEN, LAYER, TOKENS
from normscope.analyses.info import Outputs, TableInfo

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

OUTPUTS = Outputs(
    tables={
        "mixing_by_layer": TableInfo(
            row="layer, method and category",
            columns={
                "layer": LAYER,
                "method": "How far through the layer: `atb_n` (the attention block), `atbff_n` (the feed-forward network), "
                "`atbffres_n` (with its residual connection) or `atbffresln_n` (with its normalisation).",
                "category": CATEGORY_OF_TOKEN,
                "mean": "Mean mixing ratio of the tokens, in [0, 1].",
                "sequence_mean": "Mean mixing ratio over the tokens of a sequence first, then over the sequences that have "
                "such tokens.",
                "max": "Largest mixing ratio of a token.",
                "min": "Smallest mixing ratio of a token.",
                "count": TOKENS,
            },
        ),
        "change": TableInfo(
            row="layer, step and scope",
            columns={
                "layer": LAYER,
                "step": "What lies between the two maps: `ff`, `res`, `ln`, `ff+res` or `ff+res+ln`.",
                "scope": "Whether all pairs of a sequence are ranked together (`flattened`) or query by query (`row-wise`).",
                "mean": "Mean over sequences of 1 − Spearman's ρ of the maps before and after the step.",
                "std": "Standard deviation over sequences (of the population).",
                "count": "Number of sequences.",
            },
        ),
        "amplified": TableInfo(
            row="layer and pair of tokens, beginning with those whose share the network raises most",
            columns={
                "layer": LAYER,
                "query_token": "The token that receives.",
                "key_token": "The token that contributes.",
                "category": "Kind of pair: `special` (one is a special token), `same token`, `adjacent` or `other`.",
                "before": "Share of the pair in the sum over the query's keys, after the attention block.",
                "after": "Share of the pair after the feed-forward network.",
            },
            cells={"layer": "whole", "query_token": "text", "key_token": "text", "category": "text"},
        ),
    },
    metrics={
        "<method>/mean": "Mean mixing ratio of all tokens in all chosen layers.",
        "<method>/max": "Largest mixing ratio of a token in any chosen layer.",
        "<method>/min": "Smallest mixing ratio of a token in any chosen layer.",
        "change/<step>": "Mean over layers and sequences of 1 − Spearman's ρ of the flattened maps before and after the step.",
    },
    labels={"<method>/mean": "mixing ratio (%)", "change/<step>": "1 − Spearman’s ρ"},
    names=TITLES,
    curves={
        "<method>/mean": "Mean mixing ratio of all tokens.",
        "change/<step>": "Mean over sequences of 1 − Spearman's ρ of the flattened maps before and after the step.",
    },
)
