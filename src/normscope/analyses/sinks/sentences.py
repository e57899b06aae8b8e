"""The findings of the sinks analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.findings import Sentence
from normscope.rounding import enumeration, number, percentage

_INPUTS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}
_BOS = {"with_bos": "with a beginning-of-sequence token", "without_bos": "without a beginning-of-sequence token"}


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """Sinks, dormant heads, value drains, massive activations, and what depends on them."""
    return [*_sinks(metrics), *_dormant(metrics), *_drains(metrics), *_massive(metrics), *_ablations(metrics)]


def _sinks(metrics: Mapping[str, float]) -> list[Sentence]:
    """The position that is a sink most often in the first variant, and the same position in the others."""
    rates = {key: value for key, value in metrics.items() if "/sink_rate/" in key}
    if not rates:
        return []
    variant = next(iter(rates)).partition("/sink_rate/")[0]
    of_variant = {key: rate for key, rate in rates.items() if key.startswith(f"{variant}/")}
    position = max(of_variant, key=lambda key: of_variant[key]).rpartition("/")[2]
    is_first = position == "first"
    mass = metrics.get(f"{variant}/mass/{position}")
    share = (
        ""
        if mass is None
        else f", and {'receives' if is_first else 'such tokens receive'} {percentage(mass)} of all weight"
    )
    text = (
        f"On {_in_words(variant)}, {'the first token' if is_first else f'a {position} token'} is a sink of "
        f"{percentage(rates[f'{variant}/sink_rate/{position}'])} of the heads{share}."
    )
    sentences = [Sentence(text, figure="rate", table="summary")]
    others = {
        _in_words(key.partition("/sink_rate/")[0]): rate
        for key, rate in rates.items()
        if key.endswith(f"/{position}") and not key.startswith(f"{variant}/")
    }
    if others:
        parts = enumeration([f"{percentage(rate)} on {words}" for words, rate in others.items()])
        sentences.append(Sentence(f"Its sink rate is {parts}.", figure="rate", table="summary"))
    return sentences


def _in_words(variant: str) -> str:
    inputs, bos = variant.split("/")
    return f"{_INPUTS[inputs]} {_BOS[bos]}"


def _dormant(metrics: Mapping[str, float]) -> list[Sentence]:
    shares = {key.removesuffix("/dormant"): value for key, value in metrics.items() if key.endswith("/dormant")}
    if not shares:
        return []
    parts = enumeration([f"{percentage(share)} on {_in_words(variant)}" for variant, share in shares.items()])
    return [Sentence(f"Heads that give a single key most of their weight are dormant: {parts}.", table="strongest")]


def _drains(metrics: Mapping[str, float]) -> list[Sentence]:
    norms = [metrics.get(f"drains/{key}/{name}") for name in ("f_norm", "alpha_f") for key in ("sink", "other")]
    if any(norm is None for norm in norms):
        return []
    sink, other, weighted_sink, weighted_other = (number(norm or 0.0) for norm in norms)
    text = (
        f"The transformed vector of a sink, the key that receives most of a head's weight, has a mean norm ‖f(x)‖ of {sink}, "
        f"that of another key {other}; weighted by attention, they contribute ‖αf(x)‖ = {weighted_sink} and {weighted_other} "
        "to a query."
    )
    return [Sentence(text, figure="drains", table="drains")]


def _massive(metrics: Mapping[str, float]) -> list[Sentence]:
    count = metrics.get("massive/count")
    if count is None:
        return []
    if not count:
        text = "No activation exceeds both 100 and 1000 times the median: there are no massive activations."
        return [Sentence(text, figure="norms", table="massive")]
    first, last = (int(metrics[f"massive/{name}_layer"]) for name in ("first", "last"))
    dimensions = "1 dimension has" if count == 1 else f"{int(count)} dimensions have"
    where = f"in layer {first}" if first == last else f"from layer {first} to layer {last}"
    text = (
        f"{dimensions} massive activations, {where}; the largest, {number(metrics['massive/largest'])}, is "
        f"{number(metrics['massive/ratio'])} times the median."
    )
    return [Sentence(text, figure="norms", table="massive")]


def _ablations(metrics: Mapping[str, float]) -> list[Sentence]:
    """The loss with the massive activations set to zero and to their mean, and the weight on the category that changes most."""
    sentences: list[Sentence] = []
    before = metrics.get("ablation/zero/loss_before")
    if before is not None:
        controls = metrics.get("ablation/zero/loss_controls")
        random = "" if controls is None else f"; with as many random dimensions at zero, it is {number(controls)}"
        text = (
            f"Setting the massive activations to zero changes the loss from {number(before)} to "
            f"{number(metrics['ablation/zero/loss_after'])} nats, setting them to their mean to "
            f"{number(metrics['ablation/mean/loss_after'])}{random}."
        )
        sentences.append(Sentence(text, table="ablation_loss"))
    weights = {
        key.rpartition("/")[2]: (value, metrics[key.replace("/before/", "/after/")])
        for key, value in metrics.items()
        if key.startswith("ablation/zero/before/")
    }
    if weights:
        category = max(weights, key=lambda name: abs(weights[name][1] - weights[name][0]))
        text = (
            f"With the massive activations at zero, the attention weight on {category} tokens goes from "
            f"{percentage(weights[category][0])} to {percentage(weights[category][1])}."
        )
        sentences.append(Sentence(text, table="ablation"))
    return sentences
