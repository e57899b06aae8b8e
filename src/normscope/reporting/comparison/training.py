"""Measures over training: means over seeds at every step, and the first step at which a measure crosses a threshold."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from normscope.reporting.comparison.significance import is_extreme, over_seeds

_WHERE = ["group", "metric", "layer"]


def over_training(values: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds at every training step.

    Args:
        values: One row per run, metric and layer: group (shared by the runs of a training, whatever its seed), line (shared by
            those with one seed), metric, layer, step, value. Only groups with several steps count.

    Returns:
        group, metric, layer (0: the whole model), step, runs, mean, low, high: Student's interval with 95% confidence, missing
        for one run.
    """
    points = _of_trainings(values)
    table = over_seeds(points, [*_WHERE, "step"])
    order = {name: place for place, name in enumerate(dict.fromkeys(points["metric"]))}
    place = table["metric"].map(order)
    return (
        table.assign(place=place)
        .sort_values(["place", "group", "layer", "step"])
        .drop(columns="place", errors="ignore")
    )


def crossings(values: pd.DataFrame, thresholds: Mapping[str, float]) -> pd.DataFrame:
    """The first training step at which each measure has crossed a threshold.

    A measure has crossed once it lies on the other side of the threshold than at the first step, or on it. Minima and maxima
    are left out, and measures that do not change.

    Args:
        values: As for `over_training`.
        thresholds: By metric; of the others, half-way between the first and the last step.

    Returns:
        group, metric, layer, threshold, runs, crossed (how many of these runs have), step (their mean), low, high: Student's
        interval with 95% confidence, missing for one run.
    """
    columns = [*_WHERE, "threshold", "runs", "crossed", "step", "low", "high"]
    points = _of_trainings(values[~values["metric"].map(is_extreme).astype(bool)])
    rows = list(_first_steps(points, thresholds))
    lines = pd.DataFrame(rows, columns=[*_WHERE, "threshold", "value"])
    if lines.empty:
        return pd.DataFrame(columns=columns)
    keys = [*_WHERE, "threshold"]
    table = over_seeds(lines, keys, measured=False).rename(columns={"runs": "crossed", "mean": "step"})
    return table.assign(runs=lines.groupby(keys, sort=False).size().to_numpy())[columns]


def _of_trainings(values: pd.DataFrame) -> pd.DataFrame:
    """The rows of groups with several steps."""
    known = values[values["step"].notna()]
    several = known.groupby("group")["step"].nunique() > 1
    kept = known[known["group"].map(several).astype(bool)]
    return kept.assign(step=kept["step"].astype(int))


def _first_steps(points: pd.DataFrame, thresholds: Mapping[str, float]) -> Iterator[tuple[object, ...]]:
    """The first step beyond the threshold of every line; NaN for lines that never get there."""
    for keys, rows in points.groupby(_WHERE, sort=False):
        means = rows.groupby("step")["value"].mean().dropna().sort_index()
        if len(means) < 2 or means.iloc[0] == means.iloc[-1]:
            continue
        threshold = thresholds.get(str(keys[1]), (means.iloc[0] + means.iloc[-1]) / 2)
        for _, line in rows.groupby("line", sort=False):
            curve = line.dropna(subset="value").sort_values("step")
            side = np.sign(curve["value"].to_numpy() - threshold)
            beyond = np.flatnonzero(side != side[0]) if len(side) and side[0] != 0 else np.arange(len(side))
            yield (*keys, threshold, float(curve["step"].iloc[beyond[0]]) if len(beyond) else np.nan)
