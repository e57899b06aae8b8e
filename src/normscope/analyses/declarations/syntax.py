"""Syntax: does the weight or the vector find the syntactic head? Options, and what the analysis returns."""

import dataclasses
from typing import Any

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CLARK_2019
from normscope.results.axes import HEAD, LAYER
from normscope.results.declare import Axis, Column, Declared, Rollup, Table, Where


@dataclasses.dataclass
class SyntaxOptions(AnalysisConfig):
    """Which heads and layers follow dependency relations (Clark et al. 2019), by weights and by vectors."""

    punctuation: bool = False
    """Whether punctuation counts in the relation `all`."""
    subtypes: bool = False
    """Whether relations keep their subtypes: `nsubj:pass` beside `nsubj`."""


_LAYER = LAYER.but("Layer, from 1; 0 for a baseline.")
_HEAD = HEAD.but("Head, from 1; 0 stands for all heads: the map of the whole block or layer, or a baseline.")
_MEASURE = Axis(
    "measure",
    "`attn_w` (weights), `attn_n` (vectors), `attnres_n` (with the residual connection), `attnresln_n` (with the "
    "normalisation), `layer` (to the end of the layer); or a baseline: `fixed_offset` (the syntactic head is always the same "
    "number of words away), `right_branching` (it is the next word).",
    titles={"layer": "the whole layer"},
)
_RELATION = Axis(
    "relation",
    "Relation of the dependent to its syntactic head; `all` stands for all but `root` and, by default, `punct`.",
)
_DIRECTION = Axis(
    "direction",
    "`dependent-head` if the largest entry in the dependent's row should be its syntactic head, `head-dependent` for the "
    "reverse.",
)
_CANDIDATES = Axis(
    "candidates",
    "Which keys compete: `no_self` (all but the word itself) or `words` (without special tokens as well).",
    noun="kind of candidates",
)
_HALF = Axis("half", "`odd` or `even` sentences of the corpus, or `both`.", noun="half of the corpus")
_LOW = "Lower end of the 95% interval (Clopper–Pearson) over sentences; missing with fewer than two."
_HIGH = "Upper end of the 95% interval (Clopper–Pearson) over sentences; missing with fewer than two."


def _of_model(layers: Any) -> Any:
    return layers > 0


def _over_arcs(rows: Any, column: str) -> Any:
    return (rows[column] * rows["count"]).sum() / rows["count"].sum()


_BASELINE: Where = {"measure": "right_branching", "layer": 0}

DECLARED = Declared(
    tables={
        "heads": Table(
            rows=(_LAYER, _HEAD, _MEASURE, _RELATION, _DIRECTION, _CANDIDATES, _HALF),
            values={
                "accuracy": Column(
                    "Share of the arcs at which the largest entry is the correct word.",
                    label="largest accuracy of a head (%)",
                ),
                "low": _LOW,
                "high": _HIGH,
                "count": Column("Number of arcs.", kind="whole"),
                "baseline": "Accuracy of the best fixed offset on these arcs, chosen on the other half; for `both`, on both.",
            },
            ranked_by=("accuracy",),
        ),
        "best": Table(
            rows=(
                _MEASURE.but("Measure. Single heads compete for `attn_w` and `attn_n`, layers for the others."),
                _RELATION,
                _CANDIDATES,
                _HALF.but("Half of the corpus on which the choice is scored; it was made on the other half."),
            ),
            values={
                "layer": Column("Chosen layer, from 1.", kind="whole"),
                "head": Column("Chosen head, from 1; 0 if layers compete.", kind="whole"),
                "direction": Column("Chosen direction.", kind="text"),
                "accuracy": "Accuracy of the choice on this half.",
                "low": _LOW,
                "high": _HIGH,
                "count": Column("Number of arcs of this half.", kind="whole"),
                "offset": Column(
                    "Best fixed offset of the relation on the other half: 1 if the syntactic head is the next word.",
                    kind="whole",
                ),
                "baseline": "Accuracy of this offset on this half.",
                "right_branching": "Accuracy on this half of always choosing the next word as the syntactic head.",
            },
        ),
    },
    metrics=(
        Rollup(
            "<measure>/best/<relation>",
            "Accuracy of the best head (for whole blocks: layer) for the relation, with `words` as candidates; selected on one "
            "half of the corpus and scored on the other, for both halves.",
            of="best.accuracy",
            how=_over_arcs,
            where={"candidates": "words"},
            label="accuracy of the best head (%)",
        ),
        Rollup(
            "gain/<sinks>",
            "What norms add to weights: accuracy over `all` relations of the best head by `attn_n` minus that of the best head "
            "by `attn_w`, with all other tokens (`with_sinks`) or only words (`sinks_masked`) as candidates.",
            label="accuracy that norms add to weights (%)",
        ),
        Rollup(
            "right_branching/all",
            "Accuracy over `all` relations of the baseline.",
            of="heads.accuracy",
            where={**_BASELINE, "half": "both", "relation": "all"},
            label="accuracy of always choosing the next word (%)",
        ),
        Rollup(
            "dropped/<reason>",
            "Number of arcs that were excluded: between words that share the same tokens (`inside` a multi-word token), or at "
            "a word without a token (`missing`).",
            label="excluded arcs",
        ),
    ),
    curves=(
        Rollup(
            "<measure>/all",
            "Largest accuracy over `all` relations of a head (for whole blocks: of the layer), with `words` as candidates, in "
            "either direction.",
            of="heads.accuracy",
            how="max",
            where={"layer": _of_model, "relation": "all", "candidates": "words", "half": "both"},
        ),
    ),
)

SYNTAX = AnalysisInfo(
    name="syntax",
    title="Syntax",
    question="Do weights or vectors find the syntactic head of a word?",
    options=SyntaxOptions,
    implementation="normscope.analyses.syntax:SyntaxAnalysis",
    papers=(CLARK_2019,),
    supports_words=True,
    requires_annotation=True,
    declared=DECLARED,
)
