"""Options of the mixing analysis."""

import dataclasses

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.mixing.published import PUBLISHED
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2021


@dataclasses.dataclass
class MixingOptions(AnalysisConfig):
    """Mixing ratios (Kobayashi et al. 2021)."""


MIXING = AnalysisInfo(
    name="mixing",
    title="Mixing ratios",
    question="How much of a token's output vector comes from other tokens?",
    options=MixingOptions,
    implementation="normscope.analyses.mixing.analysis:MixingAnalysis",
    papers=(KOBAYASHI_2021, CUNNINGHAM_2026),
    supports_words=True,
    supports_cross_attention=True,
    published=PUBLISHED,
)
