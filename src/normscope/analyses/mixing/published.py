"""What the mixing analysis publishes."""

from normscope.results.axes import CATEGORY_OF_TOKEN, LAYER, METHODS, MIXING, mixing_curves, mixing_metrics
from normscope.results.declare import Axis, Published, Table

_METHOD = Axis(
    "method",
    "What the ratio takes into account: `attn_w`, `attn_n`, `attnres_w`, `attnres_n` or `attnresln_n`.",
    titles=METHODS,
)

PUBLISHED = Published(
    tables={"by_layer": Table(rows=(LAYER, _METHOD, CATEGORY_OF_TOKEN), values=MIXING)},
    metrics=mixing_metrics("by_layer"),
    curves=(mixing_curves("by_layer"),),
)
