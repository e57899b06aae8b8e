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
        text += f"; {METHODS[others[0][1]]} says {percentage(others[0][0])}"
    elif others:
        (low, lowest), (high, highest) = others[0], others[-1]
        text += (
            f"; the other methods say between {percentage(low)} ({METHODS[lowest]}) and {percentage(high)} "
            f"({METHODS[highest]})"
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
        value, best = methods[0]
        if value > random:
            text = (
                f"{METHODS[best][0].upper()}{METHODS[best][1:]} is the most faithful on this sample: without the tokens "
                f"that it ranks highest, {words} falls by {number(value)} on average, and by {number(random)} without as "
                "many random ones."
            )
        else:
            text = (
                f"No method is more faithful than a random order: without the tokens that rank highest, {words} falls by at "
                f"most {number(value)} on average ({METHODS[best]}), and by {number(random)} without as many random ones."
            )
        sentences.append(Sentence(text, figure="faithfulness", table="ranking"))
        if len(methods) > 1:
            order = ", ".join(f"{METHODS[method]} {number(value)}" for value, method in falls)
            sentences.append(Sentence(f"This fall by method: {order}.", figure="faithfulness", table="ranking"))
    return sentences


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
