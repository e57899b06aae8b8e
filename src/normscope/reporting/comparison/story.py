"""What happens along an ordered variable, such as the training step or the layer: where a measure begins, turns and ends."""

import dataclasses
from collections.abc import Callable, Sequence

import pandas as pd

from normscope.reporting.comparison.effects import COUNTS, effect, is_part
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import is_extreme
from normscope.reporting.comparison.swept import SEED, short_keys
from normscope.results.declare import is_percentage, unitless
from normscope.results.figures import Lines
from normscope.results.measures import has_curve, leading, metric_title, panel_of
from normscope.rounding import begun, brief, brief_share, compared, number

FEWEST = 3
"""Values of the variable that make a story."""
_MOST = 3
"""Measures that have a sentence at most."""
_REMAINDER = "/other"
"""How measures of ordinary tokens end: these get what special tokens lose, which is the finding."""


@dataclasses.dataclass(frozen=True)
class Story:
    """A measure along the variable."""

    metric: str
    variable: str
    """`step`, `layer`, or the end of a config key."""
    values: "pd.Series[float]"
    """Means over the runs at each value of the variable, which ascends."""
    layer: int | None = None
    """The layer in which it moves most, if the variable is not the layer."""

    @property
    def begin(self) -> str:
        """The first value of the variable in words."""
        return self._at(0)

    @property
    def end(self) -> str:
        """The last value of the variable in words."""
        return self._at(-1)

    @property
    def range(self) -> str:
        """Between which values the measure stays, in words."""
        low, high = compared(self._write, float(self.values.min()), float(self.values.max()))
        return f"the {metric_title(self.metric)} stays between {low} and {high}"

    @property
    def sentence(self) -> str:
        """Where it begins, turns and ends. A turn leaves the range between both ends by a tenth of the whole movement."""
        first, last = float(self.values.iloc[0]), float(self.values.iloc[-1])
        low, high = sorted((first, last))
        beyond = (self.values - high).clip(lower=0) + (low - self.values).clip(lower=0)
        place = int(beyond.to_numpy().argmax())
        spread = float(self.values.max() - self.values.min())
        top = float(self.values.iloc[place]) if beyond.iloc[place] > spread / 10 else last
        start, middle, end = compared(self._write, first, top, last)
        verb = "rises" if top > first else "falls"
        name = begun(metric_title(self.metric))
        most = "" if self.layer is None else f", most in layer {self.layer}"
        begins, ends = f"{name} {verb} from {start} at {self.begin} to", f"{end} at {self.end}{most}."
        return f"{begins} {ends}" if top == last else f"{begins} {middle} at {self._at(place)}, and ends at {ends}"

    @property
    def _write(self) -> Callable[..., str]:
        return brief_share if is_percentage(panel_of(self.metric).label) else brief

    def _at(self, place: int) -> str:
        at = float(self.values.index[place])
        return f"{self.variable} {f'{at:,.0f}' if at.is_integer() else number(at)}"

    def figure(self) -> Lines:
        """The measure as a curve."""
        panel = panel_of(self.metric)
        values = panel.factor * self.values.to_numpy()
        rows = pd.DataFrame({self.variable: self.values.index, "value": values, "line": self.metric})
        along = "training step" if self.variable == "step" else self.variable
        return Lines(
            rows,
            self.variable,
            "value",
            "line",
            f"{begun(metric_title(self.metric))}, by {along}.",
            panel.label,
            series_titles={self.metric: panel.title or unitless(panel.label)},
            x_label=along,
            steps=self.variable == "step",
        )


def stories(comparison: RunComparison) -> list[Story]:
    """The measures that move most along the one variable in which runs differ, seeds aside; empty if it has no order.

    Only measures of whole runs count, and only if they have a curve, are known for every value of the variable, and
    move by at least a tenth of their natural range. The leading measure comes first, then parts of a whole, then others,
    whose size is only relative; within each group, the measure that moves most comes first.
    """
    return _moving(_described(comparison))[:_MOST]


def _moving(every: Sequence[Story]) -> list[Story]:
    """The measures that move by enough, in the order of `stories`."""
    moves = {
        story.metric: effect(story.metric, float(story.values.max()), float(story.values.min())) for story in every
    }
    moved = [story for story in every if moves[story.metric] >= COUNTS]
    lead = leading(story.metric for story in every)
    moved.sort(key=lambda story: (story.metric != lead, not is_part(story.metric), -moves[story.metric]))
    return moved


def standstill(comparison: RunComparison) -> list[str]:
    """That nothing moves along the variable, in a sentence with the leading measure's range; empty if something does."""
    every = _described(comparison)
    if not every or _moving(every):
        return []
    first = every[0]
    start = f"From {first.begin} to {first.end}, no measure changes by a tenth of its range"
    lead = leading(story.metric for story in every)
    ranges = [f": {story.range}" for story in every if story.metric == lead]
    return [f"{start}{''.join(ranges)}."]


def _described(comparison: RunComparison) -> list[Story]:
    """Every measure of whole runs that has a curve and is known for each value of the variable."""
    places = _places(comparison)
    if places is None:
        return []
    variable, by_label = places
    values = comparison.values.assign(place=comparison.values["label"].map(by_label))
    table = values.pivot_table(index="place", columns=["metric", "layer"], values="value")
    table = table.sort_index().dropna(axis="columns")
    whole = dict.fromkeys(map(str, values[values["layer"] == 0]["metric"]))
    return [
        Story(metric, variable, table[metric, 0], _moving_layer(table.loc[:, [metric]].drop(columns=(metric, 0))))
        for metric in whole
        if (metric, 0) in table and not is_extreme(metric) and not metric.endswith(_REMAINDER) and has_curve(metric)
    ]


def _moving_layer(layers: pd.DataFrame) -> int | None:
    """The layer whose values vary most, of those that every run has; None if they are not several."""
    if layers.shape[1] < 2:
        return None
    spread = (layers.max() - layers.min()).to_numpy()
    return int(layers.columns.get_level_values("layer")[int(spread.argmax())])


def _places(comparison: RunComparison) -> tuple[str, dict[str, float]] | None:
    """The variable and the place of each run, by its label; None if the runs do not lie along one."""
    keys = [key for key in comparison.swept if not SEED.search(key)]
    if len(keys) != 1:
        return None
    (key,) = keys
    completed = comparison.runs[comparison.runs["label"] != ""]
    numbers = pd.to_numeric(completed[key].astype(str).str.strip("[]"), errors="coerce")
    if numbers.isna().any() or numbers.nunique() < FEWEST:
        return None
    variable = {"model.step": "step", "layers": "layer"}.get(key, short_keys([key], parts=1)[key])
    return variable, dict(zip(completed["label"], numbers.astype(float), strict=True))
