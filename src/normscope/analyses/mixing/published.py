"""What the mixing analysis publishes."""

from normscope.results.axes import (
    CATEGORY_OF_TOKEN,
    LAYER,
    METHODS,
    MIXING,
    SHARES,
    mixing_curves,
    mixing_metrics,
    share_curves,
    share_metrics,
)
from normscope.results.declare import Axis, Published, Table

_METHOD = Axis(
    "method",
    "What the ratio takes into account: `attn_w`, `attn_n`, `attnres_w`, `attnres_n` or `attnresln_n`.",
    titles=METHODS,
)

_WITH_VECTORS = _METHOD.but("What the output is: `attn_n`, `attnres_n` or `attnresln_n`. Weights alone have no shares.")
PARTS = {
    "share": "the other tokens",
    "own": "the token itself, through attention",
    "residual": "the residual connection",
    "bias": "biases",
}
"""The columns of shares, and what they are the shares of."""

PUBLISHED = Published(
    tables={
        "by_layer": Table(rows=(LAYER, _METHOD, CATEGORY_OF_TOKEN), values=MIXING),
        "shares": Table(rows=(LAYER, _WITH_VECTORS, CATEGORY_OF_TOKEN), values=SHARES),
    },
    metrics=(*mixing_metrics("by_layer"), *share_metrics("shares", PARTS)),
    curves=(mixing_curves("by_layer"), share_curves("shares")),
)
