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
                counts.remarks.update(remark for ids in [*sides, *sources] if (remark := self.repeated_end(ids)))
            else:
                counts.skipped["special tokens only" if all(map(len, [*sides, *sources])) else "no tokens"] += 1
        return kept

    def repeated_end(self, input_ids: np.ndarray) -> str:
        """The remark on a sequence that begins or ends with the same special token twice; empty if it does not.

        A text that a chat template or a tokenizer has written has special tokens of its own, and the tokenizer adds more.
        """
        for ids, place in ((input_ids[:2], "beginning"), (input_ids[:-3:-1], "end")):
            if len(ids) == 2 and ids[0] == ids[1] and int(ids[0]) in self._ends:
                (token,) = self.tokenizer.convert_ids_to_tokens([int(ids[0])])
                return (
                    f"with {token} twice at the {place}: the text has one, and the tokenizer adds another; to a conversation "
                    "that is given as messages it adds none (dataset.chat_template)"
                )
        return ""

    def has_text(self, sides: Iterable[np.ndarray]) -> bool:
        """Whether any side has a token that is not special."""
        return any(not self._without_text.issuperset(side.tolist()) for side in sides)

    @cached_property
    def _without_text(self) -> frozenset[int]:
        """Ids of special tokens that never stand for a word."""
        unknown = self.tokenizer.unk_token_id
        # The mask and the unknown token stand for words, unless the tokenizer also marks the ends of a text with the latter.
        return self.categories.special - {self.tokenizer.mask_token_id} - ({unknown} - self._ends)

    @cached_property
    def token_kinds(self) -> np.ndarray:
        """For each token id: 0 if it is special, 1 if it is ordinary, 2 if it stands for text the tokenizer does not know."""
        kinds = np.ones(len(self.categories.of_token), dtype=np.int64)
        kinds[[token for token in self.categories.special if token < len(kinds)]] = 0
        unknown = _unknown_token(self.tokenizer)
        # Where the unknown token also ends or begins texts, as in GPT-2, no text is written with it.
        if unknown is not None and unknown < len(kinds) and unknown not in self._ends:
            kinds[unknown] = 2
        return kinds

    @cached_property
    def _ends(self) -> frozenset[int | None]:
        """Ids of the tokens that begin and end texts."""
        tokenizer = self.tokenizer
        return frozenset(
            {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
        )


def _unknown_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id of the token that stands for text that is not in the vocabulary; None if there is none."""
    if tokenizer.unk_token_id is not None or not tokenizer.is_fast:
        return tokenizer.unk_token_id
    name = getattr(tokenizer.backend_tokenizer.model, "unk_token", None)
    return None if name is None else tokenizer.backend_tokenizer.token_to_id(str(name))


def fingerprint(input_ids: np.ndarray) -> int:
    """A 128-bit number that depends on a sequence's tokens alone and is the same on every machine."""
    return int.from_bytes(hashlib.sha256(input_ids.astype("<i8").tobytes()).digest()[:16], "little")
