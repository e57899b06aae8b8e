"""What the live page opens on: a question that the model has an answer to."""

import contextlib
from collections.abc import Mapping

from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.typed_texts import SEPARATOR


def opening(model: LoadedModel) -> Mapping[str, str]:
    """The values of the address that the page opens with, by what the model's checkpoint computes.

    A classifier gets a review, a causal language model the beginning of a sentence, a masked one a sentence with a mask, a
    translation model a text and its translation; an encoder two texts, whose similarity has reasons.
    """
    if model.layout.reads_target:
        return {"text": f"The old bridge was closed.{SEPARATOR}Die alte Brücke war gesperrt."}
    with contextlib.suppress(InputError):  # the page says so where the prediction is attributed
        if model.classifier is not None:
            return {"text": "The film was long, but I was never bored."}
        if model.next_token_head is not None:
            return {"text": "The capital of France is"}
        if model.masked_language_head is not None and model.tokenizer.mask_token:
            return {"text": f"The capital of France is {model.tokenizer.mask_token}."}
    return {"text": "The old bridge was closed, so we crossed the river.", "before": "A ferry took us over the water."}
