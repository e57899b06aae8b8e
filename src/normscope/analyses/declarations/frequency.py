"""Token frequency: are frequent tokens discounted? Options, and what the analysis returns."""

import dataclasses
from collections.abc import Mapping

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import FilePath, Seed
from normscope.results.axes import ERROR_BOUND, LAYER, REASON, SPEARMAN, VOCABULARY, in_stream
from normscope.results.codes import METHODS
from normscope.results.declare import Axis, Column, Declared, Rollup, Table


@dataclasses.dataclass
class FrequencyOptions(AnalysisConfig):
    """Token frequency (Kobayashi et al. 2020 and 2021)."""

    source: FilePath = "corpus"
    """Where tokens are counted: `corpus`, or a text file like those of dataset.path."""
    path: FilePath | None = None
    """A file of `rank count token_id` lines to read the ranks from instead."""
    conventional: bool = False
    """Whether [CLS], [SEP], comma and period rank as the four most frequent tokens, and other special tokens and single
    characters are left out (K20, footnote 5)."""
    seed: Seed = II("seed")
    """Seed of the scatter plot's sample."""


MEASURES = {"alpha": "α received", "f": "‖f(x)‖", **METHODS}
"""Titles of what is compared with frequency."""

_MEASURE = Axis(
    "measure",
    "`alpha`: α received, and `f`: ‖f(x)‖, both averaged over heads; otherwise the method of a mixing ratio.",
    titles=MEASURES,
)
_SPECIALS = Axis(
    "specials",
    "Whether special tokens are counted: `with` or `without`.",
    titles={"with": "with special tokens", "without": "without special tokens"},
)
_CORRELATION: Mapping[str, Column | str] = {
    "spearman": Column(f"{SPEARMAN} If it is positive, rarer tokens have larger values.", label="Spearman’s ρ"),
    "count": Column("Number of token occurrences with a frequency rank.", kind="whole"),
    "error_bound": ERROR_BOUND,
    "reason": REASON,
}
_VALUES: Mapping[str, Column | str] = {
    "alpha": "Mean weight received from a query, over heads and layers.",
    "f": in_stream("Mean ‖f(x)‖ over heads and layers."),
    "<method>": "Mean mixing ratio over layers, one column per method.",
}
_NAME = "spearman/<measure>/<specials>_specials"

DECLARED = Declared(
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
                "rank": Column(
                    "Frequency rank of the token, 1 for the most frequent; missing if it was not counted.", kind="whole"
                ),
                "reference_count": Column("Occurrences in the text whose tokens define the ranks.", kind="whole"),
                "count": Column("Occurrences in the corpus.", kind="whole"),
                **_VALUES,
            },
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

FREQUENCY = AnalysisInfo(
    name="frequency",
    title="Token frequency",
    question="Does the model discount frequent tokens?",
    options=FrequencyOptions,
    implementation="normscope.analyses.frequency:FrequencyAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021),
    declared=DECLARED,
)
