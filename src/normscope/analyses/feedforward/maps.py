"""Token maps before and after each part of a layer: how much they change, and which pairs the network amplifies."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.feedforward.options import FeedForwardOptions
from normscope.analyses.feedforward.published import FLATTENED
from normscope.analyses.samples import batches_until_precise
from normscope.data.batching import Batch
from normscope.maths.layer_composition import LayerStage
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.interventions import InterventionRunner
from normscope.results.maps import TokenMap
from normscope.statistics.precision import half_width

STEPS: Mapping[str, tuple[LayerStage, LayerStage]] = {
    "ff": (LayerStage.BLOCK, LayerStage.NETWORK),
    "res": (LayerStage.NETWORK, LayerStage.RESIDUAL),
    "ln": (LayerStage.RESIDUAL, LayerStage.NORMALISED),
    "ff+res": (LayerStage.BLOCK, LayerStage.RESIDUAL),
    "ff+res+ln": (LayerStage.BLOCK, LayerStage.NORMALISED),
}
"""The stages before and after each step."""

ROW_WISE = "row-wise"

# Maps of longer sequences are not legible.
_DRAWN_TOKENS = 40
_DRAWN = 2


@dataclasses.dataclass(frozen=True, eq=False)
class MapFindings:
    """What the maps of a sample of sequences show."""

    change: pd.DataFrame
    amplified: pd.DataFrame
    sentences: list[TokenMap]
    """The maps of the shortest sequences after each stage; NaN in layers without that stage."""


def compare_maps(
    runner: InterventionRunner,
    sample: Sequence[Int[Tensor, "kind _"]],
    context: AnalysisContext,
    options: FeedForwardOptions,
) -> MapFindings:
    """Run the model on a sample and compare the maps of every layer stage by stage.

    Args:
        sample: Sequences, as `InterventionRunner.batches` takes them.
    """
    comparison, title = _Comparison(context, options.pairs), "token maps of feed-forward networks"
    for batch in batches_until_precise(runner, sample, comparison.half_width, options.precision, title):
        for row in range(batch.sequences):  # in a batch, pairs with padding would be computed as well
            _observe(runner, batch.part(row, row + 1), comparison)
    return MapFindings(comparison.change(), comparison.amplified(), comparison.sentences)


def _observe(runner: InterventionRunner, batch: Batch, comparison: "_Comparison") -> None:
    """Add the maps of a batch of one sequence."""
    sentence = comparison.choose(batch)
    runner.observe(batch, lambda _block: None, visit_feed_forward=lambda block: comparison.add(block, batch, sentence))


class _Comparison:
    def __init__(self, context: AnalysisContext, pairs: int) -> None:
        self._context, self._pairs = context, pairs
        self._changes: dict[tuple[int, str, str], list[float]] = {}
        # The headline: each sequence's changes by the network, layer by layer.
        self._by_network: list[list[float]] = []
        self._amplified: dict[int, list[tuple[float, tuple[int, ...], dict[str, object]]]] = {}
        # The shortest sequences so far whose maps are legible: number of tokens, fingerprint, maps.
        self._shortest: list[tuple[int, int, TokenMap]] = []

    @property
    def sentences(self) -> list[TokenMap]:
        """Maps of the shortest sequences so far, the shortest first, if they are legible."""
        return [sentence for *_, sentence in self._shortest]

    def choose(self, batch: Batch) -> TokenMap | None:
        """The maps of a batch of one sequence, without values, if they are kept."""
        self._by_network.append([])
        size = max(batch.input_ids.shape[1], batch.keys.input_ids.shape[1])
        if size > _DRAWN_TOKENS:
            return None
        sentence = self._without_values(batch)
        self._shortest = sorted([*self._shortest, (size, batch.fingerprints[0], sentence)], key=lambda each: each[:2])
        del self._shortest[_DRAWN:]
        return sentence if any(sentence is kept for kept in self.sentences) else None

    def _without_values(self, batch: Batch) -> TokenMap:
        queries, keys, layers = self._tokens(batch), self._tokens(batch.keys), tuple(self._context.layers)
        maps = {f"{stage}_n": np.full((len(layers), len(queries), len(keys)), np.nan) for stage in LayerStage}
        return TokenMap(" ".join(queries), queries, keys, layers, maps)

    def half_width(self) -> float:
        """Half the width of the interval of the mean change by the network, over layers and sequences."""
        means = [float(np.mean(changes)) for changes in self._by_network if changes]
        return half_width(np.array(means)[:, None])

    def add(self, block: FeedForwardBlock, batch: Batch, sentence: TokenMap | None) -> None:
        """Add the maps of one layer of the sequence that was given to `choose`."""
        maps = {stage: norms[0].cpu().double().numpy() for stage, norms in block.pair_maps(in_double=False).items()}
        seen = block.attention.alpha.seen.of()[0].any(dim=0).cpu().numpy()
        if sentence is not None:
            for stage, norms in maps.items():
                sentence.maps[f"{stage}_n"][sentence.layers.index(block.layer)] = norms
        self._compare(block.layer, maps, seen)
        self._amplify(block.layer, maps, seen, batch)

    def change(self) -> pd.DataFrame:
        """1 − ρ by layer, step and scope."""
        rows = [
            {
                "layer": layer,
                "step": step,
                "scope": scope,
                "mean": np.mean(values) if values else np.nan,
                "std": np.std(values) if values else np.nan,
                "count": len(values),
            }
            for layer in self._context.layers
            for step in STEPS
            for scope in (FLATTENED, ROW_WISE)
            if (values := self._changes.get((layer, step, scope))) is not None
        ]
        return pd.DataFrame(rows, columns=["layer", "step", "scope", "mean", "std", "count"])

    def amplified(self) -> pd.DataFrame:
        """The pairs whose share the network raises most, layer by layer."""
        rows = [{"layer": layer, **row} for layer in self._context.layers for *_, row in self._amplified.get(layer, ())]
        return pd.DataFrame(rows, columns=["layer", "query_token", "key_token", "category", "before", "after"])

    def _tokens(self, batch: Batch) -> tuple[str, ...]:
        return tuple(map(self._context.vocabulary.text, batch.input_ids[0].tolist()))

    def _compare(self, layer: int, maps: Mapping[LayerStage, np.ndarray], seen: np.ndarray) -> None:
        ranks = {stage: _ranks(norms, seen) for stage, norms in maps.items()}
        for step, (before, after) in STEPS.items():
            if before not in maps or after not in maps:
                continue
            by_row = _correlations(ranks[before].by_row, ranks[after].by_row, seen)
            together = _correlations(ranks[before].together[None], ranks[after].together[None])
            for scope, correlations in ((FLATTENED, together), (ROW_WISE, by_row)):
                changes = self._changes.setdefault((layer, step, scope), [])
                if len(correlations):
                    changes.append(float(np.mean(1 - correlations)))
                    if (step, scope) == ("ff", FLATTENED):
                        self._by_network[-1].append(changes[-1])

    def _amplify(self, layer: int, maps: Mapping[LayerStage, np.ndarray], seen: np.ndarray, batch: Batch) -> None:
        before, after = (_shares(maps[stage], seen) for stage in STEPS["ff"])
        gain = np.where(seen, after - before, -np.inf)
        if not batch.is_cross_attention:
            np.fill_diagonal(gain, -np.inf)
        best = np.argsort(-gain, axis=None, kind="stable")[: self._pairs]
        listed = self._amplified.setdefault(layer, [])
        for query, key in zip(*np.unravel_index(best, gain.shape), strict=True):
            if gain[query, key] == -np.inf:
                continue
            taking, giving = int(batch.input_ids[0, query]), int(batch.keys.input_ids[0, key])
            pair = {
                "query_token": self._context.vocabulary.text(taking),
                "key_token": self._context.vocabulary.text(giving),
                "category": self._kind(taking, giving, abs(int(query) - int(key)), batch),
                "before": float(before[query, key]),
                "after": float(after[query, key]),
            }
            listed.append((-float(gain[query, key]), (batch.fingerprints[0], int(query), int(key)), pair))
        listed.sort(key=lambda entry: entry[:2])
        del listed[self._pairs :]

    def _kind(self, query: int, key: int, distance: int, batch: Batch) -> str:
        special = self._context.vocabulary.special
        if query in special or key in special:
            return "special"
        if query == key:
            return "same token"
        return "adjacent" if distance == 1 and not batch.is_cross_attention else "other"


class _Ranks(NamedTuple):
    together: np.ndarray
    """Of the visible pairs."""
    by_row: np.ndarray
    """Of each row's visible pairs, plus a number that is the same for all of them; others are below."""


def _ranks(norms: np.ndarray, seen: np.ndarray) -> _Ranks:
    by_row = scipy.stats.rankdata(np.where(seen, norms, -1.0), axis=1)
    return _Ranks(scipy.stats.rankdata(norms[seen]), by_row)


def _correlations(one: np.ndarray, other: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """The correlations of the rows of two tables of ranks, without rows that are constant on either side.

    Args:
        one: Ranks.
        other: Ranks.
        seen: The entries to compare; all by default.
    """
    seen = np.ones_like(one, dtype=bool) if seen is None else seen
    number = np.maximum(seen.sum(axis=1, keepdims=True), 1)

    def centred(ranks: np.ndarray) -> np.ndarray:
        mean = np.where(seen, ranks, 0.0).sum(axis=1, keepdims=True) / number
        deviations: np.ndarray = np.where(seen, ranks - mean, 0.0)
        return deviations

    one, other = centred(one), centred(other)
    sizes = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    defined = sizes > 0
    correlations: np.ndarray = (one * other).sum(axis=1)[defined] / sizes[defined]
    return correlations


def _shares(norms: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Each query's norms divided by their sum over its keys."""
    norms = np.where(seen, norms, 0.0)
    shares: np.ndarray = norms / np.maximum(norms.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return shares
