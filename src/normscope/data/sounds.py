"""Sounds: samples as a model reads them, and what is heard in each of the frames that become its tokens."""

import dataclasses
import math
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.errors import InputError, describe_type
from normscope.untrusted.sounds import read_sound

SILENCE_DECIBELS = 40
"""A frame is silent if its root mean square is so far below that of the loudest frame of its recording, or further."""

FRAME, SILENCE = "frame", "silence"
HEARD = (FRAME, SILENCE)
"""The categories of frames."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sound:
    """What is heard in the frames of a recording, padding after it included."""

    extremes: Float[np.ndarray, "frame 2"]
    """The lowest and the highest sample of each frame, from −1 to 1."""
    loudness: Float[np.ndarray, " frame"]
    """The root mean square of its samples."""
    seconds: float
    """Seconds from one frame to the next."""
    duration: float
    """Seconds of the recording, without padding."""
    remark: str = ""
    """What was done to the file's samples: that they were resampled, or their channels averaged; empty if nothing was."""

    @classmethod
    def of(
        cls, samples: Float[np.ndarray, " sample"], rate: int, frames: int, seconds: float, remark: str = ""
    ) -> "Sound":
        """What is heard in frames of a recording: frame k has the samples from time k · seconds on, up to the next frame.

        Args:
            samples: Those of the recording, from −1 to 1.
            rate: In hertz.
            frames: The number of frames; beyond the recording, samples are 0.
            seconds: See the field.
            remark: See the field.
        """
        starts = np.round(np.arange(frames + 1) * seconds * rate).astype(int)
        padded = np.zeros(starts[-1], dtype=np.float64)
        heard = samples[: starts[-1]]
        padded[: len(heard)] = heard
        lowest, highest = (ends.reduceat(padded, starts[:-1]) for ends in (np.minimum, np.maximum))
        energy = np.add.reduceat(padded**2, starts[:-1])
        return cls(
            np.stack([lowest, highest], axis=1), np.sqrt(energy / np.diff(starts)), seconds, len(samples) / rate, remark
        )

    @property
    def silent(self) -> Bool[np.ndarray, " frame"]:
        """Which frames are silent: their root mean square is 40 dB below that of the loudest frame, or they are padding."""
        return self.loudness <= self.loudness.max() * 10 ** (-SILENCE_DECIBELS / 20)

    @cached_property
    def frames(self) -> int:
        """The number of frames that have samples of the recording."""
        return min(len(self.loudness), math.ceil(self.duration / self.seconds - 1e-9))


def time_names(frames: int, seconds: float) -> list[str]:
    """The names of frames: when each begins, with as many decimals as the time from one to the next has."""
    decimals = next((each for each in range(4) if math.isclose(round(seconds, each), seconds)), 4)
    return [f"{number * seconds:.{decimals}f} s" for number in range(frames)]


def sound_of(given: object, rate: int) -> tuple[Float[np.ndarray, " sample"], str, str]:
    """A recording's samples at a rate, its title, and what was done to them; see `Sound.remark`.

    Args:
        given: A file, whose channels are averaged and whose samples are resampled if its rate is another one; or samples, a
            one-dimensional array or tensor of floating-point numbers at this rate.
        rate: In hertz.

    Raises:
        InputError: If it is neither, cannot be read, has no samples, or one that is not finite.
    """
    if isinstance(given, str | Path):
        samples, own = read_sound(Path(given).expanduser())
        title, channels = Path(given).name, samples.shape[1]
        made = [f"mixed to mono, the mean of {channels} channels"] * (channels > 1)
        made += [f"resampled from {own:,} to {rate:,} Hz"] * (own != rate)
        mixed = samples.mean(axis=1)
        samples = mixed if own == rate else _resampled(mixed, own, rate)
        _check(samples, str(given))
        return samples, title, " and ".join(made)
    array = given.numpy(force=True) if isinstance(given, Tensor) else given
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "f":
        got = describe_type(given)
        if isinstance(array, np.ndarray):
            got = f"an array of shape {array.shape} of {array.dtype}"
        raise InputError(
            "expected audio: a file, or samples (a one-dimensional array of floating-point numbers, at the processor's rate of "
            f"{rate:,} Hz; average channels first), got {got}"
        )
    _check(array, "audio")
    return array, "audio", ""


def _check(samples: np.ndarray, name: str) -> None:
    if not len(samples):
        raise InputError(f"{name}: expected a sound, got no samples")
    if not np.isfinite(samples).all():
        raise InputError(f"{name}: expected finite samples, got NaN or infinity")


def _resampled(samples: np.ndarray, own: int, rate: int) -> np.ndarray:
    """Samples at another rate, as transformers' own loading of audio makes them."""
    try:
        import soxr
    except ImportError as error:
        raise InputError(
            f"resampling from {own:,} Hz to the model's {rate:,} Hz needs soxr; run `pip install soxr`"
        ) from error
    made: np.ndarray = soxr.resample(samples, own, rate)
    return made
