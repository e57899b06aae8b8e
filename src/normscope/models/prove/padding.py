"""Whether a model's output for a text depends on padding after it, or on the other texts of its batch."""

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.data.token_sequence import Batching
from normscope.models.blocks.block import full_precision
from normscope.models.observe.check import BOUNDS, relative_error
from normscope.models.probes import embeddings_of, padding_of
from normscope.models.stored.model_code import model_code
from normscope.models.stored.stored_weights import execution_device

_LENGTHS = (9, 6, 3)
"""Lengths of the texts of the probe."""

_EQUAL_TEXTS = 80
"""Texts of a batch that overfills an expert, whose capacity families set to at most 64 tokens."""

_TOLERANCE = 10
"""In units of what the type explains in one layer: the output has passed all of them."""


def batching_of(
    model: PreTrainedModel, *, padding: int | None = None, reads_target: bool = False, routed: bool = False
) -> Batching:
    """Which texts may be in one batch with this model, by comparing its own outputs for texts alone and in batches.

    Args:
        model: A base model in evaluation mode.
        padding: The token that fills up batches; that of the config, or 0, if not given.
        reads_target: Whether the model reads a target text as well.
        routed: Whether it has a mixture of experts, which may leave out tokens if a batch has many.

    Raises:
        InputError: If the model fails.
    """
    if any(parameter.is_meta for parameter in model.parameters()) and execution_device(model).type == "meta":
        return Batching.PADDED
    if of_vectors := getattr(model, "random_batch", None):
        with model_code(model, "a probe"), torch.inference_mode():
            given = [of_vectors(inputs) for inputs in (3, 1)]
            several, single = (full_precision(model(**each)[0]) for each in given)
        is_same = len(given[0]["input_ids"]) == 3 and _same(model, single[0], several[0])
        return Batching.EQUAL_LENGTHS if is_same else Batching.SINGLE
    probe = _Probe(model, padding, reads_target=reads_target)
    with model_code(model, "a probe"), torch.inference_mode():
        alone = [probe.outputs([text])[0] for text in probe.texts[:2]]
        padded = probe.outputs(probe.texts)
        equal = probe.outputs([probe.texts[1]] * (_EQUAL_TEXTS if routed else 3))
        others = probe.outputs([probe.texts[1], probe.texts[0][: len(probe.texts[1])]])
    if not all(probe.same(alone[1], each) for each in (equal[-1], others[0])):
        return Batching.SINGLE
    return Batching.PADDED if all(map(probe.same, alone, padded)) else Batching.EQUAL_LENGTHS


class _Probe:
    """Texts of random tokens, and what a model returns for them."""

    def __init__(self, model: PreTrainedModel, padding: int | None, *, reads_target: bool) -> None:
        self._model, self._reads_target = model, reads_target
        own = padding_of(model)
        self._padding = next((each for each in (padding, own) if each is not None), 0)
        readers = [model, model.get_decoder()] if reads_target else [model]
        vocabulary = min(embeddings_of(reader).num_embeddings for reader in readers)
        self._padding = min(self._padding, vocabulary - 1)
        longest = getattr(model, "longest_probe", None) or max(_LENGTHS)
        generator = torch.Generator().manual_seed(1)
        tokens = [token for token in range(vocabulary) if token not in (self._padding, own)] or [0]
        self.texts = [
            [tokens[index] for index in torch.randint(len(tokens), (min(length, longest),), generator=generator)]
            for length in _LENGTHS
        ]

    def outputs(self, texts: list[list[int]]) -> list[Tensor]:
        """The vectors of every text in a batch of these, without those of padding."""
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[self._padding] * (longest - len(text))] for text in texts])
        mask = (torch.arange(longest) < torch.tensor([len(text) for text in texts])[:, None]).long()
        device = execution_device(self._model)
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        if self._reads_target:
            inputs |= {f"decoder_{name}": tensor for name, tensor in inputs.items()}
        vectors = full_precision(self._model(**inputs)[0])
        return [rows[: len(text)] for rows, text in zip(vectors, texts, strict=True)]

    def same(self, one: Tensor, other: Tensor) -> bool:
        """See `_same`."""
        return _same(self._model, one, other)


def _same(model: PreTrainedModel, one: Tensor, other: Tensor) -> bool:
    """Whether vectors differ by rounding alone; not-a-number is left to the proof."""
    one, other = (
        each.reshape(1, -1, each.shape[-1]) for each in (one, other)
    )  # one vector, if a model has pooled them
    error = relative_error(one, other, one, torch.ones(one.shape[:2], dtype=torch.bool))
    return not error > _TOLERANCE * BOUNDS[model.dtype]
