"""What the sinks analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_KEY, CHANGES, DIMENSION, HEAD, LAYER
from normscope.analyses.info import Outputs, TableInfo

_HIDDEN = "Layer of the hidden vectors, from 0, the output of the embeddings."
_INPUTS = "What the model reads: `text`, `random` tokens, or one token repeated (`repeat`); T tokens each."
_BOS = "Whether sequences begin with the tokenizer's beginning-of-sequence (or classification) token."
_POSITION = "`first` for the first token of a sequence, or a category, whose tokens count separately."
_VARIANT = {"layer": LAYER, "head": HEAD, "inputs": _INPUTS, "bos": _BOS}
_ABLATED = {
    "from_layer": "First layer whose inputs are changed; those of all later layers are changed, too.",
    "value": "What the dimensions are set to at tokens with massive activations: `zero`, or their `mean` over these tokens.",
    "removed": "The dimension that is replaced, or `outliers` for all dimensions with massive activations at once.",
    "dimensions": "The replaced dimensions, separated by spaces.",
}
_CONTROLS = {
    "change": "`after` minus `before`.",
    "controls_mean": "Mean change when as many random dimensions of the same tokens are replaced; missing without controls.",
    "controls_low": CHANGES["controls_low"],
    "controls_high": CHANGES["controls_high"],
}
_RATE = "Share of heads, over sequences and layers, in which the position is a sink: a key with α_k > ε"
_MASS = "Share of all attention weight that goes to the position, over sequences, layers and heads"

OUTPUTS = Outputs(
    tables={
        "by_head": TableInfo(
            row="layer, head, inputs, beginning of sequence and position",
            columns={
                **_VARIANT,
                "position": _POSITION,
                "received": "Mean of α_k, the weight of the key averaged over the queries that see it.",
                "sink_rate": "Share of these keys with α_k > ε.",
                "count": "Number of keys.",
            },
        ),
        "summary": TableInfo(
            row="inputs, beginning of sequence and position",
            columns={
                "inputs": _INPUTS,
                "bos": _BOS,
                "position": _POSITION,
                "epsilon": "Threshold ε, `analysis.sinks.epsilon`.",
                "sink_rate": f"{_RATE}.",
            },
        ),
        "mass": TableInfo(
            row="layer, head, inputs, beginning of sequence and position",
            columns={
                **_VARIANT,
                "position": _POSITION,
                "mass": "Share of the head's attention weight that goes to these keys: the mean over sequences of "
                "Σ_k Σ_i α_ik / T.",
            },
        ),
        "strongest": TableInfo(
            row="layer, head, inputs and beginning of sequence",
            columns={
                **_VARIANT,
                "position": "Position, from 1, that most often receives the most weight.",
                "token": "The most frequent token at this position.",
                "share": "Share of the sequences in which this position receives the most weight.",
                "entropy": "Entropy in nats of the distribution of the head's weight over the keys, averaged over sequences: 0 "
                "if one key receives all of it, ln T if all keys receive the same amount.",
                "dormant": "Share of the sequences on which the head is dormant: one key receives more than "
                "`analysis.sinks.dormant` of its weight.",
                "nowhere": "Share of the head's weight that goes to no key, in models with learned sinks; 0 in others.",
            },
        ),
        "massive": TableInfo(
            row="layer, dimension, position and token of massive activations: |x| > 100 and at least 1000 times the median",
            columns={
                "layer": _HIDDEN,
                "dimension": DIMENSION,
                "position": "Position of the token, from 1.",
                "token": "The token.",
                "value": "Mean value of the activation.",
                "median": "Mean over the sequences of the median |x| of the layer's hidden vectors.",
                "ratio": "Mean of |x| divided by that median.",
                "sequences": "Number of sequences with this massive activation.",
            },
        ),
        "drains": TableInfo(
            row="layer, head and kind of key",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "key": "`sink` for the key that receives the most weight from the head in a sequence, or `other`.",
                "alpha": "Mean weight α_k of the key, over the queries that see it.",
                "v_norm": "Mean norm ‖v‖ of the value vectors.",
                "f_norm": "Mean norm ‖f(x)‖ of the transformed vectors.",
                "alpha_f": "Mean norm ‖αf(x)‖ of what the key contributes to a query that sees it.",
            },
        ),
        "magnitude": TableInfo(
            row="layer",
            columns={
                "layer": _HIDDEN,
                "max_abs": "Largest |x| of a sequence, averaged over sequences.",
                "kurtosis": "Kurtosis of the activations of a sequence (3 for a normal distribution), averaged.",
                "beyond_6_sigma": "Share of the activations of a sequence more than six standard deviations from their mean, "
                "averaged.",
            },
        ),
        "norms": TableInfo(
            row="layer and position",
            columns={
                "layer": _HIDDEN,
                "position": "Position of the token, from 1; later positions are pooled.",
                "norm": "Mean norm ‖x‖ of the hidden vectors.",
                "count": "Number of tokens.",
            },
        ),
        "ablation": TableInfo(
            row="value, replaced dimensions, layer and category, if there are massive activations",
            columns={
                **_ABLATED,
                "layer": LAYER,
                "category": CATEGORY_OF_KEY,
                "before": CHANGES["before"],
                "after": "α summed over the category's keys, as in `before`, with the activations replaced.",
                **_CONTROLS,
            },
        ),
        "ablation_loss": TableInfo(
            row="value and replaced dimensions, if there are massive activations and a language-modelling head",
            columns={
                **_ABLATED,
                "before": "Loss of the unchanged model in nats: of the next token, or of masked tokens.",
                "after": "Loss with the activations replaced, in nats.",
                **_CONTROLS,
            },
        ),
    },
    metrics={
        "<inputs>/<bos>/sink_rate/<position>": f"{_RATE}.",
        "<inputs>/<bos>/mass/<position>": f"{_MASS}.",
        "<inputs>/<bos>/entropy": "Mean entropy of the distribution of a head's weight over the keys, in nats.",
        "<inputs>/<bos>/dormant": "Share of the heads that are dormant, over sequences and layers.",
        "<inputs>/<bos>/nowhere": "Mean share of a head's weight that goes to no key, in models with learned sinks; 0 in "
        "others.",
        "massive/count": "Number of dimensions with massive activations.",
        "massive/first_layer": "First layer with massive activations; 0 is the output of the embeddings.",
        "massive/last_layer": "Last layer with massive activations.",
        "massive/largest": "Largest magnitude of a massive activation, averaged over sequences.",
        "massive/ratio": "Largest magnitude of a massive activation divided by the median |x|.",
        "drains/<key>/alpha": "Mean weight of sinks, or of other keys, over layers and heads.",
        "drains/<key>/v_norm": "Mean ‖v‖ of sinks, or of other keys, over layers and heads.",
        "drains/<key>/f_norm": "Mean ‖f(x)‖ of sinks, or of other keys, over layers and heads.",
        "drains/<key>/alpha_f": "Mean ‖αf(x)‖ of sinks, or of other keys, over layers and heads.",
        "magnitude/max_abs": "Largest |x| of a sequence, averaged over sequences: the largest of all layers.",
        "magnitude/kurtosis": "Mean kurtosis of the activations of a sequence, averaged over layers.",
        "magnitude/beyond_6_sigma": "Share of the activations beyond six standard deviations, averaged over layers.",
        "ablation/<value>/loss_before": "Loss in nats, unchanged: of the next token, or of masked tokens.",
        "ablation/<value>/loss_after": "Loss in nats with all massive activations replaced.",
        "ablation/<value>/loss_controls": "Mean loss in nats when as many random dimensions of the same tokens are replaced.",
        "ablation/<value>/before/<category>": "Mean weight on the category over layers, unchanged.",
        "ablation/<value>/after/<category>": "Mean weight on the category over layers, with all massive activations replaced.",
    },
    curves={
        "<inputs>/<bos>/sink_rate/<position>": "Share of heads, over sequences, in which the position is a sink.",
        "f_norm/<key>": "Mean ‖f(x)‖ of sinks, or of other keys, over heads.",
        "max_abs": "Largest |x| of a sequence, averaged over sequences.",
        "kurtosis": "Kurtosis of the activations of a sequence, averaged over sequences.",
        "massive": "Number of dimensions with massive activations.",
    },
    labels={
        "<inputs>/<bos>/sink_rate/<position>": "sink rate",
        "f_norm/<key>": "mean ‖f(x)‖",
        "max_abs": "largest |x|",
        "kurtosis": "kurtosis",
        "massive": "massive dimensions",
    },
    names={
        "with_bos": "with BOS",
        "without_bos": "without BOS",
        "random": "random tokens",
        "repeat": "one token repeated",
        "first": "first token",
        "sink": "sinks",
    },
)
