"""Feed-forward networks: what does the network change? Options, and what the analysis returns."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2024
from normscope.config.rules import AboveZero, Count, Seed
from normscope.results.axes import (
    CATEGORY_OF_TOKEN,
    LAYER,
    MIXING,
    SHARES,
    mixing_curves,
    mixing_metrics,
    share_curves,
    share_metrics,
)
from normscope.results.codes import METHODS as OF_BLOCKS
from normscope.results.codes import STEPS
from normscope.results.declare import Axis, Column, Declared, Rollup, Table


@dataclasses.dataclass
class FeedForwardOptions(AnalysisConfig):
    """Mixing through the whole layer, including the feed-forward network (Kobayashi et al. 2024)."""

    sequences: Count = 16
    """Maximum number of random sequences whose token maps are compared; the ratios cover the whole corpus."""
    tokens: Count | None = 64
    """Sequences of at most this many tokens are drawn first; longer ones are drawn only if the corpus has too few of these,
    because the time for maps grows with the square of a sequence's length; null draws from all sequences alike."""
    pairs: Count = 20
    """Number of amplified token pairs to list in each layer."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences."""
    precision: AboveZero | None = 0.015
    """The sample ends early once the 95% interval of the change by the network, 1 − Spearman's ρ averaged over layers, is
    within ± this; null compares all sequences."""


METHODS = {
    **{method: OF_BLOCKS[method] for method in ("attn_w", "attn_n", "attnres_n")},
    "atb_n": "attention block (Atb)",
    "atbff_n": "feed-forward network (AtbFf)",
    "atbffres_n": "network + residual (AtbFfRes)",
    "atbffresln_n": "network + residual + norm (AtbFfResLn)",
}
"""The methods from the attention weights to the end of the layer."""

_METHOD = Axis(
    "method",
    "How far through the layer: `atb_n` (the attention block), `atbff_n` (the feed-forward network), `atbffres_n` (with its "
    "residual connection) or `atbffresln_n` (with its normalisation).",
    titles=METHODS,
    nested=True,
)
STEP = Axis("step", "The steps between the two maps: `ff`, `res`, `ln`, `ff+res` or `ff+res+ln`.", titles=STEPS)
"""The steps between the maps, by the paper's names."""

_CHANGE = "1 − Spearman's ρ of the maps before and after the step, with all pairs ranked together."
_PARTS = {"share": "the other tokens", "own": "the token itself", "bias": "biases"}

DECLARED = Declared(
    tables={
        "mixing_by_layer": Table(
            rows=(LAYER, _METHOD, CATEGORY_OF_TOKEN),
            values={
                **MIXING,
                "share": SHARES["share"],
                "own": Column(
                    "Mean share of the token itself, including the residual connections.",
                    label="signed share of the token itself (%)",
                ),
                "bias": Column(
                    "Mean share of what comes from no token: biases and β. The three shares add up to 1.",
                    label="signed share of biases (%)",
                ),
            },
        ),
        "change": Table(
            rows=(LAYER, STEP),
            values={
                "mean": Column(f"Mean over sequences of {_CHANGE}", label="1 − Spearman’s ρ"),
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
        *share_metrics("mixing_by_layer", _PARTS),
        Rollup("change/<step>", f"Mean over layers and sequences of {_CHANGE}", of="change.mean"),
        Rollup(
            "maps/sequences",
            "Number of sequences whose maps were compared, excluding those whose maps are constant.",
            of="change.count",
            how="max",
            label="sequences whose maps were compared",
        ),
    ),
    curves=(
        mixing_curves("mixing_by_layer"),
        share_curves("mixing_by_layer"),
        Rollup("change/<step>", f"Mean over sequences of {_CHANGE}", of="change.mean"),
    ),
)

FEEDFORWARD = AnalysisInfo(
    name="feedforward",
    title="Feed-forward networks",
    question="What does the feed-forward network change?",
    options=FeedForwardOptions,
    implementation="normscope.analyses.feedforward:FeedForwardAnalysis",
    papers=(KOBAYASHI_2024, CUNNINGHAM_2026),
    supports_cross_attention=True,
    declared=DECLARED,
)
