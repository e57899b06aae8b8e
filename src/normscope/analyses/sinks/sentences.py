"""The findings of the sinks analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.categories import category_name
from normscope.analyses.sinks.report import INPUTS, main_position
from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief, brief_share, compared, differ, enumeration, movement, shares_differ

_BOS = {"with_bos": "with", "without_bos": "without"}


def sentences_of(metrics: Mapping[str, float], first_token: str = "BOS", dormant: float = 0.5) -> list[Sentence]:
    """Sinks, dormant heads, massive activations, and what depends on them.

    Args:
        first_token: The token that begins a sequence.
        dormant: The share of a head's weight that a single key of a dormant head exceeds.
    """
    return [
        *_sinks(metrics, first_token),
        *_dormant(metrics, first_token, dormant),
        *_nowhere(metrics, first_token),
        *_massive(metrics),
        *_losses(metrics),
        *_weights(metrics),
    ]


def _sinks(metrics: Mapping[str, float], first_token: str) -> list[Sentence]:
    """The position that is a sink most often in the first variant; its rate without the first token, and on other inputs."""
    rates = {key: value for key, value in metrics.items() if "/sink_rate/" in key}
    if not rates:
        return []
    variant = next(iter(rates)).partition("/sink_rate/")[0]
    position = main_position(
        by_axes(f"{variant}/sink_rate/<position>", metrics), by_axes(f"{variant}/mass/<position>", metrics)
    )
    is_first = position == "first"
    subject = "the first token is a sink" if is_first else f"{category_name(position)} tokens are, on average, sinks"
    mass = metrics.get(f"{variant}/mass/{position}")
    receivers = "it receives" if is_first else "together they receive"
    share = "" if mass is None else f", and {receivers} {brief_share(mass)} of all attention weight"
    rate = brief_share(rates[f"{variant}/sink_rate/{position}"], *([] if mass is None else [mass]))
    texts = [f"On {_in_words(variant, metrics, first_token)}, {subject} in {rate} of the heads{share}."]
    inputs, bos = variant.split("/")
    other = rates.get(f"{inputs}/without_bos/sink_rate/{position}")
    if bos == "with_bos" and other is not None:
        whose = "the token that then comes first" if is_first else f"{category_name(position)} tokens"
        texts.append(f"Without {first_token}, the sink rate of {whose} is {brief_share(other)}.")
    others = {
        words: rates[f"{name}/{bos}/sink_rate/{position}"]
        for name, words in INPUTS.items()
        if name != inputs and f"{name}/{bos}/sink_rate/{position}" in rates
    }
    if others:
        parts = enumeration([f"{brief_share(rate, *others.values())} on {words}" for words, rate in others.items()])
        texts.append(
            f"The sink rate of {'the first token' if position == 'first' else f'{category_name(position)} tokens'} is {parts}."
        )
    return [Sentence(text, figure="rate", table="summary") for text in texts]


def _in_words(variant: str, metrics: Mapping[str, float], first_token: str) -> str:
    """A variant; whether it has the first token is only said if there are others that have it."""
    inputs, bos = variant.split("/")
    known = any("/with_bos/" in key for key in metrics)
    return f"{INPUTS[inputs]} {_BOS[bos]} {first_token}" if known else INPUTS[inputs]


def _dormant(metrics: Mapping[str, float], first_token: str, most: float) -> list[Sentence]:
    variant = next((key.removesuffix("/dormant") for key in metrics if key.endswith("/dormant")), None)
    if variant is None:
        return []
    where, share = _in_words(variant, metrics, first_token), brief_share(metrics[f"{variant}/dormant"])
    text = f"On {where}, {share} of the heads are dormant: a single key receives more than {brief_share(most)} of their weight."
    return [Sentence(text, table="strongest")]


def _nowhere(metrics: Mapping[str, float], first_token: str) -> list[Sentence]:
    """The weight that learned sinks take, in the first variant."""
    variant = next((key.removesuffix("/nowhere") for key in metrics if key.endswith("/nowhere")), None)
    if variant is None or not metrics[f"{variant}/nowhere"]:
        return []
    where, share = _in_words(variant, metrics, first_token), brief_share(metrics[f"{variant}/nowhere"])
    return [
        Sentence(
            f"On {where}, learned sinks take {share} of the attention weight, which goes to no key.", table="strongest"
        )
    ]


def _massive(metrics: Mapping[str, float]) -> list[Sentence]:
    count = metrics.get("massive/count")
    if count is None:
        return []
    if not count:
        text = "There are no massive activations: no value exceeds 100 and is at least 1,000 times the median."
        return [Sentence(text, figure="norms", table="massive")]
    first, last = (int(metrics[f"massive/{name}_layer"]) for name in ("first", "last"))
    dimensions = "1 dimension has" if count == 1 else f"{int(count)} dimensions have"
    where = f"in layer {first}" if first == last else f"between layers {first} and {last}"
    texts = [
        f"{dimensions} massive activations, {where}.",
        f"The largest massive activation is {brief(metrics['massive/largest'])}, {brief(metrics['massive/ratio'])} times the "
        "median.",
    ]
    return [Sentence(text, figure="norms", table="massive", surprising=True) for text in texts]


def _losses(metrics: Mapping[str, float]) -> list[Sentence]:
    """The loss with the massive activations set to zero and to their mean."""
    before = metrics.get("ablation/zero/loss_before")
    if before is None:
        return []
    controls = metrics.get("ablation/zero/loss_controls")
    afters = [metrics[f"ablation/{value}/loss_after"] for value in ("zero", "mean")]
    whole, after, mean, *of_random = compared(brief, before, *afters, *([] if controls is None else [controls]))
    random = f"; with as many random dimensions set to zero, it is {of_random[0]}" if of_random else ""
    texts = [
        f"Setting the massive activations to zero {_change(before, afters[0], whole, after, start=f'from {whole} ')} "
        f"nats{random}.",
        f"Setting the massive activations to their mean {_change(before, afters[1], whole, mean)} nats.",
    ]
    return [Sentence(text, table="ablation_loss") for text in texts]


def _change(before: float, after: float, whole: str, written: str, start: str = "") -> str:
    """What becomes of the loss, as far as the written digits show it."""
    if differ(before, after):
        return f"changes the loss {start}to {written}"
    return f"leaves the loss at {written}" if written == whole else f"leaves the loss at about {written}"


def _weights(metrics: Mapping[str, float]) -> list[Sentence]:
    """The weight on the category that changes most with the massive activations at zero."""
    weights = {
        key.rpartition("/")[2]: (value, metrics[key.replace("/before/", "/after/")])
        for key, value in metrics.items()
        if key.startswith("ablation/zero/before/")
    }
    if not weights:
        return []
    category = max(weights, key=lambda name: abs(weights[name][1] - weights[name][0]))
    before, after = weights[category]
    subject = "the attention weight" if shares_differ(before, after) else "attention weights hardly change: that"
    text = f"With the massive activations set to zero, {subject} on {category_name(category)} tokens {movement(before, after)}."
    return [Sentence(text, table="ablation")]
