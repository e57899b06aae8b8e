"""The tables of a checkup, besides those of its analyses."""

from normscope.results.axes import HEAD, LAYER
from normscope.results.declare import Axis, Column, Table

_COSTS: dict[str, Column | str] = {
    "change": "‖x̂ − x‖ ÷ ‖x‖ of the last hidden vectors, a mean over tokens, then texts.",
    "change_low": "Lower end of its 95% interval over texts.",
    "change_high": "Upper end of its 95% interval over texts.",
    "loss_before": Column(
        "Loss of the unchanged model, a mean over texts; missing without a head.", unit="nats per token"
    ),
    "loss": Column("Loss of the rounded model, likewise.", unit="nats per token"),
    "loss_change": Column("The one minus the other.", unit="nats per token"),
    "loss_low": Column("Lower end of the 95% interval of the loss's change over texts.", unit="nats per token"),
    "loss_high": Column("Upper end of the 95% interval of the loss's change over texts.", unit="nats per token"),
}

LINEAR_INPUTS = Table(
    rows=(Axis("module", "Linear layer, by its name in the model with its head.", noun="linear layer"),),
    values={
        "layer": Column(
            "Layer of the model, from 1: the first of several that share it; missing outside.", kind="whole"
        ),
        "largest": "Largest |x| over texts, tokens and dimensions.",
        "dimension": Column("Where it is, from 0.", kind="whole"),
        "median": "Median |x| of a text's inputs other than zero, a mean over texts.",
        "ratio": "The largest divided by the median.",
        "massive": Column(
            "Whether the ratio is at least 1,000, as it is of massive activations of the residual stream; how large they are "
            "makes no difference to rounding.",
            kind="truth",
        ),
    },
)
ROUNDING = Table(
    rows=(
        Axis(
            "rounded",
            "What is rounded: all linear layers to a format; or, to int8 with one scale per tensor, all but the skip list "
            "(`without_skipped`) or a random one of its size.",
        ),
    ),
    values=_COSTS,
)
BY_LAYER = Table(rows=(LAYER, Axis("format", "What its linear layers are rounded to.")), values=_COSTS)
HEADS = Table(
    rows=(LAYER, HEAD),
    values={
        "share": "Share of the head in the variance over tokens of what its layer's heads add, Σ_t ‖o − mean o‖² divided by "
        "the sum of that over heads; missing where no head varies. A head whose share is 0 adds the same vector to every "
        "token, as a bias does.",
        "constant": "Share of ‖mean o‖² in the head's mean ‖o‖².",
        "twin": Column(
            "Head of the same layer whose deviations from its mean are most like this head's; missing without another.",
            kind="whole",
        ),
        "correlation": "Correlation of both over tokens and dimensions.",
    },
)
AGAINST = Table(
    rows=(LAYER,),
    values={
        "weights": "‖W − W₀‖ ÷ ‖W₀‖ over all weights of the layer, biases and norms included; missing where no module runs it.",
        "vectors": "‖x − x₀‖ ÷ ‖x₀‖ of what leaves the layer, a mean over tokens, then texts.",
        "vectors_low": "Lower end of its 95% interval over texts.",
        "vectors_high": "Upper end of its 95% interval over texts.",
    },
)
CHECKUP = {
    "linear_inputs": LINEAR_INPUTS,
    "rounding": ROUNDING,
    "rounding_by_layer": BY_LAYER,
    "heads": HEADS,
    "against": AGAINST,
}
"""By name."""
