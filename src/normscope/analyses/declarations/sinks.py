"""Attention sinks: which token, how much weight and contribution? Options, and what the analysis returns."""

import dataclasses
import enum
from typing import Annotated, Any

from omegaconf import II
from pydantic import Field

from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import GU_2025, KOBAYASHI_2020, SUN_2024
from normscope.config.rules import AboveZero, Count, RandomSets, Seed, Share, SomeOf
from normscope.errors import InputError
from normscope.results.axes import CHANGES, DIMENSION, HEAD, LAYER, SEQUENCES, in_stream
from normscope.results.codes import SPECIAL_TOKENS
from normscope.results.declare import Axis, Column, Declared, Rollup, Table, at_largest


class SinkInput(enum.StrEnum):
    """What the model reads when sink rates are measured."""

    text = "text"
    random = "random"
    repeat = "repeat"


@dataclasses.dataclass
class SinksOptions(AnalysisConfig):
    """Attention sinks and massive activations (Gu et al. 2025, Sun et al. 2024)."""

    inputs: SomeOf[SinkInput] = dataclasses.field(default_factory=[*SinkInput].copy)
    """What to measure sink rates on: sequences of the corpus (`text`), random tokens in their place (`random`), or one random
    token in place of all others (`repeat`)."""
    length: Annotated[int, Field(ge=2)] = 64
    """Number of tokens T of every sequence: longer ones are truncated, shorter ones skipped and counted. Images and audio are
    measured whole."""
    epsilon: Share = 0.3
    """A key is a sink of a head if its mean weight over the queries that see it exceeds this."""
    sequences: Count = 100
    """Maximum number of random sequences on which sink rates are measured."""
    ablation: bool = True
    """Whether to run the model with its massive activations replaced, if there are any."""
    ablation_sequences: Count = 16
    """Maximum number of random sequences for these ablations."""
    controls: RandomSets = 5
    """Number of random sets of dimensions, replaced at the same tokens, as controls."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences, the random tokens and the random sets of dimensions."""
    precision: AboveZero | None = 0.02
    """The sample ends early once the 95% intervals of the first token's sink rate and weight, averaged over all heads, are
    within ± this for all `inputs`; null uses all sequences."""
    ablation_precision: AboveZero | None = 0.03
    """The ablations end early once the 95% intervals of the attention weight that each category gains or loses without massive
    activations, averaged over layers, are within ± this; null uses all sequences."""
    ablation_budget: AboveZero | None = 1e13
    """Maximum number of multiplications and additions for the ablations; the default takes minutes on two cores. In larger
    models, fewer sequences are used, and a note says so; null sets no limit."""

    def validate(self, run: RunSettings) -> None:
        """Check the length of the inputs.

        Raises:
            InputError: If `dataset.max_length` cuts every sequence below `length`.
        """
        if run.dataset.kind in ("images", "audio") and self.length != SinksOptions.length:
            raise InputError(
                f"analysis.sinks.length={self.length}: expected none with dataset={run.dataset.kind}, whose inputs are "
                "measured whole; leave it out"
            )
        longest = run.dataset.max_length
        if longest is not None and longest < self.length:
            raise InputError(
                f"analysis.sinks.length={self.length}: expected at most dataset.max_length={longest}, to which all sequences "
                "are cut"
            )


NOWHERE = "nowhere"
"""The position of learned sinks, which take weight but are no token."""

LOSS = "loss"


def weight_on(category: str) -> str:
    """The measure of ablations that is the weight on a category."""
    return f"weight_on_{category}"


def _largest(rows: Any, column: str) -> Any:
    return rows[column].abs().max()


def _with_controls(rows: Any, _column: str) -> Any:
    return (rows["before"] + rows["controls_mean"]).mean()


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
    f"`first` for the first token of a sequence; a category, whose tokens count separately; or `{NOWHERE}` for the learned "
    "sinks of some models, which are no token.",
    titles={"first": "first token", NOWHERE: "learned sinks"},
)
_MEASURE = Axis(
    "measure",
    f"`{LOSS}`: the loss in nats, of the next token or of masked tokens; `weight_on_<category>`: α summed over the category's "
    "keys, averaged over heads, queries and the layers that the ablation changes.",
    titles={weight_on(category): f"weight on {name}" for category, name in SPECIAL_TOKENS.items()},
)
_OF_VARIANT = "<inputs>/<bos>"

DECLARED = Declared(
    tables={
        "by_head": Table(
            rows=(LAYER, HEAD, _INPUTS, _BOS, _POSITION),
            values={
                "received": "Mean of αₖ, the weight of the key averaged over the queries that see it.",
                "sink_rate": Column("Share of these keys with αₖ > ε.", label="sink rate"),
                "mass": Column(
                    "Share of the head's attention weight that goes to these keys: the mean over sequences of "
                    "Σ_k Σ_i α_ik / T.",
                    label="share of the attention weight (%)",
                ),
                "contribution": Column(
                    "Share of what the head contributes that comes from these keys: in each sequence, the sum of the norms of "
                    "their weighted vectors as a share of the sum over all keys; then the mean over sequences.",
                    label="share of the norms ‖αf(x)‖ (%)",
                ),
                "count": Column("Number of keys.", kind="whole"),
            },
            ranked_by=("sink_rate",),
        ),
        "massive": Table(
            rows=(
                LAYER.but("Layer of the hidden vectors, from 0, the output of the embeddings."),
                DIMENSION,
                Axis("position", "Position of the token, from 1.", kind="whole"),
                Axis("token", "The token."),
            ),
            per="layer, dimension, position and token of massive activations: |x| > 100 and at least 1000 times the median",
            values={
                "value": in_stream("Mean value of the activation."),
                "std": in_stream("Standard deviation of the value over the sequences that have it; 0 for a constant."),
                "median": in_stream("Mean over the sequences of the median |x| of the layer's hidden vectors."),
                "ratio": "Mean of |x| divided by that median.",
                "sequences": Column("Number of sequences with this massive activation.", kind="whole"),
            },
            ranked_by=("ratio",),
        ),
        "ablation": Table(
            rows=(
                Axis(
                    "value",
                    "What the dimensions with massive activations are set to at the tokens that have them, from the first "
                    "layer that reads one to the last: `zero`, or their `mean` over these tokens.",
                    titles={"zero": "set to zero", "mean": "set to their mean"},
                ),
                _MEASURE,
            ),
            per="value and measure, if there are massive activations",
            values={
                "before": "The measure for the unchanged model.",
                "after": "The measure with the activations replaced.",
                "change": CHANGES["change"],
                "controls_mean": "Mean change when as many random dimensions of the same tokens are replaced; missing without "
                "controls.",
                "controls_low": CHANGES["controls_low"],
                "controls_high": CHANGES["controls_high"],
                "sequences": SEQUENCES,
            },
        ),
    },
    metrics=(
        Rollup(
            f"{_OF_VARIANT}/sink_rate/<position>",
            "Share of heads, over sequences and layers, in which the position is a sink: a key with αₖ > ε.",
            of="by_head.sink_rate",
        ),
        Rollup(
            f"{_OF_VARIANT}/mass/<position>",
            "Share of all attention weight that goes to the position, over sequences, layers and heads.",
            of="by_head.mass",
        ),
        Rollup(
            f"{_OF_VARIANT}/contribution/<position>",
            "Share of the norms ‖αf(x)‖ that comes from the position, over sequences, layers and heads.",
            of="by_head.contribution",
        ),
        Rollup(
            "sink_rates/sequences",
            "Number of sequences on which sink rates were measured: the largest over `inputs`.",
            label="sequences whose sink rates were measured",
        ),
        Rollup(
            "sink_rates/half_width",
            "Half the width of the 95% interval over sequences of the first token's sink rate or weight, averaged over all "
            "heads: the widest over `inputs`. Missing for one sequence.",
            label="half the width of the widest interval of sink rates",
        ),
        Rollup(
            "massive/count",
            "Number of dimensions with massive activations.",
            of="massive.dimension",
            how="nunique",
            label="dimensions with massive activations",
        ),
        Rollup(
            "massive/first_layer",
            "First layer with massive activations; 0 is the output of the embeddings.",
            of="massive.layer",
            how="min",
            label="first layer with massive activations",
        ),
        Rollup(
            "massive/last_layer",
            "Last layer with massive activations.",
            of="massive.layer",
            how="max",
            label="last layer with massive activations",
        ),
        Rollup(
            "massive/largest",
            "Largest magnitude of a massive activation, averaged over sequences.",
            of="massive.value",
            how=_largest,
            label="largest massive activation",
        ),
        Rollup(
            "massive/ratio",
            "Largest magnitude of a massive activation divided by the median |x|.",
            of="massive.ratio",
            how=at_largest("value"),
            label="largest massive activation ÷ median |x|",
        ),
        Rollup(
            "ablation/sequences",
            "Number of sequences on which massive activations were replaced.",
            of="ablation.sequences",
            how="max",
            label="sequences whose massive activations were replaced",
        ),
        Rollup(
            "ablation/<value>/<measure>/before",
            "The measure for the unchanged model.",
            of="ablation.before",
            label="unchanged model",
        ),
        Rollup(
            "ablation/<value>/<measure>/after",
            "The measure with all massive activations replaced.",
            of="ablation.after",
            label="massive activations replaced",
        ),
        Rollup(
            "ablation/<value>/<measure>/controls",
            "The mean of the measure when as many random dimensions of the same tokens are replaced.",
            of="ablation.before",
            how=_with_controls,
            label="random dimensions replaced",
        ),
    ),
    curves=(
        Rollup(
            f"{_OF_VARIANT}/sink_rate/<position>",
            "Share of heads, over sequences, in which the position is a sink.",
            of="by_head.sink_rate",
        ),
        Rollup("max_abs", "Largest |x| of a sequence, averaged over sequences.", label="largest |x|"),
    ),
)

SINKS = AnalysisInfo(
    name="sinks",
    title="Attention sinks",
    question="Which token draws most attention, does it contribute, and what happens without it?",
    options=SinksOptions,
    implementation="normscope.analyses.sinks:SinksAnalysis",
    papers=(GU_2025, KOBAYASHI_2020, SUN_2024),
    declared=DECLARED,
)
