"""The attribution analysis by brute force: every sequence and every set of erased tokens alone, without a batch."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from normscope.analyses.declarations.attribution import AttributionMethod, AttributionOptions, AttributionStage, Erasure
from normscope.analyses.samples import PAIRS, SampledPairs
from normscope.analyses.translated_words import sentences_of_translations
from normscope.data.examples import Example
from normscope.maths.choices import Pooling, ReadoutTarget
from normscope.results.result import Result
from normscope.rounding import number  # falls may be tiny: it has tests of its own for powers of ten
from normscope.statistics.intervals import Interval
from tests.oracles import attribution_of_translations, attributions, specimens, words
from tests.oracles.attributions import BASELINES, Attributed, fingerprint
from tests.oracles.comparison import Expected, Picture, assert_expected, interval, table, three_digits, visibly_apart
from tests.oracles.specimens import CHOICES, Specimen, made, reported

TITLES = {
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
PANELS = {
    "comprehensiveness": "without the highest scores (comprehensiveness)",
    "sufficiency": "with these alone (sufficiency)",
}
WORDS = {
    "probability": "the probability of the predicted class or token",
    "value": "the predicted value",
    "answer": "the probability of the answer (the geometric mean over its tokens)",
    "loss": "the loss of the remaining tokens (nats per token)",
    "cosine": "the cosine with the untouched embedding",
}


def expected(
    specimen: Specimen,
    options: AttributionOptions,
    attributed: type[Attributed] = Attributed,
) -> Expected:
    """Everything that the analysis returns."""
    every = [attributed(specimen, sequence, options) for sequence in attributed.sample(specimen, options)]
    post = every[0].is_bert
    methods = [
        *(options.methods or [m for m in TITLES if m not in (*BASELINES, "random") and (post or m != "globenc")])
    ]
    methods = [
        str(method) for method in (*(m for m in methods if m not in BASELINES), *(m for m in methods if m in BASELINES))
    ]
    agreement = _agreement(every, methods)
    falls = _falls(every, methods, options)
    faithfulness, ranking = _faithfulness(falls, methods, options), _ranking(falls, methods)
    quantity = every[0].quantity
    metrics = {f"agreement/{one}/{other}": rho for (one, other), rho in agreement["spearman"].items()}
    metrics |= {
        f"{quantity}/{measure}/{method}": ranking.loc[method, measure]
        for measure in ("comprehensiveness", "sufficiency")
        for method in ranking.index
    }
    metrics["faithfulness/sequences"] = ranking["count"].max()
    return Expected(
        tables={
            "agreement": agreement,
            "faithfulness": faithfulness,
            "ranking": ranking.reset_index().set_index(["rank", "method"]),
        },
        metrics=metrics,
        curves={},
        figures=_figures(agreement, faithfulness, ranking),
        summary=ranking[["comprehensiveness", "sufficiency"]].rename(index=TITLES),
        sentences=_sentences(metrics, quantity, methods, falls),
        notes=_notes(every, options),
    )


def _rho(one: np.ndarray, other: np.ndarray) -> float:
    if len(one) < 2 or len(np.unique(one)) == 1 or len(np.unique(other)) == 1:
        return np.nan
    return float(scipy.stats.spearmanr(one, other).statistic)


def _ordinary(one: Attributed) -> list[int]:
    special = one.specimen.loaded.tokenizer.all_special_ids
    return [i for i, token in enumerate(one.sequence.ids) if token not in special and one.may_be_erased(i)]


def _agreement(every: Sequence[Attributed], methods: Sequence[str]) -> pd.DataFrame:
    rows = []
    for first, second in itertools.combinations(methods, 2):
        values = []
        for one in every:
            ordinary = _ordinary(one)
            values.append(_rho(one.scores(first)[ordinary], one.scores(second)[ordinary]))
        mean, low, high = interval(values)
        row = {"method": first, "other": second, "spearman": mean, "low": low, "high": high}
        rows.append(row | {"count": len(values)})
    return table(["method", "other"], rows, ["spearman", "low", "high", "count"])


def _falls(every: Sequence[Attributed], methods: Sequence[str], options: AttributionOptions) -> Mapping:
    """How far the answer of each sequence falls, by method, measure and share."""
    falls: dict[tuple[str, str, float], list[float]] = {}
    for one in every:
        ordinary = _ordinary(one)
        mask = (
            None
            if options.erasure == "remove" or options.target == "loss"
            else one.specimen.loaded.tokenizer.mask_token_id
        )
        scores = {method: one.scores(method) for method in methods}
        orders = {method: [sorted(ordinary, key=lambda i, of=values: -of[i])] for method, values in scores.items()}
        generators = [
            np.random.default_rng([options.seed, fingerprint(one.sequence), n]) for n in range(options.orders)
        ]
        orders["random"] = [list(generator.permutation(ordinary)) for generator in generators]
        for (method, of_method), share in itertools.product(orders.items(), options.shares):
            count = min(max(1, math.ceil(round(len(ordinary) * share / 100, 9))), len(ordinary) - 1)
            for measure in ("comprehensiveness", "sufficiency"):
                erased = [order[:count] if measure == "comprehensiveness" else order[count:] for order in of_method]
                mean = np.mean([one.fall(positions, mask) for positions in erased])
                falls.setdefault((method, measure, share), []).append(float(mean))
    return falls


def _faithfulness(falls: Mapping, methods: Sequence[str], options: AttributionOptions) -> pd.DataFrame:
    rows = []
    for method, measure, share in itertools.product(
        [*methods, "random"], ("comprehensiveness", "sufficiency"), options.shares
    ):
        mean, low, high = interval(falls[method, measure, share])
        row = {"method": method, "measure": measure, "share": share, "mean": mean, "low": low, "high": high}
        rows.append(row | {"count": len(falls[method, measure, share])})
    return table(["method", "measure", "share"], rows)


def _ranking(falls: Mapping, methods: Sequence[str]) -> pd.DataFrame:
    def areas(method: str, measure: str) -> np.ndarray:
        return np.mean([values for key, values in falls.items() if key[:2] == (method, measure)], axis=0)

    rows = []
    for method in (*methods, "random"):
        row: dict[str, object] = {"method": method}
        for measure in ("comprehensiveness", "sufficiency"):
            row |= dict(
                zip([measure, f"{measure}_low", f"{measure}_high"], interval(areas(method, measure)), strict=True)
            )
        above = areas(method, "comprehensiveness") - areas("random", "comprehensiveness")
        ends = (np.nan,) * 3 if method == "random" else interval(above)
        row |= dict(zip(["above_random", "above_random_low", "above_random_high"], ends, strict=True))
        rows.append(row)
    best = max(rows[:-1], key=lambda row: row["comprehensiveness"])["method"]
    for row in rows:
        lost = areas(best, "comprehensiveness") - areas(row["method"], "comprehensiveness")
        ends = (np.nan,) * 3 if row["method"] == best else interval(lost)
        row |= dict(zip(["below_best", "below_best_low", "below_best_high"], ends, strict=True))
        row["count"] = len(lost)
    ordered = pd.DataFrame(rows).sort_values("comprehensiveness", ascending=False, kind="stable").set_index("method")
    ordered.insert(0, "rank", range(1, len(ordered) + 1))
    return ordered


def _figures(agreement, faithfulness, ranking) -> dict[str, Picture]:
    above = ranking.dropna(subset="above_random").sort_values("above_random", ascending=False)
    title = "comprehensiveness minus that of random orders"
    figures = {
        "faithfulness": Picture(
            {
                (title, TITLES[method]): (row["above_random"], row["above_random_low"], row["above_random_high"])
                for method, row in above.iterrows()
            },
            {"order": [TITLES[method] for method in above.index]},
        ),
        "faithfulness_curves": Picture(
            {
                (PANELS[measure], TITLES[method], share): (row["mean"], row["low"], row["high"])
                for (method, measure, share), row in faithfulness.iterrows()
            }
        ),
    }
    if len(agreement):
        figures["agreement"] = Picture(
            {
                ("scores of tokens", TITLES[row], TITLES[column]): rho * 100
                for (one, other), rho in agreement["spearman"].items()
                for row, column in ((one, other), (other, one))
            },
            {"limits": (0, 100)},
        )
    return figures


def _surely(falls: Mapping, higher: str, lower: str) -> bool:
    """Whether one method's falls are above another's, by a paired t-test at 5% of each sequence's means over the shares."""
    one, other = (
        np.mean([values for key, values in falls.items() if key[:2] == (method, "comprehensiveness")], axis=0)
        for method in (higher, lower)
    )
    if len(one) < 2 or np.ptp(one - other) == 0:
        return len(one) > 1 and one[0] > other[0]
    return scipy.stats.ttest_rel(one, other).pvalue < 0.05 and one.mean() > other.mean()


def _apart(falls: Mapping, higher: str, lower: str, words: str) -> str:
    """How much further a quantity falls, on average over sequences, with the interval of the paired difference."""
    one, other = (
        np.mean([values for key, values in falls.items() if key[:2] == (method, "comprehensiveness")], axis=0)
        for method in (higher, lower)
    )
    mean, *ends = interval(one - other)
    written = " to ".join(number(end) for end in ends)
    return f"{number(mean)} {words}{'' if np.isnan(ends[0]) else f' (95% interval {written})'}"


def _sentences(
    metrics: Mapping[str, float],
    quantity: str,
    methods: Sequence[str],
    every_fall: Mapping,
) -> list[str]:
    sentences = []
    falls = {method: metrics[f"{quantity}/comprehensiveness/{method}"] for method in (*methods, "random")}
    ranked = sorted(falls, key=lambda method: -falls[method])
    best = next(method for method in ranked if method != "random")
    count = round(metrics["faithfulness/sequences"])
    sample = f"on {count} sequence{'s' * (count != 1)}"
    size, by_chance = (number(abs(falls[method])) for method in (best, "random"))
    verbs = ["falls" if falls[method] >= 0 else "rises" for method in (best, "random")]
    chance = f"by {by_chance}" if verbs[0] == verbs[1] else f"{verbs[1]} by {by_chance}"
    beyond_chance = [
        method
        for method in methods
        if _surely(every_fall, method, "random") and visibly_apart(falls[method], falls["random"])
    ]
    if beyond_chance and falls[best] > 0:
        like_it = [
            method
            for method in ranked
            if method not in (best, "random")
            and not (_surely(every_fall, best, method) and visibly_apart(falls[best], falls[method]))
        ]
        names = [*(TITLES[method] for method in like_it), *(["a random order"] if best not in beyond_chance else [])]
        claim, it = f"{TITLES[best]} is more faithful than a random order {sample}", "it"
        if len(methods) > 1:
            claim = f"{TITLES[best]} is the most faithful of {len(methods)} methods {sample}"
        if best not in beyond_chance:
            listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
            claim = f"{TITLES[best]} has the largest mean drop {sample}, but cannot be told apart from {listed}"
        elif names:
            every = [TITLES[best], *names]
            listed, it = f"{', '.join(every[:-1])} and {every[-1]}", TITLES[best]
            claim = f"{listed} are tied as the most faithful of {len(methods)} methods {sample}"
        second = next((method for method in ranked if method not in (best, "random")), None)
        ahead = ""
        if second is not None:
            ahead = f", and by {_apart(every_fall, best, second, 'more than with ' + TITLES[second])}"
            ahead += ", no detectable difference" if second in like_it else ""
        beyond = _apart(every_fall, best, "random", "more than without as many random tokens")
        sentences.append(
            f"{claim[0].upper()}{claim[1:]}: without the tokens that {it} ranks highest, {WORDS[quantity]} falls by {beyond}"
            f"{ahead}."
        )
    else:
        reason = "No method finds tokens that matter"
        if not beyond_chance:
            reason = f"{sample[0].upper()}{sample[1:]}, no method is detectably more faithful than a random order"
        bound = "at most" if verbs[0] == "falls" else "at least"
        sentences.append(
            f"{reason}: without the tokens that rank highest, {WORDS[quantity]} {verbs[0]} by {bound} {size} on average "
            f"({TITLES[best]}), and {chance} without the same number of random tokens."
        )
    pairs = {name: value for name, value in metrics.items() if name.startswith("agreement/")}
    if pairs:
        least, most = (choose(pairs, key=pairs.__getitem__) for choose in (min, max))
        both = {name: " and ".join(TITLES[method] for method in name.split("/")[1:]) for name in (least, most)}
        low, high = (three_digits(pairs[name]).removeprefix("+") for name in (least, most))
        if len(pairs) == 1:
            sentences.append(f"The scores of {both[least]} have a rank correlation of {low}.")
        elif not visibly_apart(pairs[least], pairs[most]):
            sentences.append(f"Token scores of all methods agree alike (Spearman's ρ = {high}).")
        else:
            sentences.append(
                f"Token scores agree most between {both[most]} (Spearman's ρ = {high}) and least between {both[least]} ({low})."
            )
    return sentences


def _notes(every: Sequence[Attributed], options: AttributionOptions) -> list[str]:
    notes = []
    if options.target != "answer":  # pairs are drawn whatever their lengths
        notes.append(
            "attribution: the sample is drawn from sequences of at most 64 tokens (analysis.attribution.tokens)"
        )
    if options.pooling is None and every[0].quantity == "cosine":
        embedding = "the mean of the last hidden vectors" if every[0].is_bert else "the last token's hidden vector"
        notes.append(
            f"the model's files name no pooling that can be used: the embedding is {embedding} (analysis.attribution.pooling)"
        )
    if options.erasure is None and every[0].specimen.loaded.tokenizer.mask_token_id is None:
        notes.append("the tokenizer has no mask token: erased tokens are removed (analysis.attribution.erasure)")
    return notes


INSIDE = {"query_token", "key_token", "value"}
"""Names within the analysis that it does not return."""


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert, both = made("bert"), specimens.translations()
    texts = bert.findings("attribution", AttributionOptions(seed=0, orders=1), [1, 2], reported(bert))
    pairs = [Example(*text, row=row) for row, text in enumerate(both.texts, start=1)]
    options = AttributionOptions(seed=0)
    translated = both.findings("attribution", options, [1, 2], ["all"], resources={PAIRS: pairs})
    return replace(
        texts,
        tables={**texts.tables, **translated.tables},
        metrics={**texts.metrics, **translated.metrics},
    )


ATTRIBUTIONS = {
    "encoder": ("bert", AttributionOptions(seed=2, orders=2), CHOICES["everything"]),
    "classifier": (
        "classifier",
        AttributionOptions(seed=3, methods=list(AttributionMethod), sequences=2, orders=2, steps=7),
        CHOICES["some"],
    ),
    "causal": ("qwen2", AttributionOptions(seed=4, orders=2, shares=[10.0, 60.0]), CHOICES["everything"]),
    "embedding of a classifier": (
        "classifier",
        AttributionOptions(
            seed=5,
            sequences=3,
            methods=[AttributionMethod.norm_rollout, AttributionMethod.integrated_gradients],
            stage=AttributionStage.attnres_n,
            pooling=Pooling.cls,
            erasure=Erasure.remove,
            orders=1,
            steps=5,
        ),
        CHOICES["all"],
    ),
    "one method of one sequence": (
        "bert",
        AttributionOptions(seed=6, sequences=1, methods=[AttributionMethod.decompx], pooling=Pooling.last),
        CHOICES["all"],
    ),
    "no maps": (
        "bert",
        AttributionOptions(seed=7, methods=[AttributionMethod.gradient_x_input], sequences=2, orders=2),
        CHOICES["all"],
    ),
}


@pytest.mark.parametrize("choice", ATTRIBUTIONS)
@pytest.mark.spread(1)
def test_attribution(choice):
    name, options, (layers, categories) = ATTRIBUTIONS[choice]
    specimen = made(name)
    categories = reported(specimen, categories)
    findings = specimen.findings("attribution", options, layers, categories)
    computed = expected(specimen, options)
    # Qwen2's norms compute in float32.
    assert_expected(findings, computed, tolerance={"qwen2": 2e-5, "classifier": 1e-7}.get(name, 1e-9))


@pytest.mark.parametrize("erasure", [None, Erasure.remove])
@pytest.mark.slow
def test_attribution_of_words(erasure):
    of_words, options = words.of_words(made("bert")), AttributionOptions(seed=3, sequences=4, orders=2, erasure=erasure)
    categories = reported(of_words, None)
    findings = of_words.findings("attribution", options, [1, 3], categories)
    computed = expected(of_words, options, attributions.AttributedWords)
    assert_expected(findings, computed)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"methods": list(AttributionMethod), "steps": 5, "sequences": 3}])
def test_attribution_of_losses(options):
    methods = [method for method in options.pop("methods", []) if method is not AttributionMethod.globenc] or None
    specimen, wanted = (
        made("qwen2"),
        AttributionOptions(seed=2, orders=2, methods=methods, target=ReadoutTarget.loss, **options),
    )
    findings = specimen.findings("attribution", wanted, [1, 3], reported(specimen, None))
    computed = expected(specimen, wanted, attributions.AttributedLoss)
    assert_expected(findings, computed, tolerance=2e-5)  # Qwen2's norms compute in float32


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"sequences": 3}, {"methods": list(AttributionMethod), "steps": 5}])
def test_attribution_of_answers(options):
    methods = [method for method in options.pop("methods", []) if method is not AttributionMethod.globenc] or None
    specimen = specimens.answered()
    wanted = AttributionOptions(seed=2, orders=2, methods=methods, target=ReadoutTarget.answer, **options)
    resource = SampledPairs(wanted.sequences, wanted.seed, "expected pairs")
    resource.start(None)
    resource.read([Example(*texts) for texts in specimen.texts])
    resources = {PAIRS: resource.finish()}
    findings = specimen.findings("attribution", wanted, [1, 3], reported(specimen, None), resources=resources)
    computed = expected(specimen, wanted, attributions.AttributedAnswer)
    assert_expected(findings, computed, tolerance=2e-5)  # as above


TRANSLATED = {
    "both methods": AttributionOptions(seed=2),
    "DecompX of some": AttributionOptions(seed=5, sequences=3, methods=[AttributionMethod.decompx]),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("choice", TRANSLATED)
def test_attribution_of_translations(choice):
    specimen, options = specimens.translations(), TRANSLATED[choice]
    examples = [Example(*texts, row=row) for row, texts in enumerate(specimen.texts, start=1)]
    resource = SampledPairs(options.sequences, options.seed, "expected pairs")
    resource.start(None)
    corpus = [*examples[:2], "empty", Example("a text without a translation"), *examples[2:]]
    rows = [row for row, example in enumerate(corpus, start=1) if example in examples]
    for part in (corpus[:3], corpus[3:]):
        resource.read([replace(each, row=0) if isinstance(each, Example) else each for each in part])
    resource.add(resource.state())
    findings = specimen.findings("attribution", options, [3], ["all"], resources={PAIRS: resource.finish()})
    numbered = [replace(example, row=row) for example, row in zip(examples, rows, strict=True)]
    assert_expected(findings, attribution_of_translations.expected(specimen, numbered, options))


def test_sentences_of_translations():
    assert sentences_of_translations({"translation/alti/source": 0.612, "translation/alti/special": 0.1}) == [
        "According to ALTI+, 61% of a target word comes from the source on average (10% from its special tokens), and the rest "
        "from the target so far."
    ]


NAN = float("nan")
FALLS = {"decompx": 0.5, "alti": 0.45, "globenc": 0.4, "random": 0.25}
UNKNOWN = Interval(NAN, NAN, NAN)
SURE = " (95% interval 0.10 to 0.40)"
NOT_DETECTABLE = (
    "On this sample, no method is detectably more faithful than a random order: without the tokens that rank highest, the "
    "probability of the predicted class or token falls by at most {} on average ({})"
)
NOTHING_MATTERS = (
    "No method finds tokens that matter: without the tokens that rank highest, the probability of the predicted class or "
    "token"
)

CASES = [
    ({}, []),
    ({"cosine/comprehensiveness/rollout": 0.1}, []),
    *(
        (
            {"probability/comprehensiveness/rollout": 0.25, "probability/comprehensiveness/random": 0.125},
            {"above_random": {"rollout": Interval(0.125, low, 0.25), "random": UNKNOWN}},
            [text],
        )
        for low, text in (
            (
                1e-9,
                "Rollout of weights is more faithful than a random order on this sample: without the tokens that it ranks "
                "highest, the probability of the predicted class or token falls by 0.13 more than without as many random "
                "tokens (95% interval 1.0×10⁻⁹ to 0.25).",
            ),
            *(
                (
                    low,
                    f"{NOT_DETECTABLE.format('0.25', 'rollout of weights')}, and by 0.13 without the same number of random "
                    "tokens.",
                )
                for low in (0.0, -1e-9, NAN)
            ),
        )
    ),
    *(
        (
            {f"cosine/comprehensiveness/{method}": fall for method, fall in FALLS.items()}
            | {"faithfulness/sequences": 8.0},
            {
                "above_random": {
                    method: Interval(0.25, low, 0.4) for method, low in (dict.fromkeys(FALLS, 0.1) | more).items()
                },
                "below_best": {method: Interval(0.05, low, 0.1) for method, low in below.items()},
            },
            [
                f"{start}: without the tokens that {whose} ranks highest, the cosine with the untouched embedding falls by "
                f"0.25 more than without as many random tokens{beside}."
            ],
        )
        for more, below, start, whose, beside in (
            (
                {},
                {"alti": 0.01, "globenc": 0.01},
                "DecompX is the most faithful of 3 methods on 8 sequences",
                "it",
                f"{SURE}, and by 0.050 more than with ALTI (95% interval 0.010 to 0.10)",
            ),
            (
                {},
                {"alti": 0.0, "globenc": 0.01},
                "DecompX and ALTI are tied as the most faithful of 3 methods on 8 sequences",
                "DecompX",
                f"{SURE}, and by 0.050 more than with ALTI (95% interval 0 to 0.10), no detectable difference",
            ),
            (
                {},
                {"alti": 0.01, "globenc": -0.1},
                "DecompX and GlobEnc are tied as the most faithful of 3 methods on 8 sequences",
                "DecompX",
                f"{SURE}, and by 0.050 more than with ALTI (95% interval 0.010 to 0.10)",
            ),
            (
                {},
                {},
                "DecompX, ALTI and GlobEnc are tied as the most faithful of 3 methods on 8 sequences",
                "DecompX",
                SURE,
            ),
            (
                {"decompx": 0.0},
                {"alti": NAN},
                "DecompX has the largest mean drop on 8 sequences, but cannot be told apart from ALTI, GlobEnc or a random "
                "order",
                "it",
                " (95% interval 0 to 0.40), and by 0.050 more than with ALTI, no detectable difference",
            ),
        )
    ),
    (
        {
            "cosine/comprehensiveness/alti": 0.25,
            "cosine/comprehensiveness/decompx": 0.5,
            "cosine/comprehensiveness/random": 0.5,
        },
        {"above_random": {"alti": Interval(-0.25, -0.3, -0.2), "decompx": Interval(0.0, -0.1, 0.1)}},
        [
            "On this sample, no method is detectably more faithful than a random order: without the tokens that rank "
            "highest, the cosine with the untouched embedding falls by at most 0.50 on average (DecompX), and by 0.50 "
            "without the same number of random tokens.",
        ],
    ),
    (
        {"probability/comprehensiveness/alti": 0.25, "probability/comprehensiveness/random": -0.125},
        {"above_random": {"alti": Interval(0.375, 0.1, 0.65)}},
        [
            "ALTI is more faithful than a random order on this sample: without the tokens that it ranks highest, the "
            "probability of the predicted class or token falls by 0.38 more than without as many random tokens (95% interval "
            "0.10 to 0.65).",
        ],
    ),
    *(
        (
            {"probability/comprehensiveness/alti": fall, "probability/comprehensiveness/random": -0.5},
            {"above_random": {"alti": Interval(0.5, 0.1, 0.9)}},
            [f"{start}, and {verb}by 0.50 without the same number of random tokens."],
        )
        for fall, start, verb in (
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
        {"above_random": {"rollout": Interval(1e-4, 1e-5, 2e-4)}},
        [
            f"{NOT_DETECTABLE.format('0.25', 'rollout of weights')}, and by 0.25 without the same number of random tokens."
        ],
    ),
    (
        {"agreement/alti/decompx": -5.6e-17},
        ["The scores of ALTI and DecompX have a rank correlation of 0."],
    ),
]

EFFECTS = [
    (
        {"cosine/comprehensiveness/alti": 0.5, "cosine/comprehensiveness/random": 0.25},
        {"above_random": {"alti": Interval(0.25, low, 0.4)}},
        effect,
    )
    for low, effect in ((0.1, 0.25), (0.0, 0.0))
]

CLAIMS = {
    r"is (?:the most|more) faithful .* falls by (\S+) more than without .* interval (\S+) to": lambda above, low: (
        above > 0 and low > 0
    ),
    r"is the most faithful .* more than with ALTI \(95% interval (\S+) to": lambda low: low > 0,
    r"agree most between .*ρ = (\S+)\) and least between .* \((\S+)\)": lambda high, low: high > low,
}
