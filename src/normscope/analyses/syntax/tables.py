"""The results of the syntax analysis as tables and metrics."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from normscope.analyses.syntax.arcs import INSIDE, MISSING
from normscope.analyses.syntax.figures import TITLES, describe_figures
from normscope.analyses.syntax.maps import HEAD_MEASURES
from normscope.analyses.syntax.published import PUBLISHED
from normscope.analyses.syntax.scoring import CANDIDATES, DIRECTIONS, LONGEST_OFFSET, Moments
from normscope.analyses.syntax.sentences import sentences_of
from normscope.analyses.syntax.treebank import ALL
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import counted
from normscope.statistics.tidy import tidy

HALVES = ("odd", "even", "both")
RIGHT_BRANCHING, FIXED_OFFSET = "right_branching", "fixed_offset"
WORDS = "words"

_OFFSETS = np.arange(-LONGEST_OFFSET, LONGEST_OFFSET + 1)


class _Choice(NamedTuple):
    """The map that found the most arcs of a relation on one half of the corpus, and where it is scored: all but the measure are
    places along axes."""

    measure: str
    layer: int
    candidates: int
    direction: int
    map: int
    half: int
    relation: int

    @property
    def place(self) -> tuple[int, ...]:
        """Where its correct arcs are."""
        return self[1:]

    @property
    def arcs(self) -> tuple[int, int]:
        """Where all arcs are."""
        return self.half, self.relation


@dataclasses.dataclass(frozen=True, eq=False)
class SyntaxReport:
    """Turns what the syntax analysis counted into findings.

    Axes of moments: c, c² and c n of correct arcs; n, n² and the number of sentences of arcs. Maps are the single heads by
    every measure of HEAD_MEASURES, then the measures of whole blocks.
    """

    layers: Sequence[int]
    heads_of: Sequence[int]
    """Number of heads of each layer."""
    measures: Sequence[str]
    """Measures of whole blocks."""
    relations: Sequence[str]
    correct: np.ndarray
    """layer, moment, candidates, direction, map, half, relation."""
    arcs: np.ndarray
    """moment, half, relation."""
    offsets: np.ndarray
    """moment, offset, half, relation."""
    dropped: Sequence[int]
    """Number of arcs, by reason."""
    without_tree: int
    """Number of sentences without a tree."""

    def findings(self) -> Result:
        """Tables, metrics, figures and sentences."""
        heads = pd.concat([self._head_table, self._baseline_rows()], ignore_index=True)
        tables = {"heads": heads, "best": self._best()}
        # Where single heads compete, the maps of whole blocks do not.
        counted = {"heads": heads[(heads["head"] > 0) | ~heads["measure"].isin(HEAD_MEASURES)]}
        rolled = roll_up(PUBLISHED, tables | counted)
        pooled = self._pooled()
        metrics = rolled.metrics | self._gains_and_drops(pooled)
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(metrics),
            curves=rolled.curves,
            figures=describe_figures(heads, pooled, [relation for relation in self.relations if relation != ALL]),
            summaries={
                "syntax": Summary(
                    self._summary(metrics),
                    digits=1,
                    caption="words whose syntactic head is found, in %, by the best attention head (or block) of each measure, "
                    "on the half of the corpus that was not used to select it",
                )
            },
            notes=self._notes(),
        )

    @cached_property
    def _maps(self) -> list[tuple[str, int]]:
        """Measure and head of every map."""
        single = [(measure, head) for measure in HEAD_MEASURES for head in range(1, max(self.heads_of) + 1)]
        return [*single, *((measure, 0) for measure in self.measures)]

    @cached_property
    def _exists(self) -> np.ndarray:
        """Whether a layer has the head of a map: layer, map."""
        return np.array([[head <= heads for _, head in self._maps] for heads in self.heads_of])

    @cached_property
    def _moments(self) -> Moments:
        """layer, candidates, direction, map, half (both included), relation."""
        return _moments(np.moveaxis(self._with_both(self.correct, 5), 1, 0), self._all_arcs)

    @cached_property
    def _intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Their ends."""
        return self._moments.interval()

    @cached_property
    def _all_arcs(self) -> np.ndarray:
        """moment, half (both included), relation."""
        return self._with_both(self.arcs, 1)

    @staticmethod
    def _with_both(counts: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate([counts, counts.sum(axis=axis, keepdims=True)], axis=axis)

    @cached_property
    def _offset_moments(self) -> Moments:
        """offset, half (both included), relation."""
        return _moments(self._with_both(self.offsets, 2), self._all_arcs)

    @cached_property
    def _fixed(self) -> np.ndarray:
        """Index of the best offset that scores each half and relation: chosen on the other half, for both on both."""
        share = np.nan_to_num(self._offset_moments.share, nan=-1.0)
        chosen = share.argmax(axis=0)
        return chosen[[1, 0, 2]]

    @cached_property
    def _baseline(self) -> np.ndarray:
        """Accuracy of those offsets: half, relation."""
        return np.take_along_axis(self._offset_moments.share, self._fixed[None], axis=0)[0]

    @cached_property
    def _head_table(self) -> pd.DataFrame:
        low, high = self._intervals
        table = tidy(
            {
                "accuracy": self._moments.share,
                "low": low,
                "high": high,
                "count": self._all_arcs[0],
                "baseline": self._baseline,
            },
            layer=self.layers,
            candidates=CANDIDATES,
            direction=DIRECTIONS,
            map=range(len(self._maps)),
            half=HALVES,
            relation=self.relations,
        )
        number = table.pop("map").to_numpy()
        table["measure"] = np.array([measure for measure, _ in self._maps], dtype=object)[number]
        table["head"] = np.array([head for _, head in self._maps])[number]
        exists = table["head"] <= table["layer"].map(dict(zip(self.layers, self.heads_of, strict=True)))
        return table[(table["count"] > 0) & exists][_HEAD_COLUMNS].reset_index(drop=True)

    def _baseline_rows(self) -> pd.DataFrame:
        """The baselines as rows of layer 0."""
        low, high = self._offset_moments.interval()
        tables = []
        for measure, chosen in (
            (FIXED_OFFSET, self._fixed),
            (RIGHT_BRANCHING, np.full_like(self._fixed, LONGEST_OFFSET + 1)),
        ):
            values = {
                name: np.take_along_axis(array, chosen[None], axis=0)[0]
                for name, array in {"accuracy": self._offset_moments.share, "low": low, "high": high}.items()
            }
            rows = tidy(
                values | {"count": self._all_arcs[0], "baseline": self._baseline}, half=HALVES, relation=self.relations
            )
            tables.append(rows.assign(layer=0, head=0, measure=measure, direction=DIRECTIONS[0], candidates=WORDS))
        rows = pd.concat(tables)
        return rows[rows["count"] > 0][_HEAD_COLUMNS]

    @cached_property
    def _choices(self) -> list[_Choice]:
        """The best head (or layer) of every relation by measure and candidates, for each half that it is scored on."""
        share = np.nan_to_num(self._moments.share, nan=-1.0)
        share = np.where(self._exists[:, None, None, :, None, None], share, -1.0)
        measures = np.array([measure for measure, _ in self._maps])
        single = np.array([head > 0 for _, head in self._maps])
        choices = []
        for measure in dict.fromkeys([*HEAD_MEASURES, *self.measures]):
            maps = np.flatnonzero((measures == measure) & (single | (measure not in HEAD_MEASURES)))
            for c, half, r in itertools.product(range(len(CANDIDATES)), (0, 1), range(len(self.relations))):
                if not self._all_arcs[0, half, r]:
                    continue
                others = np.moveaxis(share[:, c, :, maps, 1 - half, r], 0, 1)  # layer, map, direction
                layer, number, direction = np.unravel_index(others.argmax(), others.shape)
                choices.append(_Choice(measure, int(layer), c, int(direction), int(maps[number]), half, r))
        return choices

    def _best(self) -> pd.DataFrame:
        """The best head (or layer) of every relation by measure, chosen on one half and scored on the other."""
        low, high = self._intervals
        return pd.DataFrame(
            {
                "measure": choice.measure,
                "relation": self.relations[choice.relation],
                "candidates": CANDIDATES[choice.candidates],
                "half": HALVES[choice.half],
                "layer": self.layers[choice.layer],
                "head": self._maps[choice.map][1],
                "direction": DIRECTIONS[choice.direction],
                "accuracy": self._moments.share[choice.place],
                "low": low[choice.place],
                "high": high[choice.place],
                "count": self._all_arcs[(0, *choice.arcs)],
                "offset": _OFFSETS[self._fixed[choice.arcs]],
                "baseline": self._baseline[choice.arcs],
                "right_branching": self._offset_moments.share[(LONGEST_OFFSET + 1, *choice.arcs)],
            }
            for choice in self._choices
        )

    def _pooled(self) -> pd.DataFrame:
        """The held-out accuracy over both halves: measure, relation, candidates, with its interval over sentences."""
        sums: dict[tuple[str, str, str], np.ndarray] = {}
        for choice in self._choices:
            key = choice.measure, self.relations[choice.relation], CANDIDATES[choice.candidates]
            correct = [moment[choice.place] for moment in self._moments[:3]]
            arcs = [moment[choice.arcs] for moment in self._moments[3:]]
            sums[key] = sums.get(key, 0) + np.array([*correct, *arcs], dtype=float)
        keys = pd.DataFrame(list(sums), columns=["measure", "relation", "candidates"])
        moments = Moments(*np.array([*sums.values()]).T)
        low, high = moments.interval()
        return keys.assign(accuracy=moments.share, low=low, high=high, count=moments.arcs.astype(int))

    def _gains_and_drops(self, pooled: pd.DataFrame) -> dict[str, float]:
        """What norms add to weights, and how many arcs were excluded."""
        overall = pooled[pooled["relation"] == ALL].set_index(["measure", "candidates"])["accuracy"]
        metrics = {"dropped/inside": float(self.dropped[INSIDE]), "dropped/missing": float(self.dropped[MISSING])}
        for sinks, candidates in (("with_sinks", "no_self"), ("sinks_masked", WORDS)):
            if ("attn_n", candidates) in overall.index:  # missing if all arcs are punctuation's
                gain = float(overall["attn_n", candidates] - overall["attn_w", candidates])
                metrics |= {f"gain/{sinks}": gain} if np.isfinite(gain) else {}
        return metrics

    def _summary(self, metrics: dict[str, float]) -> pd.DataFrame:
        rows = {}
        for measure in dict.fromkeys([*HEAD_MEASURES, *self.measures]):
            rows[TITLES[measure]] = {"found %": 100 * metrics.get(f"{measure}/best/{ALL}", np.nan)}
        rows["always the next word"] = {"found %": 100 * metrics.get(f"{RIGHT_BRANCHING}/{ALL}", np.nan)}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("measure")

    def _notes(self) -> list[str]:
        inside, missing = self.dropped[INSIDE], self.dropped[MISSING]
        notes = []
        if self.without_tree:
            notes.append(
                f"{counted(self.without_tree, 'sentence without heads is', 'sentences without heads are')} excluded from "
                "analysis=syntax"
            )
        if inside:
            notes.append(
                f"{counted(inside, 'arc is excluded because its', 'arcs are excluded because their')} two words share "
                "the same tokens"
            )
        if missing:
            notes.append(
                f"{counted(missing, 'arc is excluded because one of its', 'arcs are excluded because one of their')} words has "
                "no token"
            )
        return notes


_HEAD_COLUMNS = [
    "layer",
    "head",
    "measure",
    "relation",
    "direction",
    "candidates",
    "half",
    "accuracy",
    "low",
    "high",
    "count",
    "baseline",
]


def _moments(correct: np.ndarray, arcs: np.ndarray) -> Moments:
    """Moments whose first axes are those of `correct` (c, c², c n) and `arcs` (n, n², sentences)."""
    return Moments(*correct, *arcs)
