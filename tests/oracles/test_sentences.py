"""The sentences of the report, written out by hand; where a number decides what is said, both outcomes."""

import importlib
import inspect
import sys

import pytest

from normscope.analyses.registry import analyses

MIXING = {"attn_w/mean": 0.8, "attnres_n/mean": 0.25, "attnres_n/min": 0.1, "attnres_n/max": 0.4}
WHOLE = {"attnresln_n/mean": 0.5, "attnresln_n/min": 0.2, "attnresln_n/max": 0.9}
NORMS = {"alpha/all": 2.0, "alpha_f/all": 5.0, "alpha/cls": 0.5, "alpha_f/cls": 0.1, "alpha/other": 1.5}
VARIATION = {"f/cv_mean": 0.3, "f/cv_min": 0.1, "f/cv_max": 0.7, "x/cv_mean": 0.05}
SCORE = {"dimensions_for_half/mean": 3.4, "dimensions_for_90_percent/mean": 11.6, "share_of_outliers/mean": 0.123}
BIAS = "The key bias b_K explains {} of the spread of a query's scores over its keys"
CHANGES = {"intervention/cls/change": 0.1, "intervention/sep/change": -0.3, "intervention/sep/controls_mean": 0.02}
AER = {
    "attn_w/awi/best_layer/aer": 0.4,
    "attn_n/awi/best_layer/aer": 0.3,
    "attn_w/awi/layer_mean/aer": 0.8,
    "attn_n/awi/layer_mean/aer": 0.7,
}

CASES = {
    "mixing": [
        ({}, []),
        (
            MIXING,
            [
                "By attention weights alone, 80.0% of a token's output vector would come from other tokens.",
                "With vectors and the residual connection, it is 25.0% on average (attnres_n), from 10.0% to 40.0% "
                "for single tokens: the blocks mostly preserve.",
            ],
        ),
        (
            MIXING | WHOLE,
            [
                "By attention weights alone, 80.0% of a token's output vector would come from other tokens.",
                "With vectors, the residual connection and the layer normalisation, it is 50.0% on average "
                "(attnresln_n), from 20.0% to 90.0% for single tokens: the blocks mostly mix.",
            ],
        ),
    ],
    "norms": [
        ({}, []),
        (NORMS, ["Keys of category cls get 25.0% of the attention weight and contribute 2.0% of Σ‖αf(x)‖."]),
        ({name: value for name, value in NORMS.items() if name != "alpha/all"}, []),
        (NORMS | {"alpha/all": 0.0}, []),
        (
            {"spearman/cls": -0.5, "spearman/other": 0.25},
            [
                "Rank correlation of α and ‖f(x)‖: -0.50 for cls, +0.25 for other; negative means that short "
                "vectors get large weights."
            ],
        ),
        (
            VARIATION,
            ["The length ‖f(x)‖ varies by 30% of its mean in an average head (10% to 70%); that of the inputs by 5%."],
        ),
    ],
    "frequency": [
        ({}, []),
        ({"spearman/alpha/without_specials": 0.5}, []),
        (
            {"spearman/f/with_specials": -0.25, "spearman/attnresln_n/with_specials": 0.5},
            [
                "Rank correlation of a token's frequency rank (1: most frequent): -0.25 with ‖f(x)‖, +0.50 with the mixing "
                "ratio of its block."
            ],
        ),
        (
            {"spearman/alpha/with_specials": 0.125},
            [
                "Rank correlation of a token's frequency rank (1: most frequent): +0.12 with the weight that it receives."
            ],
        ),
    ],
    "outliers": [
        ({"count": 0.0}, ["No hidden dimension is an outlier in enough layers to be one of the model."]),
        (
            {"count": 2.0, "7/share_of_layers": 0.5, "31/share_of_layers": 1.0},
            ["Outlier dimensions of the hidden vectors: 7 (50% of the layers), 31 (100% of the layers)."],
        ),
    ],
    "score": [
        ({}, []),
        (
            SCORE,
            [
                "In an average head, 3 dimensions explain half of the spread of a query's scores, 12 explain 90 %.",
                "The outlier dimensions' share of the spread is 12.3%.",
            ],
        ),
        (
            {"dimensions_for_half/mean": 3.4},
            ["In an average head, 3 dimensions explain half of the spread of a query's scores."],
        ),
        ({"share_of_key_bias/mean": 0.0004}, []),
        ({"share_of_key_bias/mean": -0.25}, [f"{BIAS.format('-25.0%')}."]),
        (
            {
                "share_of_key_bias/mean": 0.0,
                "heads_below_90_percent/share": 0.5,
                "heads_below_half/share": 0.25,
            },
            [
                f"{BIAS.format('0.0%')}; in 50.0% of the heads the dimensions never explain 90 % of it, in 25.0% not even "
                "half, and the mean numbers of dimensions leave those heads out."
            ],
        ),
        (
            CHANGES,
            [
                "Without the outliers' part of the scores, the weight on keys of category sep changes by -0.300; removing as "
                "many random dimensions changes it by +0.020."
            ],
        ),
        (
            CHANGES | {"intervention/cls/change": 0.4},
            ["Without the outliers' part of the scores, the weight on keys of category cls changes by +0.400."],
        ),
    ],
    "alignment": [
        ({}, []),
        (
            AER | {"giza/aer": 0.1, "giza/recall": 0.2, "attn_w/awi/union/aer": 0.6},
            [
                "Alignment with input: the best layer has an AER of 30.0% by vector norms and of 40.0% by weights; the "
                "mean over layers is 70.0% and 80.0%.",
                "giza has an AER of 10.0% on the same pairs.",
            ],
        ),
        (
            {name.replace("awi", "awo"): value for name, value in AER.items()},
            [
                "Alignment with output: the best layer has an AER of 30.0% by vector norms and of 40.0% by weights; the "
                "mean over layers is 70.0% and 80.0%.",
            ],
        ),
        ({"attn_n/awo/best_layer/aer": 0.3}, []),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_sentences(name):
    for metrics, expected in CASES[name]:
        assert module_of(name).sentences_of(metrics) == expected


@pytest.mark.parametrize("name", analyses())
def test_every_line_that_makes_a_sentence_is_tested(name):
    """A sentence that no case has would leave lines that no case runs."""
    sentences = module_of(name)
    functions = [member for _, member in inspect.getmembers(sentences, inspect.isfunction)]
    codes = {code for function in functions for code in _nested(inspect.unwrap(function).__code__)}
    codes = {code for code in codes if code.co_filename == sentences.__file__}
    assert codes
    run = set()

    def trace(frame, _event, _argument):
        if frame.f_code not in codes:
            return None
        run.add((frame.f_code, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for metrics, _ in CASES[name]:
            sentences.sentences_of(metrics)
    finally:
        sys.settrace(before)
    lines = {(code, line) for code in codes for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
    missed = sorted(line for code, line in lines - run)
    assert not missed, f"lines of {sentences.__file__} that no case runs: {missed}"


def module_of(name):
    """The module with the sentences of an analysis, which stands beside its implementation."""
    package = analyses()[name].implementation.partition(":")[0].rpartition(".")[0]
    return importlib.import_module(f"{package}.sentences")


def _nested(code):
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _nested(constant)
