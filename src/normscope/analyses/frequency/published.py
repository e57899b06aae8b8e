"""What the frequency analysis publishes."""

from collections.abc import Mapping

from normscope.results.axes import ERROR_BOUND, LAYER, METHODS, REASON, SPEARMAN, VOCABULARY, in_stream
from normscope.results.declare import Axis, Column, Published, Rollup, Table

_MEASURE = Axis(
    "measure",
    "`alpha`: α received, and `f`: ‖f(x)‖, both averaged over heads; otherwise the method of a mixing ratio.",
    titles={"alpha": "α received", "f": "‖f(x)‖", **METHODS},
)
_SPECIALS = Axis(
    "specials",
    "Whether special tokens are counted: `with` or `without`.",
    titles={"with": "with specials", "without": "without specials"},
)
_CORRELATION: Mapping[str, Column | str] = {
    "spearman": Column(f"{SPEARMAN} If it is positive, rarer tokens have larger values.", label="Spearman’s ρ"),
    "count": Column("Number of token occurrences with a frequency rank.", kind="whole"),
    "error_bound": ERROR_BOUND,
    "reason": REASON,
}
_RANK = Column("Frequency rank of the token, 1 for the most frequent.", kind="whole")
_MEASURES: Mapping[str, Column | str] = {
    "alpha": "Mean weight received from a query, over heads and layers.",
    "f": in_stream("Mean ‖f(x)‖ over heads and layers."),
    "<method>": "Mean mixing ratio over layers, one column per method.",
}
_NAME = "spearman/<measure>/<specials>_specials"

PUBLISHED = Published(
    tables={
        "correlation": Table(
            rows=(_MEASURE, _SPECIALS), per="measure, with and without special tokens", values=_CORRELATION
        ),
        "correlation_by_layer": Table(
            rows=(LAYER, _MEASURE, _SPECIALS),
            per="layer and measure, with and without special tokens",
            values=_CORRELATION,
        ),
        "by_token": Table(
            rows=VOCABULARY,
            per="token of the vocabulary that occurs",
            values={
                "rank": Column(f"{_RANK.meaning[:-1]}; missing if it was not counted.", kind="whole"),
                "reference_count": Column("Occurrences in the text whose tokens define the ranks.", kind="whole"),
                "count": Column("Occurrences in the corpus.", kind="whole"),
                **_MEASURES,
            },
        ),
        "sample": Table(
            rows=(),
            per="sampled token occurrence, without special tokens",
            values={"rank": _RANK, **_MEASURES},
            repeats=True,
        ),
    },
    metrics=(
        Rollup(
            _NAME,
            "Spearman's ρ between the frequency rank and a measure averaged over layers, `with` or `without` special tokens.",
            of="correlation.spearman",
        ),
    ),
    curves=(
        Rollup(
            _NAME,
            "Spearman's ρ between the frequency rank and a measure within a layer, `with` or `without` special tokens.",
            of="correlation_by_layer.spearman",
        ),
    ),
)
