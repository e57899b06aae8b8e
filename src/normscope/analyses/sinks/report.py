"""What the sinks analysis derives from its tables: the summary, its main position, and the terminal's table."""

from collections.abc import Mapping

import pandas as pd

from normscope.analyses.categories import category_name
from normscope.data.categories import FIRST

# Sink rates below this are not worth reporting.
_RARE = 0.01
# A tenth of the weight that makes a sink: what a sink receives of all weight even if only a tenth of the queries see it.
_LEAST = 0.03

_VARIANT = ["inputs", "bos"]

INPUTS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}
"""What the model reads, in words."""


def label(inputs: str, bos: bool, first_token: str | None) -> str:
    """A variant in words.

    Args:
        inputs: What the model reads.
        bos: Whether sequences begin with the first token.
        first_token: The tokenizer's token that begins a sequence; None if it has none, so that there is nothing to say.
    """
    read = INPUTS[inputs]
    return read if first_token is None else f"{read}, {'with' if bos else 'without'} {first_token}"


def summary_table(by_head: pd.DataFrame, epsilon: float) -> pd.DataFrame:
    """The table `summary`: every head has seen the same keys, so the mean over heads is the share of all."""
    means = by_head.groupby([*_VARIANT, "position"], sort=False)["sink_rate"].mean().reset_index()
    means.insert(len(_VARIANT) + 1, "epsilon", epsilon)
    return means


def main_position(rates: Mapping[str, float], masses: Mapping[str, float]) -> str:
    """The position that is a sink most often, or the first token if sinks are rare.

    Late keys may be sinks by chance, because few queries see them, or none but themselves, as a [SEP] at the end of the texts
    of a causal model: they receive less weight than a sink would that even a few queries see.

    Args:
        rates: Sink rates by position, at least one.
        masses: Their shares of all weight, as far as they are known.
    """
    seen = [name for name in rates if name == FIRST or masses.get(name, 1.0) >= _LEAST * rates[name]]
    position = max(seen or rates, key=lambda name: rates[name])
    return position if rates[position] >= _RARE or FIRST not in rates else FIRST


def rates_of_first_variant(summary: pd.DataFrame) -> dict[str, float]:
    """Sink rates by position in the first variant of the table `summary`."""
    first = (
        summary[(summary[_VARIANT] == summary[_VARIANT].iloc[:1].squeeze()).all(axis=1)] if len(summary) else summary
    )
    return dict(zip(first["position"].tolist(), first["sink_rate"].tolist(), strict=True))


def masses_of_first_variant(mass: pd.DataFrame) -> dict[str, float]:
    """Shares of the weight by position in the first variant of the table `mass`: means over layers and heads."""
    first = mass[(mass[_VARIANT] == mass[_VARIANT].iloc[:1].squeeze()).all(axis=1)] if len(mass) else mass
    return {str(position): float(value) for position, value in first.groupby("position")["mass"].mean().items()}


def massive_by_layer(tables: Mapping[str, pd.DataFrame]) -> "pd.Series[float]":
    """Number of dimensions with massive activations in every layer, also in those that have none."""
    dimensions = tables["massive"].groupby("layer")["dimension"].nunique()
    return dimensions.reindex(tables["magnitude"]["layer"], fill_value=0).astype(float)


def terminal_summary(tables: Mapping[str, pd.DataFrame], position: str | None, first_token: str | None) -> pd.DataFrame:
    """By variant, in per cent: how often the position is a sink, the weight that it receives (and that the first token does, if
    that is another), and how often heads are dormant.
    """
    if position is None:
        return pd.DataFrame()
    by_head, mass = tables["by_head"], tables["mass"]
    parts = [
        (
            f"sink rate of {'the first token' if position == FIRST else category_name(position)} %",
            by_head[by_head["position"] == position],
            "sink_rate",
        ),
        ("its weight %", mass[mass["position"] == position], "mass"),
        ("dormant heads %", tables["strongest"], "dormant"),
    ]
    if position != FIRST:
        parts.insert(2, ("first token's weight %", mass[mass["position"] == FIRST], "mass"))
    table = pd.DataFrame({title: rows.groupby(_VARIANT, sort=False)[name].mean() * 100 for title, rows, name in parts})
    table.index = pd.Index([label(inputs, bos, first_token) for inputs, bos in table.index])
    return table
