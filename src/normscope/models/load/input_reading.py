"""Images and audio as a model's own processor prepares them."""

import dataclasses
import inspect
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import ProcessorMixin

from normscope.data.nouns import IMAGES, RECORDINGS, VECTORS, Nouns
from normscope.data.options import DatasetKind
from normscope.data.sounds import FRAME, HEARD, SILENCE, Sound, sound_of
from normscope.data.token_sequence import OwnInput
from normscope.errors import InputError, describe_type, one_line
from normscope.models.load.any_module import PlainModule
from normscope.models.load.vectors import Geometry, Positions

T = TypeVar("T")
Processor = BaseImageProcessor | SequenceFeatureExtractor | ProcessorMixin | Callable[[Any], Mapping[str, Any]]
"""A processor of transformers, or a function of an image that returns keyword arguments of the model."""

MEGAPIXELS = 100
"""Larger images are refused: decoded, one would take more memory than most models."""

UPLOADED = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats of images from others. Pillow hands some formats to other programs."""

_IMAGES, _COLOURS = 4, 3
"""Axes of a batch of images, and the size of the second one."""

_PROBE = 64
"""Rows and columns of the image that shows what a processor makes of one."""


def own_processor(processor: Any) -> Any:
    """The part of a processor that reads images or audio; one that reads texts as well has several."""
    parts = (getattr(processor, name, None) for name in ("image_processor", "feature_extractor"))
    return next((part for part in parts if part is not None), processor)


def probe_of(processor: Any, model: PreTrainedModel, example: object = None) -> dict[str, Tensor]:
    """What a processor makes of an input without content, or of an example.

    Raises:
        InputError: If it fails, or makes nothing that the model reads.
    """
    return prepared(processor, _nothing_of(processor, _PROBE) if example is None else example, model)


def makes_sizes(processor: Any, model: PreTrainedModel, probe: Mapping[str, Tensor]) -> bool:
    """Whether a processor makes inputs of several sizes, because it neither resizes nor pads them to one."""
    other = prepared(processor, _nothing_of(processor, _PROBE + _PROBE // 2), model)
    return any(each.shape != probe[name].shape for name, each in other.items())


def _nothing_of(processor: Any, width: int) -> object:
    """An input without content: as many seconds as `_PROBE` is part of a width, or an image."""
    if isinstance(processor, SequenceFeatureExtractor):
        return np.zeros(rate_of(processor) * width // _PROBE, dtype=np.float32)
    from PIL import Image

    return Image.new("RGB", (width, _PROBE), (128, 128, 128))


def prepared(processor: Any, given: object, model: PreTrainedModel) -> dict[str, Tensor]:
    """An input as a processor prepares it for a model: those arguments that the model's `forward` has.

    Raises:
        InputError: If the processor fails, or makes nothing that the model reads.
    """
    options: dict[str, Any] = {"return_tensors": "pt"}
    try:
        with unset_fake_temporarily():  # processors compute with numbers, also for a model without any
            if isinstance(processor, SequenceFeatureExtractor):
                made = processor(given, sampling_rate=rate_of(processor), **options)
            elif isinstance(processor, BaseImageProcessor):
                made = processor(images=given, **options)
            else:
                made = processor(given)
    except Exception as error:  # somebody else's code
        named, advice = type(processor).__name__, ""
        if inspect.isroutine(processor):
            named, advice = (
                getattr(processor, "__name__", named),
                "; if it takes no image, pass example=, an input that it takes",
            )
        raise InputError(f"{named} fails on {describe_type(given)}: {one_line(error)}{advice}") from error
    if not isinstance(made, Mapping):
        raise InputError(
            f"processor: expected a function that returns keyword arguments of the model (a dict), got {describe_type(made)}"
        )
    arguments = arguments_of(made, model)
    mask = arguments.pop("attention_mask", None)  # inputs are prepared one by one, so there is no padding to mask
    if mask is not None and not bool(mask.bool().all()):
        raise InputError(
            f"processor: expected an input without padding, got {int((mask == 0).sum()):,} of {mask.numel():,} masked; make "
            "it turn padding off (padding=False)"
        )
    if not any(each.is_floating_point() for each in arguments.values()):
        raise InputError(
            f"processor: expected pixels, samples or vectors that {type(model).__name__} reads, got "
            f"{', '.join(map(str, made)) or 'nothing'}"
        )
    return arguments


def arguments_of(made: Mapping[str, Any], model: PreTrainedModel) -> dict[str, Tensor]:
    """What a processor has made of those arguments that a model's `forward` has, as numbers like its weights."""
    parameters = inspect.signature((model.model if type(model) is PlainModule else model).forward).parameters
    read = {name: torch.as_tensor(value) for name, value in made.items() if name in parameters and value is not None}
    where = next(model.parameters())
    return {
        name: each.to(where.device, where.dtype if each.is_floating_point() else each.dtype)
        for name, each in read.items()
    }


def rate_of(extractor: SequenceFeatureExtractor) -> int:
    """The sampling rate of the sounds that a model reads, in hertz."""
    rate: int = extractor.sampling_rate
    return rate


@dataclasses.dataclass(frozen=True, eq=False)
class InputReader:
    """Makes the inputs of an image or audio model."""

    processor: Any
    model: PreTrainedModel
    positions: Positions
    of_images: bool = True
    """Whether a function is given images; if not, it is given what the user passes."""
    seconds: float | None = None
    """From one token to the next, if these are the frames of sounds."""
    _given: dict[int, object] = dataclasses.field(default_factory=dict)
    """The inputs that were read, or their files, by their numbers."""

    @property
    def kind(self) -> DatasetKind:
        """What data sets of such inputs are called."""
        return DatasetKind.images if self.seconds is None else DatasetKind.audio

    @property
    def names(self) -> tuple[str, ...]:
        """All names of tokens; the place of each is its number."""
        return self.positions.names

    @property
    def before(self) -> tuple[str, ...]:
        """The names of the tokens that no input changes, such as [CLS] and registers."""
        return self.positions.fixed

    @property
    def nouns(self) -> Nouns:
        """How inputs and their tokens are called."""
        if self.seconds is not None:
            return RECORDINGS
        return IMAGES if self.of_images else VECTORS

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories that tokens may have."""
        return self.positions.categories if self.seconds is None else HEARD

    def tokens(self, own: OwnInput) -> tuple[list[int], list[str]]:
        """The numbers of an input's tokens, and the category of each.

        Raises:
            InputError: If the model cannot read an input of this size.
        """
        try:
            geometry = self.geometry(own)
        except InputError as error:
            raise InputError(f"{own.titles[0]}: {str(error).removeprefix('model: ')}") from error
        kinds = {name: kind for kind, names in geometry.categories.items() for name in names}
        of_tokens = [kinds.get(name, "other") for name in geometry.names]
        for sound in own.sounds:
            of_tokens = [SILENCE if silent else FRAME for silent in sound.silent]
        return self.positions.ids(geometry), of_tokens

    def geometry(self, own: OwnInput) -> Geometry:
        """What the tokens of an input are, or of several of the same size."""
        return self.positions.of(own.arguments, len(own.titles))

    def read(self, given: object) -> OwnInput:
        """An image (a file, a `PIL.Image`, or an array of rows × columns × channels), or a sound (see `sound_of`), prepared.

        Raises:
            InputError: If it cannot be read.
        """
        content: Any
        if self.seconds is not None:
            content, title, remark = sound_of(given, rate_of(self.processor))
        elif not self.of_images:
            content, title = given, "input"
        else:
            content, title = opened(given)
        made = OwnInput(prepared(self.processor, content, self.model), (title,))
        if self.seconds is not None:
            frames = len(self.geometry(made).names)
            sound = Sound.of(content, rate_of(self.processor), frames, self.seconds, remark)
            made = dataclasses.replace(made, sounds=(sound,))
        self._given[made.numbers[0]] = given
        return made

    def pixels(self, own: OwnInput) -> np.ndarray | None:
        """A single input as the model sees it, red, green and blue from 0 to 255; None if it is not an image."""
        images = [each for each in own.arguments.values() if each.ndim == _IMAGES and each.shape[1] == _COLOURS]
        if self.geometry(own).grid is None or len(images) != 1:
            return None
        return shown_pixels(images[0][0].double().cpu().numpy().transpose(1, 2, 0), self.processor)

    def again(self, number: int) -> OwnInput:
        """An input that was read before, by its number; see `read_before`."""
        return self.read(read_before(self._given, number))


def read_before(given: Mapping[int, T], number: int) -> T:
    """What a reader was given for an input, by that input's number.

    Raises:
        InputError: If it was read in an earlier process, from whose checkpoint this one goes on.
    """
    if number not in given:
        raise InputError("an input that was read before the run was interrupted is needed again; start a new run")
    return given[number]


def shown_pixels(values: np.ndarray, processor: Any) -> np.ndarray:
    """What a processor has made of an image, as red, green and blue from 0 to 255.

    A processor that does not say what it has subtracted and divided by leaves the colours relative: the darkest number is
    black, the largest white.

    Args:
        values: Rows × columns × 3.
        processor: What has made them.
    """
    mean, deviation = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if mean is not None and deviation is not None:
        values = values * np.asarray(deviation) + np.asarray(mean)
    else:
        values = (values - values.min()) / (np.ptp(values) or 1.0)
    pixels: np.ndarray = np.clip(values * 255, 0, 255).round().astype(np.uint8)
    return pixels


def opened(given: object) -> tuple[Any, str]:
    """An image in RGB, and its title.

    Args:
        given: A file or its content, a `PIL.Image`, or an array of rows × columns × channels of whole numbers from 0 to 255.

    Raises:
        InputError: If it is none of these, cannot be read or is too large.
    """
    from PIL import Image

    if isinstance(given, bytes):
        return _decoded(io.BytesIO(given), "image", formats=UPLOADED), "image"
    if isinstance(given, str | Path):
        path = Path(given)
        if not path.is_file():
            raise InputError(f"{path}: expected an image file; there is none")
        return _decoded(path, str(path)), path.name
    if isinstance(given, Image.Image):
        _check_size(given.size, "image")
        return given.convert("RGB"), Path(getattr(given, "filename", "") or "image").name
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim in (2, 3):
        try:
            return Image.fromarray(given).convert("RGB"), "image"
        except (TypeError, ValueError) as error:
            raise InputError(f"expected an array of rows × columns × 3, got one of shape {given.shape}") from error
    raise InputError(
        "expected an image: a file, a PIL.Image, or an array of rows × columns × 3 whole numbers from 0 to 255 (uint8), got "
        + (f"an array of {given.dtype}" if isinstance(given, np.ndarray) else describe_type(given))
    )


def _decoded(file: Path | io.BytesIO, name: str, formats: tuple[str, ...] | None = None) -> Any:
    """An image file in RGB; its size is known before it is decoded."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # which the next line refuses
            with Image.open(file, formats=formats) as image:
                _check_size(image.size, name)
                return image.convert("RGB")
    except UnidentifiedImageError as error:
        kinds = "a file in a format that Pillow reads" if formats is None else f"one of {', '.join(formats)}"
        raise InputError(f"{name}: cannot read this image: expected {kinds}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{name}: cannot read this image: {one_line(error)}") from error


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MEGAPIXELS * 1_000_000:
        raise InputError(
            f"{name}: expected at most {MEGAPIXELS} megapixels, got {width} × {height}; make the image smaller"
        )
