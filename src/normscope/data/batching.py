"""Token sequences to padded batches: sequences of similar length together, within a token budget."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.token_sequence import (
    AnnotatedSentence,
    Batching,
    OwnInput,
    ReadsImageTexts,
    ReadsInputs,
    TokenSequence,
    fingerprint,
)
from normscope.data.words import NO_WORD, unit_texts
from normscope.errors import InputError
from normscope.maths.partition import Partition
from normscope.maths.tensors import to_device

T = TypeVar("T")

# Examples that are sorted by length at a time: few enough to bound memory, enough to need hardly any padding.
LOOKAHEAD = 2048
# The same of texts with images, each of which may take 50 MB.
_WITH_IMAGES = 16
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Pairing:
    """What is known about sequences that are the texts of pairs, one text after the other."""

    scores: tuple[float | None, ...]
    """The gold score of each pair, or None if it has none."""
    ranked: tuple[tuple[int, int], ...]
    """The numbers of the query and the document of each pair, from 1; zeros if it is not a query with a document."""
    prompts: Int[Tensor, " batch"]
    """Number of tokens at the start of each sequence that belong to a prompt."""

    def part(self, start: int, stop: int) -> "Pairing":
        """Some of the sequences, which begin and end with a pair."""
        pairs = slice(start // 2, stop // 2)
        return Pairing(self.scores[pairs], self.ranked[pairs], self.prompts[start:stop])


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Sequences for one forward pass, padded on the right."""

    input_ids: Int[Tensor, "batch token"]
    token_type_ids: Int[Tensor, "batch token"] | None
    token_mask: Bool[Tensor, "batch token"]
    """True at tokens, False at padding."""
    categories: Int[Tensor, "batch token"]
    """Index into the names of the encoder's categories; −1 at padding."""
    fingerprints: tuple[int, ...]
    """A number for each sequence that depends only on its tokens."""
    source: "Batch | None" = None
    """The encoder's input, if this batch is the decoder's."""
    is_cross_attention: bool = False
    """Whether queries attend to the source."""
    words: Int[Tensor, "batch token"] | None = None
    """The word of each token, NO_WORD for special tokens and padding; in a target, of the token predicted at each position."""
    units: Int[Tensor, "batch token"] | None = None
    """The unit of each token if words are measured: a word, or a special token by itself; −1 at padding."""
    rows: tuple[int, ...] = ()
    """Row of each sequence in the corpus; empty unless `words` or `paired` is set."""
    sentences: tuple[AnnotatedSentence | None, ...] = ()
    """The annotated words of each sequence; empty unless `words` is set."""
    pairing: Pairing | None = None
    """Set if every two consecutive sequences are the texts of a pair."""
    inherited: Int[Tensor, "batch token"] | None = None
    """The category that each token inherits from its word or its part of a conversation (see `TokenSequence`); −1 if none."""
    examples: int = 0
    """Examples that end in this batch: one per sequence, except for windows of documents."""
    own: OwnInput | None = None
    """What the model is given instead of `input_ids`, which then are the places of its tokens."""
    on_host: "Batch | None" = dataclasses.field(default=None, repr=False)
    """The batch in CPU memory from which this one was copied; see `host`."""
    _built: dict[Hashable, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def once(self, name: Hashable, build: Callable[[], T]) -> T:
        """What `build` returns. It is called once for this batch, whoever asks. The result should be small: the batch keeps it.

        Args:
            name: What is built.
            build: Builds it.
        """
        if name not in self._built:
            self._built[name] = build()
        result: T = self._built[name]
        return result

    @property
    def host(self) -> "Batch":
        """The same batch in CPU memory, where its numbers can be read without waiting for a device."""
        if self.on_host is not None:
            return self.on_host
        return self if self.input_ids.device.type == "cpu" else self.to(torch.device("cpu"))

    @cached_property
    def lengths(self) -> Int[np.ndarray, " batch"]:
        """Number of tokens of each sequence."""
        return np.asarray(self.host.token_mask.sum(dim=-1).numpy())

    @property
    def keys(self) -> "Batch":
        """The tokens attended to: those of the source in cross-attention, otherwise those of this batch."""
        return self.source if self.is_cross_attention and self.source is not None else self

    @cached_property
    def partition(self) -> Partition:
        """What is measured: the tokens, or the words that they make up."""
        if self.units is None:
            return Partition.tokens(self.token_mask)
        if self.host is not self:
            return self.host.partition.to(self.input_ids.device)
        return Partition.of(self.units, int(self.units.max()) + 1)

    @cached_property
    def measured(self) -> "Batch":
        """The batch in terms of what is measured: itself, or the words. A word has the category of its first token."""
        if self.units is None:
            return self
        words = self.partition

        def of_words(tensor: Tensor) -> Tensor:
            return tensor.gather(1, words.first)

        return dataclasses.replace(
            self,
            input_ids=of_words(self.input_ids),
            token_type_ids=None if self.token_type_ids is None else of_words(self.token_type_ids),
            token_mask=words.exists,
            categories=of_words(self.categories).masked_fill(~words.exists, -1),
            inherited=None,
            source=None if self.source is None else self.source.measured,
            words=None,
            units=None,
            on_host=None if self.on_host is None else self.on_host.measured,
        )

    @property
    def unit_numbers(self) -> Int[np.ndarray, " token"]:
        """Of a batch of one: the number of each token, or of its word if these are measured."""
        if self.units is None:
            return np.arange(self.input_ids.shape[1])
        numbers: np.ndarray = self.units[0].cpu().numpy()
        return numbers

    def unit_texts(self, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
        """Of a batch of one: the tokens, or the words if these are measured."""
        units = None if self.units is None else self.units[0].tolist()
        names = [*unit_texts(tokenizer, self.input_ids[0].tolist(), units)]
        for image in () if self.own is None else self.own.images:
            for place, name in zip(image.places, image.names, strict=True):
                names[place if units is None else units[place]] = name
        return tuple(names)

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.input_ids.shape[0]

    @property
    def paired(self) -> bool:
        """Whether every two consecutive sequences are the texts of a pair."""
        return self.pairing is not None

    @property
    def unit(self) -> int:
        """The number of sequences that must stay together: two if they are pairs."""
        return 2 if self.paired else 1

    def model_inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of the model's `forward`."""
        inputs = {"input_ids": self.input_ids, "attention_mask": self.token_mask.long()}
        if self.source is not None:
            return self.source.model_inputs() | {f"decoder_{name}": tensor for name, tensor in inputs.items()}
        inputs |= {} if self.own is None else self.own.arguments
        return inputs if self.token_type_ids is None else inputs | {"token_type_ids": self.token_type_ids}

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        host = None if device.type == "cpu" else self.host
        return self._each(lambda tensor: to_device(tensor, device))._with_host(host)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of a batch that was copied on another stream until `stream` has done what it does now."""

        def kept(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        self._each(kept)

    def part(self, start: int, stop: int) -> "Batch":
        """The sequences from `start` to `stop`, multiples of `unit`, with no more padding than they need."""
        width = int(self.lengths[start:stop].max())
        part = dataclasses.replace(
            dataclasses.replace(self, own=None)._each(lambda tensor: tensor[start:stop, :width]),
            on_host=None if self.on_host is None else self.on_host.part(start, stop),
            fingerprints=self.fingerprints[start:stop],
            rows=self.rows[start:stop],
            sentences=self.sentences[start:stop],
            pairing=None if self.pairing is None else self.pairing.part(start, stop),
            own=None if self.own is None else self.own.part(start, stop),
        )
        return part if self.source is None else dataclasses.replace(part, source=self.source.part(start, stop))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return dataclasses.replace(
            self,
            input_ids=change(self.input_ids),
            token_type_ids=None if self.token_type_ids is None else change(self.token_type_ids),
            token_mask=change(self.token_mask),
            categories=change(self.categories),
            inherited=None if self.inherited is None else change(self.inherited),
            source=None if self.source is None else self.source._each(change),
            words=None if self.words is None else change(self.words),
            units=None if self.units is None else change(self.units),
            own=None if self.own is None else self.own.each(change),
        )

    def _with_host(self, host: "Batch | None") -> "Batch":
        source = None if self.source is None else self.source._with_host(None if host is None else host.source)
        return dataclasses.replace(self, source=source, on_host=host)

    def packed(self) -> Int[Tensor, "kind batch token"]:
        """Tokens, segments, source tokens, inherited categories and units of each sequence, −1 where there are none.

        Last comes the number of an input that is no text, at each of its tokens.
        """
        width = max(self.token_mask.shape[1], 0 if self.source is None else self.source.token_mask.shape[1])
        rows = torch.full((6, self.sequences, width), -1, device=self.input_ids.device)
        rows[0, :, : self.token_mask.shape[1]] = self.input_ids.masked_fill(~self.token_mask, -1)
        if self.token_type_ids is not None:
            rows[1, :, : self.token_mask.shape[1]] = self.token_type_ids.masked_fill(~self.token_mask, -1)
        if self.source is not None:
            source = self.source
            rows[2, :, : source.token_mask.shape[1]] = source.input_ids.masked_fill(~source.token_mask, -1)
        if self.inherited is not None:
            rows[3, :, : self.token_mask.shape[1]] = self.inherited
        if self.units is not None:
            rows[4, :, : self.token_mask.shape[1]] = self.units
        own = self.own if self.source is None else self.source.own
        if own is not None:
            numbers = torch.tensor(own.numbers, device=self.token_mask.device).unsqueeze(1)
            rows[5, :, : self.token_mask.shape[1]] = numbers.where(self.token_mask, -1)
        return rows

    def for_samples(self, seed: int, tokens: int | None = None) -> tuple[list[float], list[Int[np.ndarray, "kind _"]]]:
        """What a sample of a corpus's sequences takes: a random number for each sequence, and its part of `packed`.

        Numbers depend only on the seed and the sequence's tokens, so equal sequences have equal numbers.

        Args:
            tokens: The numbers of sequences with more tokens are larger than all others; None for no such limit.
        """
        sequences = self.by_sequence()
        numbers = [float(np.random.default_rng([seed, fingerprint]).random()) for fingerprint in self.fingerprints]
        if tokens is not None:
            numbers = [number + (kinds.shape[1] > tokens) for number, kinds in zip(numbers, sequences, strict=True)]
        return numbers, sequences

    def by_sequence(self) -> list[Int[np.ndarray, "kind _"]]:
        """Each sequence's part of `packed`."""
        packed = self.host.packed().transpose(0, 1).numpy()
        return [kinds[:, (kinds >= 0).any(axis=0)] for kinds in packed]


def unpacked(kinds: Int[Tensor, "kind token"], reader: ReadsInputs | ReadsImageTexts | None = None) -> TokenSequence:
    """One sequence of a `Batch.packed` tensor.

    Args:
        reader: What has read the inputs, if they are no texts or have images.
    """
    tokens, segments, source, _, units, numbers = (kind[kind >= 0].numpy() for kind in kinds)
    inherited = kinds[3, : len(tokens)].numpy()
    own = None if reader is None or not len(numbers) else reader.again(int(numbers[0]))
    if own is not None:
        own.check_whole(len(tokens))
    return TokenSequence(
        tokens,
        segments if len(segments) else None,
        source_ids=source if len(source) else None,
        inherited=inherited if (inherited >= 0).any() else None,
        units=units if len(units) else None,
        own=own,
    )


def batches(
    examples: Iterable[Example | str], encoder: Encoder, batch_tokens: int, counts: CorpusCounts
) -> Iterator[Batch]:
    """Batches of a corpus, of which at most LOOKAHEAD examples are read ahead.

    Args:
        examples: Examples, or the reason why one is skipped.
        encoder: Turns them into token sequences.
        batch_tokens: Maximum number of tokens in a batch, padding included; a longer sequence is a batch by itself.
        counts: Updated with what became of the examples.
    """
    for window in windows(examples):
        yield from batches_of_window(window, counts, encoder, batch_tokens)


def windows(examples: Iterable[Example | str]) -> Iterator[list[Example | str]]:
    """A corpus in windows of LOOKAHEAD examples, or of fewer with images, which are batched separately."""
    window: list[Example | str] = []
    room = 1.0
    for example in examples:
        window.append(example)
        has_images = isinstance(example, Example) and any(message.images for message in example.messages or ())
        room -= 1 / min(LOOKAHEAD, _WITH_IMAGES) if has_images else 1 / LOOKAHEAD
        if room < _ROUNDING:
            yield window
            window, room = [], 1.0
    if window:
        yield window


ReadWindow = Callable[[Sequence[Example | str], CorpusCounts], Iterator[Batch]]
"""The batches of one window of a corpus, whose examples it adds to the counts."""


def batches_of_window(
    window: Sequence[Example | str], counts: CorpusCounts, encoder: Encoder, batch_tokens: int
) -> Iterator[Batch]:
    """The batches of one window of a corpus; the arguments are those of `batches`."""
    counts.read += len(window)
    counts.skipped.update(reason for reason in window if isinstance(reason, str))
    sequences = encoder.encode([example for example in window if isinstance(example, Example)], counts)
    counts.keys += sum(sequence.key for sequence in sequences)
    names = encoder.categories.names
    for batch in batches_of(sequences, encoder, batch_tokens):
        counts.sequences += batch.sequences
        counts.used += batch.examples
        # In cross-attention the keys are the source's tokens and the queries the target's: both are counted.
        for side in (batch, batch.keys) if batch.is_cross_attention else (batch,):
            categories = side.categories.numpy()[side.token_mask.numpy()]
            counts.tokens += len(categories)
            numbers = np.bincount(categories, minlength=len(names))
            counts.categories.update(dict(zip(names, numbers.tolist(), strict=True)))
        texts = [side for side in (batch, batch.source) if side is not None and (side.own is None or side is batch)]
        for side in texts:
            kinds = encoder.token_kinds[side.input_ids.numpy()[side.token_mask.numpy()]]
            _, ordinary, unknown = np.bincount(kinds, minlength=3).tolist()
            counts.ordinary += ordinary + unknown
            counts.unknown += unknown
        yield batch


def batches_of(sequences: Sequence[TokenSequence], encoder: Encoder, batch_tokens: int) -> Iterator[Batch]:
    """Batches of sequences of similar length. The longest come first, so that running out of memory happens early."""
    padded = encoder.batching is Batching.PADDED
    ordered = sorted(sequences, key=lambda each: (-_length(each), () if padded else _lengths(each)))
    start = 0
    while start < len(ordered):
        unit = 1 if ordered[start].second is None else 2
        rows = max(1, batch_tokens // max(1, unit * _length(ordered[start])))
        if encoder.batching is Batching.SINGLE:
            rows = 1
        elif encoder.batching is Batching.EQUAL_LENGTHS:
            lengths = [_lengths(each) for each in ordered[start : start + rows]]
            rows = lengths.count(lengths[0])
        yield collate(ordered[start : start + rows], encoder)
        start += rows


def collate(sequences: list[TokenSequence], encoder: Encoder) -> Batch:
    """The sequences as one padded batch, the texts of pairs one after the other."""
    if sequences[0].second is not None:
        texts = [text for sequence in sequences for text in (sequence, sequence.second) if text is not None]
        batch = collate([dataclasses.replace(text, second=None) for text in texts], encoder)
        pairing = Pairing(
            scores=tuple(sequence.gold[0] for sequence in sequences),
            ranked=tuple(sequence.gold[1:] for sequence in sequences),
            prompts=torch.tensor([text.prompt for text in texts]),
        )
        return dataclasses.replace(batch, pairing=pairing, rows=tuple(text.row for text in texts))
    sources = [sequence.source for sequence in sequences if sequence.source is not None]
    sequences = [sequence.target for sequence in sequences]
    longest = max(len(sequence.input_ids) for sequence in sequences)
    padding = encoder.tokenizer.pad_token_id
    shape = (len(sequences), longest)
    _check_companions(sequences, encoder.batching)
    # Padding is masked, so any id will do for models without a padding token; 0 always exists.
    input_ids = np.full(shape, 0 if padding is None else padding, dtype=np.int64)
    segments = None if sequences[0].token_type_ids is None else np.zeros(shape, dtype=np.int64)
    token_mask = np.zeros(shape, dtype=bool)
    categories = np.full(shape, -1, dtype=np.int64)
    inherited = None if all(each.inherited is None for each in sequences) else np.full(shape, -1, dtype=np.int64)
    words = None if all(sequence.words is None for sequence in sequences) else np.full(shape, NO_WORD, dtype=np.int64)
    units = None if sequences[0].units is None else np.full(shape, NO_WORD, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        columns = slice(len(sequence.input_ids))
        input_ids[row, columns] = sequence.input_ids
        token_mask[row, columns] = True
        categories[row, columns] = encoder.categories_of(sequence)
        if inherited is not None and sequence.inherited is not None:
            inherited[row, columns] = sequence.inherited
        if words is not None and sequence.words is not None:
            words[row, columns] = sequence.words
        if units is not None and sequence.units is not None:
            units[row, columns] = sequence.units
        if segments is not None and sequence.token_type_ids is not None:
            segments[row, columns] = sequence.token_type_ids
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=None if segments is None else torch.from_numpy(segments),
        token_mask=torch.from_numpy(token_mask),
        categories=torch.from_numpy(categories),
        inherited=None if inherited is None else torch.from_numpy(inherited),
        fingerprints=tuple(fingerprint(sequence.all_tokens) for sequence in sequences),
        source=collate(sources, encoder) if sources else None,
        is_cross_attention=encoder.is_cross_attention,
        words=None if words is None else torch.from_numpy(words),
        units=None if units is None else torch.from_numpy(units),
        rows=tuple(sequence.row for sequence in sequences) if words is not None else (),
        sentences=tuple(sequence.sentence for sequence in sequences) if words is not None else (),
        examples=sum(sequence.last for sequence in sequences),
        own=OwnInput.joined([each.own for each in sequences if each.own]) if sequences[0].own else None,
    )


def _check_companions(sequences: Sequence[TokenSequence], batching: Batching) -> None:
    """Check that texts may be in one batch."""
    if batching is Batching.SINGLE and len(sequences) > 1:
        raise InputError(
            "expected a single text in a batch, because the model's output for a text depends on the other texts; pass them "
            "one by one"
        )
    if batching is not Batching.PADDED and len({len(sequence.input_ids) for sequence in sequences}) > 1:
        raise InputError(
            "expected texts of the same length in a batch, because the model treats padding as tokens; pass them one by one, "
            "or wrap the model with inputs=, a function of ids and mask that masks padding"
        )


def _length(sequence: TokenSequence) -> int:
    return max(_lengths(sequence)[:3])


def _lengths(sequence: TokenSequence) -> tuple[int, ...]:
    """The lengths of all texts of an example, and the sizes of an input that is no text."""
    others = (sequence.source_ids, None if sequence.second is None else sequence.second.input_ids)
    sizes = () if sequence.own is None else (size for each in sequence.own.arguments.values() for size in each.shape)
    return len(sequence.input_ids), *(0 if ids is None else len(ids) for ids in others), *sizes
