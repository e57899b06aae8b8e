"""Mixing ratios: how much of a token's vector comes from others? Options, and what the analysis returns."""

import dataclasses

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2021
from normscope.results.axes import (
    CATEGORY_OF_TOKEN,
    LAYER,
    SHARES,
    mixing_curves,
    mixing_metrics,
    share_curves,
    share_metrics,
)
from normscope.results.axes import MIXING as MIXING_COLUMNS
from normscope.results.codes import METHODS
from normscope.results.declare import Axis, Declared, Table


@dataclasses.dataclass
class MixingOptions(AnalysisConfig):
    """Mixing ratios (Kobayashi et al. 2021)."""


_METHOD = Axis(
    "method",
    "What the ratio takes into account: `attn_w`, `attn_n`, `attnres_w`, `attnres_n` or `attnresln_n`.",
    titles=METHODS,
    nested=True,
)

_WITH_VECTORS = _METHOD.but("What the output is: `attn_n`, `attnres_n` or `attnresln_n`. Weights alone have no shares.")
PARTS = {
    "share": "the other tokens",
    "own": "the token itself, through attention",
    "residual": "the residual connection",
    "bias": "biases",
}
"""The columns of shares, and what they are the shares of."""

DECLARED = Declared(
    tables={
        "by_layer": Table(rows=(LAYER, _METHOD, CATEGORY_OF_TOKEN), values=MIXING_COLUMNS),
        "shares": Table(rows=(LAYER, _WITH_VECTORS, CATEGORY_OF_TOKEN), values=SHARES),
    },
    metrics=(*mixing_metrics("by_layer"), *share_metrics("shares", PARTS)),
    curves=(mixing_curves("by_layer"), share_curves("shares")),
)

MIXING = AnalysisInfo(
    name="mixing",
    title="Mixing ratios",
    question="How much of a token's output vector comes from other tokens?",
    options=MixingOptions,
    implementation="normscope.analyses.mixing:MixingAnalysis",
    papers=(KOBAYASHI_2021, CUNNINGHAM_2026),
    supports_words=True,
    supports_cross_attention=True,
    declared=DECLARED,
)
