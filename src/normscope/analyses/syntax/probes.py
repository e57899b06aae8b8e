"""Probes that find the head of a word from the maps of all heads together (Clark et al. 2019, section 5).

With m^k_ij for what word i takes from word j by head k, the head of word j is word i with probability

    p(i | j) ∝ exp Σ_k (w_k m^k_ij + u_k m^k_ji),    i ≠ j.

Each m^k is divided by its root mean square over the training pairs, so that the penalty on w and u means the same for every
head and measure. The loss is convex: the probe depends on the sentences alone, not on their order or on a seed.

Source: https://arxiv.org/abs/1906.04341.
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.syntax.arcs import Arcs
from normscope.analyses.syntax.maps import HEAD_MEASURES, head_maps
from normscope.analyses.syntax.options import SyntaxOptions
from normscope.analyses.syntax.scoring import Moments
from normscope.analyses.syntax.treebank import Treebank, sampled
from normscope.data.batching import Batch
from normscope.data.examples import Example
from normscope.errors import InputError, one_line
from normscope.models.block import AttentionBlock
from normscope.models.interventions import InterventionRunner

MAPS = ("raw", "normalised")
"""Maps as they are, or divided by what a word takes from the other words."""

PENALTY = 1e-3
"""Factor of Σ w² + u² in the loss: enough for a single solution, too little to matter for thousands of arcs."""

# Newton's method roughly squares the distance from the least loss in every step.
_MOST_STEPS, _SMALL_DECREASE = 50, 1e-10

# Numbers of the features of arcs to hold at once.
_AT_ONCE = 2**22

_TINY = torch.finfo(torch.float32).tiny


class ProbeResult(NamedTuple):
    """How well a probe finds heads."""

    model: str
    """`trained` or `random`."""
    measure: str
    maps: str
    moments: Moments
    """Of correct words and words, by sentence."""
    training_sentences: int


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """The maps between the words of some sentences, and their arcs."""

    maps_of: Callable[[int], Float[Tensor, "map sentence word word"]]
    """Returns the maps of a measure: what the word of a row takes from that of a column, by head of every layer; zero without a
    word."""
    words: Bool[Tensor, "sentence word"]
    arcs: Int[Tensor, "arc 3"]
    """Sentence, dependent and head."""

    def prepared(self, measure: int, *, normalised: bool) -> Float[Tensor, "map sentence word word"]:
        """The maps of a measure without a word's pair with itself; on request, with rows that add up to 1."""
        maps = self.maps_of(measure).double() * _pairs(self.words)
        return maps / maps.sum(dim=-1, keepdim=True).clamp(min=_TINY) if normalised else maps


class MapFile:
    """Keeps the maps of training sentences in a temporary file, so that memory does not grow with their number.

    Every pass over them reads the file again, from the system's cache if there is room for it.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="normscope-")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> "MapFile":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # on a full disk, for what is left to write
            self._file.close()

    def keep(self, sample: Sample) -> Sample:
        """The sample with its maps in the file, until that is closed.

        Raises:
            InputError: If they do not fit on the disk.
        """
        places = []
        for measure in range(len(HEAD_MEASURES)):
            maps = np.ascontiguousarray(sample.maps_of(measure).cpu().numpy())
            places.append((self._file.seek(0, os.SEEK_END), maps.shape, maps.dtype))
            try:
                # `ndarray.tofile` would not notice a full disk.
                self._file.write(maps.data)
                self._file.flush()
            except OSError as error:
                folder = tempfile.gettempdir()
                raise InputError(
                    f"analysis.syntax.train_sentences: the maps of the training sentences do not fit into {folder}; set a "
                    f"smaller number, or TMPDIR ({one_line(error)})"
                ) from error

        def maps_of(measure: int) -> Tensor:
            place, shape, dtype = places[measure]
            self._file.seek(place)
            maps = np.empty(shape, dtype)
            self._file.readinto(maps.data)
            return torch.from_numpy(maps).to(sample.words.device)

        return dataclasses.replace(sample, maps_of=maps_of)


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """A trained probe."""

    scale: Float[Tensor, " map"]
    """Root mean square of each map on the training pairs; 1 for maps of zeros."""
    to_dependent: Float[Tensor, " map"]
    """w, for what the head takes from its dependent."""
    to_head: Float[Tensor, " map"]
    """u, for what the dependent takes from its head."""

    def scores(
        self, maps: Float[Tensor, "map sentence word word"], words: Bool[Tensor, "sentence word"]
    ) -> Float[Tensor, "sentence word word"]:
        """The score of every head (column) of every dependent (row), −∞ where there is no such pair."""
        return _scores(maps, words, torch.stack([self.to_dependent, self.to_head]) / self.scale)


def probe_results(
    runner: InterventionRunner, treebank: Treebank, find_arcs: Callable[[Batch], Arcs], options: SyntaxOptions
) -> list[ProbeResult]:
    """Train probes by every measure and kind of maps, and score them; then the same for a random model.

    Args:
        treebank: Its sentences score the probes; those of one half train them unless there is a file for that.
        find_arcs: Finds the arcs of a batch.
        options: How many sentences to train on.
    """
    training, half = treebank.training, None
    if training is None:
        training, half = sampled(treebank.sentences(0), options.train_sentences, options.seed), 1
    results: list[ProbeResult] = []
    if not training:
        return results
    for model, runs in (("trained", runner), ("random", runner.randomised(options.seed))):
        probes = _trained(runs, training, find_arcs, model)
        scores = _scored(runs, treebank.sentences(half), find_arcs, probes)
        results += [
            ProbeResult(model, measure, maps, moments, len(training)) for (measure, maps), moments in scores.items()
        ]
    return results


def fit(samples: Sequence[Sample], measure: int, *, normalised: bool) -> Probe:
    """The probe of least loss: the mean of −log p(head | dependent) over the arcs, plus the penalty.

    Newton's method with a line search: the loss is convex and has few parameters, so it needs few passes over the maps.

    Args:
        samples: The training sentences.
        measure: Index of the measure.
        normalised: Whether rows of the maps are normalised.
    """
    squares = torch.stack(
        [sample.prepared(measure, normalised=normalised).square().sum((1, 2, 3)) for sample in samples]
    )
    scale = (squares.sum(dim=0) / max(1, sum(int(_pairs(sample.words).sum()) for sample in samples))).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    weights = scale.new_zeros(2 * len(scale))

    def loss(at: Tensor) -> "_Loss":
        return _loss(samples, measure, at.view(2, -1) / scale, normalised=normalised).scaled(scale, at)

    here = loss(weights)
    for _ in range(_MOST_STEPS):
        step = torch.linalg.solve(here.hessian, here.gradient)
        decrease, size = float(here.gradient @ step), 1.0
        there = loss(weights - step)
        while there.value > here.value - 1e-4 * size * decrease and size > 1e-6:
            size /= 2
            there = loss(weights - size * step)
        weights, here = weights - size * step, there
        if decrease < _SMALL_DECREASE:
            break
    return Probe(scale, *weights.view(2, -1))


class _Loss(NamedTuple):
    """The loss and its derivatives."""

    value: float
    gradient: Float[Tensor, " parameter"]
    hessian: Float[Tensor, "parameter parameter"]

    def scaled(self, scale: Float[Tensor, " map"], weights: Float[Tensor, " parameter"]) -> "_Loss":
        """With respect to weights of maps that are divided by a scale, and with the penalty of these weights."""
        factors = torch.cat([scale, scale])
        penalty = PENALTY * torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
        return _Loss(
            self.value + float(weights @ penalty @ weights),
            self.gradient / factors + 2 * penalty @ weights,
            self.hessian / factors / factors[:, None] + 2 * penalty,
        )


def _loss(
    samples: Sequence[Sample], measure: int, weights: Float[Tensor, "direction map"], *, normalised: bool
) -> _Loss:
    """The mean of −log p(head | dependent) over the arcs, with derivatives."""
    size = weights.numel()
    value, gradient, hessian = 0.0, weights.new_zeros(size), weights.new_zeros(size, size)
    for sample in samples:
        maps, pairs = sample.prepared(measure, normalised=normalised), _pairs(sample.words)
        at_once = max(1, _AT_ONCE // max(1, size * pairs.shape[-1]))
        for arcs in sample.arcs.split(at_once):
            sentence, dependent, head = arcs.unbind(-1)
            # The features of every candidate: what it takes from the dependent, and what the dependent takes from it.
            features = torch.cat([maps[:, sentence, :, dependent].transpose(0, 1), maps[:, sentence, dependent]])
            scores = torch.einsum("f,fac->ac", weights.flatten(), features)
            chances = scores.masked_fill(~pairs[sentence, dependent], -torch.inf).log_softmax(dim=-1)
            value -= float(chances.gather(1, head[:, None]).sum())
            weighted = features * chances.exp()
            means = weighted.sum(dim=-1)
            observed = features.gather(2, head[None, :, None].expand(size, -1, 1))[..., 0]
            gradient += (means - observed).sum(dim=1)
            hessian += weighted.flatten(1) @ features.flatten(1).T - means @ means.T
    arcs = max(1, sum(len(sample.arcs) for sample in samples))
    return _Loss(value / arcs, gradient / arcs, hessian / arcs)


def _trained(
    runner: InterventionRunner, training: Sequence[Example], find_arcs: Callable[[Batch], Arcs], model: str
) -> dict[tuple[str, str], Probe]:
    sentences = runner.progress(training, len(training), f"maps of the {model} model")
    with MapFile() as file:
        samples = [file.keep(sample) for sample in _samples(runner, sentences, find_arcs)]
        return {
            (measure, maps): fit(samples, index, normalised=maps == "normalised")
            for index, measure in enumerate(HEAD_MEASURES)
            for maps in MAPS
        }


def _scored(
    runner: InterventionRunner,
    sentences: Iterable[Example],
    find_arcs: Callable[[Batch], Arcs],
    probes: dict[tuple[str, str], Probe],
) -> dict[tuple[str, str], Moments]:
    totals = {key: np.zeros(6) for key in probes}
    for sample in _samples(runner, sentences, find_arcs):
        sentence, dependent, head = sample.arcs.unbind(-1)
        counts = _by_sentence(torch.ones_like(sentence), sample)
        for (measure, maps), probe in probes.items():
            prepared = sample.prepared(HEAD_MEASURES.index(measure), normalised=maps == "normalised")
            found = probe.scores(prepared, sample.words).argmax(dim=-1)[sentence, dependent] == head
            correct = _by_sentence(found.long(), sample)
            sums = correct, correct**2, correct * counts, counts, counts**2, counts > 0
            totals[measure, maps] += np.array([values.sum() for values in sums])
    return {key: Moments(*total) for key, total in totals.items()}


def _samples(
    runner: InterventionRunner, sentences: Iterable[Example], find_arcs: Callable[[Batch], Arcs]
) -> Iterator[Sample]:
    """The sentences in batches, with the maps of all layers."""
    for batch in runner.read(sentences):
        arcs = find_arcs(batch)
        words = arcs.words.shape[1]
        layers: list[Tensor] = []

        def visit(block: AttentionBlock, arcs: Arcs = arcs, words: int = words, layers: list[Tensor] = layers) -> None:
            layers.append(head_maps(block, arcs)[..., :words].permute(1, 2, 0, 3, 4))

        runner.observe(batch, visit)
        ends = torch.stack([arcs.sentence, arcs.dependent, arcs.head], dim=-1)
        yield Sample(torch.cat(layers, dim=1).__getitem__, arcs.words, ends[arcs.counted])


def _by_sentence(values: Tensor, sample: Sample) -> np.ndarray:
    sums = values.new_zeros(len(sample.words)).index_add_(0, sample.arcs[:, 0], values)
    return np.asarray(sums.cpu().numpy())


def _pairs(words: Bool[Tensor, "sentence word"]) -> Bool[Tensor, "sentence word word"]:
    """Pairs of two different words."""
    return words.unsqueeze(1) & words.unsqueeze(2) & ~torch.eye(words.shape[1], dtype=torch.bool, device=words.device)


def _scores(
    maps: Float[Tensor, "map sentence word word"],
    words: Bool[Tensor, "sentence word"],
    weights: Float[Tensor, "direction map"],
) -> Float[Tensor, "sentence word word"]:
    """Σ_k (w_k m^k_ij + u_k m^k_ji) with the dependent j as row and the head i as column."""
    from_head, from_dependent = (weights @ maps.flatten(1)).unflatten(1, maps.shape[1:])
    return (from_head.transpose(-1, -2) + from_dependent).masked_fill(~_pairs(words), -torch.inf)
