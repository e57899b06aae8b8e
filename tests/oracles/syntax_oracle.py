"""The syntax analysis by brute force: the vector of every pair of tokens, merged into words and then measured."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from normscope.analyses.declarations.syntax import SyntaxOptions
from normscope.analyses.syntax import TREEBANK
from normscope.analyses.treebank import Treebank
from normscope.data.batching import batches
from normscope.data.corpora import NumberedCorpus
from normscope.data.examples import Annotation, Corpus, CorpusCounts, Example
from normscope.results.result import Result
from normscope.statistics.intervals import Interval
from tests.oracles import feedforward_oracle
from tests.oracles.activations import Sequence_
from tests.oracles.comparison import Expected, Picture, assert_expected, said, table
from tests.oracles.specimens import Specimen, made, reported

# Tokens; the tokens of each word (first, end), None for a word without one; heads from 1, 0 for the root; relations.
SENTENCES = [
    (
        "cat sees , old river .",
        [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6)],
        [2, 0, 4, 2, 2],
        "nsubj root punct obj punct",
    ),
    ("river walks on", [(0, 1), (1, 2), (2, 3)], [2, 0, 2], "nsubj root advmod"),
    (
        # The fourth and the fifth word share their tokens.
        "we run , it sees . blue cat",
        [(0, 1), (1, 2), (2, 3), (3, 5), (3, 5), (5, 6), (6, 7), (7, 8)],
        [2, 0, 5, 5, 2, 2, 8, 5],
        "nsubj root punct nsubj conj punct amod obj:late",
    ),
    (
        "old cat walks . on we , it sees it .",
        [(place, place + 1) for place in range(11)],
        [2, 3, 0, 3, 6, 3, 9, 9, 3, 9, 3],
        "amod nsubj root punct case obl:on punct nsubj conj obj punct",
    ),
    ("it on we river old run", [(0, 1), (1, 3), (3, 4), (4, 6)], [2, 0, 2, 3], "nsubj root obj amod"),
    (
        "blue cat sees it .",
        [(0, 1), (1, 2), (2, 3), None, (3, 4), (4, 5)],
        [2, 3, 0, 3, 3, 3],
        "amod nsubj root advmod obj punct",
    ),
]
RELATIONS = ["all", "advmod", "amod", "case", "conj", "nsubj", "obj", "obl", "punct"]
TITLES = {
    "attn_w": "weights",
    "attn_n": "vectors",
    "attnres_n": "+ residual",
    "attnresln_n": "+ norm",
    "layer": "whole layer",
}
SINKS = ("no_self", "words")
DIRECTIONS = ("dependent-head", "head-dependent")
HALVES = ("odd", "even", "both")


class Sentences(Corpus):
    """The sentences as a corpus."""

    @property
    def total(self) -> int:
        return len(SENTENCES)

    def examples(self) -> Iterator[Example]:
        for text, places, heads, relations in SENTENCES:
            starts = [0, *itertools.accumulate(len(token) + 1 for token in text.split())]
            spans = [
                # White space has no token.
                (starts[1] - 1, starts[1]) if place is None else (starts[place[0]], starts[place[1]] - 1)
                for place in places
            ]
            yield Example(
                text,
                annotation=Annotation(
                    tuple(spans), {"deprel": tuple(relations.split())}, tuple(head - 1 for head in heads)
                ),
            )


def annotated(specimen: Specimen) -> Specimen:
    """A specimen with the annotated sentences as its corpus."""
    changed = dataclasses.replace(specimen, texts=[(text, None) for text, *_ in SENTENCES])
    examples = NumberedCorpus(Sentences()).examples()
    vars(changed)["batches"] = list(batches(examples, changed.encoder, 30, CorpusCounts()))
    return changed


def treebank() -> Treebank:
    return Treebank(tuple(RELATIONS))


@dataclasses.dataclass
class Tree:
    """A sentence in terms of units: words that share tokens are one."""

    tokens: list[list[int]]
    """Of each unit; words first, then special tokens."""
    words: int
    arcs: list[tuple[int, int, str, int]]
    """Dependent, head, relation, offset."""


def tree(number: int, length: int, dropped: list[int]) -> Tree:
    text, places, heads, labels = SENTENCES[number]
    relations = [label.split(":")[0] for label in labels.split()]
    distinct = sorted({place for place in places if place is not None})
    tokens = [list(range(*place)) for place in distinct]
    arcs = []
    for word, (head, relation) in enumerate(zip(heads, relations, strict=True)):
        if head == 0:
            continue
        ends = places[word], places[head - 1]
        if None in ends:
            dropped[1] += 1
        elif ends[0] == ends[1]:
            dropped[0] += 1
        else:
            arcs.append((distinct.index(ends[0]), distinct.index(ends[1]), relation, head - 1 - word))
    special = [[place] for place in range(len(text.split()), length)]
    return Tree(tokens + special, len(tokens), arcs)


def merged(vectors: np.ndarray, sentence: Tree) -> np.ndarray:
    """From pairs of tokens (…, query, key, model) to pairs of a word and a unit: mean over the word, sum over the unit."""
    rows = np.stack([vectors[..., unit, :, :].mean(axis=-3) for unit in sentence.tokens[: sentence.words]], axis=-3)
    return np.stack([rows[..., unit, :].sum(axis=-2) for unit in sentence.tokens], axis=-2)


def head_maps(sequence: Sequence_, layer: int, sentence: Tree) -> np.ndarray:
    """measure, head, word, unit."""
    block = sequence.blocks[layer - 1]
    weights = merged(block.alpha[..., None], sentence)[..., 0]
    vectors = block.alpha[..., None] * block.f[:, None]
    return np.stack([weights, np.linalg.norm(merged(vectors, sentence), axis=-1)])


def block_maps(specimen: Specimen, sequence: Sequence_, layer: int, sentence: Tree) -> dict[str, np.ndarray]:
    block, own = sequence.blocks[layer - 1], np.arange(len(sequence.ids))
    pairs = np.einsum("hqk,hkm->qkm", block.alpha, block.f)
    residual = pairs.copy()
    residual[own, own] += block.x
    stages = feedforward_oracle.stages_of(specimen, sequence, layer)
    post = block.gamma is not None
    vectors = {"attn_n": pairs, "attnres_n": residual}
    vectors |= {"attnresln_n": stages["atb_n"]} if post else {}
    vectors["layer"] = stages["atbffresln_n" if post else "atbffres_n"]
    maps = {"attn_w": merged(block.alpha.mean(axis=0)[..., None], sentence)[..., 0]}
    return maps | {name: np.linalg.norm(merged(pairs, sentence), axis=-1) for name, pairs in vectors.items()}


def hits(values: np.ndarray, sentence: Tree, candidates: str) -> dict[tuple[str, int], bool]:
    """Whether each arc is found, by direction and number of the arc."""
    found = {}
    for number, (dependent, head, *_) in enumerate(sentence.arcs):
        for direction, (row, wanted) in zip(DIRECTIONS, ((dependent, head), (head, dependent)), strict=True):
            allowed = [
                unit
                for unit in range(len(sentence.tokens))
                if unit != row and not (unit >= sentence.words and candidates == "words")
            ]
            best = max(allowed, key=lambda unit: values[row, unit])
            found[direction, number] = best == wanted and values[row, best] > 0
    return found


def share(correct: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
    """Share and interval from the counts of each sentence."""
    c, n = (np.array(values, dtype=float) for values in (correct, counts))
    c, n = c[n > 0], n[n > 0]
    if not len(n):
        return {"share": np.nan, "low": np.nan, "high": np.nan}
    p = c.sum() / n.sum()
    if len(n) < 2:
        return {"share": p, "low": np.nan, "high": np.nan}
    # As if every sentence were a single trial, unless its arcs are seen to differ.
    trials = 1 / ((n / n.sum()) ** 2).sum()
    if 0 < c.sum() < n.sum():
        error = ((c - p * n) ** 2).sum() * len(n) / (len(n) - 1) / n.sum() ** 2
        independent = p * (1 - p) / error if error > 0 else np.inf
        trials = sorted([trials, independent, n.sum()])[1]
    right, wrong = p * trials, trials - p * trials
    low = scipy.stats.beta.ppf(0.025, right, wrong + 1) if c.sum() else 0.0
    high = scipy.stats.beta.ppf(0.975, right + 1, wrong) if c.sum() < n.sum() else 1.0
    return {"share": p, "low": float(low), "high": float(high)}


class Counted:
    """Counts of sentences, from which shares are taken."""

    def __init__(self, trees: Sequence[Tree], punctuation: bool) -> None:
        self.trees = trees
        self._arcs = {
            relation: [
                [
                    place
                    for place, (*_, label, _offset) in enumerate(sentence.arcs)
                    if label == relation or (relation == "all" and (punctuation or label != "punct"))
                ]
                for sentence in trees
            ]
            for relation in RELATIONS
        }
        # Every row of a table asks for the same baselines.
        self._at_offset: dict[tuple[int, str, str], dict[str, float]] = {}
        self._offset: dict[tuple[str, str], int] = {}

    def chosen(self, number: int, relation: str) -> list[int]:
        return self._arcs[relation][number]

    def share(self, found, relation: str, half: str) -> dict[str, float]:
        """Of `found(sentence, arc)`."""
        sentences = [n for n in range(len(self.trees)) if half == "both" or HALVES[n % 2] == half]
        arcs = {number: self.chosen(number, relation) for number in sentences}
        result = share(
            [sum(found(number, arc) for arc in chosen) for number, chosen in arcs.items()],
            list(map(len, arcs.values())),
        )
        return result | {"count": sum(map(len, arcs.values()))}

    def offset(self, relation: str, half: str) -> int:
        """The best offset."""

        def accuracy(offset: int) -> float:
            return self.at_offset(offset, relation, half)["share"]

        if (relation, half) not in self._offset:
            best = max(range(-10, 11), key=lambda offset: np.nan_to_num(accuracy(offset), nan=-1.0))
            self._offset[relation, half] = best
        return self._offset[relation, half]

    def at_offset(self, offset: int, relation: str, half: str) -> dict[str, float]:
        place = offset, relation, half
        if place not in self._at_offset:
            self._at_offset[place] = self.share(
                lambda number, arc: self.trees[number].arcs[arc][3] == offset, relation, half
            )
        return self._at_offset[place]


def expected(specimen: Specimen, layers: Sequence[int], options: SyntaxOptions) -> Expected:
    """Everything that the analysis returns."""
    dropped = [0, 0]
    trees = [tree(number, len(sequence.ids), dropped) for number, sequence in enumerate(specimen.sequences)]
    counted = Counted(trees, options.punctuation)
    maps = {}
    for number, (sequence, sentence) in enumerate(zip(specimen.sequences, trees, strict=True)):
        for layer in layers:
            single = head_maps(sequence, layer, sentence)
            for m, measure in enumerate(("attn_w", "attn_n")):
                for head in range(single.shape[1]):
                    maps[number, layer, measure, head + 1] = single[m, head]
            for measure, values in block_maps(specimen, sequence, layer, sentence).items():
                maps[number, layer, measure, 0] = values
    names = list(dict.fromkeys((measure, head) for _, _, measure, head in maps))
    measures = list(dict.fromkeys(["attn_w", "attn_n", *(measure for measure, _ in names)]))
    heads = _heads(counted, maps, names, layers)
    best = _best(heads, counted, measures)
    metrics = _metrics(best, counted, dropped)
    largest = _by_layer(heads, layers)
    gains = _gains(best, counted, maps)
    curves = {f"{measure}/all": largest[measure, "all"] for measure in measures}
    return Expected(
        tables={"heads": heads, "best": best},
        metrics=metrics,
        curves=curves,
        figures=_figures(best, gains, largest, measures),
        summary=_summary(metrics, measures),
        sentences=said("syntax", metrics, *_gain_over_words(gains, counted)),
        notes=[
            f"{_arcs_excluded(dropped[0])} because {'its' if dropped[0] == 1 else 'their'} two words share the same tokens",
            f"{_arcs_excluded(dropped[1])} because one of {'its' if dropped[1] == 1 else 'their'} words has no token",
        ],
    )


def _arcs_excluded(count: int) -> str:
    return "1 arc is excluded" if count == 1 else f"{count} arcs are excluded"


def _heads(counted: Counted, maps: Mapping, names: Sequence, layers: Sequence[int]) -> pd.DataFrame:
    rows = []
    for layer, (measure, head), candidates in itertools.product(layers, names, SINKS):
        found = [
            hits(maps[number, layer, measure, head], sentence, candidates)
            for number, sentence in enumerate(counted.trees)
        ]
        for direction, half, relation in itertools.product(DIRECTIONS, HALVES, RELATIONS):
            result = counted.share(lambda n, arc: found[n][direction, arc], relation, half)  # noqa: B023
            rows.append((layer, head, measure, relation, direction, candidates, half, result))
    for half, relation in itertools.product(HALVES, RELATIONS):
        other = {"odd": "even", "even": "odd", "both": "both"}[half]
        for measure, offset in (("fixed_offset", counted.offset(relation, other)), ("right_branching", 1)):
            result = counted.at_offset(offset, relation, half)
            rows.append((0, 0, measure, relation, "dependent-head", "words", half, result))
    keys = ["layer", "head", "measure", "relation", "direction", "candidates", "half"]
    written = []
    for *place, result in rows:
        half, relation = place[6], place[3]
        if result["count"]:
            other = {"odd": "even", "even": "odd", "both": "both"}[half]
            baseline = counted.at_offset(counted.offset(relation, other), relation, half)["share"]
            values = {"accuracy": result["share"], **{name: result[name] for name in ("low", "high", "count")}}
            written.append(dict(zip(keys, place, strict=True)) | values | {"baseline": baseline})
    return table(keys, written)


def _best(heads: pd.DataFrame, counted: Counted, measures: Sequence[str]) -> pd.DataFrame:
    # Plain dictionaries: pandas needs milliseconds for each of thousands of selections.
    choices: dict[tuple, dict[tuple, dict]] = {}
    for (layer, head, measure, relation, direction, candidates, half), values in heads.to_dict("index").items():
        if head or measure not in ("attn_w", "attn_n"):
            place = measure, relation, candidates, half
            choices.setdefault(place, {})[layer, head, direction] = values
    rows = []
    for measure, relation, candidates, half in itertools.product(measures, RELATIONS, SINKS, HALVES[:2]):
        other = HALVES[1 - HALVES.index(half)]
        here = choices.get((measure, relation, candidates, half), {})
        if not here:
            continue
        there = choices.get((measure, relation, candidates, other), {})
        # Of equally accurate heads, the first.
        layer, head, direction = min(here, key=lambda k: (-there[k]["accuracy"] if there else 0, k))
        scored = here[layer, head, direction]
        offset = counted.offset(relation, other)
        rows.append(
            {
                "measure": measure,
                "relation": relation,
                "candidates": candidates,
                "half": half,
                "layer": layer,
                "head": head,
                "direction": direction,
                **{name: scored[name] for name in ("accuracy", "low", "high", "count")},
                "offset": offset,
                "baseline": counted.at_offset(offset, relation, half)["share"],
                "right_branching": counted.at_offset(1, relation, half)["share"],
            }
        )
    return table(["measure", "relation", "candidates", "half"], rows)


def _metrics(best: pd.DataFrame, counted: Counted, dropped: Sequence[int]) -> dict[str, float]:
    pooled = {
        place: float((rows["accuracy"] * rows["count"]).sum() / rows["count"].sum())
        for place, rows in best.groupby(level=["measure", "relation", "candidates"])
    }
    metrics = {
        f"{measure}/best/{relation}": value
        for (measure, relation, candidates), value in pooled.items()
        if candidates == "words"
    }
    metrics |= {
        f"gain/{name}": pooled["attn_n", "all", candidates] - pooled["attn_w", "all", candidates]
        for name, candidates in (("with_sinks", "no_self"), ("sinks_masked", "words"))
    }
    metrics["right_branching/all"] = counted.at_offset(1, "all", "both")["share"]
    return metrics | {"dropped/inside": dropped[0], "dropped/missing": dropped[1]}


def _gains(best: pd.DataFrame, counted: Counted, maps: Mapping) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Gains by relation and candidates with the ends of their intervals, from what the chosen heads find in each sentence."""

    def held_out(measure: str, relation: str, candidates: str) -> dict[str, float]:
        correct, counts = [], []
        for n, sentence in enumerate(counted.trees):
            arcs = counted.chosen(n, relation)
            found = 0
            if arcs:
                choice = best.loc[(measure, relation, candidates, HALVES[n % 2])]
                hit = hits(maps[n, choice["layer"], measure, choice["head"]], sentence, candidates)
                found = sum(hit[choice["direction"], arc] for arc in arcs)
            correct.append(found)
            counts.append(len(arcs))
        return share(correct, counts)

    gains = {}
    for relation, candidates in itertools.product(RELATIONS, ("no_self", "words")):
        if any(counted.chosen(n, relation) for n in range(len(counted.trees))):
            weights, vectors = (held_out(measure, relation, candidates) for measure in ("attn_w", "attn_n"))
            ends = vectors["low"] - weights["high"], vectors["high"] - weights["low"]
            gains[relation, candidates] = vectors["share"] - weights["share"], *ends
    return gains


def _gain_over_words(gains: Mapping, counted: Counted) -> tuple[Interval | None, int]:
    """That of all relations, special tokens excluded, and the number of sentences with arcs."""
    found = gains.get(("all", "words"))
    sentences = sum(bool(counted.chosen(number, "all")) for number in range(len(counted.trees)))
    return None if found is None else Interval(*found), sentences


def _by_layer(heads: pd.DataFrame, layers: Sequence[int]) -> dict[tuple[str, str], dict[int, float]]:
    """The largest accuracy of each layer by measure and relation."""
    frame = heads.reset_index()
    chosen = frame[
        frame["layer"].isin(layers)
        & (frame["candidates"] == "words")
        & (frame["half"] == "both")
        & ((frame["head"] > 0) | ~frame["measure"].isin(["attn_w", "attn_n"]))
    ]
    largest: dict[tuple[str, str], dict[int, float]] = {}
    for (measure, relation, layer), value in chosen.groupby(["measure", "relation", "layer"])["accuracy"].max().items():
        largest.setdefault((measure, relation), {})[layer] = value
    return largest


def _figures(best, gains, largest, measures) -> dict[str, Picture]:
    relations = [name for name in RELATIONS if ("attn_w", name) in largest]
    arcs = best["count"].groupby(["measure", "relation", "candidates"]).sum()
    gain = {
        (title, f"{relation} ({arcs['attn_w', relation, candidates]:,})"): tuple(
            100 * value for value in gains[relation, candidates]
        )
        for candidates, title in (("no_self", "special tokens allowed"), ("words", "special tokens excluded"))
        for relation in sorted(relations, key=lambda name: (name != "all", -arcs["attn_w", name, "words"], name))
    }
    by_relation = {
        (TITLES[measure], layer, relation): 100 * value
        for measure in measures
        for relation in relations
        for layer, value in largest[measure, relation].items()
    }
    return {
        "gain": Picture(gain, {"order": list(dict.fromkeys(row for _, row in gain))}),
        "relations": Picture(by_relation, {"limits": (0, 100)}),
    }


def _summary(metrics: Mapping[str, float], measures: Sequence[str]) -> pd.DataFrame:
    rows = {TITLES[measure]: {"found %": 100 * metrics[f"{measure}/best/all"]} for measure in measures}
    baseline = {"always the next word": {"found %": 100 * metrics["right_branching/all"]}}
    return pd.DataFrame.from_dict(rows | baseline, orient="index")


INSIDE = {"map", "right", "dependent", "head", "place"}
"""Names within the analysis that it does not return."""


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert, resources = annotated(made("bert")), {TREEBANK: treebank()}
    return bert.findings("syntax", SyntaxOptions(), [1, 2], reported(bert), resources=resources)


@pytest.mark.parametrize(("name", "punctuation"), [("bert", False), ("qwen2", True)])
@pytest.mark.spread(1)
def test_syntax(name, punctuation):
    specimen, options = annotated(made(name)), SyntaxOptions(punctuation=punctuation)
    findings = specimen.findings("syntax", options, [1, 3], ["all"], resources={TREEBANK: treebank()})
    assert_expected(findings, expected(specimen, [1, 3], options))


CASES = [
    ({}, []),
    ({"attn_w/best/all": 0.4, "attn_n/best/all": 0.425}, []),
    (
        {"attn_w/best/all": 0.4, "attn_n/best/all": 0.425, "right_branching/all": 0.3},
        [
            "The best head by weights finds 40% of the arcs and the best head by vector norms 43%, each on the half of "
            "the corpus not used to select it; always choosing the next word finds 30%.",
        ],
    ),
    *(
        (
            {"attn_w/best/all": 0.4, "attn_n/best/all": 0.425, "right_branching/all": 0.3},
            {"gain": Interval(0.025, low, 0.04), "sentences_read": 12},
            [
                f"The best head by weights finds 40% of the arcs and the best head by vector norms 43%{beside}, each on the "
                "half of the corpus not used to select it; always choosing the next word finds 30%.",
            ],
        )
        for low, beside in (
            (0.01, " (difference 2.5 points, 95% interval 1.0 to 4.0 over 12 sequences)"),
            (-0.01, ", no detectable difference (difference 2.5 points, 95% interval −1.0 to 4.0 over 12 sequences)"),
            (float("nan"), ""),
        )
    ),
    *(
        (
            {"gain/with_sinks": 0.081, "gain/sinks_masked": gain},
            [
                "With special tokens allowed, norms raise the accuracy of the best head by 8.1 percentage "
                f"points; with special tokens excluded, they {change}.",
            ],
        )
        for gain, change in (
            (-0.0006, "lower the accuracy of the best head by 0.1 percentage points"),
            (-0.0004, "change the accuracy of the best head by less than 0.1 points"),
            (0.0, "change the accuracy of the best head by less than 0.1 points"),
            (0.0004, "change the accuracy of the best head by less than 0.1 points"),
            (0.0006, "raise the accuracy of the best head by 0.1 percentage points"),
        )
    ),
]

EFFECTS = [
    (
        {"attn_w/best/all": 0.4, "attn_n/best/all": 0.425, "right_branching/all": 0.3},
        {"gain": Interval(0.025, low, 0.04), "sentences_read": 12},
        effect,
    )
    for low, effect in ((0.01, 0.025), (-0.01, 0.0))
]

CLAIMS = {
    r"norms (?:raise|lower) the accuracy of the best head by (\S+) percentage": lambda points: points > 0,
}
