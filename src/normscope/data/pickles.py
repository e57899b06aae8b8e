"""The released pickle of Clark et al. 2019, which Kobayashi et al. used: untrusted input, read as data and never as code."""

import dataclasses
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normscope.data.examples import Corpus, Example
from normscope.errors import InputError


class _Array:
    """Stands for a NumPy array: takes what a pickle gives it and makes nothing of it.

    A real array of a forged dtype would hold pointers of the file's choosing; only the tokens are wanted.
    """

    def __init__(self, *_given: object) -> None: ...
    def __setstate__(self, _state: object) -> None: ...


# What arrays are pickled with. A file that asks for anything else is refused.
_ARRAYS = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class _Refused(pickle.UnpicklingError):
    """Names what the file tried to load."""


class _DataOnly(pickle.Unpickler):
    """Builds containers, strings and numbers, and something inert for every array; finds nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS:
            return _Array
        raise _Refused(f"it tries to load {module}.{name}, which data does not need")

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"it refers to something outside itself ({pid!r})")


def load(path: Path) -> Any:
    """What a pickle holds, if it is plain data.

    Raises:
        InputError: If it is more than that, or no pickle; nothing of it has run.
    """
    try:
        return _DataOnly(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise InputError(f"dataset.path={path}: cannot be read: {error.strerror or error}") from error
    except _Refused as error:
        raise InputError(f"dataset.path={path}: refused: {error}") from error
    except Exception as error:  # a broken pickle surfaces as any of many types
        raise InputError(f"dataset.path={path}: not a pickle of plain data ({type(error).__name__})") from error


@dataclasses.dataclass(frozen=True)
class PickledTokens(Corpus):
    """A list of dicts whose `tokens` are BERT's own, special tokens among them."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise InputError(f"dataset.path={self.path}: no such file")

    @property
    def total(self) -> int | None:
        """Not known before the file is read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Examples in the file's order: tokens, and the text that they are of."""
        rows = load(self.path)
        if not isinstance(rows, list):
            raise InputError(f"dataset.path={self.path}: expected a list of examples, got {type(rows).__name__}")
        for row in rows:
            tokens = row.get("tokens") if isinstance(row, dict) else None
            if not isinstance(tokens, list | tuple) or not all(isinstance(token, str) for token in tokens):
                yield "without tokens"
            elif not tokens:
                yield "empty"
            else:
                yield _example(tuple(tokens))


def _example(tokens: tuple[str, ...]) -> Example:
    """The texts between the special tokens, in lower case as the tokens are, word pieces put together."""
    texts: list[list[str]] = [[]]
    for token in tokens:
        if token == "[SEP]":
            texts.append([])
        elif token != "[CLS]":
            texts[-1].append(token)
    words = [" ".join(text).replace(" ##", "") for text in texts if text]
    return Example(words[0] if words else "", words[1] if len(words) > 1 else None, tokens)
