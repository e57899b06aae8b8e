"""What the sinks analysis publishes."""

from typing import Any

from normscope.results.axes import (
    CATEGORY_OF_KEY,
    CHANGES,
    DIMENSION,
    HEAD,
    LAYER,
    NATS,
    SEQUENCES,
    TOGETHER,
    in_nats,
    in_stream,
)
from normscope.results.declare import Axis, Column, Published, Rollup, Table, Where, at_largest

_STREAM = LAYER.but("Layer of the hidden vectors, from 0, the output of the embeddings.")
_INPUTS = Axis(
    "inputs",
    "What the model reads: `text`, `random` tokens, or one token repeated (`repeat`); T tokens each.",
    titles={"random": "random tokens", "repeat": "one token repeated"},
)
_BOS = Axis(
    "bos",
    "Whether sequences begin with the tokenizer's beginning-of-sequence (or classification) token.",
    noun="beginning of sequence",
    titles={"with_bos": "with BOS", "without_bos": "without BOS"},
    names={True: "with_bos", False: "without_bos"},
    kind="truth",
)
_POSITION = Axis(
    "position",
    "`first` for the first token of a sequence, or a category, whose tokens count separately.",
    titles={"first": "first token"},
)
_PLACE = Axis("position", "Position of the token, from 1.", kind="whole")
_ABLATED = (
    Axis(
        "from_layer",
        "First layer whose inputs are changed; those of all later layers are changed, too.",
        kind="whole",
    ),
    Axis(
        "value",
        "What the dimensions are set to at tokens with massive activations: `zero`, or their `mean` over these tokens.",
    ),
    Axis(
        "removed",
        f"The dimension that is replaced, or `{TOGETHER}` for all dimensions with massive activations at once.",
    ),
    Axis("dimensions", "The replaced dimensions, separated by spaces."),
)
_CONTROLS = {
    "change": "`after` minus `before`.",
    "controls_mean": "Mean change when as many random dimensions of the same tokens are replaced; missing without controls.",
    "controls_low": CHANGES["controls_low"],
    "controls_high": CHANGES["controls_high"],
}
_VARIANT = (LAYER, HEAD, _INPUTS, _BOS)
_RATE = "Share of heads, over sequences and layers, in which the position is a sink: a key with αₖ > ε."
_ALL: Where = {"removed": TOGETHER}


def _largest(rows: Any, column: str) -> Any:
    return rows[column].abs().max()


def _with_controls(rows: Any, _column: str) -> Any:
    return (rows["before"] + rows["controls_mean"]).mean()


_OF_VARIANT = "<inputs>/<bos>"

PUBLISHED = Published(
    tables={
        "by_head": Table(
            rows=(*_VARIANT, _POSITION),
            values={
                "received": "Mean of αₖ, the weight of the key averaged over the queries that see it.",
                "sink_rate": Column("Share of these keys with αₖ > ε.", label="sink rate"),
                "count": Column("Number of keys.", kind="whole"),
            },
            ranked_by=("sink_rate",),
        ),
        "summary": Table(
            rows=(_INPUTS, _BOS, _POSITION),
            values={"epsilon": "Threshold ε, `analysis.sinks.epsilon`.", "sink_rate": _RATE},
        ),
        "mass": Table(
            rows=(*_VARIANT, _POSITION),
            values={
                "mass": "Share of the head's attention weight that goes to these keys: the mean over sequences of "
                "Σ_k Σ_i α_ik / T."
            },
        ),
        "strongest": Table(
            rows=_VARIANT,
            values={
                "position": Column("Position, from 1, that most often receives the most weight.", kind="whole"),
                "token": Column("The most frequent token at this position.", kind="text"),
                "share": "Share of the sequences in which this position receives the most weight.",
                "entropy": Column(
                    "Entropy in nats of the distribution of the head's weight over the keys, averaged over sequences: 0 "
                    "if one key receives all of it, ln T if all keys receive the same amount.",
                    unit=NATS,
                ),
                "dormant": "Share of the sequences on which the head is dormant: one key receives more than "
                "`analysis.sinks.dormant` of its weight.",
                "nowhere": "Share of the head's weight that goes to no key, in models with learned sinks; 0 in others.",
            },
        ),
        "massive": Table(
            rows=(_STREAM, DIMENSION, _PLACE, Axis("token", "The token.")),
            per="layer, dimension, position and token of massive activations: |x| > 100 and at least 1000 times the median",
            values={
                "value": in_stream("Mean value of the activation."),
                "median": in_stream("Mean over the sequences of the median |x| of the layer's hidden vectors."),
                "ratio": "Mean of |x| divided by that median.",
                "sequences": Column("Number of sequences with this massive activation.", kind="whole"),
            },
            ranked_by=("ratio",),
        ),
        "magnitude": Table(
            rows=(_STREAM,),
            values={
                "max_abs": in_stream("Largest |x| of a sequence, averaged over sequences.", label="largest |x|"),
                "kurtosis": Column(
                    "Kurtosis of the activations of a sequence (3 for a normal distribution), averaged.",
                    label="kurtosis",
                ),
                "beyond_6_sigma": "Share of the activations of a sequence more than six standard deviations from their mean, "
                "averaged.",
            },
        ),
        "norms": Table(
            rows=(_STREAM, Axis("position", "Position of the token, from 1; later positions are pooled.")),
            values={
                "norm": in_stream("Mean norm ‖x‖ of the hidden vectors."),
                "count": Column("Number of tokens.", kind="whole"),
            },
        ),
        "ablation": Table(
            rows=(*_ABLATED, LAYER, CATEGORY_OF_KEY),
            per="value, replaced dimensions, layer and category, if there are massive activations",
            values={
                "before": CHANGES["before"],
                "after": "α summed over the category's keys, as in `before`, with the activations replaced.",
                **_CONTROLS,
                "sequences": SEQUENCES,
            },
            ranked_by=("change",),
        ),
        "ablation_loss": Table(
            rows=_ABLATED,
            per="value and replaced dimensions, if there are massive activations and a language-modelling head",
            values=in_nats(
                before="Loss of the unchanged model in nats: of the next token, or of masked tokens.",
                after="Loss with the activations replaced, in nats.",
                **_CONTROLS,
            ),
        ),
    },
    metrics=(
        Rollup(f"{_OF_VARIANT}/sink_rate/<position>", _RATE, of="summary.sink_rate"),
        Rollup(
            f"{_OF_VARIANT}/mass/<position>",
            "Share of all attention weight that goes to the position, over sequences, layers and heads.",
            of="mass.mass",
        ),
        Rollup(
            f"{_OF_VARIANT}/entropy",
            "Mean entropy of the distribution of a head's weight over the keys, in nats.",
            of="strongest.entropy",
        ),
        Rollup(
            f"{_OF_VARIANT}/dormant",
            "Share of the heads that are dormant, over sequences and layers.",
            of="strongest.dormant",
        ),
        Rollup(
            f"{_OF_VARIANT}/nowhere",
            "Mean share of a head's weight that goes to no key, in models with learned sinks; 0 in others.",
            of="strongest.nowhere",
        ),
        Rollup(
            "sink_rates/sequences",
            "Number of sequences on which sink rates were measured: the largest over `inputs`.",
        ),
        Rollup(
            "massive/count",
            "Number of dimensions with massive activations.",
            of="massive.dimension",
            how="nunique",
        ),
        Rollup(
            "massive/first_layer",
            "First layer with massive activations; 0 is the output of the embeddings.",
            of="massive.layer",
            how="min",
        ),
        Rollup("massive/last_layer", "Last layer with massive activations.", of="massive.layer", how="max"),
        Rollup(
            "massive/largest",
            "Largest magnitude of a massive activation, averaged over sequences.",
            of="massive.value",
            how=_largest,
        ),
        Rollup(
            "massive/ratio",
            "Largest magnitude of a massive activation divided by the median |x|.",
            of="massive.ratio",
            how=at_largest("value"),
        ),
        Rollup(
            "magnitude/max_abs",
            "Largest |x| of a sequence, averaged over sequences: the largest of all layers.",
            of="magnitude.max_abs",
            how="max",
        ),
        Rollup(
            "magnitude/kurtosis",
            "Mean kurtosis of the activations of a sequence, averaged over layers.",
            of="magnitude.kurtosis",
        ),
        Rollup(
            "magnitude/beyond_6_sigma",
            "Share of the activations beyond six standard deviations, averaged over layers.",
            of="magnitude.beyond_6_sigma",
        ),
        Rollup(
            "ablation/sequences",
            "Number of sequences on which massive activations were replaced.",
            of="ablation.sequences",
            how="max",
        ),
        Rollup(
            "ablation/<value>/before/<category>",
            "Mean weight on the category over layers, unchanged.",
            of="ablation.before",
            where=_ALL,
        ),
        Rollup(
            "ablation/<value>/after/<category>",
            "Mean weight on the category over layers, with all massive activations replaced.",
            of="ablation.after",
            where=_ALL,
        ),
        Rollup(
            "ablation/<value>/loss_before",
            "Loss in nats, unchanged: of the next token, or of masked tokens.",
            of="ablation_loss.before",
            where=_ALL,
        ),
        Rollup(
            "ablation/<value>/loss_after",
            "Loss in nats with all massive activations replaced.",
            of="ablation_loss.after",
            where=_ALL,
        ),
        Rollup(
            "ablation/<value>/loss_controls",
            "Mean loss in nats when as many random dimensions of the same tokens are replaced.",
            of="ablation_loss.before",
            how=_with_controls,
            where=_ALL,
        ),
    ),
    curves=(
        Rollup(
            f"{_OF_VARIANT}/sink_rate/<position>",
            "Share of heads, over sequences, in which the position is a sink.",
            of="by_head.sink_rate",
        ),
        Rollup("max_abs", "Largest |x| of a sequence, averaged over sequences.", of="magnitude.max_abs"),
        Rollup(
            "kurtosis", "Kurtosis of the activations of a sequence, averaged over sequences.", of="magnitude.kurtosis"
        ),
        Rollup("massive", "Number of dimensions with massive activations.", label="massive dimensions"),
    ),
)
