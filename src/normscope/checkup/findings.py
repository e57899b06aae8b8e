"""What a checkup has found, in lines that each say what a person would do."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from normscope.analyses.declarations.outliers import OUTLIERS
from normscope.analyses.declarations.score import SCORE
from normscope.analyses.declarations.sinks import LOSS, SINKS
from normscope.checkup.heads import ALIKE, head_names
from normscope.maths.quantisation import NumberFormat
from normscope.reporting.page.elements import without_folders
from normscope.results.checkup_tables import CHECKUP
from normscope.results.findings import Sentence
from normscope.results.result import Result
from normscope.rounding import begun, brief, brief_share, compared, counted, enumeration, number, numbered, percentage

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
_FIGURES = f"{OUTLIERS.name}_dimensions", f"{SINKS.name}_rate", f"{SINKS.name}_largest"
"""Figures of analyses whose first sentences are among the lines."""


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
    metrics, tables, facts, skip = result.metrics, result.tables, result.facts, result.facts["skip"]
    said = {sentence.figure: sentence for sentence in map(Sentence.of, reversed(result.sentences))}
    outliers, sinks, massive = (said.get(name, Sentence("")) for name in _FIGURES)
    rounding = tables["rounding"]
    found = [
        None if facts["against"] is None else _against(tables["against"], without_folders(facts["against"])),
        _skipped(rounding, **skip),
        *_formats(rounding),
        _by_layer(tables["rounding_by_layer"]),
        _linear_inputs(tables["linear_inputs"]),
        _outliers(outliers, metrics, skip["dimensions"], helps=_Costs.of(rounding).list_helps),
        _sinks(sinks, tables[f"{SINKS.name}_by_head"], causal=causal) if sinks else None,
        _massive(massive, metrics, tables[f"{SINKS.name}_massive"]),
        _idle(facts["heads"]["idle"], len(tables["heads"])),
        _alike(facts["heads"]["alike"], tables["heads"]["correlation"].max()),
    ]
    return [line for line in found if line is not None]


def _outliers(said: Sentence, metrics: Mapping[str, float], dimensions: Sequence[int], *, helps: bool) -> Advice:
    if not dimensions:
        return Advice(said, "Nothing has to be kept apart.", said.figure)
    scores = metrics.get(f"{SCORE.name}/share_of_outliers/mean")
    decide = "" if scores is None else f" Their share of the variance of attention scores is {brief_share(scores)}."
    wide = ", and keep them in a wider format when you quantise" if helps else ""
    return Advice(f"{said}{decide}", f"Do not prune them{wide}.", said.figure)


def _sinks(said: Sentence, by_head: pd.DataFrame, *, causal: bool) -> Advice:
    position = said.place["category"]
    rows = by_head[(by_head["position"] == position) & (by_head["bos"] == by_head["bos"].max())]
    rate, mass, contribution = rows[["sink_rate", "mass", "contribution"]].mean()
    if rate < SINK:
        return Advice(said, "Inputs can be cut anywhere.", said.figure)
    keep = "Keep it in every input" if position == "first" else "Keep them in every input"
    if position == "first" and causal:
        keep = "Keep it in the cache when you cut the beginning of a text"
    read = ", and read maps of attention by contribution rather than by weight" if contribution < mass else ""
    return Advice(said, f"{keep}{read}.", said.figure)


def _massive(said: Sentence, metrics: Mapping[str, float], massive: pd.DataFrame) -> Advice:
    dimensions = sorted({*massive["dimension"].tolist()})
    if not dimensions:
        return Advice(said, "Nothing has to be done about them.", said.figure)
    do, of_mean = f"Do not clip or prune {_dimensions(dimensions)}", ""
    of_zero, of_means = (f"{SINKS.name}/ablation/{value}/{LOSS}" for value in ("zero", "mean"))
    if f"{of_zero}/before" in metrics:
        before, zero, mean = (metrics[name] for name in (f"{of_zero}/before", f"{of_zero}/after", f"{of_means}/after"))
        of_mean = f" Set to their mean, it is {brief(mean)}."
        if abs(mean - before) < _WORTH * abs(zero - before):
            do += "; where their range is in the way, replace them by their mean, which is a constant"
    return Advice(f"{said}{of_mean}", f"{do}.", said.figure)


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


class _Costs(NamedTuple):
    """What int8 costs with one scale per tensor, and what remains of it with a remedy: the loss, or the vectors' change."""

    before: float
    """Without rounding: 0 of a change."""
    whole: float
    by_token: float
    kept: float | None
    """With the skip list; None if that is empty."""
    random: list[float]
    has_loss: bool

    @classmethod
    def of(cls, table: pd.DataFrame) -> "_Costs":
        """The costs in the table `rounding`."""
        has_loss = bool(table["loss"].notna().any())
        rows = dict(zip(table["rounded"], table["loss" if has_loss else "change"].tolist(), strict=True))
        random = [cost for name, cost in rows.items() if name.startswith("without_random")]
        before = float(table["loss_before"].iloc[0]) if has_loss else 0.0
        whole, by_token = rows["int8_per_tensor"], rows["int8_per_token"]
        return cls(before, whole, by_token, rows.get("without_skipped"), random, has_loss)

    def helps(self, cost: float) -> bool:
        """Whether a remedy saves so much that it is worth its trouble."""
        return self.whole - cost >= _WORTH * (self.whole - self.before) and cost < self.whole

    @property
    def list_helps(self) -> bool:
        """Whether the skip list is worth its trouble, and saves more than random ones."""
        return self.kept is not None and self.kept < min(self.random) and self.helps(self.kept)


def _skipped(table: pd.DataFrame, modules: Sequence[str], dimensions: Sequence[int]) -> Advice:
    """What int8 with one scale per tensor costs, with and without the skip list; whether that helps more than random ones."""
    costs = _Costs.of(table)
    write: Callable[..., str] = percentage
    of, to = "the last hidden vectors of held-out data change by {1}", "by "
    if costs.has_loss:
        write, of, to = number, "the loss on held-out data goes from {} to {}", "to "
    found = f"{_PER_TENSOR}{of.format(write(costs.before), write(costs.whole))}"
    remedies = [f"use one scale per token ({write(costs.by_token)})"] if costs.helps(costs.by_token) else []
    if costs.kept is not None:
        listed = [counted(len(modules), "linear layer")] if modules else []
        listed += [_dimensions(dimensions)] if dimensions else []
        kept, low, high = map(write, (costs.kept, min(costs.random), max(costs.random)))
        found += (
            f"; without rounding {enumeration(listed)}, {to}{kept} (as many random ones: {between_numbers(low, high)})"
        )
        if costs.list_helps:
            remedies.insert(0, 'add "skip" of checkup.json to what your quantiser skips')
        else:
            found += ", so that the list does not help"
    do = f"{begun(', or '.join(remedies))}." if remedies else _WEIGH
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
            change, low, high = (brief(row[name], signed=True) for name in ("loss_change", "loss_low", "loss_high"))
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


def _idle(idle: Sequence[Mapping[str, int]], heads: int) -> Advice:
    of = f"of {heads} heads"
    if not idle:
        return Advice(f"None {of} adds the same vector to every token.", "None can be folded into a bias.", "heads")
    found = (
        f"{len(idle)} {of} add nearly the same vector to every token, less than a tenth of an equal share of the variance: "
        f"{head_names(idle)}."
    )
    do = "Candidates to prune: fold their mean into the bias of the output, and check the loss."
    return Advice(found, do, "heads")


def _alike(pairs: Sequence[Mapping[str, Any]], most: float) -> Advice:
    if not pairs:
        closest = "" if math.isnan(most) else f": at most, they correlate at {brief(most)}"
        none = f"No two heads of a layer add the same vectors to tokens{closest}."
        return Advice(none, "No head can replace another.", "heads")
    named = [f"{enumeration(list(map(str, pair['heads'])))} of layer {pair['layer']}" for pair in pairs]
    these = f"(correlation {brief(ALIKE)} or more): {_first(named, 'more pairs')}"
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
    return f"dimension{'' if len(dimensions) == 1 else 's'} {enumeration([str(each) for each in dimensions])}"


def _first(named: list[str], more: str) -> str:
    left = len(named) - _NAMED
    return enumeration(named[:_NAMED]) + (f" and {left} {more}" if left > 0 else "")


_OF_ANALYSES = (
    f"{OUTLIERS.name}_model",
    f"{SINKS.name}_massive",
    f"{SINKS.name}_ablation",
    f"{SCORE.name}_concentration",
)


def content(result: Result, said: Sequence[Advice]) -> dict[str, Any]:
    """Everything for a JSON file: lines, what to skip with all other facts, and tables as lists of rows."""
    names = [name for name in (*CHECKUP, *_OF_ANALYSES) if name in result.tables]
    # What is missing or infinite is null in JSON.
    rows = {name: json.loads(result.tables[name].to_json(orient="records", double_precision=15)) for name in names}
    return {"lines": [line._asdict() for line in said], **result.facts, "tables": rows}
