"""Analyses: which maths, which accumulators, which tables and figures. One file each.

`ANALYSES` is the whole registry: the names are those of the `analysis` config group, and each is made from its options and the
subject that is looked at.
"""

from normscope.alignment.analysis import AlignmentAnalysis
from normscope.analyses.base import Analysis
from normscope.analyses.frequency.analysis import FrequencyAnalysis
from normscope.analyses.mixing.analysis import MixingAnalysis
from normscope.analyses.norms.analysis import NormsAnalysis
from normscope.analyses.outliers.analysis import OutliersAnalysis
from normscope.analyses.score.analysis import ScoreAnalysis

ANALYSES: dict[str, type[Analysis]] = {
    analysis.name: analysis
    for analysis in (
        MixingAnalysis,
        NormsAnalysis,
        FrequencyAnalysis,
        OutliersAnalysis,
        ScoreAnalysis,
        AlignmentAnalysis,
    )
}
