"""Images within texts: how a vision–language model and its processor are read.

The model's own code runs from pixels and token ids. What happens before its language layers is not observed: as in a model of
texts, a pass begins with the vectors of the tokens, some of which come from an image.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.token_sequence import ImageTokens, OwnInput
from normscope.errors import InputError, one_line
from normscope.linear.layer_calls import LayerCall
from normscope.linear.provenance import begin_vectors
from normscope.linear.rules import tensors_in
from normscope.models.load.input_reading import arguments_of, opened, read_before, shown_pixels
from normscope.models.load.vectors import Around, given_to, noise, on_call
from normscope.models.observe.attention_function import unobserved
from normscope.models.probes import embeddings_of
from normscope.models.stored.text_tower import base_of, image_text_class, text_tower

_PROBE = 64
"""Rows and columns of the image with which a model is first run."""

_IMAGE_AXES, _COLOURS = 3, 3
"""Axes of an image, the last ones of a batch of images, and the size of the first of these."""


def reads_image_texts(model: object, processor: object) -> bool:
    """Whether a model reads images within texts, and a processor makes both."""
    return (
        isinstance(model, PreTrainedModel)
        and image_text_class(model.config) is not None
        and isinstance(getattr(processor, "tokenizer", None), PreTrainedTokenizerBase)
    )


class ImageTextModel(Around):
    """A vision–language model, with the interface of its language model.

    Args:
        model: The model, with or without its head.

    Raises:
        InputError: If no part of it is a language model by itself.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        base = base_of(model)
        tower = text_tower(base)
        if tower is base or base.config.is_encoder_decoder:
            raise InputError(
                f"model: expected a vision–language model whose language model is a module of its own, got "
                f"{type(model).__name__}; pass only its tokenizer to read texts"
            )
        tower.config.name_or_path = str(model.config.name_or_path or type(model).__name__)
        super().__init__(tower.config, model)
        self.generation_config = getattr(model, "generation_config", None)
        self._is_base = model is base
        self.reads_later = False
        """Whether something of an image enters other layers than the first."""

    @property
    def tower(self) -> PreTrainedModel:
        """The language model."""
        return text_tower(base_of(self.model))

    @property
    def computing(self) -> PreTrainedModel:
        """The language model, whose layers are observed."""
        return self.tower

    def get_input_embeddings(self) -> nn.Module:
        """The table of the tokens' vectors."""
        return embeddings_of(self.tower)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **own: Tensor) -> Any:
        """Run the model.

        Args:
            input_ids: Numbers of tokens (text, token).
            attention_mask: 1 at tokens, 0 at padding.
            own: The model's other keyword arguments, pixels among them; none for a text without images.
        """
        if self._is_base and not own:
            return self.tower(input_ids=input_ids, attention_mask=attention_mask)
        before = contextlib.ExitStack()

        def begin(call: LayerCall) -> None:
            before.close()
            begin_vectors(call.kwargs)

        with before:
            before.enter_context(on_call(self.tower, begin))
            before.enter_context(unobserved())
            before.enter_context(torch._C.DisableTorchFunction())
            return self.model(input_ids=input_ids, attention_mask=attention_mask, **own)

    def entry(self, inputs: Mapping[str, Tensor]) -> tuple[Float[Tensor, "token model"], list[Tensor]]:
        """What the language layers are given for a single input, in a pass that ends there.

        Returns:
            The vectors of the tokens, which enter the first layer; and whatever other numbers there are.
        """
        given = given_to(self.tower, self.model, inputs).kwargs
        others = tensors_in([value for name, value in given.items() if name != "inputs_embeds"])
        return given["inputs_embeds"][0], [each for each in others if each.is_floating_point()]


class Retriever(ImageTextModel):
    """A vision–language model that makes a vector of each token of a page or of a query (ColPali).

    Args:
        model: The model with its head, whose own code runs.
        embeds: Whether these vectors are returned, or those of the language model, of which they are made.
    """

    def __init__(self, model: PreTrainedModel, *, embeds: bool) -> None:
        super().__init__(model)
        self._embeds = embeds

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **own: Tensor) -> Any:
        """Run the model; see `ImageTextModel`."""
        hidden: list[Any] = []
        handle = self.tower.register_forward_hook(lambda _module, _given, output: hidden.append(output))
        try:
            made = super().forward(input_ids, attention_mask, **own)
        finally:
            handle.remove()
        return BaseModelOutput(last_hidden_state=made.embeddings) if self._embeds else hidden[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class ImageTextReader:
    """Makes the inputs of a vision–language model from texts and images."""

    processor: Any
    model: ImageTextModel
    tokens: frozenset[int]
    """Ids of the tokens whose vectors come from an image."""
    _grids: dict[tuple[object, ...], tuple[int, int] | None] = dataclasses.field(default_factory=dict)
    """The grids that were found, by the shapes of what the model was given."""
    _given: dict[int, tuple[str, Sequence[object], str]] = dataclasses.field(default_factory=dict)
    """What was read, by its number."""
    alone: ClassVar[bool] = False
    """Whether an image is an input without a text, and a text one without an image."""

    @classmethod
    def of(cls, processor: Any, model: ImageTextModel) -> "ImageTextReader":
        """Run a model once with an image and once with another, to see which tokens are made of it.

        Raises:
            InputError: If none is, or the same token is in one place and not in another.
        """
        blank = cls(processor, model, frozenset())
        ids, arguments = blank._probe()
        (before, others), (after, changed) = (blank._entered(ids, arguments, region) for region in (None, ...))
        model.reads_later = not all(map(torch.equal, others, changed))
        changes = (before != after).any(dim=-1)
        reader = cls(processor, model, frozenset(ids[0, changes].tolist()))
        if not reader.tokens or not torch.equal(reader._is_image(ids), changes):
            raise InputError(
                f"model: expected some tokens of {type(model.model).__name__} to stand for an image, their vectors made of its "
                f"pixels, got {len(reader.tokens)} kinds of tokens that depend on it; pass only the tokenizer to read texts"
            )
        return reader

    def marked(self, text: str, images: int) -> str:
        """A text with the token that stands for an image before it, once for each image, unless it has that token already."""
        token = str(getattr(self.processor, "boi_token", None) or getattr(self.processor, "image_token", None) or "")
        return text if token and token in text else token * images + text

    def probe(self) -> dict[str, Tensor]:
        """A short input with an image, as keyword arguments of the model."""
        ids, arguments = self._probe()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **arguments}

    def _probe(self) -> tuple[Tensor, dict[str, Tensor]]:
        from PIL import Image

        text = self.marked("" if self.alone else "a", 1)
        if getattr(self.processor, "chat_template", None) and not self.alone:
            said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}]
            text = self.processor.apply_chat_template(said, tokenize=False)
        return self._prepared(text, [Image.new("RGB", (_PROBE, _PROBE), (128, 128, 128))])

    def read(self, text: str, images: Sequence[object], title: str) -> tuple[list[int], OwnInput]:
        """The tokens of a text with images, and what else the model is given.

        Args:
            text: The text, with whatever stands for an image where one belongs.
            images: The images, or their files, in order.
            title: The text as people read it.

        Raises:
            InputError: If an image cannot be read, or the processor or the model does not take them.
        """
        pictures = [opened(each) for each in images]
        ids, arguments = self._prepared(text, [picture for picture, _ in pictures])
        title = ": ".join(filter(None, (", ".join(name for _, name in pictures), title)))
        tokens = self._images(ids, arguments) if images else ()
        own = OwnInput(arguments, (title,), images=tokens, tokens=ids.shape[1])
        self._given[own.numbers[0]] = text, images, title
        return ids[0].tolist(), own

    def again(self, number: int) -> OwnInput:
        """What was read before, by its number; see `read_before`."""
        return self.read(*read_before(self._given, number))[1]

    def _prepared(self, text: str, images: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Token ids, and those of the model's other keyword arguments that the processor makes."""
        try:
            made = self._made(text, images)
        except Exception as error:  # somebody else's code
            raise InputError(
                f"{type(self.processor).__name__} fails on a text with {len(images)} image(s): {one_line(error)}"
            ) from error
        arguments = arguments_of(
            {name: each for name, each in made.items() if isinstance(each, Tensor)}, base_of(self.model.model)
        )
        ids = arguments.pop("input_ids")
        arguments.pop("attention_mask", None)
        return ids, arguments

    def _made(self, text: str, images: Sequence[Any]) -> Mapping[str, Any]:
        """What the processor makes."""
        # A chat template writes special tokens itself.
        options = {"add_special_tokens": False} if getattr(self.processor, "chat_template", None) else {}
        made: Mapping[str, Any] = self.processor(text=[text], images=[*images], return_tensors="pt", **options)
        return made

    def _is_image(self, ids: Tensor) -> Bool[Tensor, " token"]:
        """Which tokens stand for an image."""
        return torch.isin(ids[0], torch.tensor(sorted(self.tokens)).to(ids))

    def _entered(self, ids: Tensor, arguments: Mapping[str, Tensor], region: Any = None) -> tuple[Tensor, list[Tensor]]:
        """What enters the language layers, maybe with noise in a region of all images."""
        given = arguments if region is None else noise(arguments, 0, region=region)
        return self.model.entry({"input_ids": ids, "attention_mask": torch.ones_like(ids), **given})

    # Where the tokens lie in their images.

    def pixels(self, own: OwnInput) -> list[np.ndarray]:
        """The images whose tokens `own.images` are, each rows × columns × 3 numbers from 0 to 255: as the model sees them if it
        is given images, otherwise as they were read."""
        tensor = _images_in(own.arguments)
        if tensor is None:
            return [np.asarray(opened(each)[0]) for each in self._given[own.numbers[0]][1]]
        frames = tensor.flatten(0, -_IMAGE_AXES - 1).double().cpu().numpy().transpose(0, 2, 3, 1)
        return [shown_pixels(frame, getattr(self.processor, "image_processor", None)) for frame in frames]

    def _images(self, ids: Tensor, arguments: Mapping[str, Tensor]) -> tuple[ImageTokens, ...]:
        """The tokens of each image, or of each of the tiles that the processor has cut it into."""
        places = self._is_image(ids).nonzero().flatten().tolist()
        tensor = _images_in(arguments)
        if tensor is not None:
            height, width = tensor.shape[-2:]
            sizes = [(height, width)] * (tensor.numel() // (_COLOURS * height * width))
            shares = [1] * len(sizes)
        else:  # the processor has made patches of images of their own sizes, and says how many
            sizes = self._grid_facts(arguments)
            shares = [rows * columns for rows, columns in sizes]
        if not places or not shares or any(len(places) * each % sum(shares) for each in shares):
            return (ImageTokens.on_grid(places, None, "image "),)
        counts = [len(places) * each // sum(shares) for each in shares]
        found = []
        for number, (end, count, size) in enumerate(zip(np.cumsum(counts), counts, sizes, strict=True), start=1):
            grid = self._grid(ids, arguments, len(sizes), count, size)
            name = f"image {number}: " if len(sizes) > 1 else ""
            found.append(ImageTokens.on_grid(places[end - count : end], grid, name))
        return tuple(found)

    def _grid_facts(self, arguments: Mapping[str, Tensor]) -> list[tuple[int, int]]:
        """Rows and columns of patches of each image, if the processor returns them: with the number of frames before them."""
        pixels = [each for each in arguments.values() if each.is_floating_point() and each.ndim in (2, 3)]
        patches = [len(each.flatten(0, -2)) for each in pixels]
        for each in arguments.values():
            rows = each.tolist() if each.ndim == 2 and each.shape[1] == 3 and not each.is_floating_point() else []
            if rows and [sum(frames * height * width for frames, height, width in rows)] == patches:
                return [(height, width) for frames, height, width in rows if frames == 1]
        return []

    def _grid(
        self, ids: Tensor, arguments: Mapping[str, Tensor], frames: int, tokens: int, size: tuple[int, int]
    ) -> tuple[int, int] | None:
        """Rows and columns of an image's tokens: as many as have its proportions, if noise in the upper pixels moves the tokens
        of the first row most, and noise on the left those of the first column. None if they lie in another way."""
        height, width = size
        alike = [(rows, tokens // rows) for rows in range(1, tokens + 1) if tokens % rows == 0]
        grid = next(((rows, columns) for rows, columns in alike if rows * width == columns * height), None)
        if grid is None or _images_in(arguments) is None:
            return grid
        key = (*(each.shape for each in arguments.values()), frames, tokens)
        if key not in self._grids:
            above, left = (..., slice(height // grid[0]), slice(None)), (..., slice(width // grid[1]))
            before, *after = (self._entered(ids, arguments, region)[0] for region in (None, above, left))
            moved = [((each - before).norm(dim=-1) / before.norm(dim=-1))[self._is_image(ids)] for each in after]
            rows, columns = (
                each.reshape(frames, *grid).mean(dim=axes) for each, axes in zip(moved, ((0, 2), (0, 1)), strict=True)
            )
            self._grids[key] = grid if int(rows.argmax()) == int(columns.argmax()) == 0 else None
        return self._grids[key]


class PageReader(ImageTextReader):
    """Makes the inputs of a retriever, as its processor writes them: of the image of a page, or of a text, which is a query."""

    alone = True

    def marked(self, text: str, images: int) -> str:
        """The text: what stands for the image of a page, the processor writes.

        Raises:
            InputError: If there is more than one image, or a text as well.
        """
        if images > 1 or (images and text.strip()):
            got = f"{images} images" if images > 1 else "an image and a text"
            raise InputError(f"messages: expected the image of a page or a query by itself, got {got}")
        return text

    def _made(self, text: str, images: Sequence[Any]) -> Mapping[str, Any]:
        processor = self.processor
        made: Mapping[str, Any] = (
            processor.process_images(images=[*images], return_tensors="pt")
            if images
            else processor.process_queries(text=[text], return_tensors="pt")
        )
        return made


def _images_in(arguments: Mapping[str, Tensor]) -> Tensor | None:
    """The only argument that holds images, with axes of colours, rows and columns last; None if there is no such."""
    found = [
        each
        for each in arguments.values()
        if each.is_floating_point() and each.ndim > _IMAGE_AXES and each.shape[-_IMAGE_AXES] == _COLOURS
    ]
    return found[0] if len(found) == 1 else None
