"""The sequences that sink rates are measured on: sampled text cut to one length, and random tokens in its place."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.sinks.options import SinkInput, SinksOptions
from normscope.data.token_sequence import fingerprint


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to feed the model."""

    inputs: SinkInput
    bos: bool
    """Whether sequences begin with the tokenizer's `bos` (or `cls`) token."""


def variants(options: SinksOptions, first_token: int | None) -> Iterator[Variant]:
    """All variants to measure; those with a beginning-of-sequence token come first, if the tokenizer has one."""
    for inputs in options.inputs:
        for bos in (True, False) if first_token is not None else (False,):
            yield Variant(SinkInput(inputs), bos)


def sequences_of(
    variant: Variant, sample: Sequence[Int[Tensor, "..."]], options: SinksOptions, context: AnalysisContext
) -> list[Int[Tensor, "kind token"]]:
    """The sampled sequences as a variant, each of exactly `options.length` tokens; those that are too short are left out.

    Args:
        sample: Sequences in the form of `Batch.packed`. Inherited categories stay at their positions.
        options: The length and the seed.
        context: The special tokens, which `random` and `repeat` keep, and the vocabulary.
    """
    every = np.arange(context.vocabulary.size)
    ordinary = every[~np.isin(every, list(context.vocabulary.special))]
    made = []
    for kinds in sample:
        cut = _cut(kinds.numpy(), options.length, variant.bos, context)
        if cut is not None:
            made.append(
                torch.from_numpy(_replaced(cut, variant.inputs, ordinary, options.seed, context.vocabulary.special))
            )
    return made


def long_enough(ids: np.ndarray, length: int, context: AnalysisContext) -> bool:
    """Whether a sequence can be cut to the length in one of the variants."""
    return len(ids) - _begins(ids, context) + (context.vocabulary.first is not None) >= length


def _begins(ids: np.ndarray, context: AnalysisContext) -> int:
    """1 if a sequence begins with the beginning-of-sequence token, else 0."""
    return int(context.vocabulary.first is not None and ids[0] == context.vocabulary.first)


def _cut(kinds: np.ndarray, length: int, bos: bool, context: AnalysisContext) -> np.ndarray | None:
    """A packed sequence of the given length, which ends with the special tokens of the original; None if it is too short."""
    ids, segments = kinds[0][kinds[0] >= 0], kinds[1][kinds[1] >= 0]
    start = _begins(ids, context)
    end = len(ids)
    while end - 1 > start and ids[end - 1] in context.vocabulary.special:
        end -= 1
    room = length - bos - (len(ids) - end)
    if not 0 < room <= end - start:
        return None
    kept = np.concatenate([np.arange(start, start + room), np.arange(end, len(ids))])
    columns = max(length, int((kinds[2] >= 0).sum()))
    cut = np.full((len(kinds), columns), -1, dtype=np.int64)
    cut[0, bos:length] = ids[kept]
    if bos and context.vocabulary.first is not None:
        cut[0, 0] = context.vocabulary.first
    if len(segments):
        cut[1, bos:length] = segments[kept]
        cut[1, 0] = segments[0]
    cut[3, bos:length] = kinds[3][kept]
    if bos and start:
        cut[3, 0] = kinds[3][0]
    source = kinds[2][kinds[2] >= 0]
    cut[2, : len(source)] = source
    return cut


def _replaced(
    kinds: np.ndarray, inputs: SinkInput, ordinary: np.ndarray, seed: int, special: Collection[int]
) -> np.ndarray:
    """The sequence with its ordinary tokens replaced, by random numbers that depend on the seed and the sequence alone."""
    ids = kinds[0]
    places = np.flatnonzero((ids >= 0) & ~np.isin(ids, list(special)))
    generator = np.random.default_rng([seed, fingerprint(ids), list(SinkInput).index(inputs)])
    match inputs:
        case SinkInput.text:
            pass
        case SinkInput.random:
            ids[places] = generator.choice(ordinary, size=len(places))
        case SinkInput.repeat:
            ids[places] = generator.choice(ordinary)
    return kinds
