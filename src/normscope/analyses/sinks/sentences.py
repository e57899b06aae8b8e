"""The findings of the sinks analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.findings import Sentence
from normscope.analyses.paper_tables import category_name
from normscope.analyses.sinks.report import main_position
from normscope.rounding import enumeration, movement, number, percentage

_INPUTS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}
_BOS = {"with_bos": "with", "without_bos": "without"}


def sentences_of(metrics: Mapping[str, float], first_token: str = "BOS") -> list[Sentence]:
    """Sinks, dormant heads, value drains, massive activations, and what depends on them.

    Args:
        metrics: All metrics.
        first_token: The token that begins a sequence.
    """
    return [
        *_sinks(metrics, first_token),
        *_dormant(metrics, first_token),
        *_nowhere(metrics, first_token),
        *_drains(metrics),
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
        {key.rpartition("/")[2]: rate for key, rate in rates.items() if key.startswith(f"{variant}/")}
    )
    subject = "the first token is a sink" if position == "first" else f"{category_name(position)} tokens are sinks"
    mass = metrics.get(f"{variant}/mass/{position}")
    receives = "" if mass is None else f", and {'receives' if position == 'first' else 'receive'} "
    share = "" if mass is None else f"{percentage(mass)} of all attention weight"
    rate = percentage(rates[f"{variant}/sink_rate/{position}"])
    texts = [f"On {_in_words(variant, metrics, first_token)}, {subject} in {rate} of the heads{receives}{share}."]
    inputs, bos = variant.split("/")
    other = rates.get(f"{inputs}/without_bos/sink_rate/{position}")
    if bos == "with_bos" and other is not None:
        whose = "its" if position == "first" else "their"
        texts.append(f"Without {first_token}, {whose} sink rate is {percentage(other)}.")
    others = {
        words: rates[f"{name}/{bos}/sink_rate/{position}"]
        for name, words in _INPUTS.items()
        if name != inputs and f"{name}/{bos}/sink_rate/{position}" in rates
    }
    if others:
        parts = enumeration([f"{percentage(rate)} on {words}" for words, rate in others.items()])
        texts.append(
            f"The sink rate of {'the first token' if position == 'first' else f'{category_name(position)} tokens'} is {parts}."
        )
    return [Sentence(text, figure="rate", table="summary") for text in texts]


def _in_words(variant: str, metrics: Mapping[str, float], first_token: str) -> str:
    """A variant; whether it has the first token is only said if there are others that have it."""
    inputs, bos = variant.split("/")
    known = any("/with_bos/" in key for key in metrics)
    return f"{_INPUTS[inputs]} {_BOS[bos]} {first_token}" if known else _INPUTS[inputs]


def _dormant(metrics: Mapping[str, float], first_token: str) -> list[Sentence]:
    variant = next((key.removesuffix("/dormant") for key in metrics if key.endswith("/dormant")), None)
    if variant is None:
        return []
    where, share = _in_words(variant, metrics, first_token), percentage(metrics[f"{variant}/dormant"])
    text = f"On {where}, {share} of the heads are dormant: a single key receives most of their weight."
    return [Sentence(text, table="strongest")]


def _nowhere(metrics: Mapping[str, float], first_token: str) -> list[Sentence]:
    """The weight that learned sinks take, in the first variant."""
    variant = next((key.removesuffix("/nowhere") for key in metrics if key.endswith("/nowhere")), None)
    if variant is None or not metrics[f"{variant}/nowhere"]:
        return []
    where, share = _in_words(variant, metrics, first_token), percentage(metrics[f"{variant}/nowhere"])
    return [
        Sentence(
            f"On {where}, learned sinks take {share} of the attention weight, which goes to no key.", table="strongest"
        )
    ]


def _drains(metrics: Mapping[str, float]) -> list[Sentence]:
    norms = [metrics.get(f"drains/{key}/{name}") for name in ("f_norm", "alpha_f") for key in ("sink", "other")]
    if any(norm is None for norm in norms):
        return []
    sink, other, weighted_sink, weighted_other = (number(norm or 0.0) for norm in norms)
    texts = [
        f"The key that receives the most weight in a head has a mean ‖f(x)‖ of {sink}, compared with {other} for the other "
        "keys.",
        f"Weighted by attention, its contribution to a query has a mean norm ‖αf(x)‖ of {weighted_sink}, compared with "
        f"{weighted_other} for each other key.",
    ]
    return [Sentence(text, figure="drains", table="drains") for text in texts]


def _massive(metrics: Mapping[str, float]) -> list[Sentence]:
    count = metrics.get("massive/count")
    if count is None:
        return []
    if not count:
        text = "There are no massive activations: no value exceeds both 100 and 1,000 times the median."
        return [Sentence(text, figure="norms", table="massive")]
    first, last = (int(metrics[f"massive/{name}_layer"]) for name in ("first", "last"))
    dimensions = "1 dimension has" if count == 1 else f"{int(count)} dimensions have"
    where = f"in layer {first}" if first == last else f"in layers {first} to {last}"
    texts = [
        f"{dimensions} massive activations, {where}.",
        f"The largest massive activation is {number(metrics['massive/largest'])}, {number(metrics['massive/ratio'])} times the "
        "median.",
    ]
    return [Sentence(text, figure="norms", table="massive") for text in texts]


def _losses(metrics: Mapping[str, float]) -> list[Sentence]:
    """The loss with the massive activations set to zero and to their mean."""
    before = metrics.get("ablation/zero/loss_before")
    if before is None:
        return []
    controls = metrics.get("ablation/zero/loss_controls")
    random = "" if controls is None else f"; with as many random dimensions set to zero, it is {number(controls)}"
    whole = number(before)
    after, mean = (number(metrics[f"ablation/{value}/loss_after"]) for value in ("zero", "mean"))
    changes = f"leaves the loss at {whole}" if after == whole else f"changes the loss from {whole} to {after}"
    to_mean = "leaves it at" if mean == whole else "changes the loss to"
    texts = [
        f"Setting the massive activations to zero {changes} nats{random}.",
        f"Setting the massive activations to their mean {to_mean} {mean} nats.",
    ]
    return [Sentence(text, table="ablation_loss") for text in texts]


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
    hardly = percentage(before) == percentage(after)
    subject = "attention weights hardly change: that" if hardly else "the attention weight"
    text = f"With the massive activations set to zero, {subject} on {category_name(category)} tokens {movement(before, after)}."
    return [Sentence(text, table="ablation")]
