"""What a checkup has found, in lines that each say what a person would do."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from normscope.analyses.declarations.outliers import OUTLIERS
from normscope.analyses.declarations.score import SCORE
from normscope.analyses.declarations.sinks import LOSS, SINKS
from normscope.checkup.heads import alike_heads, head_names, idle_heads
from normscope.maths.quantisation import NumberFormat
from normscope.reporting.page.elements import without_folders
from normscope.results.checkup_tables import CHECKUP
from normscope.results.findings import Sentence
from normscope.results.result import Result
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
    "bfloat16": "bfloat16",
    "int8_per_tensor": "int8, one scale per tensor",
    "int8_per_token": "int8, one scale per token",
}
"""Formats in words."""
_WEIGH = "Weigh that against what it saves."
_PER_TENSOR = f"In {FORMATS['int8_per_tensor']}, "

_NAMED = 6
"""Most modules that a line names; the JSON has all."""
_ABOUT = {
    f"{OUTLIERS.name}_dimensions": OUTLIERS.name,
    f"{SINKS.name}_rate": SINKS.name,
    f"{SINKS.name}_largest": "massive_activations",
}
"""What lines are about, by the figure that shows it; other figures are called so."""


class Advice(NamedTuple):
    """A finding, and what to do about it."""

    found: str
    do: str
    figure: str
    """The figure that shows it."""

    @property
    def sentence(self) -> Sentence:
        """The line as a finding of a page."""
        return Sentence(f"{self.found} → {self.do}", figure=self.figure)


def lines(result: Result, *, causal: bool) -> list[Advice]:
    """What was found, in the order in which a person would go through it."""
    metrics, tables, facts = result.metrics, result.tables, result.facts
    found = [
        None if facts["against"] is None else _against(tables["against"], without_folders(facts["against"])),
        _skipped(tables["rounding"], **facts["skip"]),
        *_formats(tables["rounding"]),
        _by_layer(tables["rounding_by_layer"]),
        _linear_inputs(tables["linear_inputs"]),
        _outliers(metrics, facts["skip"]["dimensions"]),
        _sinks(metrics, causal=causal),
        _massive(metrics, tables[f"{SINKS.name}_massive"]),
        _idle(tables["heads"]),
        _alike(tables["heads"]),
    ]
    return [line for line in found if line is not None]


def _outliers(metrics: Mapping[str, float], dimensions: Sequence[int]) -> Advice:
    figure = f"{OUTLIERS.name}_dimensions"
    if not dimensions:
        none = "No dimension of the hidden vectors stands far from the others in most layers."
        return Advice(none, "Nothing has to be kept apart.", figure)
    shares = (metrics[f"{OUTLIERS.name}/{name}"] for name in ("share_of_dimensions", "share_of_length"))
    few, length = compared(brief_share, *shares)
    scores = metrics.get(f"{SCORE.name}/share_of_outliers/mean")
    decide = "" if scores is None else f", and decide {brief_share(scores)} of the variance of attention scores"
    are = "is an outlier" if len(dimensions) == 1 else "are outliers"
    found = (
        f"{_dimensions(dimensions)} {are} of the hidden vectors: {few} of the dimensions make up {length} of the squared "
        f"length of the mean vector{decide}."
    )
    return Advice(found, "Do not prune them, and keep them in a wider format when you quantise.", figure)


def _sinks(metrics: Mapping[str, float], *, causal: bool) -> Advice | None:
    figure = f"{SINKS.name}_rate"
    parts = [f"{SINKS.name}/text/{bos}" for bos in ("with_bos", "without_bos")]
    begin = next((part for part in parts if f"{part}/mass/first" in metrics), None)
    if begin is None:
        return None
    start = f"{begin}/sink_rate/"
    rates = {name.removeprefix(start): rate for name, rate in metrics.items() if name.startswith(start)}
    position, rate = max(rates.items(), key=lambda item: item[1])
    tokens, are, keep = f"{position} tokens", "are sinks", "Keep them in every input"
    if position == "first":
        tokens, are, keep = "the first token", "is a sink", "Keep it in every input"
        keep = "Keep it in the cache when you cut the beginning of a text" if causal else keep
    if rate < SINK:
        rare = f"No token is a sink in many heads: {tokens} most often, in {brief_share(rate)} of them."
        return Advice(rare, "Inputs can be cut anywhere.", figure)
    mass, contribution = (metrics[f"{begin}/{name}/{position}"] for name in ("mass", "contribution"))
    short, weight, norm = compared(brief_share, rate, mass, contribution)
    read = ", and read maps of attention by contribution rather than by weight" if contribution < mass else ""
    found = (
        f"On average, {tokens} {are} in {short} of the heads, with {weight} of the attention weight and {norm} of what heads "
        "contribute."
    )
    return Advice(found, f"{keep}{read}.", figure)


def _massive(metrics: Mapping[str, float], massive: pd.DataFrame) -> Advice:
    figure, of = f"{SINKS.name}_largest", f"{SINKS.name}/massive"
    if not metrics.get(f"{of}/count"):
        none = "The residual stream has no massive activations (more than 100 and 1,000 times the median)."
        return Advice(none, "Nothing has to be done about them.", figure)
    first, last = (int(metrics[f"{of}/{name}_layer"]) for name in ("first", "last"))
    where = f"layers {first} to {last}" if first != last else f"layer {first}"
    dimensions = sorted({*massive["dimension"].tolist()})
    largest, ratio = (brief(metrics[f"{of}/{name}"]) for name in ("largest", "ratio"))
    reach = "reach" if len(dimensions) > 1 else "reaches"
    found = f"{_dimensions(dimensions)} of the residual stream {reach} {largest}, {ratio} times the median, in {where}"
    do = "Do not clip or prune them"
    of_zero, of_mean = (f"{SINKS.name}/ablation/{value}/{LOSS}" for value in ("zero", "mean"))
    if f"{of_zero}/before" in metrics:
        before, zero, mean = (metrics[name] for name in (f"{of_zero}/before", f"{of_zero}/after", f"{of_mean}/after"))
        found += f"; set to zero, they take the loss from {number(before)} to {number(zero)}"
        found += f", set to their mean to {number(mean)}"
        if abs(mean - before) < _WORTH * abs(zero - before):
            do += "; where their range is in the way, replace them by their mean, which is a constant"
    return Advice(f"{found}.", f"{do}.", figure)


def _linear_inputs(table: pd.DataFrame) -> Advice:
    massive = table[table["massive"]]
    named = [f"{name} ({brief(ratio)})" for name, ratio in zip(massive["module"], massive["ratio"], strict=True)]
    if not named:
        largest = f"{brief(table['ratio'].max())} times the median, in {table['module'].iloc[0]}"
        found = f"No linear layer has massive inputs: the largest is {largest}."
        return Advice(found, "No module has to be left out for its inputs.", "linear_inputs")
    found = (
        f"The inputs of {len(massive)} of {len(table)} linear layers have values of more than 1,000 times the median: "
        f"{_first(named, 'more')}."
    )
    do = "Do not quantise these modules, or give each token of their inputs a scale of its own."
    return Advice(found, do, "linear_inputs")


def _skipped(table: pd.DataFrame, modules: Sequence[str], dimensions: Sequence[int]) -> Advice:
    """What int8 with one scale per tensor costs, with and without the skip list; whether that helps more than random ones."""
    column, of, to = "change", "the last hidden vectors of held-out data change by {}", "by"
    write: Callable[..., str] = percentage
    before = []
    if table["loss"].notna().any():
        column, write, of, to = "loss", number, "the loss on held-out data goes from {} to {}", "to"
        before = table["loss_before"].tolist()[:1]
    rows = dict(zip(table["rounded"].astype(str), table[column].tolist(), strict=True))
    whole, by_token = rows["int8_per_tensor"], rows["int8_per_token"]

    def helps(cost: float) -> bool:
        return whole - cost >= _WORTH * (whole - sum(before)) and cost < whole

    do = f"Use one scale per token instead ({write(by_token)})." if helps(by_token) else _WEIGH
    found = f"{_PER_TENSOR}{of.format(*map(write, [*before, whole]))}"
    if "without_skipped" in rows:
        kept, random = rows["without_skipped"], [rows[name] for name in rows if name.startswith("without_random")]
        listed = [counted(len(modules), "linear layer")] if modules else []
        listed += [_dimensions(dimensions).replace("D", "d", 1)] if dimensions else []
        spared, low, high = map(write, (kept, min(random), max(random)))
        found += (
            f"; with {enumeration(listed)} not rounded, {to} {spared} (random ones of the same number: "
            f"{between_numbers(low, high)})"
        )
        if kept < min(random) and helps(kept):
            do = 'Add "skip" of checkup.json to the modules that your quantiser skips.'
    return Advice(f"{found}.", do, "rounding")


def between_numbers(low: str, high: str) -> str:
    """Two written numbers, or one if they read the same."""
    return low if low == high else f"{low} to {high}"


def _formats(table: pd.DataFrame) -> list[Advice]:
    found = []
    rows = table.set_index("rounded").to_dict("index")
    for target in (NumberFormat.int8_per_token, NumberFormat.bfloat16):
        row = rows[str(target)]
        changes = f"In {FORMATS[target]}, the last hidden vectors change by {brief_share(row['change'])}"
        do = "Compare that with the differences that your task must tell apart."
        if not math.isnan(row["loss"]):
            change, low, high = (number(row[name], signed=True) for name in ("loss_change", "loss_low", "loss_high"))
            detectable = not row["loss_low"] <= 0 <= row["loss_high"]
            changes += (
                f", and the loss by {change} ({low} to {high})"
                if detectable
                else ", and there is no detectable difference in loss"
            )
            worse = detectable and row["loss_change"] > 0
            do = _WEIGH if worse else "It can be used as it is."
        found.append(Advice(f"{changes}.", do, "rounding"))
    return found


def _by_layer(table: pd.DataFrame) -> Advice:
    write: Callable[..., str] = brief_share
    measure, what = "change", "changes the last hidden vectors most"
    if table["loss_change"].notna().all():
        measure, write, what = "loss_change", brief, "adds most to the loss"
    rows = table[table["format"] == "int8_per_tensor"].sort_values(measure, ascending=False)
    most, usual = compared(write, float(rows[measure].iloc[0]), float(rows[measure].median()))
    found = (
        f"{_PER_TENSOR}layer {int(rows['layer'].iloc[0])} alone {what}: {most}; half of the layers stay below {usual}."
    )
    return Advice(found, "Look at the modules of this layer first.", "rounding_by_layer")


def _idle(table: pd.DataFrame) -> Advice:
    idle = idle_heads(table, IDLE)
    of = f"of {len(table)} heads"
    if not idle:
        return Advice(f"None {of} adds the same vector to every token.", "None can be folded into a bias.", "heads")
    found = (
        f"{len(idle)} {of} add nearly the same vector to every token, less than a tenth of an equal share of the variance: "
        f"{head_names(idle)}."
    )
    do = "Candidates to prune: fold their mean into the bias of the output, and check the loss."
    return Advice(found, do, "heads")


def _alike(table: pd.DataFrame) -> Advice:
    named = [f"{one} and {other} of layer {layer}" for layer, one, other in alike_heads(table, ALIKE)]
    if not named:
        have_twins = table["twin"].notna().any()
        most = f": at most, they correlate at {number(table['correlation'].max())}" if have_twins else ""
        return Advice(
            f"No two heads of a layer add the same vectors to tokens{most}.", "No head can replace another.", "heads"
        )
    these = f"(correlation {number(ALIKE)} or more): {_first(named, 'more pairs')}"
    do = "Candidates to merge: remove one of each pair, double the other, and check the loss."
    return Advice(f"These heads add nearly the same vectors to tokens {these}.", do, "heads")


def _against(table: pd.DataFrame, name: str) -> Advice:
    by_weights = table["weights"].notna().all()
    what = "weights" if by_weights else "hidden vectors"
    values = table.set_index("layer")["weights" if by_weights else "vectors"]
    if values.max() == 0:
        return Advice(f"No weight differs from {name}'s.", "Keep only one of the two models.", "against")
    where, do = "everywhere alike", "Store all layers: none can be taken from the other model."
    if values.max() > TWICE * values.min():
        most = values[values > (values.max() + values.min()) / 2].index.tolist()
        where = f"most in {'layer' if len(most) == 1 else 'layers'} {numbered(most)}"
        do = "Start here when you look for what tuning has changed."
    changed = between_numbers(percentage(float(values.min())), percentage(float(values.max())))
    found = (
        f"Compared with {name}, the {what} of layers have changed by {changed}, {where}; hidden vectors differ by "
        f"{brief_share(float(table['vectors'].iloc[-1]))} after the last layer."
    )
    return Advice(found, do, "against")


def _dimensions(dimensions: Sequence[int]) -> str:
    if len(dimensions) > _NAMED:
        return f"{len(dimensions)} dimensions"
    return f"Dimension{'' if len(dimensions) == 1 else 's'} {enumeration([str(each) for each in dimensions])}"


def _first(named: list[str], more: str) -> str:
    left = len(named) - _NAMED
    return enumeration(named[:_NAMED]) + (f" and {left} {more}" if left > 0 else "")


def heads_that_stand_out(table: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The heads that do nothing, and the pairs that do the same."""
    return {
        "idle": [{"layer": layer, "head": head} for layer, head in idle_heads(table, IDLE)],
        "alike": [{"layer": layer, "heads": pair} for layer, *pair in alike_heads(table, ALIKE)],
    }


_OF_ANALYSES = (
    f"{OUTLIERS.name}_model",
    f"{SINKS.name}_massive",
    f"{SINKS.name}_ablation",
    f"{SCORE.name}_concentration",
)
_FACTS = ("model_sha256", "dtype", "device", "sequences", "tokens", "versions")


def content(result: Result, said: Sequence[Advice]) -> dict[str, Any]:
    """Everything for a JSON file: lines, what to skip, and all tables as lists of rows."""
    facts = result.facts
    return {
        **{name: facts[name] for name in ("model", "against", "command")},
        "lines": [{"about": _ABOUT.get(line.figure, line.figure), "found": line.found, "do": line.do} for line in said],
        **{name: facts[name] for name in ("skip", "heads")},
        "tables": {name: _rows(result.tables[name]) for name in (*CHECKUP, *_OF_ANALYSES) if name in result.tables},
        "facts": {name: facts.get(name) for name in _FACTS},
    }


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, with None for what is missing or infinite."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in table.to_dict("records")]


def _plain(value: Any) -> Any:
    if pd.isna(value) or (isinstance(value, float) and math.isinf(value)):
        return None
    return value.item() if hasattr(value, "item") else value
