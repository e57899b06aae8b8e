"""Analyses: which maths, which accumulators, which tables and figures. One file each.

`ANALYSES` is the whole registry: the names are those of the `analysis` config group, and each is made from its options and the
subject that is looked at.
"""

from normscope.analyses.alignment import AlignmentAnalysis
from normscope.analyses.analysis import Analysis
from normscope.analyses.frequency import FrequencyAnalysis
from normscope.analyses.mixing import MixingAnalysis
from normscope.analyses.norms import NormsAnalysis
from normscope.analyses.outliers import OutliersAnalysis
from normscope.analyses.score import ScoreAnalysis

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
