"""The table for the terminal, from the published tables."""

import pandas as pd

from normscope.analyses.attribution.erasures import MEASURES


def summarised(overall: pd.DataFrame, ranking: pd.DataFrame) -> pd.DataFrame:
    """AOPC by method, the largest comprehensiveness first, and the share that comes from the token itself."""
    deepest = overall[(overall["layer"] == overall["layer"].max()) & (overall["source"] == "itself")]
    tested = ranking.set_index("method")[list(MEASURES)]
    own = deepest.set_index("method")["share"].rename("itself").astype(float)
    methods = [*tested.index, *(method for method in own.index if method not in tested.index)]
    return tested.reindex(methods).join(own).rename_axis("method")
