"""The attribution analysis by brute force: every sequence and every set of erased tokens alone, without a batch."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats

from normscope.analyses.declarations.attribution import AttributionOptions
from normscope.rounding import number  # falls may be tiny: it has tests of its own for powers of ten
from tests.oracles.attributions import BASELINES, Attributed, fingerprint
from tests.oracles.comparison import Expected, Picture, table, three_digits, visibly_apart
from tests.oracles.specimens import Specimen

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
    """Everything that the analysis publishes."""
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


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, np.nan, np.nan
    if np.ptp(values) == 0:
        return mean, mean, mean
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=mean, scale=scipy.stats.sem(values))
    return mean, float(low), float(high)


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
        claim = (
            "is the most faithful on this sample"
            if len(methods) > 1
            else "is more faithful than a random order on this sample"
        )
        if names:
            listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
            claim = f"has the largest mean drop, but this sample cannot tell it from {listed}"
        sentences.append(
            f"{TITLES[best][0].upper()}{TITLES[best][1:]} {claim}: without the tokens that it ranks highest, {WORDS[quantity]} "
            f"falls by {size} on average, and {chance} without the same number of random tokens."
        )
    else:
        reason = "No method finds tokens that matter"
        if not beyond_chance:
            reason = "On this sample, no method is detectably more faithful than a random order"
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
