"""Attribution: which method is faithful on my text? Options, and what the analysis returns."""

import dataclasses
import enum
import importlib.util
from typing import Annotated, Any

from omegaconf import II
from pydantic import Field

from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import (
    ABNAR_2020,
    ACHTIBAT_2024,
    DEYOUNG_2020,
    FERRANDO_2022,
    FERRANDO_2022_PLUS,
    KOBAYASHI_2021,
    MODARRESSI_2022,
    MODARRESSI_2023,
    MOHEBBI_2023,
)
from normscope.config.rules import AboveZero, Count, Seed
from normscope.errors import InputError
from normscope.maths.choices import AttentionRule, Pooling, ReadoutTarget, ValueBias
from normscope.results.declare import Axis, Column, Declared, Rollup, Table


class AttributionMethod(enum.StrEnum):
    """The methods: those that end in a map, and gradients."""

    rollout = "rollout"
    norm_rollout = "norm_rollout"
    globenc = "globenc"
    alti = "alti"
    value_zeroing = "value_zeroing"
    decompx = "decompx"
    gradient_x_input = "gradient_x_input"
    integrated_gradients = "integrated_gradients"
    through_attention = "through_attention"


class AttributionStage(enum.StrEnum):
    """The stage of a layer whose norms `norm_rollout` multiplies."""

    attnres_n = "attnres_n"
    attnresln_n = "attnresln_n"
    block = "block"
    layer = "layer"


class Erasure(enum.StrEnum):
    """How tokens are erased to test whether scores are faithful."""

    mask = "mask"
    remove = "remove"


@dataclasses.dataclass
class AttributionOptions(AnalysisConfig):
    """Attribution through all layers, agreement between methods, and faithfulness, over a sample of sequences; with
    `model.stack=cross`, how much of each word of a translation comes from the source."""

    methods: Annotated[list[AttributionMethod], Field(min_length=1)] | None = None
    """Some of `rollout`, `norm_rollout`, `globenc`, `alti`, `value_zeroing`, `decompx`, `through_attention` (which follows
    attention weights as well, where `decompx` holds them), `gradient_x_input` and `integrated_gradients` (which needs Captum).
    By default, the first six, as far as they are defined for the model's family."""
    attention: AttentionRule = II("attention")
    """`through` adds `through_attention` to the default methods. By default, the run's `attention`."""
    stage: AttributionStage = AttributionStage.block
    """Stage whose norms `norm_rollout` multiplies: `attnres_n`, `attnresln_n`, whichever of them ends the attention `block`, or
    the whole `layer`, which takes many times as long."""
    bias: ValueBias = ValueBias.token
    """Where `decompx` puts the value biases of the first layer: with all other biases (`token`), or with the tokens whose
    values they belong to (`decompx`), as its official code does."""
    sequences: Count = 8
    """Maximum number of random sequences."""
    tokens: Count | None = 64
    """Sequences of at most this many tokens are drawn first; longer ones are drawn only if the corpus has too few of these,
    because time and memory for maps grow with the square of a sequence's length; null draws from all sequences alike. Pairs
    (for translations and `target=answer`) are always drawn from all."""
    pooling: Pooling | None = None
    """How an embedding is pooled (`mean`, `cls` or `last`); if set, the embedding is attributed whatever heads the checkpoint
    has. By default, as the model's files say; otherwise causal models use the last token's vector, and others the mean."""
    shares: Annotated[list[Annotated[float, Field(gt=0, lt=100)]], Field(min_length=1)] = dataclasses.field(
        default_factory=lambda: [1.0, 5.0, 10.0, 20.0, 50.0]
    )
    """Percentages of a sequence's ordinary tokens to erase or keep, at least one token each; AOPC is the mean over them."""
    erasure: Erasure | None = None
    """Whether tokens are replaced with the mask token (`mask`) or removed (`remove`); by default `mask`, if the
    tokenizer has one and `target` is not `loss`."""
    orders: Count = 3
    """Number of random orders of each sequence's tokens, as a baseline."""
    steps: Count = 50
    """Number of steps of `integrated_gradients`."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences and the random orders."""
    target: ReadoutTarget | None = None
    """What is attributed: the `label` that a classifier predicts, the `next` token of a causal language model, or the length
    of the `embedding`; by default, what the checkpoint has weights for, in this order. For a causal language model, it can
    also be the `answer`, the second text of each pair (`dataset.pair_column`), or the `loss` on the text's own tokens."""
    precision: AboveZero | None = 0.4
    """The sample ends early once it is known how much more faithful the best method is than random orders: when the 95%
    interval of the difference in comprehensiveness is within ± this share of the difference; null attributes all sequences.
    Translations are always all attributed."""

    def validate(self, _run: RunSettings) -> None:
        """Check that Captum is installed if a method needs it, and that a pooling is given for embeddings only."""
        if self.pooling is not None and self.target not in (None, ReadoutTarget.embedding):
            raise InputError(
                f"analysis.attribution.pooling={self.pooling}: it applies to embeddings only, got "
                f"analysis.attribution.target={self.target}; leave one of them out"
            )
        if self.target is ReadoutTarget.loss and self.erasure is Erasure.mask:
            raise InputError(
                "analysis.attribution.erasure=mask: target=loss measures the loss of the tokens that remain, so tokens are "
                "removed; leave erasure out"
            )
        wanted = AttributionMethod.integrated_gradients in (self.methods or ())
        if wanted and importlib.util.find_spec("captum") is None:
            raise InputError(
                "analysis.attribution.methods: integrated_gradients needs Captum, which is not installed; run "
                "`pip install captum`, or leave it out"
            )


_INTERVAL = "{} end of the 95% interval over sequences (Student's t); missing for one sequence."
_LOW, _HIGH = _INTERVAL.format("Lower"), _INTERVAL.format("Upper")
_SEQUENCES = Column("Number of sequences.", kind="whole")

METHODS = {
    "rollout": "rollout of weights",
    "norm_rollout": "rollout of norms",
    "globenc": "GlobEnc",
    "alti": "ALTI",
    "value_zeroing": "value zeroing",
    "decompx": "DecompX",
    "gradient_x_input": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "through_attention": "through attention",
    "random": "random order",
}
"""Titles of the methods."""

OF_TRANSLATIONS = {"alti": "ALTI+", "decompx": "DecompX"}
"""Titles of the methods that attribute translations."""

QUANTITIES = {
    "probability": "the probability of the predicted class or token",
    "value": "the predicted value",
    "answer": "the probability of the answer (the geometric mean over its tokens)",
    "loss": "the loss of the remaining tokens (nats per token)",
    "cosine": "the cosine with the untouched embedding",
}
"""What `<quantity>` stands for, in sentences."""

FALLING = {"answer": "answer probability"}
"""What a quantity is called in labels, if not by its name."""

_METHOD = Axis("method", "The attribution method.", titles=METHODS)


def _over_translations(rows: Any, column: str) -> Any:
    """The mean over the words of each translation, then over translations."""
    return rows.groupby("row")[column].mean().mean()


def _drops(**meanings: str) -> dict[str, Column]:
    """Columns of drops over sequences, whatever drops, and the number of sequences."""
    columns = {name: Column(meaning, unit="nats if a loss drops") for name, meaning in meanings.items()}
    return columns | {"count": _SEQUENCES}


DECLARED = Declared(
    tables={
        "agreement": Table(
            rows=(
                _METHOD,
                Axis("other", "The method that it is compared with.", titles=METHODS),
            ),
            per="pair of methods",
            values={
                "spearman": "Mean over sequences of Spearman's ρ between the scores of the ordinary tokens.",
                "low": _LOW,
                "high": _HIGH,
                "count": Column("Number of sequences for which ρ is defined.", kind="whole"),
            },
        ),
        "faithfulness": Table(
            rows=(
                _METHOD.but("The method, or `random` for the mean over random orders."),
                Axis(
                    "measure",
                    "`comprehensiveness`: the tokens with the highest scores are erased. `sufficiency`: all other ordinary "
                    "tokens are erased.",
                ),
                Axis("share", "Percentage of the ordinary tokens that are erased or kept.", kind="number"),
            ),
            values=_drops(
                mean="Mean drop over sequences in the probability of the predicted class or next token, or of the answer "
                "(the geometric mean over its tokens); in the cosine with the untouched embedding; or in the loss of the "
                "remaining tokens (nats per token).",
                low=_LOW,
                high=_HIGH,
            ),
        ),
        "ranking": Table(
            rows=(
                Axis("rank", "Rank by comprehensiveness, from 1.", kind="whole"),
                _METHOD.but("The method, or `random`."),
            ),
            per="method, the largest comprehensiveness first",
            values=_drops(
                comprehensiveness="AOPC: mean drop over all shares when the tokens with the highest scores are erased. "
                "Higher is more faithful.",
                comprehensiveness_low=_LOW,
                comprehensiveness_high=_HIGH,
                sufficiency="AOPC: mean drop over all shares when all other ordinary tokens are erased. Lower is more "
                "faithful.",
                sufficiency_low=_LOW,
                sufficiency_high=_HIGH,
                above_random="Mean over sequences of comprehensiveness minus that of random orders; missing for `random`.",
                above_random_low=_LOW,
                above_random_high=_HIGH,
                below_best="Mean over sequences of the best method's comprehensiveness minus this one's; missing for the "
                "best method. If the interval contains 0, the sample cannot tell the two apart.",
                below_best_low=_LOW,
                below_best_high=_HIGH,
            ),
        ),
        "target_words": Table(
            rows=(
                _METHOD,
                Axis("row", "Row in the corpus, from 1.", noun="translation", kind="whole"),
                Axis("word", "Number of the word, from 0; words are separated by spaces.", kind="whole"),
            ),
            per="method and word of a target, with `model.stack=cross`",
            values={
                "text": Column("The word.", kind="text"),
                "source": "Share of the word that comes from the source, including the source's special tokens, in [0, 1]. The "
                "rest comes from the target so far.",
                "special": "Share that comes from the source's special tokens; part of `source`.",
            },
        ),
    },
    metrics=(
        Rollup(
            "agreement/<method>/<other>",
            "Mean over sequences of Spearman's ρ between the scores of two methods.",
            of="agreement.spearman",
            label="Spearman’s ρ of the scores",
        ),
        Rollup(
            "<quantity>/comprehensiveness/<method>",
            "AOPC of comprehensiveness; the quantity is the `probability` of the predicted class or next token, the `value` of "
            "a regression, the `cosine` with the untouched embedding, the probability of the `answer`, or the `loss` of the "
            "remaining tokens.",
            of="ranking.comprehensiveness",
            label="comprehensiveness",
        ),
        Rollup(
            "<quantity>/sufficiency/<method>", "AOPC of sufficiency.", of="ranking.sufficiency", label="sufficiency"
        ),
        Rollup(
            "faithfulness/sequences",
            "Number of sequences on which the methods were tested.",
            of="ranking.count",
            how="max",
            label="sequences on which faithfulness was tested",
        ),
        Rollup(
            "translation/<method>/source",
            "Mean share of a target word that comes from the source: over the words of each translation, then over "
            "translations.",
            of="target_words.source",
            how=_over_translations,
            label="share of the translation that comes from the source (%)",
        ),
        Rollup(
            "translation/<method>/special",
            "The part of this share that comes from the source's special tokens.",
            of="target_words.special",
            how=_over_translations,
            label="share of the translation that comes from the source’s special tokens (%)",
        ),
    ),
)

ATTRIBUTION = AnalysisInfo(
    name="attribution",
    title="Attribution",
    question="Which method says most faithfully what an output depends on?",
    options=AttributionOptions,
    implementation="normscope.analyses.attribution:AttributionAnalysis",
    papers=(
        ABNAR_2020,
        KOBAYASHI_2021,
        MODARRESSI_2022,
        FERRANDO_2022,
        FERRANDO_2022_PLUS,
        MOHEBBI_2023,
        MODARRESSI_2023,
        ACHTIBAT_2024,
        DEYOUNG_2020,
    ),
    supports_words=True,
    supports_cross_attention=True,
    declared=DECLARED,
)
