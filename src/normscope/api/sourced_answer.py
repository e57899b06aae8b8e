"""The sources of an answer as a result: tables, a figure, and what they say in words."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Float

from normscope.api.prompt_sources import Source
from normscope.attribution.handed_on import HandedOn, handed_on
from normscope.errors import printable
from normscope.results.figures import Heatmaps
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.rounding import counted, number, percentage
from normscope.statistics.rank_correlation import FEWEST_PAIRS, correlation

REST = "rest of the prompt"
CONSTANTS = "constants and the first position"
OTHER = "words of the other answer"

_LARGE_INSTRUCTION = 0.2
"""Share of what all sources add from which an instruction in one of them is warned of."""
_SHOWN = 60
"""Characters of a text in a sentence."""
_LISTED = 10
"""Sources that are printed."""


@dataclasses.dataclass(frozen=True, eq=False)
class SourcedAnswer:
    """The parts of an answer's log-probability, in nats."""

    sources: Sequence[Source]
    sentences: Sequence[str]
    lengths: Sequence[int]
    """Number of tokens of each sentence."""
    against: str
    """The answer that it is compared with; empty for none."""
    parts: Float[np.ndarray, "sentence column"]
    """Of the sources, the rest of the prompt, each sentence of the answer (and the words of the other answer) and the
    constants."""
    log_probability: Float[np.ndarray, " sentence"]
    """By the untouched model."""
    error: float
    """What rounding leaves of a sentence's log-probability, relative to that, or in nats if that is less than one nat; the
    largest of all sentences. It is among the constants."""
    instructions: Mapping[tuple[int, str], float]
    """What sentences that read as instructions add, by the number of their source and their text."""
    falls: Float[np.ndarray, "sentence source"]
    """By how much the log-probability falls without each source; NaN for sources that were not removed."""
    controls: Sequence[int]
    """The sources that do not add most, and were removed for comparison."""
    not_removed: str
    """Why sources cannot be removed; empty if they can."""
    first: str
    """What of the first token is among the constants, in words."""
    passes: int
    """What it cost, in forward passes."""
    tokens: int
    """Those of the prompt and the answer."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The kind and the name of each column of the parts."""
        own = [("answer", f"sentence {number}") for number in range(1, len(self.sentences) + 1)]
        other = [("against", OTHER)] if self.against else []
        named = [("source", source.name) for source in self.sources]
        return [*named, ("rest", REST), *own, *other, ("constants", CONSTANTS)]

    @cached_property
    def handed(self) -> HandedOn:
        """The parts once those of the answer's own sentences are handed on to the prompt."""
        own = len(self.sources) + 1
        return handed_on(self.parts[:, :own], self.parts[:, own : own + len(self.sentences)])

    def of_kind(self, *kinds: str) -> Float[np.ndarray, " column"]:
        """What the columns of some kinds add to the whole answer."""
        return self.parts[:, [kind in kinds for kind, _ in self.columns]].sum(axis=0)

    @property
    def of_sources(self) -> Float[np.ndarray, " source"]:
        """What each source adds to the whole answer."""
        return self.of_kind("source")

    @property
    def order(self) -> list[int]:
        """The sources, those that add most first."""
        return list(map(int, np.argsort(-self.of_sources, kind="stable")))

    @property
    def removed(self) -> Sequence[int]:
        """The sources that were removed."""
        return np.flatnonzero(~np.isnan(self.falls[0])).tolist()

    @property
    def removals(self) -> Float[np.ndarray, " source"]:
        """What removing each source does to the whole answer."""
        return self.falls.sum(axis=0)

    @cached_property
    def rank_correlation(self) -> float | None:
        """Spearman's ρ of parts and removals, over the sources that were removed; None of fewer than three."""
        if len(self.removed) < FEWEST_PAIRS:
            return None
        return correlation(*(scipy.stats.rankdata(each[self.removed]) for each in (self.of_sources, self.removals)))


def result_of(of: SourcedAnswer) -> Result:
    """The parts of an answer as a result."""
    tables = {"sources": _sources(of), "parts": _parts(of), "sentences": _sentences(of), "flow": _flow(of)}
    told = _instructions(of)
    if len(told):
        tables["instructions"] = told
    return Result(
        tables=tables,
        metrics=_metrics(of),
        figures={"parts": _figure(of)},
        sentences=[*map(Sentence, _findings(of))],
        notes=list(_notes(of)),
        summaries={"": _summary(of)},
    )


def _sources(of: SourcedAnswer) -> pd.DataFrame:
    """One row per source, in the order of the prompt."""
    why = {number: "for comparison" if number in of.controls else "adds most" for number in of.removed}
    return pd.DataFrame(
        {
            "source": [source.name for source in of.sources],
            "part": of.of_sources,
            "handed_on": of.handed.parts[:, :-1].sum(axis=0),
            "removal": of.removals,
            "removed": [why.get(number, "") for number in range(len(of.sources))],
            "tokens": [len(source.tokens) for source in of.sources],
            "text": [source.text for source in of.sources],
        }
    )


def _parts(of: SourcedAnswer) -> pd.DataFrame:
    """One row per sentence of the answer and column."""
    rows, width = of.parts.shape
    kinds, names = zip(*of.columns, strict=True)
    without = np.pad(of.falls, ((0, 0), (0, width - len(of.sources))), constant_values=np.nan)
    return pd.DataFrame(
        {
            "sentence": np.repeat(np.arange(1, rows + 1), width),
            "kind": kinds * rows,
            "source": names * rows,
            "value": of.parts.ravel(),
            "removal": without.ravel(),
        }
    )


def _sentences(of: SourcedAnswer) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "sentence": range(1, len(of.sentences) + 1),
            "text": of.sentences,
            "tokens": of.lengths,
            "log_probability": of.log_probability,
            "parts": of.parts.sum(axis=1),
            "kept": of.handed.kept,
        }
    )


def _flow(of: SourcedAnswer) -> pd.DataFrame:
    """One row per sentence, part of the prompt and sentence through which it adds something; 0 is directly."""
    rows, _, width = of.handed.through.shape
    ways = np.concatenate([of.parts[:, None, :width], of.handed.through], axis=1)
    sentence, way = np.tri(rows, rows + 1, 1, dtype=bool).nonzero()
    return pd.DataFrame(
        {
            "sentence": sentence.repeat(width) + 1,
            "through": way.repeat(width),
            "source": [name for _, name in of.columns[:width]] * len(way),
            "value": ways[sentence, way].ravel(),
        }
    )


def _instructions(of: SourcedAnswer) -> pd.DataFrame:
    """One row per sentence in a source that reads as an instruction, with its share of what all sources that raise it add."""
    raised = float(np.maximum(of.of_sources, 0).sum()) or np.inf
    return pd.DataFrame(
        [
            {"source": of.sources[number].name, "text": said, "value": value, "share": value / raised}
            for (number, said), value in of.instructions.items()
        ]
    )


def _metrics(of: SourcedAnswer) -> dict[str, float]:
    correlated = {} if of.rank_correlation is None else {"rank_correlation": of.rank_correlation}
    return {
        "log_probability": float(of.log_probability.sum()),
        "sources": float(of.of_sources.sum()),
        **{kind: float(of.of_kind(kind).sum()) for kind in ("rest", "answer", "constants")},
        "error": of.error,
        "passes": float(of.passes),
        **correlated,
    }


def _findings(of: SourcedAnswer) -> Iterator[str]:
    """What adds most, whether removal confirms it, and how far parts and removals agree."""
    first = of.order[0]
    name, value = of.sources[first].name, float(of.of_sources[first])
    against = printable(of.against.strip(), _SHOWN)
    than = f" rather than {f'“{against}”' if against else 'white space'}" if of.against else ""
    answer = printable("".join(of.sentences).strip(), _SHOWN)
    adds = f"it adds {number(value, signed=True)} to the log-probability"
    comes = f"comes most from “{name}”" if value > 0 else f"comes from no source; “{name}” lowers it least"
    yield f"“{answer}”{than} {comes}: {adds}.{_confirmed(of) if value > 0 else ''}"
    if of.rank_correlation is not None:
        yield (
            f"Over the {len(of.removed)} sources that were removed, the rank correlation of their parts with what removing "
            f"them does is {number(of.rank_correlation, signed=True, digits=2)}; the closer to 1, the better."
        )


def _confirmed(of: SourcedAnswer) -> str:
    """Whether removing the source that adds most lowers the log-probability by more than removing others does."""
    fall, controls = of.removals[of.order[0]], of.removals[of.controls]
    if np.isnan(fall):
        return ""
    confirmed = fall > max([0.0, *controls])
    sentence = f" Without it, the log-probability changes by {number(-float(fall), signed=True)}"
    if len(controls):
        others = counted(len(controls), "other source")
        most = " at the lowest" if len(controls) > 1 else ""
        sentence += f"; without {others}, removed for comparison, by {number(-float(max(controls)), signed=True)}{most}"
    sentence += f": removal {'confirms' if confirmed else 'does not confirm'} it."
    if (most := np.nanmax(of.removals)) > fall:
        other = of.sources[int(np.nanargmax(of.removals))].name
        sentence += f" Removing {other} changes it more, by {number(-float(most), signed=True)}."
    return sentence


def _notes(of: SourcedAnswer) -> Iterator[str]:
    for _, row in _instructions(of).iterrows():
        if row["share"] >= _LARGE_INSTRUCTION:
            yield (
                f"Warning: {row['source']} contains what reads as an instruction, “{printable(row['text'], 2 * _SHOWN)}”, and "
                f"this adds {number(row['value'], signed=True)}, {percentage(row['share'])} of what sources that raise the "
                "answer add. Check that the answer should follow it."
            )
    constants = number(float(of.of_kind("constants").sum()), signed=True)
    both = "the difference between the untouched model's log-probabilities of the two answers"
    whole = both if of.against else "the untouched model's log-probability"
    yield (
        f"All parts add up to {whole}, {number(float(of.log_probability.sum()))} nats. Among the "
        f"constants ({constants}) are biases, minus the entropy of the predictions, and {of.first}."
    )
    if of.not_removed:
        yield f"No source was removed: {of.not_removed}."
    yield (
        "Method: log-probability with everything nonlinear held fixed, which agreed with removal as well as the best "
        "methods measured on generated prompts. The cost was about that of "
        f"{counted(of.passes, 'forward pass', 'forward passes')} over {counted(of.tokens, 'token')}."
    )


def _summary(of: SourcedAnswer) -> Summary:
    shown = of.order[:_LISTED]
    others = {
        REST: of.of_kind("rest"),
        CONSTANTS: of.of_kind("constants"),
        "words of the answer": of.of_kind("answer", "against"),
        "log-probability": of.log_probability,
    }
    values = [*of.of_sources[shown], *(each.sum() for each in others.values())]
    falls = ["" if np.isnan(fall) else number(float(fall), signed=True) for fall in of.removals[shown]]
    return Summary(
        pd.DataFrame(
            {
                "part": [number(float(value), signed=True) for value in values],
                "removal": [*falls, *("" for _ in others)],
            },
            index=pd.Index([*(printable(of.sources[at].name, 40) for at in shown), *others], name="source"),
        ),
        caption="What adds to the answer's log-probability (nats), and by how much it falls without each source",
    )


def _figure(of: SourcedAnswer) -> Heatmaps:
    table = _parts(of)
    table = table[table["kind"].isin(["source", "rest"])].reset_index(drop=True)
    names = list(dict.fromkeys(table["source"]))[::-1]  # drawn from the bottom
    return Heatmaps(
        table=table[["sentence", "value"]].assign(source=pd.Categorical(table["source"], names, ordered=True)),
        values={"value": "part"},
        row="source",
        column="sentence",
        diverging=True,
        value_label="part of the log-probability (nats)",
        caption="What each source adds to the log-probability of each sentence of the answer. Orange raises it, purple "
        "lowers it.",
    )
