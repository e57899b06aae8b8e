"""Pickles as untrusted input: read as data, never as code.

Python's unpickler allocates whatever sizes a file claims and calls whatever it names. This reader walks the opcodes instead. It
checks every size against the file and every object against a memory budget before building it, and it calls nothing.
"""

import os
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from normscope.errors import InputError

# The attention maps of one sequence, the largest object of the released file, take 10 MB.
_LONGEST_ARGUMENT = 2**28
_LONGEST_LINE = 2**16
_DEEPEST = 1000
_MEMORY = 2**30
# Upper bounds of the bytes that CPython needs for an object and for a reference to one.
_OBJECT, _REFERENCE = 100, 8

# What pickled arrays refer to. A file that refers to anything else is refused.
_ARRAYS = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # protocol 2 stores the bytes of an array with it
}


class _Inert:
    """Stands in for an array, bytes or a set, none of which we need.

    A real array with a forged dtype could hold arbitrary pointers.
    """


_INERT = _Inert()


class _RefusedError(Exception):
    """The file is well formed, but needs more than plain data or too much memory."""


class _Stream:
    """A file from which no more bytes are read than it has."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int) -> bytes:
        if size > self._size - self.tell():
            raise ValueError("the file ends too early")
        if size > _LONGEST_ARGUMENT:
            raise _RefusedError(f"it holds an object of {size:,} bytes")
        return self._file.read(size)

    def readline(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise _RefusedError(f"it holds a line of more than {_LONGEST_LINE:,} bytes")
        return line


class _Reader:
    """Builds the lists, tuples, dicts, strings and numbers of a pickle, and an inert object for anything else."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._left = _MEMORY
        self._actions = self._dispatch()

    def read(self, stream: _Stream) -> Any:
        """The object in a pickle.

        Raises:
            _RefusedError: If it contains more than plain data, or is too large.
            Exception: Of many types, if the pickle is malformed.
        """
        for opcode, argument, _ in pickletools.genops(stream):  # type: ignore[arg-type]  # it reads bytes and lines
            if opcode.name == "STOP":
                return self._pop()
            action = self._actions.get(opcode.name)
            if action is None:
                raise _RefusedError(f"it uses {opcode.name}, which data does not need")
            action(argument)
        raise ValueError("it has no end")

    def _dispatch(self) -> dict[str, Callable[[Any], object]]:
        values = ["INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"]
        texts = ["STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"]
        inert = ["BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_SET"]
        return {
            **dict.fromkeys(values, self._push),
            **dict.fromkeys(texts, self._text),
            **dict.fromkeys(inert, lambda _: self._push(_INERT)),
            **dict.fromkeys(["PUT", "BINPUT", "LONG_BINPUT"], self._put),
            **dict.fromkeys(["GET", "BINGET", "LONG_BINGET"], lambda index: self._refer(self._memo[index])),
            "TUPLE1": lambda _: self._push(tuple(self._pop_all(1))),
            "TUPLE2": lambda _: self._push(tuple(self._pop_all(2))),
            "TUPLE3": lambda _: self._push(tuple(self._pop_all(3))),
            **dict.fromkeys(["REDUCE", "NEWOBJ"], lambda _: self._call(2)),
            "NEWOBJ_EX": lambda _: self._call(3),
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "PROTO": _check_protocol,
            "FRAME": lambda _: None,
            "NONE": self._push,
            "NEWTRUE": lambda _: self._push(True),
            "NEWFALSE": lambda _: self._push(False),
            "MARK": self._mark,
            "POP": lambda _: self._drop(),
            "POP_MARK": lambda _: self._pop_to_mark(),
            "DUP": lambda _: self._refer(self._top()),
            "EMPTY_LIST": lambda _: self._push([]),
            "EMPTY_TUPLE": lambda _: self._push(()),
            "EMPTY_DICT": lambda _: self._push({}),
            "LIST": lambda _: self._push(self._pop_to_mark()),
            "TUPLE": lambda _: self._push(tuple(self._pop_to_mark())),
            "DICT": lambda _: self._push(_pairs(self._pop_to_mark())),
            "FROZENSET": lambda _: self._push(self._pop_to_mark() and _INERT),
            "APPEND": lambda _: self._extend([self._pop()]),
            "APPENDS": lambda _: self._extend(self._pop_to_mark()),
            "ADDITEMS": lambda _: self._pop_to_mark(),
            "SETITEM": lambda _: self._update(_pairs(self._pop_all(2))),
            "SETITEMS": lambda _: self._update(_pairs(self._pop_to_mark())),
            "GLOBAL": lambda name: self._find(*name.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._find(*self._pop_all(2)),
            "BUILD": lambda _: self._build(),
        }

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _RefusedError(f"it would take more than {_MEMORY // 2**20:,} MB of memory")

    def _push(self, value: Any) -> None:
        self._spend(_OBJECT)
        self._stack.append(value)

    def _refer(self, value: Any) -> None:
        self._spend(_REFERENCE)
        self._stack.append(value)

    def _text(self, text: str) -> None:
        self._spend(len(text) if text.isascii() else 4 * len(text))
        self._push(text)

    def _put(self, index: int) -> None:
        self._spend(_OBJECT)
        self._memo[index] = self._top()

    def _mark(self, _argument: object) -> None:
        if len(self._marks) == _DEEPEST:
            raise _RefusedError(f"it is nested more than {_DEEPEST:,} deep")
        self._marks.append(len(self._stack))

    def _floor(self) -> int:
        return self._marks[-1] if self._marks else 0

    def _top(self) -> Any:
        if len(self._stack) <= self._floor():
            raise ValueError("its stack is empty")
        return self._stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        self._stack.pop()
        return value

    def _pop_all(self, count: int) -> list[Any]:
        if len(self._stack) - self._floor() < count:
            raise ValueError("its stack is empty")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _pop_to_mark(self) -> list[Any]:
        floor = self._marks.pop()
        taken = self._stack[floor:]
        del self._stack[floor:]
        return taken

    def _drop(self) -> None:
        if self._marks and len(self._stack) == self._floor():
            self._marks.pop()
        else:
            self._pop()

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, list):
            self._spend(_REFERENCE * len(items))
            target.extend(items)
        elif target is not _INERT:
            raise ValueError("it appends to something that is not a list")

    def _update(self, items: dict[Any, Any]) -> None:
        target = self._top()
        if isinstance(target, dict):
            self._spend(_OBJECT * len(items))
            target.update(items)
        elif target is not _INERT:
            raise ValueError("it sets an item of something that is not a dict")

    def _find(self, module: object, name: object) -> None:
        if (module, name) not in _ARRAYS:
            raise _RefusedError(f"it tries to load {_quoted(module)}.{_quoted(name)}, which data does not need")
        self._push(_INERT)

    def _call(self, parts: int) -> None:
        called, *_ = self._pop_all(parts)
        if called is not _INERT:
            raise ValueError("it calls something that cannot be called")
        self._push(_INERT)

    def _build(self) -> None:
        target, _ = self._pop_all(2)
        if target is not _INERT:
            raise ValueError("it sets the state of something that has none")
        self._push(_INERT)


def _check_protocol(number: int) -> None:
    if number > 5:
        raise ValueError(f"unknown protocol {number}")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """A dict from alternating keys and values. Keys must be cheap to hash: hashing a nested tuple recurses."""
    keys = items[::2]
    if len(items) % 2 or not all(isinstance(key, str | int | float | None) for key in keys):
        raise ValueError("it holds a dict whose keys are not strings or numbers")
    return dict(zip(keys, items[1::2], strict=True))


def _quoted(name: object) -> str:
    return ascii(name)[1:-1][:60] if isinstance(name, str) else type(name).__name__


def load(path: Path) -> Any:
    """The contents of a pickle of plain data.

    Raises:
        InputError: If it is no pickle, too large, or contains more than plain data; none of its code has run.
    """
    try:
        with path.open("rb") as file:
            return _Reader().read(_Stream(file))
    except OSError as error:
        raise InputError(f"dataset.path={path}: cannot be read: {error.strerror or error}") from error
    except _RefusedError as error:
        raise InputError(f"dataset.path={path}: refused: {error}") from error
    except Exception as error:  # a broken pickle surfaces as any of many types
        raise InputError(f"dataset.path={path}: not a pickle of plain data ({type(error).__name__})") from error
