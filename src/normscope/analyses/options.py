"""The options of every analysis, a part of the config's schema."""

import enum
from dataclasses import dataclass, field
from typing import Any

from omegaconf import II


@dataclass
class MixingOptions:
    """Mixing ratios (Kobayashi et al. 2021)."""

    enabled: bool = False


@dataclass
class NormsOptions:
    """Vector norms (Kobayashi et al. 2020)."""

    enabled: bool = False
    exact_pairs: int = 50_000_000
    """Pairs of α and ‖f‖ that are kept for an exact rank correlation; with more it is estimated."""
    sampled_queries: int | None = 512
    """Queries of a sequence, drawn by the seed where it has more, whose pairs enter the rank correlation; null takes all."""
    scatter_pairs: int = 10_000
    """Pairs in the scatter plot's sample."""
    seed: int = II("seed")


@dataclass
class FrequencyOptions:
    """Token frequency (Kobayashi et al. 2020 and 2021)."""

    enabled: bool = False
    source: str = "corpus"
    """Where tokens are counted: `corpus`, or a text file like those of dataset.path."""
    path: str | None = None
    """A file of `rank count token_id` lines instead."""
    conventional: bool = False
    """Whether [CLS], [SEP], comma and period count as the four most frequent, and other special tokens and single
    characters are left out (K20, footnote 5)."""
    exact_pairs: int = 50_000_000
    """Pairs of rank and measure that are kept for exact rank correlations; with more they are estimated."""
    seed: int = II("seed")


class OutlierCriterion(enum.StrEnum):
    """What a dimension's distance from the others is measured in: see `maths/outliers.py`."""

    sigma = "sigma"
    mad = "mad"


@dataclass
class OutliersOptions:
    """Outlier dimensions (Maruta & Matsuzaki 2024); what they are holds for every analysis that speaks of them."""

    enabled: bool = False
    criterion: OutlierCriterion = OutlierCriterion.sigma
    """Unit of the distance: standard deviations (`sigma`), or median absolute deviations (`mad`)."""
    threshold: float = 3.0
    """Distance beyond which a dimension is an outlier of a layer."""
    share: float = 0.5
    """Share of the layers in which it must be one to be an outlier of the model."""
    dimensions: list[int] | None = None
    """The outlier dimensions, in the place of those that are detected."""


@dataclass
class ScoreOptions:
    """Contributions of the dimensions to attention scores (Maruta & Matsuzaki 2024)."""

    enabled: bool = False
    sequences: int | None = None
    """Sequences, drawn by the seed, that contributions are averaged over; all of the corpus by default."""
    interventions: bool = True
    """Whether attention is computed again without the outlier dimensions' part of the scores, the block alone."""
    intervention_sequences: int = 100
    """Sequences, drawn by the seed, that this is done on."""
    controls: int = 20
    """Random sets of dimensions of the same size that it is compared with."""
    ablation: bool = True
    """Whether the model is run again with the outlier dimensions of the residual stream replaced."""
    ablation_sequences: int = 16
    """Sequences, drawn by the seed, that this is done on."""
    ablation_controls: int = 5
    """Random sets of dimensions of the same size that it is compared with."""
    seed: int = II("seed")


class WordsAre(enum.StrEnum):
    """What a word is to which links point."""

    spaced = "spaced"
    punctuated = "punctuated"


@dataclass
class LinkFileOptions:
    """A file of word alignments in Pharaoh format."""

    path: str | None = None
    base: int = 0
    """Number of a sentence's first word: 0 or 1."""
    direction: str = "source-target"
    """Which side comes first in a link; or `target-source`."""


@dataclass
class AlignmentOptions:
    """Word alignment from cross-attention (Kobayashi et al. 2020)."""

    enabled: bool = False
    gold: LinkFileOptions = field(default_factory=LinkFileOptions)
    """What people aligned: `1-2` sure, `3p4` possible."""
    words: WordsAre = WordsAre.spaced
    """What white space separates (`spaced`), or runs of letters and single punctuation marks (`punctuated`)."""
    baselines: Any = None  # a dict; typed as one, keys would need a + on the command line
    """Alignments by others, NAME: FILE, or NAME: {path: FILE, base: 0, direction: source-target}."""
    aligners: list[str] = field(default_factory=list)
    """Other aligners to be run: eflomal, simalign."""
    simalign_model: str = "google-bert/bert-base-multilingual-cased"
    """Model whose embeddings simalign compares."""
    symmetrisation: str = "grow-diag-final"
    """How the two directions of an aligner that is run become one alignment: a `Heuristic`."""
    reverse: str | None = None
    """Run folder of a model in the opposite direction on the same pairs: both are symmetrised."""
    sentences: list[int] = field(default_factory=list)
    """Rows of the corpus, from 1, whose maps are shown; the first three by default."""


@dataclass
class AnalysisOptions:
    """Every analysis, whether or not it is chosen."""

    mixing: MixingOptions = field(default_factory=MixingOptions)
    norms: NormsOptions = field(default_factory=NormsOptions)
    frequency: FrequencyOptions = field(default_factory=FrequencyOptions)
    outliers: OutliersOptions = field(default_factory=OutliersOptions)
    score: ScoreOptions = field(default_factory=ScoreOptions)
    alignment: AlignmentOptions = field(default_factory=AlignmentOptions)
