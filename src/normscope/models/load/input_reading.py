"""Images and audio as a model's own processor prepares them."""

import dataclasses
import inspect
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import ProcessorMixin

from normscope.data.nouns import IMAGES, RECORDINGS, Nouns
from normscope.data.token_sequence import OwnInput
from normscope.errors import InputError, describe_type, one_line
from normscope.models.load.vectors import Geometry

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


def probe_of(processor: Any, model: PreTrainedModel) -> dict[str, Tensor]:
    """What a processor makes of an input without content.

    Raises:
        InputError: If it fails, or makes nothing that the model reads.
    """
    if isinstance(processor, SequenceFeatureExtractor):
        return prepared(processor, np.zeros(_rate_of(processor), dtype=np.float32), model)
    from PIL import Image

    return prepared(processor, Image.new("RGB", (_PROBE, _PROBE), (128, 128, 128)), model)


def prepared(processor: Any, given: object, model: PreTrainedModel) -> dict[str, Tensor]:
    """An input as a processor prepares it for a model: those arguments that the model's `forward` has.

    Raises:
        InputError: If the processor fails, or makes nothing that the model reads.
    """
    options: dict[str, Any] = {"return_tensors": "pt"}
    try:
        if isinstance(processor, SequenceFeatureExtractor):
            made = processor(given, sampling_rate=_rate_of(processor), **options)
        elif isinstance(processor, BaseImageProcessor):
            made = processor(images=given, **options)
        else:
            made = processor(given)
    except Exception as error:  # somebody else's code
        raise InputError(f"{type(processor).__name__} fails on {describe_type(given)}: {one_line(error)}") from error
    if not isinstance(made, Mapping):
        raise InputError(
            f"processor: expected a function that returns keyword arguments of the model (a dict), got {describe_type(made)}"
        )
    parameters = inspect.signature(model.forward).parameters
    arguments = {
        name: torch.as_tensor(value) for name, value in made.items() if name in parameters and value is not None
    }
    if not any(each.is_floating_point() for each in arguments.values()):
        raise InputError(
            f"processor: expected pixels or samples that {type(model).__name__} reads, got {', '.join(made) or 'nothing'}"
        )
    where = next(model.parameters())
    return {
        name: each.to(where.device, where.dtype if each.is_floating_point() else each.dtype)
        for name, each in arguments.items()
    }


def _rate_of(extractor: SequenceFeatureExtractor) -> int:
    rate: int = extractor.sampling_rate
    return rate


@dataclasses.dataclass(frozen=True, eq=False)
class InputReader:
    """Makes the inputs of an image or audio model."""

    processor: Any
    model: PreTrainedModel
    shapes: Mapping[str, torch.Size]
    """Those of its arguments, for one input."""
    geometry: Geometry
    _given: dict[int, object] = dataclasses.field(default_factory=dict)
    """The inputs that were read, or their files, by their numbers."""

    @property
    def tokens(self) -> int:
        """Number of tokens of each input."""
        return len(self.geometry.names)

    @property
    def nouns(self) -> Nouns:
        """How inputs and their tokens are called."""
        return IMAGES if any(len(shape) == _IMAGES for shape in self.shapes.values()) else RECORDINGS

    @property
    def categories(self) -> Mapping[str, list[str]]:
        """The names of the tokens of each category."""
        return self.geometry.categories

    def read(self, given: object) -> OwnInput:
        """An image (a file, a `PIL.Image`, or an array of rows × columns × channels), or audio samples, prepared.

        Raises:
            InputError: If it cannot be read, or the processor makes it another size than others.
        """
        if isinstance(self.processor, SequenceFeatureExtractor):
            content, title = _sound(given), "audio"
        else:
            content, title = opened(given)
        arguments = prepared(self.processor, content, self.model)
        for name, each in arguments.items():
            if each.shape != self.shapes.get(name):
                raise InputError(
                    f"{title}: the processor returns {name} of shape {tuple(each.shape)}, expected "
                    f"{tuple(self.shapes.get(name, ()))} as for other inputs; make it resize or pad all inputs to one size"
                )
        made = OwnInput(arguments, (title,))
        self._given[made.numbers[0]] = given
        return made

    def pixels(self, own: OwnInput) -> np.ndarray | None:
        """A single input as the model sees it, red, green and blue from 0 to 255; None if it is not an image.

        A processor that does not say what it has subtracted and divided by leaves the colours relative: the darkest number is
        black, the largest white.
        """
        images = [each for each in own.arguments.values() if each.ndim == _IMAGES and each.shape[1] == _COLOURS]
        if self.geometry.grid is None or len(images) != 1:
            return None
        values = images[0][0].double().cpu().numpy().transpose(1, 2, 0)
        mean, deviation = (getattr(self.processor, name, None) for name in ("image_mean", "image_std"))
        if mean is not None and deviation is not None:
            values = values * np.asarray(deviation) + np.asarray(mean)
        else:
            values = (values - values.min()) / (np.ptp(values) or 1.0)
        pixels: np.ndarray = np.clip(values * 255, 0, 255).round().astype(np.uint8)
        return pixels

    def again(self, number: int) -> OwnInput:
        """An input that was read before, by its number.

        Raises:
            InputError: If it was read in an earlier process, from whose checkpoint this one goes on.
        """
        if number not in self._given:
            raise InputError("an image that was read before the run was interrupted is needed again; start a new run")
        return self.read(self._given[number])


def _sound(given: object) -> np.ndarray:
    samples = np.asarray(given) if isinstance(given, np.ndarray | Tensor) else None
    if samples is None or samples.ndim != 1 or not len(samples) or samples.dtype.kind != "f":
        raise InputError(
            "expected audio samples (a one-dimensional array of floating-point numbers, at the processor's sampling rate), "
            f"got {describe_type(given) if samples is None else f'an array of shape {samples.shape} of {samples.dtype}'}"
        )
    return samples


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
