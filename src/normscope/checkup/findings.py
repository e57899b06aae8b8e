"""What a checkup has found, in lines that each say what a person would do."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from normscope.analyses.declarations.outliers import OUTLIERS
from normscope.analyses.declarations.score import SCORE
from normscope.analyses.declarations.sinks import LOSS, SINKS
from normscope.checkup.heads import alike_heads, head_names, idle_heads
from normscope.checkup.measuring import Measured
from normscope.maths.quantisation import NumberFormat
from normscope.reporting.page.elements import without_folders
from normscope.results.findings import Sentence
from normscope.rounding import brief, brief_share, compared, counted, enumeration, number, numbered, percentage

IDLE = 0.1
"""A head is said to do nothing if its share is less than this part of an equal share of its layer's heads."""
ALIKE = 0.9
"""Heads are said to do the same if what they add correlates at least so much."""
SINK = 0.1
"""Part of the heads in which a position must be a sink to be spoken of."""
_WORTH = 0.1
"""Part of a cost that a remedy must save to be worth its trouble, and that it may leave to be a full remedy."""
TWICE = 2.0
"""Layers are told apart if the weights of one have changed more than so many times as much as those of another."""

FORMATS = {
    NumberFormat.bfloat16: "bfloat16",
    NumberFormat.int8_per_tensor: "int8, one scale per tensor",
    NumberFormat.int8_per_token: "int8, one scale per token",
}
"""Formats in words."""

_PER_TENSOR = NumberFormat.int8_per_tensor
_NAMED = 6
"""Most modules that a line names; the JSON has all."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A finding, and what to do about it."""

    about: str
    """What it is about: `rounding`, `rounding_by_layer`, `linear_inputs`, `outliers`, `sinks`, `massive_activations`, `heads`
    or `against`."""
    found: str
    do: str
    figure: str = ""
    """The figure that shows it."""

    @property
    def sentence(self) -> Sentence:
        """The line as a finding of a page."""
        return Sentence(f"{self.found} → {self.do}", figure=self.figure)


def lines(measured: Measured) -> list[Line]:
    """What was found, in the order in which a person would go through it."""
    metrics, tables = measured.result.metrics, measured.tables
    found = [
        _skipped(measured),
        *_formats(tables["rounding"]),
        _by_layer(tables["rounding_by_layer"]),
        _linear_inputs(tables["linear_inputs"]),
        _outliers(metrics, measured.skipped.dimensions),
        _sinks(metrics, causal=measured.model.causal),
        _massive(metrics, measured.result.tables[f"{SINKS.name}_massive"]),
        _idle(tables["heads"]),
        _alike(tables["heads"]),
    ]
    if measured.against is not None:
        found = [_against(tables["against"], without_folders(measured.against)), *found]
    return [line for line in found if line is not None]


def _outliers(metrics: Mapping[str, float], dimensions: Sequence[int]) -> Line:
    if not dimensions:
        return Line(
            OUTLIERS.name,
            "No dimension of the hidden vectors stands far from the others in most layers.",
            "Nothing has to be kept apart.",
            f"{OUTLIERS.name}_dimensions",
        )
    shares = (metrics[f"{OUTLIERS.name}/{name}"] for name in ("share_of_dimensions", "share_of_length"))
    few, length = compared(brief_share, *shares)
    scores = metrics.get(f"{SCORE.name}/share_of_outliers/mean")
    decide = "" if scores is None else f", and decide {brief_share(scores)} of the variance of attention scores"
    are = "is an outlier" if len(dimensions) == 1 else "are outliers"
    return Line(
        OUTLIERS.name,
        f"{_dimensions(dimensions)} {are} of the hidden vectors: {few} of the dimensions make up {length} of the squared "
        f"length of the mean vector{decide}.",
        "Do not prune them, and keep them in a wider format when you quantise.",
        f"{OUTLIERS.name}_dimensions",
    )


def _sinks(metrics: Mapping[str, float], *, causal: bool) -> Line | None:
    begin = next(
        (name for name in ("text/with_bos", "text/without_bos") if f"{SINKS.name}/{name}/mass/first" in metrics), None
    )
    if begin is None:
        return None
    position = max(
        (name.rpartition("/")[2] for name in metrics if name.startswith(f"{SINKS.name}/{begin}/sink_rate/")),
        key=lambda position: metrics[f"{SINKS.name}/{begin}/sink_rate/{position}"],
    )
    rate = metrics[f"{SINKS.name}/{begin}/sink_rate/{position}"]
    tokens = "the first token" if position == "first" else f"{position} tokens"
    if rate < SINK:
        return Line(
            SINKS.name,
            f"No token is a sink in many heads: {tokens} most often, in {brief_share(rate)} of them.",
            "Texts can be cut anywhere.",
            f"{SINKS.name}_rate",
        )
    mass, contribution = (metrics[f"{SINKS.name}/{begin}/{name}/{position}"] for name in ("mass", "contribution"))
    short, weight, norm = compared(brief_share, rate, mass, contribution)
    is_first = position == "first"
    keep = (
        "Keep it in the cache when you cut the beginning of a text" if causal and is_first else "Keep it in every text"
    )
    read = ", and read maps of attention by contribution rather than by weight" if contribution < mass else ""
    return Line(
        SINKS.name,
        f"On average, {tokens} {'is a sink' if is_first else 'are sinks'} in {short} of the heads, with {weight} of the "
        f"attention weight and {norm} of what heads contribute.",
        f"{keep if is_first else keep.replace('it', 'them', 1)}{read}.",
        f"{SINKS.name}_rate",
    )


def _massive(metrics: Mapping[str, float], massive: pd.DataFrame) -> Line:
    if not metrics.get(f"{SINKS.name}/massive/count"):
        return Line(
            "massive_activations",
            "The residual stream has no massive activations (more than 100 and 1,000 times the median).",
            "Nothing has to be done about them.",
            f"{SINKS.name}_largest",
        )
    first, last = (int(metrics[f"{SINKS.name}/massive/{name}_layer"]) for name in ("first", "last"))
    where = f"layers {first} to {last}" if first != last else f"layer {first}"
    dimensions = sorted(set(massive["dimension"].tolist()))
    largest, ratio = (brief(metrics[f"{SINKS.name}/massive/{name}"]) for name in ("largest", "ratio"))
    reach = "reach" if len(dimensions) > 1 else "reaches"
    found = f"{_dimensions(dimensions)} of the residual stream {reach} {largest}, {ratio} times the median, in {where}"
    do = "Do not clip or prune them"
    of_zero, of_mean = (f"{SINKS.name}/ablation/{value}/{LOSS}" for value in ("zero", "mean"))
    if f"{of_zero}/before" not in metrics:
        return Line("massive_activations", f"{found}.", f"{do}.", f"{SINKS.name}_largest")
    before, zero, mean = (metrics[name] for name in (f"{of_zero}/before", f"{of_zero}/after", f"{of_mean}/after"))
    found += f"; set to zero, they take the loss from {number(before)} to {number(zero)}, set to their mean to {number(mean)}"
    if abs(mean - before) < _WORTH * abs(zero - before):
        do += "; where their range is in the way, replace them by their mean, which is a constant"
    return Line("massive_activations", f"{found}.", f"{do}.", f"{SINKS.name}_largest")


def _linear_inputs(table: pd.DataFrame) -> Line:
    massive = table[table["massive"]]
    if not len(massive):
        return Line(
            "linear_inputs",
            f"No linear layer has massive inputs: the largest is {brief(table['ratio'].max())} times the median, in "
            f"{table['module'].iloc[0]}.",
            "No module has to be left out for its inputs.",
            "linear_inputs",
        )
    first = massive.head(_NAMED)
    named = [f"{name} ({brief(ratio)})" for name, ratio in zip(first["module"], first["ratio"].tolist(), strict=True)]
    more = f" and {len(massive) - _NAMED} more" if len(massive) > _NAMED else ""
    return Line(
        "linear_inputs",
        f"The inputs of {len(massive)} of {len(table)} linear layers have values of more than 1,000 times the median: "
        f"{enumeration(named)}{more}.",
        "Do not quantise these modules, or give each token of their inputs a scale of its own.",
        "linear_inputs",
    )


def _skipped(measured: Measured) -> Line:
    """What int8 with one scale per tensor costs, with and without the skip list; whether that helps more than random ones."""
    column, of = "change", "the last hidden vectors of other texts change by {}"
    write: Callable[..., str] = percentage
    if measured.has_loss:
        column, write, of = "loss", number, "the loss on other texts goes from {} to {}"
    table = measured.tables["rounding"]
    rows = dict(zip(table["rounded"], table[column].tolist(), strict=True))
    before = table["loss_before"].tolist()[:1] if measured.has_loss else []
    whole, by_token = rows[str(_PER_TENSOR)], rows[str(NumberFormat.int8_per_token)]
    instead = f"Use one scale per token instead ({write(by_token)})."
    modules, dimensions = measured.skipped.modules, measured.skipped.dimensions
    start = f"In {FORMATS[_PER_TENSOR]}, "
    if "without_skipped" not in rows:
        return Line("rounding", f"{start}{of.format(*map(write, [*before, whole]))}.", instead, "rounding")
    kept, random = rows["without_skipped"], [rows[name] for name in rows if name.startswith("without_random")]
    *numbers, spared, low, high = map(write, [*before, whole, kept, min(random), max(random)])
    listed = [*([counted(len(modules), "linear layer")] if modules else [])]
    listed += [_dimensions(dimensions).replace("D", "d", 1)] if dimensions else []
    cost = whole - sum(before)
    helps = kept < min(random) and whole - kept >= _WORTH * cost
    do = 'Put "skip" of checkup.json into the list of what your quantiser skips.' if helps else instead
    return Line(
        "rounding",
        f"{start}{of.format(*numbers)}; with {enumeration(listed)} left as they are, "
        f"{'to' if measured.has_loss else 'by'} {spared} (random ones of the same number: {between_numbers(low, high)}).",
        do,
        "rounding",
    )


def between_numbers(low: str, high: str) -> str:
    """Two written numbers, or one if they read the same."""
    return low if low == high else f"{low} to {high}"


def _formats(table: pd.DataFrame) -> list[Line]:
    rows = {str(row["rounded"]): row for row in _rows(table)}
    found = []
    for target in (NumberFormat.int8_per_token, NumberFormat.bfloat16):
        row = rows[str(target)]
        how = FORMATS[target]
        changes = f"In {how}, the last hidden vectors change by {brief_share(row['change'])}"
        if row["loss"] is None:
            found.append(
                Line(
                    "rounding",
                    f"{changes}.",
                    "Compare that with the differences that your task must tell apart.",
                    "rounding",
                )
            )
            continue
        change, low, high = (number(row[name], signed=True) for name in ("loss_change", "loss_low", "loss_high"))
        detectable = not row["loss_low"] <= 0 <= row["loss_high"]
        worse = detectable and row["loss_change"] > 0
        loss = f"the loss by {change} ({low} to {high})" if detectable else "the loss by no detectable difference"
        do = "Weigh that against what it saves." if worse else "It can be used as it is."
        found.append(Line("rounding", f"{changes}, and {loss}.", do, "rounding"))
    return found


def _by_layer(table: pd.DataFrame) -> Line:
    has_loss = table["loss_change"].notna().all()
    measure, write = ("loss_change", brief) if has_loss else ("change", brief_share)
    what = "adds most to the loss" if has_loss else "changes the last hidden vectors most"
    rows = table[table["format"] == str(_PER_TENSOR)].sort_values(measure, ascending=False)
    worst, median = rows.iloc[0], float(rows[measure].median())
    most, usual = compared(write, float(worst[measure]), median)
    return Line(
        "rounding_by_layer",
        f"In {FORMATS[_PER_TENSOR]}, layer {int(worst['layer'])} alone {what}: {most}; half of the layers stay below {usual}.",
        "Look at the modules of this layer first.",
        "rounding_by_layer",
    )


def _idle(table: pd.DataFrame) -> Line:
    idle = idle_heads(table, IDLE)
    of = f"of {len(table)} heads"
    if not idle:
        return Line(
            "heads", f"None {of} adds the same vector to every token.", "None can be folded into a bias.", "heads"
        )
    return Line(
        "heads",
        f"{len(idle)} {of} add nearly the same vector to every token, less than a tenth of an equal share of the variance: "
        f"{head_names(idle)}.",
        "Candidates to prune: fold their mean into the bias of the output, and check the loss.",
        "heads",
    )


def _alike(table: pd.DataFrame) -> Line:
    alike = alike_heads(table, ALIKE)
    if not alike:
        most = (
            f": at most, they correlate at {number(table['correlation'].max())}" if table["twin"].notna().any() else ""
        )
        return Line(
            "heads", f"No two heads of a layer add the same to tokens{most}.", "None stands for another.", "heads"
        )
    named = [f"{one} and {other} of layer {layer}" for layer, one, other in alike[:_NAMED]]
    more = f" and {len(alike) - _NAMED} more pairs" if len(alike) > _NAMED else ""
    return Line(
        "heads",
        f"These heads add nearly the same to tokens (correlation {number(ALIKE)} or more): {enumeration(named)}{more}.",
        "Candidates to merge: remove one of each pair, double the other, and check the loss.",
        "heads",
    )


def _against(table: pd.DataFrame, name: str) -> Line:
    by_weights = table["weights"].notna().all()
    measure = "weights" if by_weights else "vectors"
    values = table.set_index("layer")[measure]
    low, high = percentage(float(values.min())), percentage(float(values.max()))
    what = "weights" if by_weights else "hidden vectors"
    if values.max() == 0:
        return Line("against", f"No weight differs from {name}'s.", "One model will do.", "against")
    if values.max() > TWICE * values.min():
        middle = (values.max() + values.min()) / 2
        most = values[values > middle].index.tolist()
        where = f"most in {'layer' if len(most) == 1 else 'layers'} {numbered(most)}"
        do = "Start here when you look for what tuning has changed."
    else:
        where, do = (
            "everywhere alike",
            "Store all layers: none can be taken from the other model.",
        )
    last = table.iloc[-1]
    return Line(
        "against",
        f"Compared with {name}, the {what} of layers have changed by {between_numbers(low, high)}, {where}; hidden vectors "
        f"differ by {brief_share(float(last['vectors']))} after the last layer.",
        do,
        "against",
    )


def _dimensions(dimensions: Sequence[int]) -> str:
    if len(dimensions) > _NAMED:
        return f"{len(dimensions)} dimensions"
    return f"Dimension{'' if len(dimensions) == 1 else 's'} {enumeration([str(each) for each in dimensions])}"


def content(measured: Measured, command: str) -> dict[str, Any]:
    """Everything for a JSON file: lines, what to skip, and all tables as lists of rows."""
    facts = measured.result.facts
    tables = dict(measured.tables) | {
        name: measured.result.tables[name]
        for name in (
            f"{OUTLIERS.name}_model",
            f"{SINKS.name}_massive",
            f"{SINKS.name}_ablation",
            f"{SCORE.name}_concentration",
        )
        if name in measured.result.tables
    }
    return {
        "model": measured.model.name,
        "against": measured.against,
        "command": command,
        "lines": [{"about": line.about, "found": line.found, "do": line.do} for line in lines(measured)],
        "skip": {"modules": list(measured.skipped.modules), "dimensions": list(measured.skipped.dimensions)},
        "heads": {
            "idle": [{"layer": layer, "head": head} for layer, head in idle_heads(measured.tables["heads"], IDLE)],
            "alike": [{"layer": layer, "heads": pair} for layer, *pair in alike_heads(measured.tables["heads"], ALIKE)],
        },
        "tables": {name: _rows(table) for name, table in tables.items()},
        "facts": {
            name: facts.get(name) for name in ("model_sha256", "dtype", "device", "sequences", "tokens", "versions")
        },
    }


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, with None for what is missing or infinite."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in table.to_dict("records")]


def _plain(value: Any) -> Any:
    if pd.isna(value) or (isinstance(value, float) and math.isinf(value)):
        return None
    return value.item() if hasattr(value, "item") else value
