"""What a comparison of runs has found, as its files, its page and its tables show it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from normscope.reporting.comparison.swept import SEED, last_part


@dataclasses.dataclass(frozen=True)
class RunComparison:
    """Several runs, compared metric by metric and layer by layer."""

    runs: pd.DataFrame
    """One row per run: run, label, status, every key that was swept, model, sequences, tokens, seconds, error."""
    swept: Sequence[str]
    """The config keys in which the runs differ."""
    title: str
    """What varies, and on which data: `5 models on WikiText`."""
    values: pd.DataFrame
    """One row per run, metric and layer (0: the whole run): label, group, metric, layer, depth, step, value, difference."""
    metrics: pd.DataFrame
    """One row per metric, one column per run."""
    seeds: pd.DataFrame
    """Mean and confidence interval over runs that differ only in their seeds: group, metric, runs, mean, low, high."""
    tests: pd.DataFrame
    """Differences between means over seeds, with what Welch's test says of them; see `significance.tests`."""
    sequence_tests: pd.DataFrame
    """Differences between means over tokens, tested with sequences as the sample; see `significance.over_sequences`."""
    heatmaps: pd.DataFrame
    """Cells of heat maps, as means over seeds: group, depth (number of layers), figure, panel, row, column, value, row_title,
    column_title, value_title."""
    repeated: Mapping[str, int]
    """How many runs have measured the same weights, texts and seeds in the same way, by their label; those of several."""
    training: pd.DataFrame
    """Means over seeds at every training step, for models with several; see `training.over_training`."""
    crossings: pd.DataFrame
    """The first training step at which each measure crosses a threshold; see `training.crossings`."""
    baseline: str
    """Label of the run that differences are measured from."""
    baseline_group: str
    """Label of that run without its seeds."""
    folders: Sequence[Path]
    """The runs' folders."""
    failures: Sequence[str]

    @property
    def sweeps_layers(self) -> bool:
        """Whether runs differ only in the layers of one model that they measure, and in seeds."""
        return [key for key in self.swept if not SEED.search(key)] == ["layers"]

    @property
    def model(self) -> str:
        """The model of the first run, without its owner or folder."""
        return last_part(str(self.runs["model"].iloc[0]))


def ends_of_scale(values: pd.DataFrame) -> tuple[float, float]:
    """The ends of a colour scale on which zero is: it begins there unless a value is negative."""
    finite = np.nan_to_num(values.to_numpy(dtype=float))
    low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    return low, high if high > low else low + 1
