"""The names of types in the signatures of the Python interface, with `Several` and `Choice` of `normscope.config.calls`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from PIL.Image import Image
from torch import Tensor, nn
from transformers import BatchEncoding
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from typing_extensions import TypeAliasType

from normscope.config.calls import Instance
from normscope.config.rules import Expected
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import TEXTS

_KINDS = (str, tuple, list, Tensor, np.ndarray, Path, Image)

Model = TypeAliasType(
    "Model", Annotated[LoadedModel, Instance("a model from normscope.load or normscope.wrap(model, tokenizer)")]
)
"""What `load` and `wrap` return."""

Module = TypeAliasType("Module", Annotated[nn.Module, Instance("a torch.nn.Module")])
"""A model in memory."""

Tokenizer = TypeAliasType("Tokenizer", Annotated[PreTrainedTokenizerBase, Instance("a transformers tokenizer")])
"""A transformers tokenizer."""

Reader = TypeAliasType(
    "Reader",
    Annotated[
        PreTrainedTokenizerBase | Callable[..., Any],
        Instance("a transformers tokenizer or processor, or a function that takes an image", (Callable,)),
    ],
)
"""What makes a model's inputs: a tokenizer, or, for images and audio, a processor or a function."""

Text = TypeAliasType(
    "Text",
    Annotated[
        str | tuple[str, str] | list[int] | list[dict[str, str]] | Tensor | np.ndarray | Path | Image,
        Instance("a str, a pair (a tuple of two str), a conversation (a list of dicts) or token ids", _KINDS),
    ],
)
"""A text, a pair of texts, a conversation (messages with `role` and `content`), or token ids: a list, an array or a tensor.

For a model of images, an image or its file.
"""

Texts = TypeAliasType(
    "Texts",
    Annotated[Text | list[Text] | BatchEncoding, Instance(TEXTS, (*_KINDS, BatchEncoding))],
)
"""A text, a list of texts, or what a tokenizer made of them; for a model of images, an image or its file, or several."""

ManyTexts = TypeAliasType(
    "ManyTexts",
    Annotated[
        Text | Iterable[Text],
        Instance(
            "a str, a pair (a tuple of two str), token ids, or a list of these",
            (Iterable, Image, Path),
            (bytes, Mapping),
        ),
    ],
)
"""A text, or any iterable of texts, which is read once."""

Spans = TypeAliasType(
    "Spans",
    Annotated[
        Mapping[str, tuple[int, int]] | Literal["sentences"],
        Expected("'sentences', or a dict with names as keys and tuples (start, end) of whole numbers as values"),
    ],
)
"""Parts of a text: its sentences, or each by name as the numbers of its first character and of the first one after it."""
