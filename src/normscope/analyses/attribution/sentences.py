"""The findings of the attribution analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.attribution.outputs import METHODS, QUANTITIES
from normscope.analyses.findings import Sentence
from normscope.rounding import number, percentage


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """Where vectors come from, which method is the most faithful, and how far methods agree."""
    return [*_shares(metrics), *_faithfulness(metrics), *_agreement(metrics)]


def _shares(metrics: Mapping[str, float]) -> list[Sentence]:
    own = {method: metrics[name] for method in METHODS if (name := f"{method}/share/itself") in metrics}
    if not own:
        return []
    chosen = "decompx" if "decompx" in own else next(iter(own))
    text = f"According to {METHODS[chosen]}, {percentage(own[chosen])} of a token's output vector comes from the token itself"
    bias = metrics.get(f"{chosen}/share/bias")
    if bias is not None:
        text += f" and {percentage(bias)} from biases"
    others = sorted((share, method) for method, share in own.items() if method != chosen)
    if len(others) == 1:
        text += f"; {METHODS[others[0][1]]} puts the token's own share at {percentage(others[0][0])}"
    elif others:
        (low, lowest), (high, highest) = others[0], others[-1]
        text += (
            f"; the other methods put the token's own share between {percentage(low)} ({METHODS[lowest]}) and "
            f"{percentage(high)} ({METHODS[highest]})"
        )
    return [Sentence(f"{text}.", figure="by_category", table="by_category")]


def _faithfulness(metrics: Mapping[str, float]) -> list[Sentence]:
    sentences: list[Sentence] = []
    for quantity, words in QUANTITIES.items():
        prefix = f"{quantity}/comprehensiveness/"
        falls = sorted(
            ((value, name.removeprefix(prefix)) for name, value in metrics.items() if name.startswith(prefix)),
            key=lambda pair: -pair[0],
        )
        random = metrics.get(f"{prefix}random")
        methods = [(value, method) for value, method in falls if method != "random"]
        if random is None or not methods:
            continue
        sentences.append(Sentence(_best(words, *methods[0], random), figure="faithfulness", table="ranking"))
        if len(methods) > 1:
            order = ", ".join(f"{METHODS[method]} {number(value)}" for value, method in falls)
            sentences.append(Sentence(f"Mean fall by method: {order}.", figure="faithfulness", table="ranking"))
    return sentences


def _best(words: str, value: float, method: str, random: float) -> str:
    """How far a quantity falls without the tokens that the best method ranks highest, and without random ones."""
    fall, size = value >= 0, number(abs(value))
    verb = "" if fall == (random >= 0) else "falls " if random >= 0 else "rises "
    without_random = f"{verb}by {number(abs(random))} without as many random ones"
    if value > max(random, 0):
        return (
            f"{METHODS[method][0].upper()}{METHODS[method][1:]} is the most faithful on this sample: without the tokens that "
            f"it ranks highest, {words} falls by {size} on average, and {without_random}."
        )
    most = f"falls by at most {size}" if fall else f"rises by at least {size}"
    start = (
        "No method is more faithful than a random order" if value <= random else "No method finds tokens that matter"
    )
    return (
        f"{start}: without the tokens that rank highest, {words} {most} on average ({METHODS[method]}), and "
        f"{without_random}."
    )


def _agreement(metrics: Mapping[str, float]) -> list[Sentence]:
    pairs = sorted(
        ((value, name.split("/")[1:]) for name, value in metrics.items() if name.startswith("agreement/")),
        key=lambda pair: pair[0],
    )
    if not pairs:
        return []
    (low, least), (high, most) = pairs[0], pairs[-1]
    if len(pairs) == 1:
        text = f"The scores of {_both(least)} have a rank correlation of {number(low, signed=True)}."
    else:
        text = (
            f"The scores that methods give to tokens agree most between {_both(most)} (Spearman's ρ "
            f"{number(high, signed=True)}) and least between {_both(least)} ({number(low, signed=True)})."
        )
    return [Sentence(text, figure="agreement", table="agreement")]


def _both(pair: list[str]) -> str:
    return " and ".join(METHODS[method] for method in pair)
