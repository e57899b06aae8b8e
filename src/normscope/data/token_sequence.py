"""What a model reads of an example, and what must be known of a model to feed it."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

Segmenter = Callable[[str], list[tuple[int, int]]]
"""Splits a text into words: start and end of each."""


@dataclasses.dataclass(frozen=True)
class TokenSequence:
    """One example as the model reads it."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray | None = None
    """Which text of a pair each token is from; None for models that are not told."""
    last: bool = True
    """Whether it is the last that its example gives: a document may give several windows."""
    cut: bool = False
    """Whether its texts have more tokens."""
    source_ids: np.ndarray | None = None
    """What an encoder reads, where `input_ids` are what a decoder reads."""
    words: np.ndarray | None = None
    """The word that each token is of, NO_WORD for special ones; of a target, the token that is predicted there."""
    source_words: np.ndarray | None = None
    row: int = 0
    """Row of the corpus, where words are told."""


@runtime_checkable
class ReadsTokens(Protocol):
    """What must be known of a model to feed it."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Makes tokens of text."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        ...

    @property
    def max_length(self) -> int | None:
        """Tokens of a sequence at most; None where nothing bounds them."""
        ...

    @property
    def translates(self) -> bool:
        """Whether it has an encoder and a decoder: the second text of a pair is then the target."""
        ...

    @property
    def causal(self) -> bool:
        """Whether tokens see only those before them."""
        ...

    @property
    def is_cross_attention(self) -> bool:
        """Whether it is the decoder's attention over the encoder's output that is looked at."""
        ...

    @property
    def decoder_inputs(self) -> Callable[[list[int]], list[int]] | None:
        """Makes what the decoder reads of the target's tokens; None if no decoder is looked at."""
        ...

    @property
    def takes_segments(self) -> bool:
        """Whether the model is told which text of a pair a token is from."""
        ...
