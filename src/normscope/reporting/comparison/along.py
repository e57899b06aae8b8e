"""Measures along an ordered variable, such as the training step or the layer: curves, maps, and where they turn and cross."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from normscope.reporting.comparison.effects import COUNTS, effect, is_part
from normscope.reporting.comparison.run_comparison import RunComparison, ends_of_scale
from normscope.reporting.comparison.significance import is_extreme, over_seeds
from normscope.reporting.comparison.swept import SEED, short_keys
from normscope.reporting.figure_text import step_label
from normscope.reporting.page.sections import Measure
from normscope.results.declare import is_percentage, unitless
from normscope.results.figures import Heatmaps, Lines
from normscope.results.measures import Family, families, has_curve, leading, metric_title, panel_of
from normscope.rounding import begun, brief, brief_share, compared, number

FEWEST = 3
"""Values of the variable that make a story."""
_MOST = 3
"""Measures that have a sentence at most."""
_FAST = 1.5
"""A measure moves fastest between two values of the variable if it moves this much further than on average."""
_MOST_MAPS = 5
"""Maps of layers by steps that are legible next to each other."""
_REMAINDER = "/other"
"""How measures of ordinary tokens end: these get what special tokens lose, which is the finding."""
_FLATTEST = 5
"""Panels share an axis unless the curves of one reach less than this part of the furthest."""
_AXES = {"depth": "relative depth", "step": "training step"}
"""How axes are labelled whose variable has another name."""
_WHERE = ["group", "metric", "layer"]


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
    in_layer: "pd.Series[float] | None" = None
    """The means in that layer."""

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
        """Where it begins, turns and ends. A turn leaves the range between both ends by a tenth of the whole movement.

        Without a turn, it is where it moves fastest, if anywhere.
        """
        first, last = float(self.values.iloc[0]), float(self.values.iloc[-1])
        low, high = sorted((first, last))
        beyond = (self.values - high).clip(lower=0) + (low - self.values).clip(lower=0)
        place = int(beyond.to_numpy().argmax())
        spread = float(self.values.max() - self.values.min())
        top = float(self.values.iloc[place]) if beyond.iloc[place] > spread / 10 else last
        start, middle, end = compared(self._write, first, top, last)
        verb = "rises" if top > first else "falls"
        name = begun(metric_title(self.metric))
        begins, ends = f"{name} {verb} from {start} at {self.begin} to", f"{end} at {self.end}"
        if top == last:
            return f"{begins} {ends}{self._fastest}{self._most([0, -1])}."
        return f"{begins} {middle} at {self._at(place)}, and ends at {ends}{self._most([0, place, -1])}."

    def _most(self, places: Sequence[int]) -> str:
        """The layer that moves most, with its values at some places; empty if there is none."""
        if self.layer is None or self.in_layer is None:
            return ""
        values = compared(self._write, *(float(self.in_layer.iloc[place]) for place in places))
        return f"; most in layer {self.layer} ({' → '.join(values)})"

    @property
    def _fastest(self) -> str:
        """Between which two values of the variable it moves fastest; empty if it moves everywhere alike."""
        steps = self.values.diff().abs().to_numpy()[1:]
        place = int(steps.argmax())
        if len(steps) < FEWEST or steps[place] < _FAST * steps.mean():
            return ""
        start, end = compared(self._write, float(self.values.iloc[place]), float(self.values.iloc[place + 1]))
        return f", fastest between {self._at(place)} ({start}) and {self._at(place + 1)} ({end})"

    @property
    def _write(self) -> Callable[..., str]:
        return brief_share if is_percentage(panel_of(self.metric).label) else brief

    def _at(self, place: int) -> str:
        at = float(self.values.index[place])
        return f"{self.variable} {f'{at:,.0f}' if at.is_integer() else number(at)}"

    def figure(self) -> Lines:
        """The measure as a curve."""
        panel, (family,) = panel_of(self.metric), families([self.metric], together=True)
        rows = pd.DataFrame({self.variable: self.values.index, "mean": self.values.to_numpy()})
        rows = rows.assign(metric=self.metric, group=panel.title or unitless(panel.label), low=np.nan, high=np.nan)
        return dataclasses.replace(
            _lines(rows, family, self.variable),
            caption=f"{begun(metric_title(self.metric))}, by {_AXES.get(self.variable, self.variable)}.",
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
        Story(metric, variable, table[metric, 0], layer, None if layer is None else table[metric, layer])
        for metric in whole
        if (metric, 0) in table and not is_extreme(metric) and not metric.endswith(_REMAINDER) and has_curve(metric)
        for layer in [_moving_layer(table.loc[:, [metric]].drop(columns=(metric, 0)))]
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
    return table.sort_values(
        ["metric", "group", "layer", "step"], key=lambda own: own.map(order) if own.name == "metric" else own
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


def by_layer(values: pd.DataFrame) -> list[Measure]:
    """Curves by layer, or by relative depth if the models differ in depth. Runs that differ only in their seeds are one line.

    Args:
        values: The `values` of a comparison.
    """
    layers = values[values["layer"] > 0]
    rows = over_seeds(layers, ["group", "metric", "layer", "depth"])
    differ = (layers["layer"] / layers["depth"]).round().nunique() > 1
    return _by_family(rows, "depth" if differ else "layer")


def over_steps(training: pd.DataFrame) -> list[Measure]:
    """Metrics of whole models over training steps, apart from minima and maxima.

    Args:
        training: Means over seeds at every training step; see `over_training`.
    """
    return _by_family(training[(training["layer"] == 0) & ~training["metric"].map(is_extreme).astype(bool)], "step")


def _by_family(rows: pd.DataFrame, x: str) -> list[Measure]:
    """A figure for each family.

    Args:
        rows: group, metric, mean, low and high (missing for one run), and what lies along x.
        x: `layer`, `depth`, `step` or the end of a config key.
    """
    return [
        Measure([figure], family.title, _values(figure, x))
        for family in families(map(str, rows["metric"].unique()), together=True)
        for figure in [_lines(rows, family, x)]
    ]


def _lines(rows: pd.DataFrame, family: Family, x: str) -> Lines:
    own = rows[rows["metric"].isin(list(family.panels))]
    factors = own["metric"].map({name: panel.factor for name, panel in family.panels.items()}).astype(float)
    own = own.assign(**{name: own[name].astype(float) * factors for name in ("mean", "low", "high")})
    reach = own["mean"].abs().groupby(own["metric"]).max()
    single = len(family.panels) == 1 and bool(family.label)
    return Lines(
        own,
        x,
        "mean",
        "group",
        family.meaning or f"{family.title}, by {_AXES.get(x, x)}.",
        family.label,
        series_titles={name: name for name in own["group"].unique()},
        panel=None if single else "metric",
        panel_titles=None if single else family.titles(),
        sharey=bool(family.label) and bool(reach.min() >= reach.max() / _FLATTEST),
        band=("low", "high"),
        x_label=_AXES.get(x, x),
        steps=x == "step",
    )


def _values(figure: Lines, x: str) -> pd.DataFrame:
    titles = figure.panel_titles or {}
    columns = {"measure": figure.table["metric"].map(lambda name: titles.get(name, figure.y_label))}
    places = ["layer", "depth"] if x == "depth" else [x]
    columns |= {name: figure.table[name] for name in ("group", *places, "mean", "low", "high")}
    return pd.DataFrame(columns).dropna(axis="columns", how="all")


def maps_over_steps(training: pd.DataFrame) -> list[Measure]:
    """Maps for each family of curves, with a row of maps for each training if there are several.

    Args:
        training: Means over seeds at every training step; see `over_training`.
    """
    layers = training[training["layer"] > 0]
    return [
        Measure(_grids(own, family), family.title, own.rename(columns=family.titles()))
        for family in families(map(str, layers["metric"].unique()), together=True)
        for own in [_table(layers, family)]
    ]


def _table(layers: pd.DataFrame, family: Family) -> pd.DataFrame:
    """A row per training, layer and step, and a column per panel."""
    table = layers.pivot(index=["group", "layer", "step"], columns="metric", values="mean")[list(family.panels)]
    factors = {name: panel.factor for name, panel in family.panels.items()}
    return table.mul(pd.Series(factors)).rename_axis(columns=None).dropna(how="all").reset_index()


def _grids(table: pd.DataFrame, family: Family) -> list[Heatmaps]:
    """The maps of all panels, on one scale if all measure the same."""
    titles = list(family.titles().items())
    low, high = ends_of_scale(table[list(family.panels)])
    table = table.sort_values("step", kind="stable").assign(step=_labels(table["step"]))
    return [
        Heatmaps(
            table,
            dict(titles[start : start + _MOST_MAPS]),
            "layer",
            "step",
            f"{family.meaning or f'{family.title}.'} The columns are training steps, whose distances differ.",
            "group" if table["group"].nunique() > 1 else None,
            diverging=low < 0,
            limits=(low, high) if family.label else None,
            value_label=family.label,
        )
        for start in range(0, len(titles), _MOST_MAPS)
    ]


def _labels(steps: "pd.Series[int]") -> "pd.Series[str]":
    """Short labels, unless two steps would share one."""
    labels = steps.map(step_label)
    return labels if labels.nunique() == steps.nunique() else steps.astype(str)
