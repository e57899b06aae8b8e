"""Runs the model again with some of its activations replaced, for analyses of cause and effect."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.data.batching import Batch, batches, batches_of, collate, unpacked
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.token_sequence import Segmenter
from normscope.models.blocks.block import AttentionBlock, TokenSelector, full_precision
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import Predictor
from normscope.models.load.task_heads import Head
from normscope.models.observe.check import Check
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.layer_outputs import LayerOutput
from normscope.models.observe.observer import Observer, Replacement
from normscope.models.probes import embeddings_of
from normscope.models.stored.stored_weights import is_offloaded
from normscope.streams import Progress, no_bar

T = TypeVar("T")

MASKED_SHARE = 0.15
"""Share of the ordinary tokens that BERT's training masks."""

# A head returns a logit for every token of the vocabulary: with 250,000 of them, 1,024 tokens need a gigabyte.
_HEAD_TOKENS = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class Ablation:
    """Replaces some dimensions of the residual stream in the input of some layers."""

    dimensions: Sequence[int]
    values: Mapping[int, Float[Tensor, " dimension"]]
    """New values, by the layer (from 1) that reads them; other layers read what the model computed."""
    tokens: TokenSelector | None = None
    """Which tokens to change in each of these layers; None for all."""


class InterventionRunner:
    """Runs a loaded model on sampled sequences of the corpus, or on any other batches.

    Args:
        model: See `loading.load`.
        encoder: Makes batches and masks tokens.
        layers: Layers whose blocks are observed.
        batch_tokens: Largest number of tokens in a batch, padding included.
        progress: Shows how far it is.
    """

    def __init__(
        self,
        model: LoadedModel,
        encoder: Encoder,
        layers: Sequence[int],
        batch_tokens: int,
        progress: Progress = no_bar,
    ) -> None:
        self._model, self._encoder, self._layers, self._progress = model, encoder, layers, progress
        self._batch_tokens = min(batch_tokens, _HEAD_TOKENS)

    @property
    def model(self) -> LoadedModel:
        """The model."""
        return self._model

    def batches(self, sequences: Sequence[Int[Tensor, "kind _"]]) -> list[Batch]:
        """Batches of sequences that were sampled by `Batch.for_samples`, on the model's device."""
        unpacked_sequences = [unpacked(kinds, self._model.reader or self._model.image_texts) for kinds in sequences]
        return [
            batch.to(self._model.device) for batch in batches_of(unpacked_sequences, self._encoder, self._batch_tokens)
        ]

    def read(self, examples: Iterable[Example | str]) -> Iterator[Batch]:
        """Batches of other examples than the corpus's, none of them masked; a string is the reason why one is skipped."""
        for batch in batches(examples, self._encoder.unmasked(), self._batch_tokens, CorpusCounts()):
            yield batch.to(self._model.device)

    def translation(self, pair: Example, words: Segmenter) -> Batch | None:
        """A source and its target as a batch of one, with the word of each token; None if a side has no text.

        Args:
            words: Splits a text into words.
        """
        sequences = self._encoder.in_words(words).encode([pair], CorpusCounts())
        return collate(sequences, self._encoder).to(self._model.device) if sequences else None

    def answered(self, pair: Example) -> tuple[Batch, int] | None:
        """A text and its answer, joined by a space, as a batch of one, with the number of the answer's tokens.

        None if either has no tokens, or together they exceed the model's maximum length.
        """
        answered = self._encoder.answered(pair)
        return None if answered is None else (collate([answered[0]], self._encoder).to(self._model.device), answered[1])

    def observe(
        self,
        batches: Batch | Iterable[Batch],
        visit: Callable[[AttentionBlock], None],
        ablation: Ablation | None = None,
        visit_feed_forward: Callable[[FeedForwardBlock], None] | None = None,
    ) -> None:
        """Run batches through the model and visit the blocks of the runner's layers.

        Args:
            batches: One batch or more, on any device.
            visit: Called with each block, batch by batch, layer by layer.
            ablation: What to replace. For many ablations of a batch, see `unchanged`.
            visit_feed_forward: Called with the feed-forward network of each of these layers, after its block.
        """
        observer = self._observer if visit_feed_forward is None else self._feed_forward_observer
        for batch in [batches] if isinstance(batches, Batch) else batches:
            with observer:
                inputs = batch.to(self._model.device).model_inputs()
                replacements = self._replacements(ablation)
                observer.run(inputs, visit, None, visit_feed_forward, replacements=replacements, check=_check(ablation))

    @cached_property
    def predictor(self) -> Predictor | None:
        """What predicts the next token, or masked ones; None if the checkpoint has no head that can be used."""
        masks = self._model.tokenizer.mask_token_id is not None
        follows = self._model.prefix_head is None  # or no token but the last predicts one that it has not seen
        kinds = {Head.NEXT_TOKEN: follows, Head.MASKED_TOKEN: masks}
        return Predictor.of(self._model, [kind for kind, known in kinds.items() if known])

    @property
    def predicts_masks(self) -> bool:
        """Whether the loss is that of masked tokens."""
        return self.predictor is not None and self.predictor.kind is Head.MASKED_TOKEN

    @property
    def without_loss(self) -> str | None:
        """Why no loss can be measured; None if one can."""
        if self.predictor is not None:
            return None
        if is_offloaded(self._model.model):
            return "the language-modelling head is not loaded, because device.map=auto keeps some weights elsewhere"
        return "the checkpoint has no language-modelling head"

    def operations_from(self, start: int) -> float:
        """Multiplications and additions per token of a pass from a layer to the head, attention's own left out."""
        model, layers = self._model.model, self._model.layers
        embeddings = embeddings_of(model).weight.numel()
        of_layers = sum(parameter.numel() for parameter in model.parameters()) - embeddings
        passes = 2 if self.predicts_masks else 1
        of_head = embeddings if self.predictor is not None else 0
        return 2.0 * (passes * max(0, of_layers) * (layers - start + 1) / layers + of_head)

    def unchanged(
        self, batch: Batch, visit: Callable[[AttentionBlock], None], starts: Iterable[int] = ()
    ) -> "Unchanged":
        """Run a batch unchanged, so that `ablated` need only run the layers that an ablation changes.

        Args:
            batch: A batch on any device.
            visit: Called with each block.
            starts: The first layers that ablations will change. What the layers before them return is kept.
        """
        batch, outputs = batch.to(self._model.device), dict.fromkeys(start - 1 for start in starts if start > 1)
        texts = _Pass(batch.model_inputs(), dict(outputs))
        masked = _Pass(self.masked_inputs(batch), outputs) if self.predicts_masks else None
        return Unchanged(batch, texts, masked, self._passes(batch, texts, masked, visit, None))

    def ablated(
        self, unchanged: "Unchanged", visit: Callable[[AttentionBlock], None], ablation: Ablation
    ) -> "Loss | None":
        """Run a batch again with something replaced.

        Args:
            visit: Called with each block, from the first layer that is changed.

        Returns:
            The loss, as in `Unchanged.loss`.
        """
        return self._passes(unchanged.batch, unchanged.texts, unchanged.masked, visit, ablation)

    def _passes(
        self,
        batch: Batch,
        texts: "_Pass",
        masked: "_Pass | None",
        visit: Callable[[AttentionBlock], None],
        ablation: Ablation | None,
    ) -> "Loss | None":
        """Run the texts, and the masked ones if the head predicts those; the loss of the head."""
        head = None if self.predictor is None else self.predictor.model
        logits = self._run(texts, visit, head if masked is None else None, ablation)
        if masked is not None:
            logits = self._run(masked, _nothing, head, ablation)
        return None if logits is None else self.loss(batch, (texts if masked is None else masked).inputs, logits)

    def _run(
        self, again: "_Pass", visit: Callable[[AttentionBlock], None], head: Any, ablation: Ablation | None
    ) -> Tensor | None:
        """The logits of the head; None without one."""
        first = 1 if ablation is None else min(ablation.values, default=1)
        before = again.outputs.get(first - 1)
        with self._observer as observer:
            output = observer.run(
                again.inputs,
                lambda block: visit(block) if block.layer >= first else None,
                replacements=self._replacements(ablation),
                whole=head,
                outputs=again.outputs if ablation is None else None,
                after=None if ablation is None or before is None else LayerOutput(first - 1, before),
                check=_check(ablation),
            )
        return None if head is None else output.logits

    def masked_inputs(self, batch: Batch) -> Mapping[str, Tensor]:
        """The inputs with masked tokens, the same ones each time: they depend only on the sequences."""
        ids = batch.input_ids.cpu().numpy()
        masked = np.stack(
            [
                np.concatenate([self._encoder.masked(row[token_mask], MASKED_SHARE), row[~token_mask]])
                for row, token_mask in zip(ids, batch.token_mask.cpu().numpy(), strict=True)  # padding is on the right
            ]
        )
        return batch.model_inputs() | {"input_ids": torch.from_numpy(masked).to(batch.input_ids)}

    def loss(
        self, batch: Batch, inputs: Mapping[str, Tensor], logits: Float[Tensor, "batch token vocabulary"]
    ) -> "Loss":
        """The loss of a pass of the head.

        Args:
            batch: The texts.
            inputs: What the head was given: theirs, or those with masked tokens if `predicts_masks`.
            logits: What it returned.
        """
        if not self.predicts_masks:
            predicted = batch.token_mask[:, 1:]  # padding is on the right
            return _cross_entropy(logits[:, :-1][predicted], batch.input_ids[:, 1:][predicted])
        predicted = inputs["input_ids"] != batch.input_ids
        return _cross_entropy(logits[predicted], batch.input_ids[predicted])

    def progress(self, steps: Iterable[T], total: int, title: str) -> Iterable[T]:
        """The steps, with a progress bar."""
        return self._progress(steps, total, title)

    @cached_property
    def _observer(self) -> Observer:
        # Shared by hundreds of passes, because it splits the weights into heads when created.
        return Observer(self._model.model, self._model.facts, self._layers)

    @cached_property
    def _feed_forward_observer(self) -> Observer:
        return Observer(self._model.model, self._model.facts, self._layers, feed_forward=True)

    def _replacements(self, ablation: Ablation | None) -> dict[int, Replacement]:
        if ablation is None:
            return {}
        dimensions = torch.tensor(list(ablation.dimensions), device=self._model.device)
        return {layer: Replacement(dimensions, values, ablation.tokens) for layer, values in ablation.values.items()}


class Loss(NamedTuple):
    """The cross-entropy of the tokens that a head predicts."""

    total: float
    """Summed, in nats."""
    tokens: int
    """Number of predicted tokens."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Pass:
    """A pass of the unchanged model, and what its layers returned."""

    inputs: Mapping[str, Tensor]
    outputs: dict[int, Any]
    """By layer; None until it has run, or if no pass can begin after the layer."""


class Unchanged(NamedTuple):
    """A batch and what the unchanged model computed from it, from which passes with ablations begin."""

    batch: Batch
    texts: _Pass
    masked: _Pass | None
    """The texts with masked tokens, if the head predicts those."""
    loss: Loss | None
    """Of the tokens that the head predicts; None without a head. A causal model predicts every token but the first of a
    sequence. Any other model predicts 15% of the ordinary tokens, which are masked; the choice depends only on the sequences,
    so every ablation masks the same ones."""


def _check(ablation: Ablation | None) -> Check:
    """How much of a pass is compared: with something replaced, nothing, since the same texts were compared without."""
    return Check.SOME if ablation is None else Check.NOTHING


def _nothing(_block: AttentionBlock) -> None:
    """Visit a block, and do nothing."""


def _cross_entropy(logits: Float[Tensor, "token vocabulary"], ids: Int[Tensor, " token"]) -> Loss:
    return Loss(float(torch.nn.functional.cross_entropy(full_precision(logits), ids, reduction="sum")), len(ids))
