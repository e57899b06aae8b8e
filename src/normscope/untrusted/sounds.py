"""Audio files: by their names, and what is in them."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from normscope.errors import InputError, one_line
from normscope.untrusted.plain_data import is_file

_OTHERS = {".aif", ".oga", ".opus"}
"""Extensions of formats that libsndfile reads under another name."""
_VIDEOS = {".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm"}
"""Extensions of videos."""
_BARE = ".raw"
"""The extension of samples alone, whose rate nobody knows."""


def names_sound(path: str | Path) -> bool:
    """Whether a path ends as the names of audio files do that can be read.

    Raises:
        InputError: If soundfile is not installed.
    """
    formats = {f".{name.lower()}" for name in _soundfile().available_formats()}
    return Path(path).suffix.lower() in (formats | _OTHERS) - {_BARE}


def is_sound(path: str | Path) -> bool:
    """Whether a path is an audio file by its name; none is without soundfile, which knows the names and has to read it."""
    return importlib.util.find_spec("soundfile") is not None and names_sound(path) and is_file(path)


def read_sound(path: Path) -> tuple[Float[np.ndarray, "sample channel"], int]:
    """The samples of an audio file, from −1 to 1, and their rate in hertz.

    Raises:
        InputError: If there is no such file, or it cannot be read as audio.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected an audio file; there is no such file")
    soundfile = _soundfile()
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, ValueError, RuntimeError) as error:  # soundfile's own errors are of the last type
        reason = one_line(error).rstrip(".").removeprefix(f"Error opening {str(path)!r}: ")
        if not path.stat().st_size:
            reason = "the file is empty"
        first = "; extract the audio of the video first" if path.suffix.lower() in _VIDEOS else ""
        raise InputError(f"{path}: cannot read this as audio (.wav, .flac, .ogg, .mp3, …): {reason}{first}") from error
    return samples, int(rate)


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise InputError("audio files need soundfile; run `pip install soundfile`") from error
    return soundfile
