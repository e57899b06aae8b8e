"""All known analyses: the built-in ones, and those of installed packages with an entry point in `normscope.analyses`."""

import functools
import importlib.metadata
import logging
from collections.abc import Mapping
from types import MappingProxyType

from normscope.analyses.declarations.alignment import ALIGNMENT
from normscope.analyses.declarations.attribution import ATTRIBUTION
from normscope.analyses.declarations.feedforward import FEEDFORWARD
from normscope.analyses.declarations.frequency import FREQUENCY
from normscope.analyses.declarations.mixing import MIXING
from normscope.analyses.declarations.norms import NORMS
from normscope.analyses.declarations.outliers import OUTLIERS
from normscope.analyses.declarations.score import SCORE
from normscope.analyses.declarations.similarity import SIMILARITY
from normscope.analyses.declarations.sinks import SINKS
from normscope.analyses.declarations.syntax import SYNTAX
from normscope.analyses.info import AnalysisInfo

ENTRY_POINTS = "normscope.analyses"
"""Entry point group. Each entry point refers to an `AnalysisInfo`."""

_BUILT_IN = (MIXING, FEEDFORWARD, NORMS, FREQUENCY, OUTLIERS, SCORE, SINKS, ATTRIBUTION, SIMILARITY, SYNTAX, ALIGNMENT)

log = logging.getLogger("normscope")


@functools.cache
def analyses() -> Mapping[str, AnalysisInfo]:
    """All analyses by name: the built-in ones, then plug-ins in alphabetical order.

    Plug-ins that cannot be imported or whose name is taken are skipped with a warning, so they cannot break runs that do not
    use them.
    """
    known = {info.name: info for info in _BUILT_IN}
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        origin = f"analysis plug-in {entry.name} ({entry.value})"
        try:
            info = entry.load()
        except Exception as error:  # other people's code
            log.warning("%s cannot be imported: %s: %s", origin, type(error).__name__, error)
            continue
        if not isinstance(info, AnalysisInfo):
            log.warning("%s is ignored: expected an AnalysisInfo, got %s", origin, type(info).__name__)
        elif info.name in known:
            log.warning("%s is ignored: there already is an analysis named %s", origin, info.name)
        else:
            known[info.name] = info
    return MappingProxyType(known)


def plug_ins() -> list[AnalysisInfo]:
    """The analyses of other packages."""
    return [info for info in analyses().values() if info not in _BUILT_IN]
