"""The sources of an answer as a result: tables, a figure, and what they say in words."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

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


class Removal(NamedTuple):
    """What removing a source does."""

    falls: Float[np.ndarray, " sentence"]
    """By how much the log-probability of each sentence falls."""
    is_control: bool
    """Whether the source is not among those that add most, and is removed for comparison."""


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
    instructions: Mapping[tuple[int, str], float]
    """What sentences that read as instructions add, by the number of their source and their text."""
    removals: Mapping[int, Removal]
    """By the number of the source."""
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

    @property
    def of_sources(self) -> Float[np.ndarray, " source"]:
        """What each source adds to the whole answer."""
        return self.parts[:, : len(self.sources)].sum(axis=0)

    @property
    def order(self) -> list[int]:
        """The sources, those that add most first."""
        return list(map(int, np.argsort(-self.of_sources, kind="stable")))

    @property
    def error(self) -> float:
        """How far the parts miss the untouched model's log-probability, relative to the sum of their sizes."""
        missing = np.abs(self.parts.sum(axis=1) - self.log_probability)
        return float((missing / np.abs(self.parts).sum(axis=1)).max())

    @cached_property
    def rank_correlation(self) -> float | None:
        """Spearman's ρ of parts and removals, over the sources that were removed; None of fewer than three."""
        if len(self.removals) < FEWEST_PAIRS:
            return None
        falls = [removal.falls.sum() for removal in self.removals.values()]
        ranks = [scipy.stats.rankdata(each) for each in (self.of_sources[list(self.removals)], falls)]
        return correlation(*ranks)

    def removal(self, number: int, sentence: int | None = None) -> float:
        """What removing a source does to a sentence, or to the whole answer; NaN if it was not removed."""
        if number not in self.removals:
            return float("nan")
        falls = self.removals[number].falls
        return float(falls.sum() if sentence is None else falls[sentence])


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
    handed = of.handed.parts.sum(axis=0)
    return pd.DataFrame(
        [
            {
                "source": source.name,
                "part": of.of_sources[number],
                "handed_on": handed[number],
                "removal": of.removal(number),
                "removed": _removed(of, number),
                "tokens": len(source.tokens),
                "text": source.text,
            }
            for number, source in enumerate(of.sources)
        ]
    )


def _removed(of: SourcedAnswer, number: int) -> str:
    if number not in of.removals:
        return ""
    return "for comparison" if of.removals[number].is_control else "adds most"


def _parts(of: SourcedAnswer) -> pd.DataFrame:
    """One row per sentence of the answer and column."""
    return pd.DataFrame(
        [
            {
                "sentence": row + 1,
                "kind": kind,
                "source": name,
                "value": of.parts[row, at],
                "removal": of.removal(at, row) if kind == "source" else np.nan,
            }
            for row in range(len(of.sentences))
            for at, (kind, name) in enumerate(of.columns)
        ]
    )


def _sentences(of: SourcedAnswer) -> pd.DataFrame:
    rows = zip(of.sentences, of.lengths, of.log_probability, of.parts.sum(axis=1), of.handed.kept, strict=True)
    return pd.DataFrame(
        [
            {"sentence": at, "text": text, "tokens": tokens, "log_probability": value, "parts": parts, "kept": kept}
            for at, (text, tokens, value, parts, kept) in enumerate(rows, start=1)
        ]
    )


def _flow(of: SourcedAnswer) -> pd.DataFrame:
    """One row per sentence, part of the prompt and sentence through which it adds something; 0 is directly."""
    names = [name for _, name in of.columns[: len(of.sources) + 1]]
    rows = []
    for row in range(len(of.sentences)):
        ways = [of.parts[row, : len(names)], *of.handed.through[row, : row + 1]]
        rows += [
            {"sentence": row + 1, "through": way, "source": name, "value": values[at]}
            for way, values in enumerate(ways)
            for at, name in enumerate(names)
        ]
    return pd.DataFrame(rows)


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
    kinds = [kind for kind, _ in of.columns]
    sums = of.parts.sum(axis=0)
    found = {
        "log_probability": float(of.log_probability.sum()),
        **{
            name: float(sums[[at for at, kind in enumerate(kinds) if kind == each]].sum())
            for each, name in {
                "source": "sources",
                "rest": "rest",
                "answer": "answer",
                "constants": "constants",
            }.items()
        },
        "error": of.error,
        "passes": float(of.passes),
    }
    return found if of.rank_correlation is None else found | {"rank_correlation": of.rank_correlation}


def _findings(of: SourcedAnswer) -> Iterator[str]:
    """What adds most, whether removal confirms it, and how far parts and removals agree."""
    first = of.order[0]
    name, value = of.sources[first].name, float(of.of_sources[first])
    than = f" rather than “{printable(of.against.strip(), _SHOWN)}”" if of.against else ""
    answer = printable("".join(of.sentences).strip(), _SHOWN)
    adds = f"it adds {number(value, signed=True)} to the log-probability"
    yield f"“{answer}”{than} comes most from {name}: {adds}.{_confirmed(of)}"
    if of.rank_correlation is not None:
        yield (
            f"Over the {len(of.removals)} sources that were removed, the rank correlation of their parts with what removing "
            f"them does is {number(of.rank_correlation, signed=True, digits=2)}: so far can parts be trusted on this prompt."
        )


def _confirmed(of: SourcedAnswer) -> str:
    """Whether removing the source that adds most lowers the log-probability by more than removing others does."""
    first = of.order[0]
    if first not in of.removals:
        return ""
    fall = of.removal(first)
    controls = [of.removal(at) for at, each in of.removals.items() if each.is_control]
    confirmed = fall > max([0.0, *controls])
    sentence = f" Without it, the log-probability changes by {number(-fall, signed=True)}"
    if controls:
        others = counted(len(controls), "other source")
        most = " at the lowest" if len(controls) > 1 else ""
        sentence += f"; without {others}, removed for comparison, by {number(-max(controls), signed=True)}{most}"
    return f"{sentence}: removal {'confirms' if confirmed else 'does not confirm'} it."


def _notes(of: SourcedAnswer) -> Iterator[str]:
    for _, row in _instructions(of).iterrows():
        if row["share"] >= _LARGE_INSTRUCTION:
            yield (
                f"Warning: {row['source']} holds what reads as an instruction, “{printable(row['text'], 2 * _SHOWN)}”, and "
                f"this adds {number(row['value'], signed=True)}, {percentage(row['share'])} of what sources that raise the "
                "answer add. Check that the answer should follow it."
            )
    sums = dict(zip((kind for kind, _ in of.columns), of.parts.sum(axis=0), strict=True))
    yield (
        f"All parts add up to the untouched model's log-probability, {number(float(of.log_probability.sum()))} nats. Among the "
        f"constants ({number(float(sums['constants']), signed=True)}) are biases, minus the entropy of the predictions, and "
        f"{of.first}."
    )
    if of.not_removed:
        yield f"No source was removed: {of.not_removed}."
    yield (
        "Method: log-probability with everything held fixed that is not linear, which agreed with removal as well as the best "
        "methods measured on generated prompts. This took the operations of about "
        f"{counted(of.passes, 'forward pass', 'forward passes')} over {counted(of.tokens, 'token')}."
    )


def _summary(of: SourcedAnswer) -> Summary:
    rows = [at for at in of.order if at in of.order[:_LISTED]]
    shown = pd.DataFrame(
        {
            "part": [number(float(of.of_sources[at]), signed=True) for at in rows],
            "removal": ["" if np.isnan(of.removal(at)) else number(of.removal(at), signed=True) for at in rows],
        },
        index=pd.Index([printable(of.sources[at].name, 40) for at in rows], name="source"),
    )
    for kind, name in of.columns[len(of.sources) :]:
        if kind in ("rest", "constants"):
            at = of.columns.index((kind, name))
            shown.loc[name] = [number(float(of.parts[:, at].sum()), signed=True), ""]
    own = sum(float(of.parts[:, at].sum()) for at, (kind, _) in enumerate(of.columns) if kind in ("answer", "against"))
    shown.loc["words of the answer"] = [number(own, signed=True), ""]
    shown.loc["log-probability"] = [number(float(of.log_probability.sum()), signed=True), ""]
    return Summary(
        shown,
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
