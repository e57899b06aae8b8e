"""Options of the attribution analysis."""

import dataclasses
import enum
import importlib.util
from typing import Annotated

from omegaconf import II
from pydantic import Field

from normscope.analyses.attribution.published import PUBLISHED
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
        if self.enabled and self.pooling is not None and self.target not in (None, ReadoutTarget.embedding):
            raise InputError(
                f"analysis.attribution.pooling={self.pooling}: it applies to embeddings only, got "
                f"analysis.attribution.target={self.target}; leave one of them out"
            )
        if self.enabled and self.target is ReadoutTarget.loss and self.erasure is Erasure.mask:
            raise InputError(
                "analysis.attribution.erasure=mask: target=loss measures the loss of the tokens that remain, so tokens are "
                "removed; leave erasure out"
            )
        wanted = AttributionMethod.integrated_gradients in (self.methods or ())
        if self.enabled and wanted and importlib.util.find_spec("captum") is None:
            raise InputError(
                "analysis.attribution.methods: integrated_gradients needs Captum, which is not installed; run "
                "`pip install captum`, or leave it out"
            )


ATTRIBUTION = AnalysisInfo(
    name="attribution",
    title="Attribution",
    question="Which method says most faithfully what an output depends on?",
    options=AttributionOptions,
    implementation="normscope.analyses.attribution.analysis:AttributionAnalysis",
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
    published=PUBLISHED,
)
