"""Token sequences as model inputs: made of token ids, with the model properties that this needs."""

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.categories import TokenCategories
from normscope.data.examples import Annotation, CorpusCounts, TextRule
from normscope.data.options import DatasetKind
from normscope.data.sounds import Sound
from normscope.errors import InputError

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


_BYTES = 7
"""Of a number that stands for an input: as many as a whole number of 64 bits has room for."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageTokens:
    """The tokens of an image within a text."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    """Where in the text each is."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the image that they are, row by row; None if they are on no grid."""

    @classmethod
    def on_grid(cls, places: Sequence[int], grid: tuple[int, int] | None, prefix: str = "") -> "ImageTokens":
        """The tokens of an image, named by row and column from the upper left, if they are on a grid, otherwise by number."""
        if grid is None:
            return cls(tuple(f"{prefix}{number}" for number in range(1, len(places) + 1)), tuple(places))
        return cls(tuple(prefix + name for name in patch_names(*grid)), tuple(places), grid)


def patch_names(rows: int, columns: int) -> list[str]:
    """The names of the patches of an image, row by row: row and column from the upper left."""
    return [f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1)]


@dataclasses.dataclass(frozen=True, eq=False)
class OwnInput:
    """What a model is given that reads images or other vectors instead of token ids, or images beside them."""

    arguments: Mapping[str, Tensor]
    """Keyword arguments of the model, each with an axis of inputs first; of a single input, as the model takes them."""
    titles: tuple[str, ...]
    """What each input is called: the name of its file."""
    sounds: tuple[Sound, ...] = ()
    """What is heard in each input, if these are sounds."""
    images: tuple[ImageTokens, ...] = ()
    """The images within a text, which is an input by itself: its arguments may have other axes first."""
    tokens: int = 0
    """Number of tokens of such a text."""

    @classmethod
    def joined(cls, inputs: Sequence["OwnInput"]) -> "OwnInput":
        """Several in one batch; they have the same shapes."""
        if len(inputs) == 1:
            return inputs[0]
        arguments = {name: torch.cat([each.arguments[name] for each in inputs]) for name in inputs[0].arguments}
        titles = tuple(title for each in inputs for title in each.titles)
        joined = cls(arguments, titles, tuple(sound for each in inputs for sound in each.sounds))
        return joined._numbered(number for each in inputs for number in each.numbers)

    def part(self, start: int, stop: int) -> "OwnInput":
        """Some of the inputs."""
        if len(self.titles) == 1:
            return self
        arguments = {name: given[start:stop] for name, given in self.arguments.items()}
        part = OwnInput(arguments, self.titles[start:stop], self.sounds[start:stop])
        return part._numbered(self.numbers[start:stop])

    def each(self, change: Callable[[Tensor], Tensor]) -> "OwnInput":
        """The same with changed tensors."""
        changed = {name: change(given) for name, given in self.arguments.items()}
        return dataclasses.replace(self, arguments=changed)._numbered(self.numbers)

    def check_whole(self, tokens: int) -> None:
        """Check that a text with images may have another number of tokens than it was read with.

        Raises:
            InputError: If the model is given something for each token.
        """
        for name, given in self.arguments.items() if tokens != self.tokens else ():
            if self.images and given.shape[:2] == (1, self.tokens):
                raise InputError(
                    f"analysis=attribution: tokens of a text with images cannot be removed, because the model is given {name} "
                    "for each token; leave this analysis out"
                )

    def _numbered(self, numbers: Iterable[int]) -> "OwnInput":
        """The same with numbers that are known, so that they are not computed again."""
        vars(self)["numbers"] = tuple(numbers)
        return self

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """A number for each input, which depends on its arguments alone."""
        return tuple(self._number(row) for row in range(len(self.titles)))

    def _number(self, row: int) -> int:
        digest = hashlib.sha256()
        for name, given in sorted(self.arguments.items()):
            digest.update(name.encode())
            one = given if len(self.titles) == 1 else given[row : row + 1]
            digest.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return int.from_bytes(digest.digest()[:_BYTES], "little")


@runtime_checkable
class ReadsInputs(Protocol):
    """Makes the inputs of a model that reads no token ids."""

    @property
    def kind(self) -> DatasetKind:
        """What data sets of such inputs are called."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """All names of tokens; the place of each is its number."""
        ...

    @property
    def categories(self) -> Sequence[str]:
        """The categories that tokens may have."""
        ...

    def tokens(self, own: OwnInput) -> tuple[list[int], list[str]]:
        """The numbers of an input's tokens, and the category of each."""
        ...

    def read(self, given: object) -> OwnInput:
        """An image, or whatever else the model reads, as it reads it."""
        ...

    def again(self, number: int) -> OwnInput:
        """An input that was read before, by its number."""
        ...


@runtime_checkable
class ReadsImageTexts(Protocol):
    """Makes the inputs of a model that reads images within texts."""

    @property
    def tokens(self) -> frozenset[int]:
        """Ids of the tokens whose vectors come from an image."""
        ...

    @property
    def alone(self) -> bool:
        """Whether an image is an input without a text, and a text one without an image."""
        ...

    def marked(self, text: str, images: int) -> str:
        """A text in which something stands for each image."""
        ...

    def read(self, text: str, images: Sequence[object], title: str) -> tuple[list[int], OwnInput]:
        """The tokens of a text with images, and what else the model is given."""
        ...

    def again(self, number: int) -> OwnInput:
        """What was read before, by its number."""
        ...


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
    gold: tuple[float | None, int, int] = (None, 0, 0)
    """Of such a pair: its gold score, None without one; the numbers of its query and document from 1, zeros without them."""
    prompt: int = 0
    """Number of tokens at the start that belong to a prompt."""
    unmasked: np.ndarray | None = None
    """`input_ids` before some of them were masked; None if none was."""
    own: OwnInput | None = None
    """What the model is given instead of `input_ids`, or of `source_ids` if there are any, which then are the places of its
    tokens (`inherited` belongs to these); or beside them, if it has images within a text."""

    @property
    def source(self) -> "TokenSequence | None":
        """The encoder's input, if `input_ids` are the decoder's."""
        if self.source_ids is None:
            return None
        inherited = None if self.own is None else self.inherited
        return TokenSequence(
            self.source_ids,
            words=self.source_words,
            units=self.source_units,
            row=self.row,
            inherited=inherited,
            own=self.own,
        )

    @property
    def target(self) -> "TokenSequence":
        """The sequence without what belongs to the encoder's input."""
        alone = self.source_ids is None or self.own is None
        return self if alone else dataclasses.replace(self, inherited=None, own=None)

    @property
    def all_tokens(self) -> np.ndarray:
        """The tokens, and those of the encoder's input or numbers for an input that is no text."""
        others = self.source_ids if self.own is None else self.own.numbers
        return self.input_ids if others is None else np.concatenate([self.input_ids, [-1], others])

    @property
    def key(self) -> int:
        """A number that depends on what was read alone: on its tokens, whichever were masked, segments, pair and score."""
        read = self if self.unmasked is None else dataclasses.replace(self, input_ids=self.unmasked)
        parts = [read.all_tokens, np.zeros(0) if read.token_type_ids is None else read.token_type_ids]
        pair = None if self.second is None else (self.second.key, self.gold[0], self.gold[1:])
        content = repr([*(fingerprint(part) for part in parts), pair])
        return int.from_bytes(hashlib.sha256(content.encode()).digest()[:16], "little")


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
        """Whether it reads the segment ids of the tokenizer, which say which text of a pair a token comes from."""
        ...

    @property
    def rule(self) -> TextRule:
        """How it writes texts before its tokenizer reads them."""
        ...

    @property
    def reader(self) -> ReadsInputs | None:
        """What makes its inputs, if it reads images or other vectors; None if it reads texts."""
        ...

    @property
    def image_texts(self) -> ReadsImageTexts | None:
        """What makes its inputs of texts with images, if it reads these as well as texts."""
        ...

    @property
    def tower(self) -> str | None:
        """Which part of a model that embeds images and texts it is; None for any other."""
        ...


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
        ids = np.asarray(input_ids, dtype=np.int64)
        return TokenSequence(
            self.masked(ids, self.mask_fraction),
            None if segments is None else np.asarray(segments, dtype=np.int64) * self.second_segment,
            units=units,
            last=last,
            cut=cut,
            unmasked=ids if self.mask_fraction else None,
        )

    @property
    def cuts_beginnings(self) -> bool:
        """Whether texts that are too long lose their beginnings; with most tokenizers they lose their ends."""
        return str(self.tokenizer.truncation_side) == "left"

    def kept(self, tokens: list[T]) -> list[T]:
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
