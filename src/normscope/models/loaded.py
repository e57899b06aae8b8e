"""A model that can be observed, with what is needed to feed it and to name it in results."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cached_property

import torch
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.models.layout import BlockLayout, embeddings_of
from normscope.models.observer import Observer


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can be observed, with what is needed to feed it and to name it in results."""

    model: PreTrainedModel
    """The base model, in evaluation mode, without gradients."""
    tokenizer: PreTrainedTokenizerBase
    layout: BlockLayout
    name: str
    revision: str | None
    """Commit of the Hub repository, where the weights came from one."""
    weights_sha256: str | None
    """Digest of the weight files; None for random weights."""
    max_length: int | None
    """Tokens that the model and its tokenizer take; None where nothing bounds them."""

    load_head: Callable[[], PreTrainedModel | None] = lambda: None
    """Loads the masked language model around `model`; None where there is none."""

    @cached_property
    def masked_language_head(self) -> PreTrainedModel | None:
        """The masked language model around `model`, if the checkpoint has its weights."""
        return self.load_head()

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.layout.bind(self.model))

    @property
    def vocabulary(self) -> int:
        """Number of token ids that have an embedding, the decoder's among them where one is looked at."""
        readers = [self.model, self.model.get_decoder()] if self.layout.reads_target else [self.model]
        return max(embeddings_of(reader).num_embeddings for reader in readers)

    @property
    def takes_segments(self) -> bool:
        """Whether the model is told which text of a pair a token is from."""
        return (
            "token_type_ids" in self.tokenizer.model_input_names
            and "token_type_ids" in inspect.signature(self.model.forward).parameters
        )

    @property
    def translates(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return self.layout.stack is not None

    @cached_property
    def causal(self) -> bool:
        """Whether tokens see only those before them.

        Config keys and modules contradict each other here, so it is read off what two tokens see of each other.
        """
        if self.is_cross_attention:
            return False
        inputs = {"input_ids": torch.zeros(1, 2, dtype=torch.long, device=self.device)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if self.layout.reads_target:
            inputs |= {f"decoder_{name}": tensor for name, tensor in inputs.items()}
        seen: list[torch.Tensor] = []
        with Observer(self.model, self.layout, [1]) as observer:
            observer.run(inputs, lambda block: seen.append(block.visible()[0, 0]))
        return bool(seen[0][1, 0]) and not bool(seen[0][0, 1])

    @property
    def is_cross_attention(self) -> bool:
        """Whether it is the decoder's attention over the encoder's output that is looked at."""
        return self.layout.is_cross_attention

    @property
    def decoder_inputs(self) -> Callable[[list[int]], list[int]] | None:
        """Makes what the decoder reads of the target's tokens; None if no decoder is looked at.

        Row t of its attention then predicts token t of the target.
        """
        if not self.layout.reads_target:
            return None
        if self.layout.start == "last":
            return lambda target: [target[-1], *target[:-1]]
        start = self.model.config.decoder_start_token_id
        return lambda target: [start, *target[:-1]]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are kept in."""
        return self.model.dtype
