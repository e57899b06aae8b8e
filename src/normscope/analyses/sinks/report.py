"""Tables of the sinks analysis to metrics, curves and the summary for the terminal."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.analyses.ablations import TOGETHER
from normscope.analyses.sinks.drains import MEASURES
from normscope.data.categories import FIRST

# Sink rates below this are not worth reporting.
_RARE = 0.01

_VARIANT = ["inputs", "bos"]
_BOS = {True: "with_bos", False: "without_bos"}


def label(inputs: str, bos: bool, first_token: str | None) -> str:
    """A variant in words.

    Args:
        inputs: What the model reads.
        bos: Whether sequences begin with the first token.
        first_token: The tokenizer's token that begins a sequence; None if it has none, so that there is nothing to say.
    """
    return inputs if first_token is None else f"{inputs}, {'with' if bos else 'without'} {first_token}"


def summary_table(by_head: pd.DataFrame, epsilon: float) -> pd.DataFrame:
    """The table `summary`: every head has seen the same keys, so the mean over heads is the share of all."""
    means = by_head.groupby([*_VARIANT, "position"], sort=False)["sink_rate"].mean().reset_index()
    means.insert(len(_VARIANT) + 1, "epsilon", epsilon)
    return means


def main_position(rates: Mapping[str, float]) -> str:
    """The position that is a sink most often, or the first token if sinks are rare.

    Late keys may be sinks by chance, because few queries see them.

    Args:
        rates: Sink rates by position, at least one.
    """
    position = max(rates, key=lambda name: rates[name])
    return position if rates[position] >= _RARE or FIRST not in rates else FIRST


def rates_of_first_variant(summary: pd.DataFrame) -> dict[str, float]:
    """Sink rates by position in the first variant of the table `summary`."""
    first = (
        summary[(summary[_VARIANT] == summary[_VARIANT].iloc[:1].squeeze()).all(axis=1)] if len(summary) else summary
    )
    return dict(zip(first["position"].tolist(), first["sink_rate"].tolist(), strict=True))


def metrics_of(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """All metrics."""
    metrics: dict[str, float] = {}
    for name, source in (("sink_rate", "summary"), ("mass", "mass")):
        means = tables[source].groupby([*_VARIANT, "position"], sort=False)[name].mean().reset_index()
        for row in means.to_dict("records"):
            metrics[f"{row['inputs']}/{_BOS[row['bos']]}/{name}/{row['position']}"] = float(row[name])
    for name in ("entropy", "dormant", "nowhere"):
        for row in tables["strongest"].groupby(_VARIANT, sort=False)[name].mean().reset_index().to_dict("records"):
            metrics[f"{row['inputs']}/{_BOS[row['bos']]}/{name}"] = float(row[name])
    metrics |= _massive(tables["massive"])
    magnitude = tables["magnitude"]
    for row in tables["drains"].groupby("key", sort=False)[list(MEASURES)].mean().reset_index().to_dict("records"):
        metrics |= {f"drains/{row['key']}/{name}": float(row[name]) for name in MEASURES}
    metrics |= {
        "magnitude/max_abs": float(magnitude["max_abs"].max()),
        "magnitude/kurtosis": float(magnitude["kurtosis"].mean()),
        "magnitude/beyond_6_sigma": float(magnitude["beyond_6_sigma"].mean()),
    }
    return metrics | _ablations(tables)


def _massive(massive: pd.DataFrame) -> dict[str, float]:
    metrics = {"massive/count": float(massive["dimension"].nunique())}
    if len(massive):
        largest = massive.iloc[int(massive["value"].abs().to_numpy().argmax())]
        metrics |= {
            "massive/first_layer": float(massive["layer"].min()),
            "massive/last_layer": float(massive["layer"].max()),
            "massive/largest": float(abs(largest["value"])),
            "massive/ratio": float(largest["ratio"]),
        }
    return metrics


def _ablations(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if "ablation" in tables:
        together = tables["ablation"][tables["ablation"]["removed"] == TOGETHER]
        means = together.groupby(["value", "category"], sort=False)[["before", "after"]].mean().reset_index()
        for row in means.to_dict("records"):
            for name in ("before", "after"):
                metrics[f"ablation/{row['value']}/{name}/{row['category']}"] = float(row[name])
    if "ablation_loss" in tables:
        loss = tables["ablation_loss"]
        for row in loss[loss["removed"] == TOGETHER].to_dict("records"):
            metrics[f"ablation/{row['value']}/loss_before"] = float(row["before"])
            metrics[f"ablation/{row['value']}/loss_after"] = float(row["after"])
            if not np.isnan(row["controls_mean"]):
                metrics[f"ablation/{row['value']}/loss_controls"] = float(row["before"] + row["controls_mean"])
    return metrics


def curves_of(tables: Mapping[str, pd.DataFrame], position: str | None) -> "dict[str, pd.Series[float]]":
    """Values by layer: sink rates of one position, ‖f(x)‖ of sinks and others, and the size of activations."""
    by_head, drains, magnitude = tables["by_head"], tables["drains"], tables["magnitude"].set_index("layer")
    rows = by_head[by_head["position"] == position]
    curves = {
        f"{inputs}/{_BOS[bool(bos)]}/sink_rate/{position}": rates.groupby("layer")["sink_rate"].mean()
        for (inputs, bos), rates in rows.groupby(_VARIANT, sort=False)
    }
    curves |= {f"f_norm/{key}": norms.groupby("layer")["f_norm"].mean() for key, norms in drains.groupby("key")}
    dimensions = tables["massive"].groupby("layer")["dimension"].nunique()
    return curves | {
        "max_abs": magnitude["max_abs"],
        "kurtosis": magnitude["kurtosis"],
        "massive": dimensions.reindex(magnitude.index, fill_value=0).astype(float),
    }


def terminal_summary(tables: Mapping[str, pd.DataFrame], position: str | None, first_token: str | None) -> pd.DataFrame:
    """By variant, in per cent: how often the position is a sink, the weight it receives, and how often heads are dormant."""
    if position is None:
        return pd.DataFrame()
    means = {
        name: rows.groupby(_VARIANT, sort=False)[name].mean() * 100
        for name, rows in (
            ("sink_rate", tables["by_head"][tables["by_head"]["position"] == position]),
            ("mass", tables["mass"][tables["mass"]["position"] == position]),
            ("dormant", tables["strongest"]),
        )
    }
    table = pd.DataFrame(means)
    table.index = pd.Index([label(inputs, bos, first_token) for inputs, bos in table.index])
    return table.rename(
        columns={"sink_rate": f"{position}: sink rate %", "mass": "its weight %", "dormant": "dormant heads %"}
    )
