"""The sentences of the report, written out by hand; where a number decides what is said, on both sides of the boundary."""

import inspect
import re
import sys

import numpy as np
import pytest

from normscope.analyses.registry import analyses
from normscope.analyses.text_pairs import DrawnPair
from normscope.analyses.translated_words import sentences_of_translations
from normscope.results.figures import TextPair
from tests.oracles.comparison import module_of_sentences

MIXING = {"attn_w/mean": 0.8, "attnres_n/mean": 0.25, "attnres_n/min": 0.1, "attnres_n/max": 0.4}
SHARES = {"attnres_n/share": 0.125, "attnres_n/own": 0.0, "attnres_n/residual": 0.9, "attnres_n/bias": -0.025}
SIMILAR = TextPair("", ["guitar"], ["music"], np.array([[0.227, 0.0], [0.0, 0.073]]))
WHOLE = {"attnresln_n/mean": 0.5, "attnresln_n/min": 0.2, "attnresln_n/max": 0.9}
RANGE = (
    "The mixing ratio, which includes the vectors, the residual connection and the layer normalisation, ranges from 20% to "
    "90% over tokens and layers."
)
NORMS = {"alpha/all": 0.8, "alpha_f/all": 5.0, "alpha/cls": 0.25, "alpha_f/cls": 0.1, "alpha/other": 0.55}
SCORE = {"dimensions_for_half/mean": 3.4, "dimensions_for_90_percent/mean": 116.2, "share_of_outliers/mean": 0.123}
BIAS = "The key bias b_K makes up {} of the spread of a query's scores over its keys."
WITHOUT_OUTLIERS = "Without the outlier dimensions' part of the scores, in one block at a time, the attention weight on"
SEP = {
    "intervention/sep/before": 0.5,
    "intervention/sep/after": 0.2,
    "intervention/sep/change": -0.3,
    "intervention/sep/controls_mean": 0.02,
}
CLS = {"intervention/cls/before": 0.25, "intervention/cls/after": 0.35, "intervention/cls/change": 0.1}
OTHER = {"intervention/other/before": 0.1, "intervention/other/after": 0.5, "intervention/other/change": 0.4}
AER = {
    "attn_w/awi/best_layer/aer": 0.4,
    "attn_n/awi/best_layer/aer": 0.3,
    "attn_w/awi/layer_mean/aer": 0.8,
    "attn_n/awi/layer_mean/aer": 0.7,
}
SINK = {
    "text/with_bos/sink_rate/first": 0.6,
    "text/with_bos/sink_rate/sep": 0.25,
    "text/with_bos/mass/first": 0.5,
    "text/with_bos/contribution/first": 0.12,
    "random/without_bos/sink_rate/first": 0.4,
    "random/without_bos/sink_rate/sep": 0.9,
}
MASSIVE = {
    "massive/count": 2.0,
    "massive/first_layer": 3.0,
    "massive/last_layer": 11.0,
    "massive/largest": 3024.0,
    "massive/ratio": 12345.0,
}
ALIGNED = (
    "vector norms have an alignment error rate of 30% and attention weights of 40%, each in its best layer; averaged over "
    "layers, 70% and 80%."
)

NAN = float("nan")
FALLS = {"decompx": 0.5, "alti": 0.45, "globenc": 0.4, "random": 0.25}
ABOVE = {"decompx": 0.1, "alti": 0.1, "globenc": 0.1, "random": NAN}
NOT_DETECTABLE = (
    "On this sample, no method is detectably more faithful than a random order: without the tokens that rank highest, the "
    "probability of the predicted class or token falls by at most {} on average ({})"
)
NOTHING_MATTERS = (
    "No method finds tokens that matter: without the tokens that rank highest, the probability of the predicted class or "
    "token"
)

CASES = {
    "mixing": [
        ({}, []),
        (
            {"attn_w/mean": 0.8},
            ["By attention weights alone, the mean mixing ratio is 80%."],
        ),
        (
            MIXING,
            [
                "On average, tokens take less from other tokens than they preserve of themselves: the mean mixing ratio of the "
                "attention blocks is 25%; attention weights alone suggest 80%.",
                "The mixing ratio, which includes the vectors and the residual connection, ranges from 10% to 40% over "
                "tokens and layers.",
            ],
        ),
        *(
            (
                WHOLE | {"attnresln_n/mean": mean},
                [
                    f"On average, tokens take {amount} they preserve of themselves: the mean mixing ratio of the attention "
                    f"blocks is {written}.",
                    RANGE,
                ],
            )
            for mean, amount, written in (
                (0.4949, "less from the source than", "49%"),
                (0.4951, "about as much from the source as", "49.5%"),
                (0.4994, "about as much from the source as", "49.9%"),
                (0.4996, "as much from the source as", "50%"),
                (0.5, "as much from the source as", "50%"),
                (0.5004, "as much from the source as", "50%"),
                (0.5006, "about as much from the source as", "50.1%"),
                (0.5051, "more from the source than", "51%"),
            )
        ),
        (
            MIXING | WHOLE,
            [
                "On average, tokens take as much from other tokens as they preserve of themselves: the mean mixing ratio of "
                "the attention blocks is 50%; attention weights alone suggest 80%.",
                RANGE,
            ],
        ),
        *(
            (
                SHARES | (MIXING if by_weights else {name: MIXING[name] for name in MIXING if name != "attn_w/mean"}),
                [
                    f"On average, tokens take less from {origin} than they preserve of themselves: the mean mixing ratio of "
                    f"the attention blocks is 25%{suggestion}.",
                    "The mixing ratio, which includes the vectors and the residual connection, ranges from 10% to 40% over "
                    "tokens and layers.",
                    f"Measured along the output vectors, where parts add up to 100%, 13% comes from {origin}, {through}90% "
                    "from the residual connection and −2.5% from biases.",
                ],
            )
            for by_weights, origin, suggestion, through in (
                (
                    True,
                    "other tokens",
                    "; attention weights alone suggest 80%",
                    "0% from the token itself through attention, ",
                ),
                (False, "the source", "", ""),
            )
        ),
    ],
    "feedforward": [
        ({}, []),
        (
            {"atb_n/mean": 0.25, "atbffres_n/mean": 0.2, "change/ff": 0.3, "change/ff+res": 0.1234},
            [
                "After the whole layer, the mean mixing ratio is 20%; after the attention block, it is 25%.",
                "The feed-forward network alone changes the order of contributions by 0.30 (1 − Spearman's ρ); with what "
                "follows it in the layer, the change is smaller: 0.12.",
            ],
        ),
        (
            {"atb_n/mean": 0.25, "atbffres_n/mean": 0.2, "atbffresln_n/mean": 0.3},
            [
                "After the whole layer, the mean mixing ratio is 30%; after the attention block, it is 25%.",
            ],
        ),
        *(
            (
                {"change/ff": 0.1, "change/ff+res": whole},
                [
                    f"The feed-forward network alone changes the order of contributions by {first} (1 − Spearman's ρ); with "
                    f"what follows it in the layer, the change is {change}.",
                ],
            )
            for whole, first, change in (
                (0.0989, "0.10", "smaller: 0.099"),
                (0.09994, "0.100", "about the same: 0.0999"),
                (0.09996, "0.10", "the same"),
                (0.1, "0.10", "the same"),
                (0.1004, "0.10", "the same"),
                (0.1006, "0.100", "about the same: 0.101"),
                (0.1011, "0.100", "larger: 0.101"),
            )
        ),
        (
            {"change/ff": 0.1, "change/ff+res": 0.05, "change/ff+res+ln": 0.2},
            [
                "The feed-forward network alone changes the order of contributions by 0.10 (1 − Spearman's ρ); with what "
                "follows it in the layer, the change is larger: 0.20.",
            ],
        ),
    ],
    "similarity": [
        ({}, []),
        (
            {"pairs": 1500.0, "cosine": 0.5, "with_bias": -0.1, "category/cls": 0.2, "category/bias": 0.4},
            [
                "The mean cosine similarity of 1,500 pairs of texts is 0.50: pairs of tokens add 0.60, and pairs with the "
                "model's biases on at least one side subtract 0.10.",
            ],
        ),
        *(
            (
                {"pairs": 2.0, "cosine": 0.5, "with_bias": -0.1, "category/bias": 0.4} | categories,
                [
                    "The mean cosine similarity of 2 pairs of texts is 0.50: pairs of tokens add 0.60, and pairs with the "
                    f"model's biases on at least one side subtract 0.10.{most}"
                ],
            )
            for categories, most in (
                ({"category/cls": 0.2}, ""),  # the only category of tokens is not the first of several
                ({"category/cls": 0.2, "category/other": 0.1}, " [CLS] tokens add most to it: 0.20."),
                (
                    {"category/cls": 0.2, "category/punctuation": 0.2001},
                    " [CLS] and punctuation tokens add most to it: about 0.20 each.",
                ),
                ({"category/cls": 0.2, "category/punctuation": 0.2011}, " Punctuation tokens add most to it: 0.20."),
                ({"category/cls": 0.2, "category/other": 0.3}, " Ordinary tokens add most to it: 0.30."),
                ({"category/cls": 0.001, "category/other": -0.1}, " [CLS] tokens add most to it: 0.0010."),
                ({"category/cls": 0.0, "category/other": -0.1}, ""),
            )
        ),
        (
            {"pairs": 2.0, "cosine": -0.25, "with_bias": -0.2, "gold/count": 2.0},
            [
                "The mean cosine similarity of 2 pairs of texts is −0.25: pairs of tokens subtract 0.050, and pairs with "
                "the model's biases on at least one side subtract 0.20.",
            ],
        ),
        (
            {"pairs": 2.0, "cosine": 0.5, "with_bias": 0.0, "gold/spearman": 0.8123, "gold/count": 1234.0},
            [
                "The mean cosine similarity of 2 pairs of texts is 0.50: pairs of tokens add 0.50, and pairs with the "
                "model's biases on at least one side add 0.",
                "Spearman's ρ between the cosines and the gold scores of 1,234 pairs is +0.81.",
            ],
        ),
        (
            {},
            {"drawn": {4: DrawnPair(SIMILAR, 0, [("guitar", "music", 0.227), ("man", "someone", 0.05)])}},
            [
                "The cosine similarity of pair 4 is 0.300; the pairs of words that add most are guitar–music (+0.227) and "
                "man–someone (+0.0500)."
            ],
        ),
        (
            {},
            {"drawn": {4: DrawnPair(SIMILAR, 2, []), 5: DrawnPair(SIMILAR, 0, [])}},
            [
                "The cosine similarity of query 1 and document 2, the most similar one, is 0.300; no pair of words adds to it."
            ],
        ),
        (
            {"gold/spearman": 0.8123, "gold/count": 12.0},
            {"friends": ["dog", "man", "cut", "cat"]},
            [
                "Spearman's ρ between the cosines and the gold scores of 12 pairs is +0.81; in the quarter with the lowest "
                "gold scores, these words add most: “dog”, “man” and “cut”."
            ],
        ),
    ],
    "syntax": [
        ({}, []),
        (
            {"attn_w/best/all": 0.4, "attn_n/best/all": 0.425, "right_branching/all": 0.3},
            [
                "The best head by weights finds 40% of the arcs and the best head by vector norms 43%, each on the half of "
                "the corpus not used to select it; always choosing the next word finds 30%.",
            ],
        ),
        *(
            (
                {"gain/with_sinks": 0.081, "gain/sinks_masked": gain},
                [
                    "With special tokens allowed, norms raise the accuracy of the best head by 8.1 percentage "
                    f"points; with special tokens excluded, they {change}.",
                ],
            )
            for gain, change in (
                (-0.0006, "lower the accuracy of the best head by 0.1 percentage points"),
                (-0.0004, "change the accuracy of the best head by less than 0.1 points"),
                (0.0, "change the accuracy of the best head by less than 0.1 points"),
                (0.0004, "change the accuracy of the best head by less than 0.1 points"),
                (0.0006, "raise the accuracy of the best head by 0.1 percentage points"),
            )
        ),
    ],
    "norms": [
        ({}, []),
        *(
            (
                {"alpha_f/all": 5.0, "alpha_f/sep": 1.0, "share/all": 0.9, "share/sep": share},
                [
                    f"Norms {'over' if share < 0.1 else 'under'}state what [SEP] tokens contribute: these have 20% of "
                    f"Σ‖αf(x)‖, but {written} of what comes from all tokens along the output vectors, where "
                    "contributions add up."
                ]
                if written
                else [],
            )
            # Between half and one and a half of the norms' share, nothing is said.
            for share, written in ((-0.09, "−10%"), (0.0891, "9.9%"), (0.0901, ""), (0.2699, ""), (0.2709, "30%"))
        ),
        *(
            (
                # b_O has all the rest of the output: of what tokens add, [CLS] has as much as of the norms, or half of it.
                {"alpha_f/all": 5.0, "alpha_f/cls": 0.6, "share/all": of_tokens, "share/cls": share},
                [
                    f"Norms overstate what [CLS] tokens contribute: these have 12% of Σ‖αf(x)‖, but {written} of what comes "
                    "from all tokens along the output vectors, where contributions add up."
                ]
                if written
                else [],
            )
            for of_tokens, share, written in (
                (0.125, 0.015, ""),
                (0.125, 0.00749, "6.0%"),
                (0.0501, -0.0501, "−100%"),
                (0.0499, -0.0499, ""),
                (-0.2, 0.015, ""),
            )
        ),
        (
            NORMS | {"alpha/sep": 0.6, "alpha_f/sep": 0.5},  # further apart than those of [CLS]
            ["The [SEP] tokens receive 60% of the attention weight but contribute only 10% of Σ‖αf(x)‖."],
        ),
        ({"alpha_f/all": 5.0, "alpha_f/cls": 0.001, "share/all": 0.9, "share/cls": 0.0008}, []),  # 0.0% and 0.1%
        *(
            (
                {"alpha/all": all_weight, "alpha_f/all": weighted, "f/uniform": 2.0},
                [
                    f"{length} vectors tend to get larger weights: the keys that a query sees have a mean ‖f(x)‖ of {written} "
                    "weighted by α, and of 2.0 with equal weights."
                ]
                if length
                else [],
            )
            for all_weight, weighted, length, written in (
                (1.0, 1.79, "Shorter", "1.8"),
                (0.99, 1.79, "", ""),  # a learned sink takes weight, and lengths weighted by the rest are shorter
                (1.0, 1.81, "", ""),
                (1.0, 2.0, "", ""),
                (1.0, 2.22, "", ""),
                (1.0, 2.23, "Longer", "2.2"),
            )
        ),
        (NORMS, {"unseen": ["cls"]}, []),
        ({"alpha_f/all": 5.0, "share/all": 0.9, "share/sep": -0.2}, []),
        (NORMS, ["The [CLS] tokens receive 25% of the attention weight but contribute only 2.0% of Σ‖αf(x)‖."]),
        *(
            (
                NORMS | {"alpha_f/cls": norm},
                [f"The [CLS] tokens receive 25% of the attention weight {contrast} of Σ‖αf(x)‖."],
            )
            for norm, contrast in (
                (0.62, "but contribute only 12%"),
                (0.625, "and contribute 13%"),
                (0.63, "and contribute 13%"),
                (2.0, "and contribute 40%"),
            )
        ),
        (
            NORMS | {"alpha/cls": 0.0004, "alpha_f/cls": 0.0005},  # 0.04% and 0.01%
            ["The [CLS] tokens receive 0.0% of the attention weight and contribute 0.0% of Σ‖αf(x)‖."],
        ),
        ({name: value for name, value in NORMS.items() if name != "alpha_f/all"}, []),
        (NORMS | {"alpha_f/all": 0.0}, []),
        (
            # The further of the two, and of the two that norms overstate.
            NORMS | {"alpha/sep": 0.3, "alpha_f/sep": 0.5, "share/all": 1.0, "share/cls": 0.0, "share/sep": 0.01},
            [
                "The [CLS] tokens receive 25% of the attention weight but contribute only 2.0% of Σ‖αf(x)‖.",
                "Norms overstate what [SEP] tokens contribute: these have 10% of Σ‖αf(x)‖, but 1.0% of what comes from all "
                "tokens along the output vectors, where contributions add up.",
            ],
        ),
        ({"spearman/cls": -0.5, "spearman/other": 0.25}, []),
        (
            {"spearman/cls": 0.0, "spearman/other": 0.25, "spearman/all": 0.125},
            ["Weights have a rank correlation of +0.13 with ‖f(x)‖ over the pairs of all texts."],
        ),
        (
            {"spearman/all": -0.3, "alpha/all": 1.0, "alpha_f/all": 2.0, "f/uniform": 2.0},  # all rows are uniform
            ["Weights have a rank correlation of −0.30 with ‖f(x)‖ over the pairs of all texts."],
        ),
        (
            {"spearman/all": -0.3, "alpha/all": 1.0, "alpha_f/all": 1.79, "f/uniform": 2.0},
            [
                "Weights have a rank correlation of −0.30 with ‖f(x)‖ over the pairs of all texts; shorter vectors tend to get "
                "larger weights: the keys that a query sees have a mean ‖f(x)‖ of 1.8 weighted by α, and of 2.0 with equal "
                "weights."
            ],
        ),
    ],
    "frequency": [
        ({}, []),
        ({"spearman/alpha/without_specials": 0.5}, []),
        (
            {"spearman/f/with_specials": -0.25, "spearman/attnresln_n/with_specials": 0.5},
            [
                "Frequent tokens are not discounted (their vectors are longer): special tokens included, a token's frequency "
                "rank (1: most frequent) has a rank correlation of −0.25 with ‖f(x)‖ and +0.50 with its mixing ratio."
            ],
        ),
        (
            {"spearman/f/with_specials": 0.75},
            [
                "Frequent tokens are discounted (their vectors are shorter): special tokens included, a token's frequency "
                "rank (1: most frequent) has a rank correlation of +0.75 with ‖f(x)‖."
            ],
        ),
        (
            {"spearman/f/with_specials": 0.1},
            [
                "Frequent tokens have vectors of about the same length as rare ones: special tokens included, a token's "
                "frequency rank (1: most frequent) has a rank correlation of +0.10 with ‖f(x)‖."
            ],
        ),
        (
            {"spearman/alpha/with_specials": 0.125},
            [
                "Special tokens included, a token's frequency rank (1: most frequent) has a rank correlation of +0.13 with "
                "the weight that it receives."
            ],
        ),
    ],
    "outliers": [
        (
            {"count": 0.0},
            ["The model has no outlier dimensions: no hidden dimension is an outlier in enough layers."],
        ),
        ({"count": 0.0}, {"given": True}, ["The model has no outlier dimensions: no dimension is set."]),
        (
            {"count": 1.0, "7/share_of_layers": 0.0},
            {"given": True},
            ["1 outlier dimension is set by hand: 7 (an outlier in 0% of the layers)."],
        ),
        (
            {"count": 2.0, "7/share_of_layers": 0.5, "31/share_of_layers": 1.0},
            {"given": True},
            ["2 outlier dimensions are set by hand: 7 (an outlier in 50% of the layers) and 31 (100%)."],
        ),
        ({"count": 1.0, "7/share_of_layers": 0.5}, ["The model has 1 outlier dimension: 7 (in 50% of the layers)."]),
        (
            {"count": 2.0, "7/share_of_layers": 0.5, "31/share_of_layers": 1.0},
            ["The model has 2 outlier dimensions: 7 (in 50% of the layers) and 31 (100%)."],
        ),
    ],
    "score": [
        ({}, []),
        (
            SCORE,
            [
                "On average over heads, 3.4 dimensions make up half of the spread of a query's scores over its keys, and 116 "
                "make up 90%.",
                "The share of the outlier dimensions in the spread of a query's scores is 12%.",
            ],
        ),
        (
            {"dimensions_for_half/mean": 3.4},
            ["On average over heads, 3.4 dimensions make up half of the spread of a query's scores over its keys."],
        ),
        (
            {"dimensions_for_half/mean": 3.4, "heads_below_90_percent/share": 0.01},
            [
                "On average over heads, 3.4 dimensions make up half of the spread of a query's scores over its keys (heads "
                "whose dimensions never reach that share are left out).",
            ],
        ),
        (
            {"dimensions_for_half/mean": 3.4, "share_of_key_bias/mean": 0.0006},
            [
                "On average over heads, 3.4 dimensions make up half of the spread of a query's scores over its keys; the key "
                "bias b_K makes up 0.1%.",
            ],
        ),
        ({"share_of_outliers/mean": 0.0}, []),  # there are none
        (
            {"share_of_outliers/mean": -0.0001},
            ["The share of the outlier dimensions in the spread of a query's scores is 0.0%."],
        ),
        ({"share_of_key_bias/mean": 0.0006}, [BIAS.format("0.1%")]),
        ({"share_of_key_bias/mean": 0.0004}, []),
        ({"share_of_key_bias/mean": -0.25}, [BIAS.format("−25%")]),
        (
            CLS | SEP | OTHER,
            [
                f"{WITHOUT_OUTLIERS} [SEP] tokens falls from 50% to 20%; with as many random dimensions removed "
                "instead, it is 52%."
            ],
        ),
        (
            CLS | OTHER,
            [f"{WITHOUT_OUTLIERS} [CLS] tokens rises from 25% to 35%."],
        ),
        (
            OTHER,
            [f"{WITHOUT_OUTLIERS} other tokens rises from 10% to 50%."],
        ),
        (
            {
                "intervention/cls/before": 0.2502,
                "intervention/cls/after": 0.2501,
            },
            [f"{WITHOUT_OUTLIERS} [CLS] tokens stays at 25%."],
        ),
        *(
            (
                {"intervention/cls/before": 0.0126, "intervention/cls/after": after},
                [f"{WITHOUT_OUTLIERS} [CLS] tokens {moves}."],
            )
            for after, moves in (
                (0.0124, "stays at about 1.2%"),  # 0.02 points
                (0.0114, "stays at about 1.1%"),
                (0.0112, "falls from 1.3% to 1.1%"),
                (0.0141, "rises from 1.3% to 1.4%"),
            )
        ),
        ({"intervention/cls/before": 0.4}, []),
    ],
    "attribution": [
        ({}, []),
        ({"cosine/comprehensiveness/rollout": 0.1}, []),
        *(
            (
                {"probability/comprehensiveness/rollout": 0.25, "probability/comprehensiveness/random": 0.125},
                {"above_random": {"rollout": low, "random": NAN}},
                [f"{start}, and by 0.13 without the same number of random tokens."],
            )
            for low, start in (
                (
                    1e-9,
                    "Rollout of weights is more faithful than a random order on this sample: without the tokens that it ranks "
                    "highest, the probability of the predicted class or token falls by 0.25 on average",
                ),
                *((low, NOT_DETECTABLE.format("0.25", "rollout of weights")) for low in (0.0, -1e-9, NAN)),
            )
        ),
        *(
            (
                {f"cosine/comprehensiveness/{method}": fall for method, fall in FALLS.items()},
                {"above_random": ABOVE | more, "below_best": {"decompx": NAN, "random": 0.2} | below},
                [
                    f"DecompX {start}: without the tokens that it ranks highest, the cosine with the untouched embedding "
                    "falls by 0.50 on average, and by 0.25 without the same number of random tokens.",
                ],
            )
            for more, below, start in (
                ({}, {"alti": 1e-9, "globenc": 0.1}, "is the most faithful on this sample"),
                (
                    {},
                    {"alti": 0.0, "globenc": 0.1},
                    "has the largest mean drop, but this sample cannot tell it from ALTI",
                ),
                (
                    {},
                    {"alti": 0.1, "globenc": -0.1},
                    "has the largest mean drop, but this sample cannot tell it from GlobEnc",
                ),
                ({}, {}, "has the largest mean drop, but this sample cannot tell it from ALTI or GlobEnc"),
                (
                    {"decompx": 0.0},
                    {"alti": NAN},
                    "has the largest mean drop, but this sample cannot tell it from ALTI, GlobEnc or a random order",
                ),
            )
        ),
        (
            {
                "cosine/comprehensiveness/alti": 0.25,
                "cosine/comprehensiveness/decompx": 0.5,
                "cosine/comprehensiveness/random": 0.5,
            },
            {"above_random": {"alti": -0.3, "decompx": -0.1}, "below_best": {"alti": 0.1, "random": -0.1}},
            [
                "On this sample, no method is detectably more faithful than a random order: without the tokens that rank "
                "highest, the cosine with the untouched embedding falls by at most 0.50 on average (DecompX), and by 0.50 "
                "without the same number of random tokens.",
            ],
        ),
        (
            {"probability/comprehensiveness/alti": 0.25, "probability/comprehensiveness/random": -0.125},
            {"above_random": {"alti": 0.1}},
            [
                "ALTI is more faithful than a random order on this sample: without the tokens that it ranks highest, the "
                "probability of the predicted class or token falls by 0.25 on average, and rises by 0.13 without the same "
                "number of random tokens.",
            ],
        ),
        *(
            (
                {"probability/comprehensiveness/alti": fall, "probability/comprehensiveness/random": -0.5},
                {"above_random": {"alti": 0.1}},
                [f"{start}, and {verb}by 0.50 without the same number of random tokens."],
            )
            for fall, start, verb in (
                (
                    1e-9,
                    "ALTI is more faithful than a random order on this sample: without the tokens that it ranks highest, the "
                    "probability of the predicted class or token falls by 1.0×10⁻⁹ on average",
                    "rises ",
                ),
                (0.0, f"{NOTHING_MATTERS} falls by at most 0 on average (ALTI)", "rises "),
                (-0.25, f"{NOTHING_MATTERS} rises by at least 0.25 on average (ALTI)", ""),
            )
        ),
        (
            {"probability/comprehensiveness/alti": -0.25, "probability/comprehensiveness/random": 0.125},
            [
                "On this sample, no method is detectably more faithful than a random order: without the tokens that rank "
                "highest, the probability of the predicted class or token rises by at least 0.25 on average (ALTI), "
                "and falls by 0.13 "
                "without the same number of random tokens.",
            ],
        ),
        (
            {"agreement/alti/decompx": -0.25},
            ["The scores of ALTI and DecompX have a rank correlation of −0.25."],
        ),
        (
            {
                "agreement/alti/decompx": -0.25,
                "agreement/alti/gradient_x_input": 0.5,
                "agreement/decompx/gradient_x_input": 0.75,
            },
            [
                "Token scores agree most between DecompX and gradient × input (Spearman's ρ = 0.75) and least between ALTI "
                "and DecompX (−0.25).",
            ],
        ),
        *(
            (
                {"agreement/alti/decompx": low, "agreement/decompx/gradient_x_input": 0.5},
                [text],
            )
            for low, text in (
                (0.4996, "Token scores of all methods agree alike (Spearman's ρ = 0.50)."),
                (
                    0.4989,
                    "Token scores agree most between DecompX and gradient × input (Spearman's ρ = 0.500) and least between "
                    "ALTI and DecompX (0.499).",
                ),
            )
        ),
        (
            # Every sequence falls a little more, but no reader would see it.
            {"probability/comprehensiveness/rollout": 0.2501, "probability/comprehensiveness/random": 0.25},
            {"above_random": {"rollout": 1e-5}},
            [
                f"{NOT_DETECTABLE.format('0.25', 'rollout of weights')}, and by 0.25 without the same number of random tokens."
            ],
        ),
        (
            {"agreement/alti/decompx": -5.6e-17},
            ["The scores of ALTI and DecompX have a rank correlation of 0."],
        ),
    ],
    "sinks": [
        ({}, []),
        (
            SINK,
            [
                "On text with BOS, the first token is a sink in 60% of the heads, with 50% of the attention weight and 12% of "
                "the norms ‖αf(x)‖ of what heads contribute."
            ],
        ),
        (
            SINK
            | {
                "text/without_bos/sink_rate/first": 0.1,
                "random/with_bos/sink_rate/first": 0.5,
                "repeat/with_bos/sink_rate/first": 0.3,
            },
            [
                "On text with BOS, the first token is a sink in 60% of the heads, with 50% of the attention weight and 12% of "
                "the norms ‖αf(x)‖ of what heads contribute.",
                "The sink rate of whichever token comes first is 10% without BOS, 50% on random tokens and 30% on one token "
                "repeated.",
            ],
        ),
        (
            {"text/without_bos/sink_rate/first": 0.0, "text/without_bos/sink_rate/other": 0.009},
            ["On text, the first token is a sink in 0% of the heads."],
        ),
        (
            SINK | {"text/with_bos/contribution/first": 0.0},
            [
                "On text with BOS, the first token is a sink in 60% of the heads, with 50% of the attention weight and 0% of "
                "the norms ‖αf(x)‖ of what heads contribute."
            ],
        ),
        (
            {
                "text/with_bos/sink_rate/first": 0.1,
                "text/with_bos/sink_rate/sep": 0.25,
                "text/without_bos/sink_rate/sep": 0.3,
            },
            {"first_token": "[CLS]", "length": 64},
            [
                "On the first 64 tokens of text with [CLS], [SEP] tokens are, on average, sinks in 25% of the heads.",
                "The sink rate of [SEP] tokens is 30% without [CLS].",
            ],
        ),
        *(
            (
                # Every head has its last [SEP] look at itself, in texts of 64 tokens of a causal model.
                {
                    "text/without_bos/sink_rate/first": 0.5,
                    "text/without_bos/sink_rate/sep": 0.9,
                    "text/without_bos/mass/first": 0.15,
                    "text/without_bos/mass/sep": mass,
                    "text/without_bos/contribution/first": 0.2,
                    "text/without_bos/contribution/sep": 0.2,
                },
                [
                    f"On text, {subject} of the heads, with {weight} of the attention weight and 20% of the norms ‖αf(x)‖ of "
                    "what heads contribute.",
                ],
            )
            for mass, subject, weight in (
                (0.0269, "the first token is a sink in 50%", "15%"),
                (0.0271, "[SEP] tokens are, on average, sinks in 90%", "2.7%"),
            )
        ),
        (
            {"text/without_bos/sink_rate/first": 0.0, "text/without_bos/sink_rate/other": 0.01},
            ["On text, other tokens are, on average, sinks in 1.0% of the heads."],
        ),
        (
            {"text/without_bos/sink_rate/cls": 0.25, "text/without_bos/mass/nowhere": 0.125},
            [
                "On text, [CLS] tokens are, on average, sinks in 25% of the heads; learned sinks take 13% of the weight, which "
                "goes to no key.",
            ],
        ),
        (
            {"massive/count": 0.0},
            ["There are no massive activations: no value exceeds 100 and is at least 1,000 times the median."],
        ),
        (
            MASSIVE,
            ["2 dimensions have massive activations in layers 3 to 11, up to 3,020 (12,300 times the median)."],
        ),
        (
            MASSIVE | {"massive/count": 1.0, "massive/last_layer": 3.0},
            ["1 dimension has massive activations in layer 3, up to 3,020 (12,300 times the median)."],
        ),
        (
            MASSIVE | {"ablation/zero/loss/before": 3.4, "ablation/zero/loss/after": 3.401},
            [
                "2 dimensions have massive activations in layers 3 to 11, up to 3,020 (12,300 times the median); setting "
                "them to zero leaves the loss at 3.4 nats."
            ],
        ),
        (
            MASSIVE
            | {
                "ablation/zero/loss/before": 3.4,
                "ablation/zero/loss/after": 9.0,
                "ablation/zero/loss/controls": 3.42,
            },
            [
                "2 dimensions have massive activations in layers 3 to 11, up to 3,020 (12,300 times the median); setting "
                "them to zero changes the loss from 3.40 to 9.0 nats; with as many random dimensions set to zero, the loss is "
                "3.42."
            ],
        ),
    ],
    "alignment": [
        ({}, []),
        (
            AER | {"giza/aer": 0.1, "giza/recall": 0.2, "attn_w/awi/union/aer": 0.6},
            [f"Alignment with input: {ALIGNED}", "On the same pairs, the alignment error rate is 10% by giza."],
        ),
        ({name.replace("awi", "awo"): value for name, value in AER.items()}, [f"Alignment with output: {ALIGNED}"]),
        ({"attn_n/awo/best_layer/aer": 0.3}, []),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_sentences(name):
    for metrics, *keywords, expected in CASES[name]:
        assert module_of_sentences(name).sentences_of(metrics, **(keywords[0] if keywords else {})) == expected


def test_sentences_of_translations():
    assert sentences_of_translations({"translation/alti/source": 0.612, "translation/alti/special": 0.1}) == [
        "According to ALTI+, 61% of a target word comes from the source on average (10% from its special tokens), and the rest "
        "from the target so far."
    ]


CLAIMS = {
    r"take less from .* than .*: the mean mixing ratio of the attention blocks is (\S+?)(?:;|\.$)": lambda ratio: (
        ratio < 0.5
    ),
    r"take more from .* than .*: the mean mixing ratio of the attention blocks is (\S+?)(?:;|\.$)": lambda ratio: (
        ratio > 0.5
    ),
    r"take as much from .*: the mean mixing ratio of the attention blocks is (\S+?)(?:;|\.$)": lambda ratio: (
        ratio == 0.5
    ),
    r"by (\S+) \(1 − Spearman's ρ\); .* the change is smaller: (\S+)\.$": lambda alone, whole: whole < alone,
    r"by (\S+) \(1 − Spearman's ρ\); .* the change is larger: (\S+)\.$": lambda alone, whole: whole > alone,
    r"receive (\S+) of the attention weight but contribute only (\S+) of": lambda weight, norm: norm < weight,
    r"Norms overstate .* have (\S+) of Σ‖αf\(x\)‖, but (\S+) of": lambda norm, share: share < norm,
    r"Norms understate .* have (\S+) of Σ‖αf\(x\)‖, but (\S+) of": lambda norm, share: share > norm,
    r"horter .* ‖f\(x\)‖ of (\S+) weighted by α, and of (\S+) with": lambda weighted, alike: weighted < alike,
    r"onger .* ‖f\(x\)‖ of (\S+) weighted by α, and of (\S+) with": lambda weighted, alike: weighted > alike,
    r"changes least where .*: by (\S+) on average; by weight, it changes by (\S+)\.$": lambda best, weight: (
        best < weight
    ),
    r"falls from (\S+) to (\S+?)(?:;|\.$)": lambda before, after: after < before,
    r"rises from (\S+) to (\S+?)(?:;|\.$)": lambda before, after: after > before,
    r"changes the loss from (\S+) to (\S+) nats": lambda before, after: before != after,
    r"gets (\S+) times .* but contributes only (\S+) times": lambda weight, norm: norm < weight,
    r"is (?:the most|more) faithful .* falls by (\S+) on average, and by (\S+) without": lambda best, random: (
        best > random
    ),
    r"agree most between .*ρ = (\S+)\) and least between .* \((\S+)\)": lambda high, low: high > low,
    r"between (\S+) \(.*\) and (\S+) \(.*\)\.$": lambda low, high: low < high,
    r"are discounted .* correlation of (?:\S+ with the weight that it receives.* and )?\+(\S+) with ‖f": lambda rho: (
        rho > 0
    ),
    r"are not discounted .* correlation of (\S+) with ‖f": lambda rho: rho < 0,
    r"norms (?:raise|lower) the accuracy of the best head by (\S+) percentage": lambda points: points > 0,
}
"""What a sentence claims of the numbers that it prints, by a pattern that finds both."""


@pytest.mark.parametrize("name", CASES)
def test_what_a_sentence_claims_holds_of_the_numbers_it_prints(name):
    """Close to every threshold: each metric of each case is moved by up to a half, several times."""
    draw, claimed = np.random.default_rng(0), set()
    for metrics, *keywords, _ in CASES[name]:
        for _ in range(60):
            moved = {key: value * (1 + draw.choice(MOVES)) for key, value in metrics.items()}
            for sentence in module_of_sentences(name).sentences_of(moved, **(keywords[0] if keywords else {})):
                for pattern, holds in CLAIMS.items():
                    for found in re.finditer(pattern, sentence):
                        claimed.add(pattern)
                        assert holds(*map(_read, found.groups())), sentence
    assert claimed or name in NO_CLAIMS


MOVES = (0, 0, 1e-4, -1e-4, 1e-3, -1e-3, 0.01, -0.01, 0.1, -0.1, 0.5, -0.5)
NO_CLAIMS = {"similarity", "outliers", "alignment"}
"""Analyses whose sentences name numbers without comparing them."""


def _read(written):
    digits, _, power = written.replace(",", "").replace("−", "-").partition("×10")
    value = float(digits.rstrip("%")) * (0.01 if digits.endswith("%") else 1)
    return value * 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) if power else value


@pytest.mark.parametrize("name", analyses())
def test_every_line_that_makes_a_sentence_is_tested(name):
    """If a sentence had no case, its lines would never run."""
    sentences = module_of_sentences(name)
    codes = {
        code for function in _called_by(sentences.sentences_of) for code in _nested(inspect.unwrap(function).__code__)
    }
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
        for metrics, *keywords, _ in CASES[name]:
            sentences.sentences_of(metrics, **(keywords[0] if keywords else {}))
    finally:
        sys.settrace(before)
    lines = {(code, line) for code in codes for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
    missed = sorted(line for code, line in lines - run)
    assert not missed, f"lines of {sentences.__file__} that no case runs: {missed}"


def _called_by(function):
    """A function, and those of its module that it names, directly or through others."""
    called, waiting = set(), [function]
    while waiting:
        one = waiting.pop()
        if inspect.isfunction(one) and one.__module__ == function.__module__ and one not in called:
            called.add(one)
            named = (name for code in _nested(inspect.unwrap(one).__code__) for name in code.co_names)
            waiting += [one.__globals__[name] for name in named if name in one.__globals__]
    return called


def _nested(code):
    yield code
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _nested(constant)
