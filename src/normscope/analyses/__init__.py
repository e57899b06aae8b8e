"""Analyses: which maths, which accumulators, which tables and figures. One file each.

`ANALYSES` is the whole registry: the names are those of the `analysis` config group, and each builder gets its options
and the subject that is looked at.
"""

from collections.abc import Callable
from typing import Any

from normscope.analyses.analysis import Analysis, Subject
from normscope.analyses.frequency import FrequencyAnalysis
from normscope.analyses.mixing import MixingAnalysis
from normscope.analyses.norms import NormsAnalysis

ANALYSES: dict[str, Callable[[Any, Subject], Analysis]] = {
    "mixing": lambda _options, subject: MixingAnalysis(subject),
    "norms": NormsAnalysis,
    "frequency": FrequencyAnalysis,
}
