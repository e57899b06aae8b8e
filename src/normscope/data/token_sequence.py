"""Token sequences as model inputs, and the model properties needed to make them."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.examples import Annotation

Segmenter = Callable[[str], list[tuple[int, int]]]
"""Splits a text into words, each a start and an end."""


class Batching(enum.Enum):
    """Which texts may be in one batch, so that its size changes no number; `note` tells readers what was done."""

    PADDED = ""
    """Any."""
    EQUAL_LENGTHS = (
        "the model's own output for a text changes with padding after it, so every batch has texts of one length"
    )
    """Those of the same length: the model treats padding as tokens."""
    SINGLE = (
        "the model's own output for a text changes with the other texts of a batch, so every batch has a single text"
    )
    """None."""

    @property
    def note(self) -> str:
        """A sentence for readers of results; empty if any texts may be in one batch."""
        return self.value


@dataclasses.dataclass(frozen=True)
class AnnotatedSentence:
    """The annotated words of a sequence, and which of them its tokens spell."""

    annotation: Annotation
    owners: tuple[int, ...]
    """For each word, the word whose tokens spell it, or NO_WORD; see `words.WordTokens`."""


@dataclasses.dataclass(frozen=True)
class TokenSequence:
    """One model input."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray | None = None
    """The text of a pair that each token comes from; None for models without segment ids."""
    last: bool = True
    """Whether it is the last of its example: a document may have several windows."""
    cut: bool = False
    """Whether its texts were truncated."""
    source_ids: np.ndarray | None = None
    """The encoder's input, if `input_ids` are the decoder's."""
    words: np.ndarray | None = None
    """The word of each token, NO_WORD for special tokens; in a target, of the token predicted at each position."""
    source_words: np.ndarray | None = None
    units: np.ndarray | None = None
    """The unit of each token, from 0, if words are measured: a word, or a special token by itself."""
    source_units: np.ndarray | None = None
    row: int = 0
    """Row of the corpus; set together with `words` or `second`."""
    inherited: np.ndarray | None = None
    """The category that each token inherits from its word or its part of a conversation, −1 if none. It only counts for
    tokens that would otherwise be `other`. None if the tokens alone determine all categories."""
    sentence: "AnnotatedSentence | None" = None
    """The annotated words; set together with `words`."""
    second: "TokenSequence | None" = None
    """The second text of a pair whose texts are sequences of their own."""
    score: float | None = None
    """The gold score of such a pair, if there is one."""
    ranked: tuple[int, int] = (0, 0)
    """The numbers of the query and the document of such a pair, from 1; zeros if it is not a query with a document."""
    prompt: int = 0
    """Number of tokens at the start that belong to a prompt."""


@runtime_checkable
class ReadsTokens(Protocol):
    """The properties of a model that determine its inputs."""

    @property
    def name(self) -> str:
        """The model's name, for messages."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        ...

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens in a sequence; None if unlimited."""
        ...

    @property
    def batching(self) -> "Batching":
        """Which texts may be in one batch."""
        ...

    @property
    def translates(self) -> bool:
        """Whether it has an encoder and a decoder; the second text of a pair is then the target."""
        ...

    @property
    def causal(self) -> bool:
        """Whether tokens attend only to those before them."""
        ...

    @property
    def is_cross_attention(self) -> bool:
        """Whether cross-attention is analysed, from the decoder to the encoder's output."""
        ...

    @property
    def decoder_inputs(self) -> Callable[[list[int]], list[int]] | None:
        """Turns the target's tokens into the decoder's input; None unless the decoder or cross-attention is analysed."""
        ...

    @property
    def takes_segments(self) -> bool:
        """Whether it takes segment ids, which say which text of a pair a token comes from."""
        ...
