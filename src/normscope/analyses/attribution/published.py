"""What the attribution analysis publishes."""

from normscope.results.declare import Axis, Column, Published, Rollup, Table, Where

_INTERVAL = "{} end of the 95% interval over sequences (Student's t); missing for one sequence."
_LOW, _HIGH = _INTERVAL.format("Lower"), _INTERVAL.format("Upper")
_SEQUENCES = Column("Number of sequences.", kind="whole")

METHODS = {
    "rollout": "rollout of weights",
    "norm_rollout": "rollout of norms",
    "globenc": "GlobEnc",
    "alti": "ALTI",
    "value_zeroing": "value zeroing",
    "decompx": "DecompX",
    "gradient_x_input": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "through_attention": "through attention",
    "random": "random order",
}
"""Titles of the methods."""

OF_TRANSLATIONS = {"alti": "ALTI+", "decompx": "DecompX"}
"""Titles of the methods that attribute translations."""

QUANTITIES = {
    "probability": "the probability of the predicted class or token",
    "value": "the predicted value",
    "answer": "the probability of the answer (the geometric mean over its tokens)",
    "loss": "the loss of the remaining tokens (nats per token)",
    "cosine": "the cosine with the untouched embedding",
}
"""What `<quantity>` stands for, in sentences."""

FALLING = {"answer": "answer probability"}
"""What a quantity is called in labels, if not by its name."""

_METHOD = Axis("method", "The attribution method.", titles=METHODS)
_SCORES: Where = {"scope": "scores"}

_ROW = Axis("row", "Row of the corpus, from 1.", noun="translation", kind="whole")
_WORD = Axis("word", "Number of the word, from 0; words are separated by spaces.", kind="whole")
_OF_SOURCE = "Share of a target word that comes from the source, including the source's special tokens, in [0, 1]"


def _drops(**meanings: str) -> dict[str, Column]:
    """Columns of drops over sequences, whatever drops, and the number of sequences."""
    columns = {name: Column(meaning, unit="nats if a loss drops") for name, meaning in meanings.items()}
    return columns | {"count": _SEQUENCES}


PUBLISHED = Published(
    tables={
        "agreement": Table(
            rows=(
                _METHOD,
                Axis("other", "The method that it is compared with.", titles=METHODS),
                Axis(
                    "scope",
                    "What is ranked: the ordinary tokens of a sequence by their `scores`, or the keys of each row of the "
                    "`map` through all layers, averaged over rows.",
                ),
            ),
            per="pair of methods and scope",
            values={
                "spearman": "Mean over sequences of Spearman's ρ.",
                "low": _LOW,
                "high": _HIGH,
                "count": Column("Number of sequences for which ρ is defined.", kind="whole"),
            },
        ),
        "faithfulness": Table(
            rows=(
                _METHOD.but("The method, or `random` for the mean over random orders."),
                Axis(
                    "measure",
                    "`comprehensiveness`: the tokens with the highest scores are erased. `sufficiency`: all other ordinary "
                    "tokens are erased.",
                ),
                Axis("share", "Percentage of the ordinary tokens that are erased or kept.", kind="number"),
            ),
            values=_drops(
                mean="Mean drop over sequences in the probability of the predicted class or next token, or of the answer "
                "(the geometric mean over its tokens); in the cosine with the untouched embedding; or in the loss of the "
                "remaining tokens (nats per token).",
                low=_LOW,
                high=_HIGH,
            ),
        ),
        "ranking": Table(
            rows=(
                Axis("rank", "Rank by comprehensiveness, from 1.", kind="whole"),
                _METHOD.but("The method, or `random`."),
            ),
            per="method, the largest comprehensiveness first",
            values=_drops(
                comprehensiveness="AOPC: mean drop over all shares when the tokens with the highest scores are erased. "
                "Higher is more faithful.",
                comprehensiveness_low=_LOW,
                comprehensiveness_high=_HIGH,
                sufficiency="AOPC: mean drop over all shares when all other ordinary tokens are erased. Lower is more "
                "faithful.",
                sufficiency_low=_LOW,
                sufficiency_high=_HIGH,
                above_random="Mean over sequences of comprehensiveness minus that of random orders; missing for `random`.",
                above_random_low=_LOW,
                above_random_high=_HIGH,
                below_best="Mean over sequences of the best method's comprehensiveness minus this one's; missing for the "
                "best method. If the interval contains 0, the sample cannot tell the two apart.",
                below_best_low=_LOW,
                below_best_high=_HIGH,
            ),
        ),
        "translations": Table(
            rows=(_METHOD, _ROW),
            per="method and sampled translation, with `model.stack=cross`",
            values={
                "source": f"{_OF_SOURCE}; the mean over target words.",
                "target": "Share that comes from the target so far: 1 − `source`.",
                "special": "Share that comes from the source's special tokens; part of `source`.",
                "target_words": Column("Number of target words that have shares.", kind="whole"),
                "source_words": Column("Number of source words that have tokens.", kind="whole"),
            },
        ),
        "translation_positions": Table(
            rows=(_METHOD, _WORD),
            per="method and position in the target, with `model.stack=cross`",
            values={
                "source": f"{_OF_SOURCE}; the mean over translations.",
                "low": _LOW,
                "high": _HIGH,
                "count": Column("Number of translations with a share for this word.", kind="whole"),
            },
        ),
        "target_words": Table(
            rows=(_METHOD, _ROW, _WORD),
            per="method and word of a target, with `model.stack=cross`",
            values={"text": Column("The word.", kind="text"), "source": f"{_OF_SOURCE}."},
        ),
    },
    metrics=(
        Rollup(
            "agreement/<method>/<other>",
            "Mean over sequences of Spearman's ρ between the scores of two methods.",
            of="agreement.spearman",
            where=_SCORES,
            label="Spearman’s ρ of the scores",
        ),
        Rollup(
            "<quantity>/comprehensiveness/<method>",
            "AOPC of comprehensiveness; the quantity is the `probability` of the predicted class or next token, the `value` of "
            "a regression, the `cosine` with the untouched embedding, the probability of the `answer`, or the `loss` of the "
            "remaining tokens.",
            of="ranking.comprehensiveness",
            label="comprehensiveness",
        ),
        Rollup(
            "<quantity>/sufficiency/<method>", "AOPC of sufficiency.", of="ranking.sufficiency", label="sufficiency"
        ),
        Rollup(
            "faithfulness/sequences",
            "Number of sequences on which the methods were tested.",
            of="ranking.count",
            how="max",
            label="sequences on which faithfulness was tested",
        ),
        Rollup(
            "translation/<method>/source",
            "Mean share of a target word that comes from the source: over the words of each translation, then over "
            "translations.",
            of="translations.source",
            label="share of the source in the translation (%)",
        ),
        Rollup(
            "translation/<method>/special",
            "The part of this share that comes from the source's special tokens.",
            of="translations.special",
            label="share of the source’s special tokens (%)",
        ),
    ),
)
