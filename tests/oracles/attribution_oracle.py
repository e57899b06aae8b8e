"""The attribution analysis by brute force: every sequence and every set of erased tokens alone, without a batch."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats

from normscope.analyses.attribution.options import AttributionOptions
from normscope.rounding import number  # falls may be tiny: it has tests of its own for powers of ten
from tests.oracles.attributions import BASELINES, Attributed, fingerprint
from tests.oracles.comparison import Expected, Picture, percent, table, three_digits, visibly_apart
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
    "random": "random order",
}
PANELS = {
    "comprehensiveness": "without the highest scores (comprehensiveness)",
    "sufficiency": "with these alone (sufficiency)",
    "scores": "scores of tokens",
    "map": "rows of the map",
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
    layers: Sequence[int],
    categories: Sequence[str],
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
    mapped = [method for method in methods if method not in BASELINES]
    parts = _by_category(every, layers, [*dict.fromkeys([*categories, "all"])], mapped)
    agreement = _agreement(every, methods)
    falls = _falls(every, methods, options)
    faithfulness, ranking = _faithfulness(falls, methods, options), _ranking(falls, methods)
    quantity = every[0].quantity
    metrics = {
        f"{method}/share/{source}": share
        for (layer, method, category, source), share in parts["share"].items()
        if layer == max(layers) and category == "all"
    }
    scores = _scores(every, methods)
    metrics |= {f"{method}/score/{source}": share for (method, source), share in scores["share"].items()}
    metrics |= {
        f"agreement/{one}/{other}": rho
        for (one, other, scope), rho in agreement["spearman"].items()
        if scope == "scores"
    }
    metrics |= {
        f"{quantity}/{measure}/{method}": ranking.loc[method, measure]
        for measure in ("comprehensiveness", "sufficiency")
        for method in ranking.index
    }
    metrics["faithfulness/sequences"] = ranking["count"].max()
    summary = ranking[["comprehensiveness", "sufficiency"]].copy()
    summary["itself"] = [metrics.get(f"{method}/share/itself", np.nan) for method in summary.index]
    reported = parts.index.get_level_values("category").isin(categories)
    return Expected(
        tables={
            "by_layer": _by_layer(every, layers, mapped),
            "by_category": parts[reported],
            "scores": scores,
            "agreement": agreement,
            "faithfulness": faithfulness,
            "ranking": ranking.reset_index().set_index(["rank", "method"]),
        },
        metrics=metrics,
        curves={
            f"{method}/itself": {layer: parts.loc[(layer, method, "all", "itself"), "share"] for layer in layers}
            for method in mapped
        },
        figures=_figures(every, parts, agreement, faithfulness, ranking, mapped),
        summary=summary,
        sentences=_sentences(metrics, quantity, methods, mapped, falls, _name_of(layers, specimen)),
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


def _source(one: Attributed, categories: Sequence[str], i: int, k: int) -> str:
    if k == one.tokens:
        return "bias"
    if i == k:
        return "itself"
    if categories[k] != "other":
        return categories[k]
    return "neighbours" if abs(i - k) == 1 else "others"


def _by_layer(every: Sequence[Attributed], layers: Sequence[int], methods: Sequence[str]) -> pd.DataFrame:
    rows = []
    for layer, method, scope in itertools.product(layers, methods, ("layer", "cumulative")):
        itself, effective = [], []
        for one in every:
            maps = one.layer_maps(method) if scope == "layer" else one.cumulative_maps(method)
            if maps is None:
                continue
            for i, row in enumerate(maps[layer - 1]):
                if row.sum() > 0:
                    itself.append(row[i] / row.sum())
                    p = row[: one.tokens] / row[: one.tokens].sum()
                    effective.append(np.exp(scipy.stats.entropy(p)))
        if itself:
            rows.append(
                {
                    "layer": layer,
                    "method": method,
                    "scope": scope,
                    "itself": np.mean(itself),
                    "effective_tokens": np.mean(effective),
                    "count": len(itself),
                }
            )
    return table(["layer", "method", "scope"], rows, ["itself", "effective_tokens", "count"])


def _by_category(
    every: Sequence[Attributed], layers: Sequence[int], categories: Sequence[str], methods: Sequence[str]
) -> pd.DataFrame:
    rows = []
    for one, layer, method in itertools.product(every, layers, methods):
        of_tokens = list(one.specimen.categories(one.sequence))
        for i, row in enumerate(one.cumulative_maps(method)[layer - 1]):
            if row.sum() == 0:
                continue
            shares = dict.fromkeys([*one.specimen.names, "itself", "neighbours", "others", "bias"], 0.0)
            for k, value in enumerate(row):
                shares[_source(one, of_tokens, i, k)] += value / row.sum()
            rows += [
                {"layer": layer, "method": method, "category": category, "source": source, "share": share}
                for category in categories
                if category in (of_tokens[i], "all")
                for source, share in shares.items()
            ]
    if not rows:
        return table(["layer", "method", "category", "source"], rows, ["share", "count"])
    frame = pd.DataFrame(rows)
    overall = frame[frame["category"] == "all"]
    occurring = {source for source, share in overall.groupby("source")["share"].sum().items() if share > 0}
    frame = frame[frame["source"].isin(occurring) & ((frame["source"] != "bias") | (frame["method"] == "decompx"))]
    grouped = frame.groupby(["layer", "method", "category", "source"])["share"]
    return pd.DataFrame({"share": grouped.mean(), "count": grouped.size()})


def _scores(every: Sequence[Attributed], methods: Sequence[str]) -> pd.DataFrame:
    """Which share of the absolute scores the tokens of each category have."""
    rows = []
    for method, name in itertools.product(methods, every[0].specimen.names):
        of_sequences = []
        for one in every:
            sizes = [abs(value) for value in one.scores(method)]
            categories = list(one.specimen.categories(one.sequence))
            of_name = [size for size, category in zip(sizes, categories, strict=True) if category == name]
            of_sequences.append(sum(of_name) / sum(sizes))
        mean, low, high = interval(of_sequences)
        row = {"method": method, "source": name, "share": mean, "low": low, "high": high, "count": len(of_sequences)}
        rows.append(row)
    occurring = {row["source"] for row in rows if row["share"] > 0}
    return table(["method", "source"], [row for row in rows if row["source"] in occurring])


def _rho(one: np.ndarray, other: np.ndarray) -> float:
    if len(one) < 2 or len(np.unique(one)) == 1 or len(np.unique(other)) == 1:
        return np.nan
    return float(scipy.stats.spearmanr(one, other).statistic)


def _ordinary(one: Attributed) -> list[int]:
    special = one.specimen.loaded.tokenizer.all_special_ids
    return [i for i, token in enumerate(one.sequence.ids) if token not in special and one.may_be_erased(i)]


def _agreement(every: Sequence[Attributed], methods: Sequence[str]) -> pd.DataFrame:
    rows = []
    for scope, (first, second) in itertools.product(("scores", "map"), itertools.combinations(methods, 2)):
        values = []
        for one in every:
            if scope == "scores":
                ordinary = _ordinary(one)
                values.append(_rho(one.scores(first)[ordinary], one.scores(second)[ordinary]))
            elif first not in BASELINES and second not in BASELINES:
                maps = [one.cumulative_maps(method)[-1] for method in (first, second)]
                seen = [one.tokens if one.is_bert else i + 1 for i in range(one.tokens)]
                by_row = [_rho(maps[0][i, : seen[i]], maps[1][i, : seen[i]]) for i in range(one.tokens)]
                values.append(np.nanmean(by_row))
        if values:
            mean, low, high = interval(values)
            row = {"method": first, "other": second, "scope": scope, "spearman": mean, "low": low, "high": high}
            rows.append(row | {"count": len(values)})
    return table(["method", "other", "scope"], rows, ["spearman", "low", "high", "count"])


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
    ordered = pd.DataFrame(rows).sort_values("comprehensiveness", ascending=False).set_index("method")
    ordered.insert(0, "rank", range(1, len(ordered) + 1))
    return ordered


def _figures(every, parts, agreement, faithfulness, ranking, mapped) -> dict[str, Picture]:
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
    if mapped:
        figures["by_category"] = Picture(
            {
                (TITLES[method], layer, source): share * 100
                for (layer, method, category, source), share in parts["share"].items()
                if category == "all"
            },
            {"limits": (0, 100)},
        )
    if len(agreement):
        figures["agreement"] = Picture(
            {
                (PANELS[scope], TITLES[row], TITLES[column]): rho * 100
                for (one, other, scope), rho in agreement["spearman"].items()
                for row, column in ((one, other), (other, one))
            },
            {"limits": (0, 100)},
        )
    for place, one in enumerate(sorted(every, key=lambda one: one.tokens)[:2] if mapped else [], start=1):
        tokens = one.labels
        maps = {method: one.cumulative_maps(method)[-1][:, : one.tokens] for method in mapped}
        figures[f"maps_{place}"] = Picture(
            {
                (TITLES[method], i, tokens[i], k, tokens[k], "none"): values[i, k] / max(values[i].sum(), 1e-300)
                for method, values in maps.items()
                for i, k in np.ndindex(values.shape)
            }
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


def _name_of(layers: Sequence[int], specimen) -> str:
    return "output vector" if max(layers) == len(specimen.sequences[0].blocks) else f"vector after layer {max(layers)}"


def _of_special_tokens(metrics: Mapping[str, float], methods: Sequence[str]) -> list[str]:
    empty = {}
    for method in methods:
        of_kinds = [metrics.get(f"{method}/score/{kind}") for kind in ("cls", "sep", "first")]
        if any(share is not None for share in of_kinds):
            empty[method] = sum(share or 0.0 for share in of_kinds)
    if not empty:
        return []
    ends = [choose(empty, key=empty.__getitem__) for choose in (min, max)]
    least, most = (f"{percent(empty[method])} {{}}by {TITLES[method]}" for method in ends)
    is_present = {
        kind: any(f"{method}/score/{kind}" in metrics for method in methods) for kind in ("cls", "sep", "first")
    }
    special = is_present["cls"] or is_present["sep"]
    who = "Special tokens and the first token get" if special else "The first token gets"
    who = who if is_present["first"] else "Special tokens get"
    text = f"{who} {least.format('of the scores ')}"
    return [f"{text}, and {most.format('')}." if len(empty) > 1 else f"{text}."]


def _sentences(
    metrics: Mapping[str, float],
    quantity: str,
    methods: Sequence[str],
    mapped: Sequence[str],
    every_fall: Mapping,
    vector: str,
) -> list[str]:
    sentences = []
    own = {method: metrics[f"{method}/share/itself"] for method in TITLES if method in mapped}
    if own:
        first = "decompx" if "decompx" in own else next(iter(own))
        text = f"According to {TITLES[first]}, a token's own share of its {vector} is {percent(own[first])}"
        if first == "decompx":
            text += f", and that of the biases is {percent(metrics['decompx/share/bias'])}"
        rest = sorted((method for method in own if method != first), key=lambda method: own[method])
        if len(rest) > 1:
            ends = [f"{percent(own[method])} ({TITLES[method]})" for method in (rest[0], rest[-1])]
            text += f"; the other methods put the token's own share between {ends[0]} and {ends[1]}"
        elif rest:
            text += f"; {TITLES[rest[0]]} puts the token's own share at {percent(own[rest[0]])}"
        sentences.append(f"{text}.")
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
            f"falls by {size} on average, and {chance} without as many random tokens."
        )
    else:
        reason = "No method finds tokens that matter"
        if not beyond_chance:
            reason = "On this sample, no method is detectably more faithful than a random order"
        bound = "at most" if verbs[0] == "falls" else "at least"
        sentences.append(
            f"{reason}: without the tokens that rank highest, {WORDS[quantity]} {verbs[0]} by {bound} {size} on average "
            f"({TITLES[best]}), and {chance} without as many random tokens."
        )
    if len(methods) > 1:
        sentences.append(f"Mean drop by method: {', '.join(f'{TITLES[m]} {number(falls[m])}' for m in ranked)}.")
    sentences += _of_special_tokens(metrics, methods)
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
    if options.pooling is None and every[0].quantity == "cosine":
        embedding = "the mean of the last hidden vectors" if every[0].is_bert else "the last token's hidden vector"
        notes.append(
            f"the model's files name no pooling that can be used: the embedding is {embedding} (analysis.attribution.pooling)"
        )
    if options.erasure is None and every[0].specimen.loaded.tokenizer.mask_token_id is None:
        notes.append("the tokenizer has no mask token: erased tokens are removed (analysis.attribution.erasure)")
    return notes
