"""Specimens whose words are measured: everything merged from explicit vectors of pairs of tokens."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from normscope.data.batching import batches, batches_of
from normscope.data.encoding import Encoder
from normscope.data.examples import Annotation, CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions, Level
from tests.oracles.activations import Block, Sequence_
from tests.oracles.specimens import Specimen

SIZES = (1, 2, 1, 3)
"""Numbers of tokens of the words of a text, again and again."""


def of_words(specimen: Specimen) -> Specimen:
    """The specimen with the first texts of its pairs, of which some tokens make up words."""
    changed = dataclasses.replace(specimen, texts=[(text, None) for text, _ in specimen.texts])
    spans = [_spans(text) for text, _ in changed.texts]
    examples = [Example(text, annotation=Annotation(of)) for (text, _), of in zip(changed.texts, spans, strict=True)]
    encoder = Encoder(changed.loaded, DatasetOptions(kind=DatasetKind.text, seed=0), level=Level.word)
    whole = [
        WordSequence.of(sequence, [text[start:end].count(" ") + 1 for start, end in of])
        for sequence, (text, _), of in zip(changed.sequences, changed.texts, spans, strict=True)
    ]
    made = {"encoder": encoder, "batches": list(batches(examples, encoder, 30, CorpusCounts())), "sequences": whole}
    vars(changed).update(made)  # where `cached_property` keeps them
    return changed


def of_translations(specimen: Specimen) -> Specimen:
    """The specimen of a translation model, on both sides of which some tokens make up words."""
    changed = dataclasses.replace(specimen)
    whole = [
        WordSequence.of(sequence, *(_sizes(len(ids)) for ids in (sequence.ids, sequence.source_ids)))
        for sequence in changed.sequences
    ]
    examples = [Example(*text) for text in changed.texts]
    marked = [
        dataclasses.replace(read, units=_units(words.members), source_units=_units(words.sources))
        for read, words in zip(changed.encoder.encode(examples, CorpusCounts()), whole, strict=True)
    ]
    vars(changed).update(batches=list(batches_of(marked, changed.encoder, 45)), sequences=whole)
    return changed


def _sizes(tokens: int) -> list[int]:
    """Numbers of tokens of words, the last one cut."""
    ends = [min(end, tokens) for end in itertools.accumulate(itertools.islice(itertools.cycle(SIZES), tokens))]
    return [end - start for start, end in itertools.pairwise([0, *ends]) if end > start]


def _units(members: Sequence[Sequence[int]]) -> np.ndarray:
    return np.repeat(range(len(members)), [len(word) for word in members])


def _spans(text: str) -> tuple[tuple[int, int], ...]:
    spans, rest, start = [], text.split(), 0
    for size in itertools.cycle(SIZES):
        if not rest:
            return tuple(spans)
        word, rest = " ".join(rest[:size]), rest[size:]
        spans.append((start, start + len(word)))
        start += len(word) + 1
    raise AssertionError


def merged(pairs: np.ndarray, members: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> np.ndarray:
    """Pairs begin with the axes query and key: the mean over the queries of each word, the sum over its keys."""
    columns = [pairs[:, list(keys)].sum(axis=1) for keys in sources or members]
    return np.stack([np.stack(columns, axis=1)[list(queries)].mean(axis=0) for queries in members])


@dataclasses.dataclass(frozen=True)
class WordSequence(Sequence_):
    """A sequence in terms of its words: `ids` are their first tokens."""

    raw: Sequence_ = None  # type: ignore[assignment] - always given
    members: Sequence[Sequence[int]] = ()
    """The tokens of each word."""
    sources: Sequence[Sequence[int]] = ()
    """The tokens of each word of the source; the same in self-attention."""

    @classmethod
    def of(cls, raw: Sequence_, sizes: Sequence[int], of_source: Sequence[int] | None = None) -> "WordSequence":
        members = _members(sizes, len(raw.ids))
        sources, source_ids = members, raw.source_ids
        if of_source is not None and source_ids is not None:
            sources = _members(of_source, len(source_ids))
            source_ids = source_ids[[word[0] for word in sources]]
        blocks = [WordBlock(**vars_of(block), raw=block, members=members, sources=sources) for block in raw.blocks]
        ids = raw.ids[[word[0] for word in members]]
        return cls(ids, raw.inputs, raw.hidden, blocks, source_ids, raw, members, sources)

    @property
    def all_ids(self) -> np.ndarray:
        return self.raw.all_ids


def _members(sizes: Sequence[int], tokens: int) -> list[list[int]]:
    sizes = [*sizes, *[1] * (tokens - sum(sizes))]  # special tokens come last
    ends = list(itertools.accumulate(sizes))
    return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


def vars_of(block: Block) -> dict[str, Any]:
    return {field.name: getattr(block, field.name) for field in dataclasses.fields(Block)}


@dataclasses.dataclass(frozen=True)
class WordBlock(Block):
    """A block between words."""

    raw: Block = None  # type: ignore[assignment] - always given
    members: Sequence[Sequence[int]] = ()
    sources: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        means = {"x": np.stack([self.raw.x[word].mean(axis=0) for word in self.members])}
        means["visible"] = self.between_words(self.raw.visible.astype(float)) > 0
        for name, value in means.items():
            object.__setattr__(self, name, value)

    def between_words(self, pairs: np.ndarray) -> np.ndarray:
        return merged(pairs, self.members, self.sources)

    @cached_property
    def alpha(self) -> np.ndarray:
        return self.between_words(self.raw.alpha.transpose(1, 2, 0)).transpose(2, 0, 1)

    @cached_property
    def f(self) -> np.ndarray:
        return np.stack([self.raw.f[:, word].mean(axis=1) for word in self.sources], axis=1)

    @cached_property
    def weighted(self) -> np.ndarray:
        pairs = np.einsum("hqk,hkm->qkhm", self.raw.alpha, self.raw.f)
        return np.linalg.norm(self.between_words(pairs), axis=-1).transpose(2, 0, 1)

    def maps(self) -> dict[str, np.ndarray]:
        """Between words in cross-attention, by method: α averaged over heads, and norms of merged vectors."""
        pairs = np.einsum("hqk,hkm->qkm", self.raw.alpha, self.raw.f)
        return {"attn_w": self.alpha.mean(axis=0), "attn_n": np.linalg.norm(self.between_words(pairs), axis=-1)}

    def parts(self) -> dict[str, dict[str, np.ndarray]]:
        """Those of tokens, whose own keys are those of their word, averaged over the tokens of every word."""
        raw = dataclasses.replace(self.raw)
        if not self.is_cross_attention:
            own = np.zeros_like(raw.visible, dtype=bool)
            for word in self.members:
                own[np.ix_(word, word)] = True
            raw = _WithOwnKeys(**vars_of(raw), known=own)
        return {
            method: {
                part: np.stack([vectors[word].mean(axis=0) for word in self.members]) for part, vectors in parts.items()
            }
            for method, parts in raw.parts().items()
        }

    def pair_shares(self) -> np.ndarray:
        """Those of the words' merged vectors in the words' mean outputs."""
        pairs, output = np.einsum("hqk,hkm->qkhm", self.raw.alpha, self.raw.f), self._mean_outputs()
        shares = np.einsum("qkhm,qm->hqk", self.between_words(pairs), output)
        return shares / (output**2).sum(axis=-1)[:, None]

    def bias_shares(self) -> np.ndarray:
        """The signed share of b_O in the words' mean outputs."""
        output = self._mean_outputs()
        return output @ self.weights.output_bias / (output**2).sum(axis=-1)

    def _mean_outputs(self) -> np.ndarray:
        """The mean attention output of each word's tokens."""
        return np.stack([self.raw.attention_output[word].mean(axis=0) for word in self.members])

    def _normed(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors of the target's tokens after the block's norm."""
        output = self.raw.x + np.einsum("hqk,hkm->qm", self.raw.alpha, self.raw.f) + self.weights.output_bias
        sigma = np.sqrt(output.var(axis=1, keepdims=True) + self.epsilon)
        return self.gamma * (vectors - vectors.mean(axis=-1, keepdims=True)) / sigma

    def _ratios_of_cross_attention(self) -> dict[str, np.ndarray]:
        """What each word takes from the source and carries on itself: means over its tokens, then measured."""
        taken = np.einsum("hqk,hkm->qm", self.raw.alpha, self.raw.f)
        by_method = {}
        for method, parts in (
            ("attnres_n", (taken, self.raw.x)),
            ("attnresln_n", tuple(map(self._normed, (taken, self.raw.x)))),
        ):
            others, own = (
                np.linalg.norm([vectors[word].mean(axis=0) for word in self.members], axis=-1) for vectors in parts
            )
            by_method[method] = others / (others + own)
        return by_method

    def ratios(self) -> dict[str, np.ndarray]:
        if self.is_cross_attention:
            return self._ratios_of_cross_attention()
        own = self.alpha.mean(axis=0).diagonal()
        by_method = {"attn_w": 1 - own, "attnres_w": (1 - own) / 2}
        for method, pairs in self.raw.stages().items():
            of_words = self.between_words(pairs)
            mine = np.einsum("iim->im", of_words)
            others = of_words.sum(axis=1) - mine
            mixed, preserved = (np.linalg.norm(vectors, axis=-1) for vectors in (others, mine))
            by_method[method] = mixed / (mixed + preserved)
        order = ["attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n"]
        return {method: by_method[method] for method in order if method in by_method}


@dataclasses.dataclass(frozen=True)
class _WithOwnKeys(Block):
    """A block between tokens that counts other keys as the query's own."""

    known: np.ndarray = None  # type: ignore[assignment] - always given

    @property
    def own_keys(self) -> np.ndarray:
        return self.known
