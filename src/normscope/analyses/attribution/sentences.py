"""The findings of the attribution analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from normscope.analyses.attribution.published import METHODS, OF_TRANSLATIONS, QUANTITIES
from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import begun, brief, brief_share, differ


def sentences_of(
    metrics: Mapping[str, float],
    above_random: Mapping[str, float] = MappingProxyType({}),
    below_best: Mapping[str, float] = MappingProxyType({}),
) -> list[Sentence]:
    """Which method is the most faithful, and how far methods agree; for translations, how much comes from the source.

    Args:
        above_random: By method, the lower end of the interval of its difference from random orders, sequence by sequence.
            Without a number above 0, the sample cannot tell the two apart.
        below_best: The same for its difference from the best method.
    """
    return [
        *_faithfulness(metrics, above_random, below_best),
        *_agreement(metrics),
        *_translations(metrics),
    ]


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
    name = begun(METHODS[best])
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


def _translations(metrics: Mapping[str, float]) -> list[Sentence]:
    sentences: list[Sentence] = []
    for method, share in by_axes("translation/<method>/source", metrics).items():
        special = metrics[f"translation/{method}/special"]
        text = (
            f"According to {OF_TRANSLATIONS[method]}, {brief_share(share)} of a target word comes from the source on average "
            f"({brief_share(special)} from its special tokens), and the rest from the target so far."
        )
        sentences.append(Sentence(text, figure="source_share", table="translations"))
    return sentences
