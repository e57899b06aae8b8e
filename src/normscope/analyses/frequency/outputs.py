"""What the frequency analysis publishes."""

from normscope.analyses.columns import ERROR_BOUND, LAYER, METHODS, REASON, SPEARMAN
from normscope.analyses.info import Outputs, TableInfo

_CORRELATION = {
    "measure": "`alpha`: α received, and `f`: ‖f(x)‖, both averaged over heads; otherwise the method of a mixing ratio.",
    "specials": "Whether special tokens are counted: `with` or `without`.",
    "spearman": f"{SPEARMAN} If it is positive, rarer tokens have larger values.",
    "count": "Number of token occurrences with a frequency rank.",
    "error_bound": ERROR_BOUND,
    "reason": REASON,
}
_MEASURES = {
    "alpha": "Mean weight received from a query, over heads and layers.",
    "f": "Mean ‖f(x)‖ over heads and layers.",
    "<method>": "Mean mixing ratio over layers, one column per method.",
}

OUTPUTS = Outputs(
    tables={
        "correlation": TableInfo(row="measure, with and without special tokens", columns=_CORRELATION),
        "correlation_by_layer": TableInfo(
            row="layer and measure, with and without special tokens", columns={"layer": LAYER, **_CORRELATION}
        ),
        "by_token": TableInfo(
            row="token of the vocabulary that occurs",
            columns={
                "token": "The token.",
                "token_id": "Number of the token in the vocabulary.",
                "rank": "Frequency rank of the token, 1 for the most frequent; missing if it was not counted.",
                "reference_count": "Occurrences in the text whose tokens define the ranks.",
                "count": "Occurrences in the corpus.",
                **_MEASURES,
            },
        ),
        "sample": TableInfo(
            row="sampled token occurrence, without special tokens",
            columns={"rank": "Frequency rank of the token, 1 for the most frequent.", **_MEASURES},
        ),
    },
    metrics={
        "spearman/<measure>/<specials>_specials": "Spearman's ρ between the frequency rank and a measure averaged over layers, "
        "`with` or `without` special tokens.",
    },
    curves={
        "spearman/<measure>/<specials>_specials": "Spearman's ρ between the frequency rank and a measure within a layer, "
        "`with` or `without` special tokens.",
    },
    labels={"spearman/<measure>/<specials>_specials": "Spearman’s ρ"},
    names={
        "alpha": "α received",
        "f": "‖f(x)‖",
        **METHODS,
        "with": "with specials",
        "without": "without specials",
    },
)
