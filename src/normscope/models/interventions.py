"""The model of a run, to be run again by analyses that change something in it."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from normscope.analyses.intervention_runner import Ablation, InterventionRunner
from normscope.data.batching import Batch, batches_of, unpacked
from normscope.data.encoding import Encoder
from normscope.models.block import AttentionBlock, full_precision
from normscope.models.loaded import LoadedModel
from normscope.models.observer import Observer, Replacement
from normscope.reporting.terminal import steps_bar

T = TypeVar("T")

MASKED_SHARE = 0.15
"""Share of the ordinary tokens that BERT's training masks."""

# A head gives a number for every token of the vocabulary: with 250,000 of them, 1,024 tokens make a gigabyte.
_HEAD_TOKENS = 1024


class ModelInterventionRunner(InterventionRunner):
    """Runs a loaded model.

    Args:
        model: See `loading.load`.
        encoder: Makes batches, and masks tokens.
        layers: Layers whose blocks are shown.
        batch_tokens: Tokens of a batch at most.
    """

    def __init__(self, model: LoadedModel, encoder: Encoder, layers: Sequence[int], batch_tokens: int) -> None:
        self._model, self._encoder, self._layers = model, encoder, layers
        self._batch_tokens = min(batch_tokens, _HEAD_TOKENS)

    def batches(self, sequences: Sequence[Tensor]) -> list[Batch]:
        """Batches of sequences that a `SequenceSample` has kept, on the model's device."""
        chosen = [unpacked(kinds) for kinds in sequences]
        return [batch.to(self._model.device) for batch in batches_of(chosen, self._encoder, self._batch_tokens)]

    def observe(self, batch: Batch, visit: Callable[[AttentionBlock], None], ablation: Ablation | None = None) -> None:
        """Show the blocks of the chosen layers in one forward pass."""
        with self._observer as observer:
            observer.run(batch.model_inputs(), visit, replacements=self._replacements(ablation))

    @property
    def predicts_masked_tokens(self) -> bool:
        """Whether the checkpoint has a masked-language-modelling head, and the tokenizer a mask token."""
        return self._model.tokenizer.mask_token_id is not None and self._model.masked_language_head is not None

    def masked_token_loss(self, batch: Batch, ablation: Ablation | None = None) -> tuple[float, int]:
        """Cross-entropy of masked tokens, in nats, added up, and how many they are."""
        ids = batch.input_ids.cpu().numpy()
        masked = np.stack(
            [
                np.concatenate(
                    [self._encoder.masked(row[token_mask], MASKED_SHARE), row[~token_mask]]
                )  # padding is on the right
                for row, token_mask in zip(ids, batch.token_mask.cpu().numpy(), strict=True)
            ]
        )
        hidden = torch.from_numpy(masked != ids).to(batch.input_ids.device)
        inputs = batch.model_inputs() | {"input_ids": torch.from_numpy(masked).to(batch.input_ids)}
        with self._observer as observer:
            output = observer.run(
                inputs,
                lambda _block: None,
                replacements=self._replacements(ablation),
                whole=self._model.masked_language_head,
            )
        logits = full_precision(output.logits[hidden])
        loss = torch.nn.functional.cross_entropy(logits, batch.input_ids[hidden], reduction="sum")
        return float(loss), int(hidden.sum())

    def progress(self, steps: Iterable[T], total: int, what: str) -> Iterable[T]:
        """The steps, with a progress bar."""
        return steps_bar(steps, total, what)

    @cached_property
    def _observer(self) -> Observer:
        # One for all passes: it splits the weights into heads, and there are hundreds of passes.
        return Observer(self._model.model, self._model.layout, self._layers)

    def _replacements(self, ablation: Ablation | None) -> dict[int, Replacement]:
        if ablation is None:
            return {}
        dimensions = torch.tensor(list(ablation.dimensions), device=self._model.device)
        return {layer: Replacement(dimensions, values) for layer, values in ablation.values.items()}
