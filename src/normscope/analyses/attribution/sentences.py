"""The findings of the attribution analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from normscope.analyses.attribution.published import METHODS, OF_TRANSLATIONS, QUANTITIES
from normscope.analyses.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief, brief_share, differ


def sentences_of(
    metrics: Mapping[str, float],
    above_random: Mapping[str, float] = MappingProxyType({}),
    below_best: Mapping[str, float] = MappingProxyType({}),
    vector: str = "output vector",
    below: tuple[float, float] = (0.0, 0.0),
) -> list[Sentence]:
    """Where vectors come from, which method is the most faithful, and how far methods agree; for translations, how much comes
    from the source, how many words are flagged, and how well the flags agree with gold labels.

    Args:
        above_random: By method, the lower end of the interval of its difference from random orders, sequence by sequence.
            Without a number above 0, the sample cannot tell the two apart.
        below_best: The same for its difference from the best method.
        vector: What the shares are of.
        below: The thresholds of the flags for words of the target and of the source.
    """
    return [
        *_shares(metrics, vector),
        *_faithfulness(metrics, above_random, below_best),
        *_without_content(metrics),
        *_agreement(metrics),
        *_translations(metrics, *below),
        *_detection(metrics),
    ]


def _shares(metrics: Mapping[str, float], vector: str) -> list[Sentence]:
    own = {method: metrics[name] for method in METHODS if (name := f"{method}/share/itself") in metrics}
    if not own:
        return []
    chosen = "decompx" if "decompx" in own else next(iter(own))
    text = f"According to {METHODS[chosen]}, a token's own share of its {vector} is {brief_share(own[chosen], *own.values())}"
    bias = metrics.get(f"{chosen}/share/bias")
    if bias is not None:
        text += f", and that of the biases is {brief_share(bias)}"
    others = sorted((share, method) for method, share in own.items() if method != chosen)
    if len(others) == 1:
        text += f"; {METHODS[others[0][1]]} puts the token's own share at {brief_share(others[0][0], *own.values())}"
    elif others:
        (low, lowest), (high, highest) = others[0], others[-1]
        ends = [brief_share(end, *own.values()) for end in (low, high)]
        between = f"between {ends[0]} ({METHODS[lowest]}) and {ends[1]} ({METHODS[highest]})"
        text += f"; the other methods put the token's own share {between if ends[0] != ends[1] else f'at {ends[0]}'}"
    return [Sentence(f"{text}.", figure="by_category", table="by_category")]


def _faithfulness(
    metrics: Mapping[str, float], above_random: Mapping[str, float], below_best: Mapping[str, float]
) -> list[Sentence]:
    sentences: list[Sentence] = []
    for quantity, words in QUANTITIES.items():
        by_method = by_axes(f"{quantity}/comprehensiveness/<method>", metrics)
        falls = sorted(((value, method) for method, value in by_method.items()), key=lambda pair: -pair[0])
        random = by_method.get("random")
        methods = [(value, method) for value, method in falls if method != "random"]
        if random is None or not methods:
            continue
        value, best = methods[0]
        # Detectable is what the interval of the difference says, and what the written means show.
        above = [
            method
            for fall, method in methods
            if above_random.get(method, 0.0) > 0 and fall > random and differ(fall, random)
        ]
        if not above:
            start = "On this sample, no method is detectably more faithful than a random order"
            text = f"{start}: {_of_all(words, value, best, random)}"
        elif value <= 0:
            text = f"No method finds tokens that matter: {_of_all(words, value, best, random)}"
        else:
            tied = [
                METHODS[method]
                for fall, method in methods[1:]
                if not (below_best.get(method, 0.0) > 0 and differ(fall, value))
            ]
            tied += [] if best in above else ["a random order"]
            text = _of_best(words, methods, random, tied)
        sentences.append(Sentence(text, figure="faithfulness", table="ranking"))
        if len(methods) > 1:
            order = ", ".join(f"{METHODS[method]} {brief(value, *by_method.values())}" for value, method in falls)
            sentences.append(Sentence(f"Mean drop by method: {order}.", figure="faithfulness", table="ranking"))
    return sentences


def _of_best(words: str, methods: Sequence[tuple[float, str]], random: float, tied: Sequence[str]) -> str:
    """How far a quantity falls without the tokens that the best method ranks highest.

    Args:
        words: The quantity.
        methods: The mean drops and the methods, the best first.
        random: The mean drop without random tokens.
        tied: What the sample cannot tell from the best method.
    """
    value, best = methods[0]
    name = f"{METHODS[best][0].upper()}{METHODS[best][1:]}"
    if tied:
        others = " or ".join(filter(None, (", ".join(tied[:-1]), tied[-1])))
        start = f"{name} has the largest mean drop, but this sample cannot tell it from {others}"
    elif len(methods) > 1:
        start = f"{name} is the most faithful on this sample"
    else:
        start = f"{name} is more faithful than a random order on this sample"
    return (
        f"{start}: without the tokens that it ranks highest, {words} falls by {brief(value, random)} on average, and "
        f"{_without_random(random, value)}."
    )


def _of_all(words: str, value: float, best: str, random: float) -> str:
    """How far a quantity falls, or how little it rises, without the tokens that the best method ranks highest."""
    size = brief(abs(value), abs(random))
    most = f"falls by at most {size}" if value >= 0 else f"rises by at least {size}"
    return (
        f"without the tokens that rank highest, {words} {most} on average ({METHODS[best]}), and "
        f"{_without_random(random, value)}."
    )


def _without_random(random: float, beside: float) -> str:
    """The same for random tokens, beside the fall named before; the verb stands before it if it is not the one before."""
    verb = "" if (beside >= 0) == (random >= 0) else "falls " if random >= 0 else "rises "
    return f"{verb}by {brief(abs(random), abs(beside))} without as many random tokens"


_WITHOUT_CONTENT = ("cls", "sep", "first")
"""Categories of tokens that say nothing about the text."""
_KINDS = {"special": "special tokens", "first": "the first token"}


def _without_content(metrics: Mapping[str, float]) -> list[Sentence]:
    """How much of the scores goes to special tokens and the first token."""
    shares: dict[str, float] = {}
    kinds: set[str] = set()
    for (method, source), share in by_axes("<method>/score/<source>", metrics).items():
        if source in _WITHOUT_CONTENT:
            shares[method] = shares.get(method, 0.0) + share
            kinds.add("first" if source == "first" else "special")
    ordered = sorted((share, method) for method, share in shares.items())
    if not ordered:
        return []
    (low, least), (high, most) = ordered[0], ordered[-1]
    who = " and ".join(name for kind, name in _KINDS.items() if kind in kinds)
    get = "gets" if kinds == {"first"} else "get"
    text = f"{who[0].upper()}{who[1:]} {get} {brief_share(low, high)} of the scores by {METHODS[least]}"
    text += f", and {brief_share(high, low)} by {METHODS[most]}." if len(ordered) > 1 else "."
    return [Sentence(text, table="scores", surprising=high > 2 * low)]


def _agreement(metrics: Mapping[str, float]) -> list[Sentence]:
    # A mean of opposite correlations is 0 up to rounding.
    pairs = sorted(
        ((round(value, 12), methods) for methods, value in by_axes("agreement/<method>/<other>", metrics).items()),
        key=lambda pair: pair[0],
    )
    if not pairs:
        return []
    (low, least), (high, most) = pairs[0], pairs[-1]
    if len(pairs) == 1:
        text = f"The scores of {_both(least)} have a rank correlation of {brief(low)}."
    elif not differ(low, high):
        text = f"Token scores of all methods agree alike (Spearman's ρ = {brief(high)})."
    else:
        text = (
            f"Token scores agree most between {_both(most)} (Spearman's ρ = "
            f"{brief(high, low)}) and least between {_both(least)} ({brief(low, high)})."
        )
    return [Sentence(text, figure="agreement", table="agreement")]


def _both(pair: tuple[str, str]) -> str:
    return " and ".join(METHODS[method] for method in pair)


def _translations(metrics: Mapping[str, float], hallucinated_below: float, omitted_below: float) -> list[Sentence]:
    sentences: list[Sentence] = []
    for method, share in by_axes("translation/<method>/source", metrics).items():
        title, name = OF_TRANSLATIONS[method], f"translation/{method}"
        special, hallucinated, omitted = (metrics[f"{name}/{of}"] for of in ("special", "hallucinated", "omitted"))
        text = (
            f"According to {title}, {brief_share(share)} of a target word comes from the source on average "
            f"({brief_share(special)} from its special tokens), and the rest from the target so far."
        )
        sentences.append(Sentence(text, figure="source_share", table="translations"))
        text = (
            f"{title} flags {brief_share(hallucinated)} of target words as hallucinated (less than "
            f"{brief_share(hallucinated_below)} comes from the source) and {brief_share(omitted)} of source words as omitted "
            f"(they contribute less than {brief_share(omitted_below)} to every target word)."
        )
        sentences.append(Sentence(text, table="target_words"))
    return sentences


_FLAGS = {
    "hallucinated": "The share that a target word takes from the source",
    "omitted": "The largest share that a source word contributes to any target word",
}


def _detection(metrics: Mapping[str, float]) -> list[Sentence]:
    sentences: list[Sentence] = []
    for (method, flag), auc in by_axes("detection/<method>/<flag>/auc", metrics).items():
        precision, recall = (metrics.get(f"detection/{method}/{flag}/{of}") for of in ("precision", "recall"))
        flags = "no word is flagged"
        if precision is not None and recall is not None:
            flags = f"the flags have a precision of {brief_share(precision)} and a recall of {brief_share(recall)}"
        text = (
            f"{_FLAGS[flag]} ({OF_TRANSLATIONS[method]}) detects words labelled as {flag} with an AUC of {brief(auc)}; "
            f"{flags}."
        )
        sentences.append(Sentence(text, table="detection"))
    return sentences
