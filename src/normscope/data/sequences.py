"""Token ids to the sequences that a model reads: their length, masking, segment ids, and whether they hold any text."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.categories import TokenCategories
from normscope.data.examples import CorpusCounts
from normscope.data.token_sequence import TokenSequence

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """What the encoders of all kinds of examples have in common."""

    tokenizer: PreTrainedTokenizerBase
    categories: TokenCategories
    max_length: int | None
    """Maximum number of tokens; None if unlimited."""
    mask_fraction: float
    """Fraction of the ordinary tokens that are masked."""
    seed: int
    segments: bool
    """Whether the model takes segment ids."""
    second_segment: int
    """Segment id of the second text of a pair."""

    def made(
        self,
        input_ids: list[int],
        segments: list[int] | None,
        units: np.ndarray | None = None,
        *,
        last: bool = True,
        cut: bool = False,
    ) -> TokenSequence:
        """A sequence of ids, some of them masked. Segment ids are 0 and 1, if the model takes any."""
        return TokenSequence(
            self.masked(np.asarray(input_ids, dtype=np.int64), self.mask_fraction),
            None if segments is None else np.asarray(segments, dtype=np.int64) * self.second_segment,
            units=units,
            last=last,
            cut=cut,
        )

    def of_one_text(self, input_ids: list[int], *, cut: bool) -> TokenSequence:
        """The sequence of a text whose tokens all have segment id 0."""
        return self.made(input_ids, [0] * len(input_ids) if self.segments else None, cut=cut)

    @property
    def cuts_beginnings(self) -> bool:
        """Whether texts that are too long lose their beginnings; with most tokenizers they lose their ends."""
        return str(self.tokenizer.truncation_side) == "left"

    def kept(self, tokens: Sequence[T]) -> Sequence[T]:
        """What remains of a sequence of the maximum length or more, if it is cut as the tokenizer cuts texts."""
        if self.max_length is None:
            return tokens
        return tokens[-self.max_length :] if self.cuts_beginnings else tokens[: self.max_length]

    def masked(self, input_ids: np.ndarray, fraction: float) -> np.ndarray:
        """The ids with a fraction of the ordinary ones, at least one, replaced by the mask token.

        The choice depends on the seed and the sequence alone, not on the order of examples, batches or processes.
        """
        if fraction == 0:
            return input_ids
        ordinary = np.flatnonzero(~np.isin(input_ids, list(self.categories.special)))
        if len(ordinary) == 0:
            return input_ids
        generator = np.random.default_rng([self.seed, fingerprint(input_ids)])
        count = max(1, round(fraction * len(ordinary)))
        masked = input_ids.copy()
        masked[generator.choice(ordinary, size=count, replace=False)] = self.tokenizer.mask_token_id
        return masked

    def with_text(self, encoded: Iterable[Sequence[TokenSequence]], counts: CorpusCounts) -> list[TokenSequence]:
        """The sequences of all examples that contain text; the others are counted as skipped."""
        kept: list[TokenSequence] = []
        for sequences in encoded:
            sides = [sequence.input_ids for sequence in sequences]
            sources = [sequence.source_ids for sequence in sequences if sequence.source_ids is not None]
            if self.has_text(sides) and (not sources or self.has_text(sources)):
                kept += sequences
                counts.cut += any(sequence.cut for sequence in sequences)
            else:
                counts.skipped["special tokens only" if all(map(len, [*sides, *sources])) else "no tokens"] += 1
        return kept

    def has_text(self, sides: Iterable[np.ndarray]) -> bool:
        """Whether any side has a token that is not special."""
        return any(not self._without_text.issuperset(side.tolist()) for side in sides)

    @cached_property
    def _without_text(self) -> frozenset[int]:
        """Ids of special tokens that never stand for a word."""
        tokenizer = self.tokenizer
        others = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
        unknown = tokenizer.unk_token_id
        # The mask and the unknown token stand for words, unless the tokenizer also marks the ends of a text with the latter.
        return self.categories.special - {tokenizer.mask_token_id} - ({unknown} if unknown not in others else set())

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The tokenizer's tokens and their ids."""
        return dict(self.tokenizer.get_vocab())


def fingerprint(input_ids: np.ndarray) -> int:
    """A 128-bit number that depends on a sequence's tokens alone and is the same on every machine."""
    return int.from_bytes(hashlib.sha256(input_ids.astype("<i8").tobytes()).digest()[:16], "little")
