"""Models whose encoder reads a sound and whose decoder reads a text: their cross-attention, from tokens to frames."""

import copy
from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.models.load.vectors import Around, VectorModel
from normscope.models.probes import embeddings_of, random_tokens
from normscope.models.stored.stored_weights import execution_device

_TEXT = 7
"""Number of tokens of the texts of probes."""


class SpeechModel(Around):
    """An encoder–decoder whose encoder reads vectors, with the interface of one that reads token ids on both sides.

    Args:
        model: The encoder–decoder, without a head, in evaluation mode.
        encoder: Its encoder.
        settings: How the model generates, which names the heads that align; None if nothing says it.
    """

    def __init__(self, model: PreTrainedModel, encoder: VectorModel, settings: GenerationConfig | None = None) -> None:
        config = copy.deepcopy(model.config)
        config.pad_token_id = None  # frames have none
        if getattr(config, "decoder_start_token_id", None) is None and settings is not None:
            config.decoder_start_token_id = settings.decoder_start_token_id
        super().__init__(config, model)
        self.vectors = encoder
        self.generation_config = settings

    def random_batch(self, inputs: int) -> dict[str, Tensor]:
        """Sounds and texts whose numbers stand for nothing, as keyword arguments of `forward`."""
        given = self.vectors.random_batch(inputs)
        decoder = self.get_decoder()
        texts = random_tokens(
            decoder, embeddings_of(decoder).num_embeddings, [_TEXT] * len(given["input_ids"]), execution_device(self)
        )
        return given | {f"decoder_{name}": tensor for name, tensor in texts.items()}

    def get_encoder(self, *_arguments: Any, **_options: Any) -> PreTrainedModel:
        """The encoder, which reads vectors."""
        return self.vectors

    def get_decoder(self, *_arguments: Any, **_options: Any) -> Any:
        """The decoder, which reads token ids."""
        return self.model.get_decoder()

    def get_input_embeddings(self) -> nn.Module:
        """The table of the frames' vectors."""
        return self.vectors.table

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        **inputs: Tensor,
    ) -> Any:
        """Run the model.

        Args:
            input_ids: Numbers of frames (text, frame).
            attention_mask: See `VectorModel.forward`.
            decoder_input_ids: What the decoder reads (text, token).
            decoder_attention_mask: Its mask.
            encoder_outputs: What the encoder has made of the sound, if it has run.
            inputs: The encoder's own keyword arguments.
        """
        if encoder_outputs is None:
            assert input_ids is not None
            encoder_outputs = self.vectors(input_ids, attention_mask, **inputs)
        return self.model(
            encoder_outputs=encoder_outputs,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            use_cache=False,
        )
