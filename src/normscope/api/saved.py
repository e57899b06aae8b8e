"""Results of attribution as files: their arrays and tables in safetensors, everything else as JSON in its metadata."""

import dataclasses
import enum
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from normscope.errors import InputError, one_line
from normscope.untrusted.plain_data import opened, parsed_json
from normscope.untrusted.writing import write_named

_VERSION = 2
"""Of what is written."""


def save_result(result: Any, path: str | Path) -> None:
    """Write a dataclass of numbers, texts, arrays and tables.

    Raises:
        InputError: If the file cannot be written.
    """
    tensors: dict[str, np.ndarray] = {}
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        match value:
            case np.ndarray():
                tensors[field.name] = np.ascontiguousarray(value)
            case pd.DataFrame():
                numbers = [at for at, kind in enumerate(value.dtypes) if kind == np.float64]
                tensors[field.name] = np.ascontiguousarray(value.iloc[:, numbers].to_numpy())
                fields[field.name] = {
                    "columns": list(value.columns),
                    "index": None if isinstance(value.index, pd.RangeIndex) else list(value.index),
                    "numbers": numbers,
                    "others": {
                        str(at): [None if pd.isna(each) else each for each in value.iloc[:, at].tolist()]
                        for at in range(value.shape[1])
                        if at not in numbers
                    },
                    "types": [str(kind) for kind in value.dtypes],
                }
            case Mapping():
                fields[field.name] = dict(value)
            case _:
                fields[field.name] = value
    text = json.dumps({"normscope": type(result).__name__, "version": _VERSION, "fields": fields})
    try:
        write_named(path, save(tensors, {"normscope": text, "sha256": _digest(text, tensors)}))
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def read_result(path: str | Path, kinds: Mapping[str, type]) -> Any:
    """Read what `save_result` has written.

    Args:
        kinds: Classes by name.

    Raises:
        InputError: If the file cannot be read, is none of ours, or has been changed.
    """
    with opened(Path(path)):  # a pipe would never be read to its end
        pass
    try:
        with safe_open(str(path), "numpy") as file:
            metadata = file.metadata() or {}
            described = parsed_json(metadata.get("normscope", "{}"), finite=True)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError, MemoryError) as error:
        raise InputError(f"{path}: expected a file that .save() has written: {one_line(error)}") from error
    kind = kinds.get(str(described.get("normscope")))
    if kind is None:
        raise InputError(f"{path}: expected a file that .save() has written, got another safetensors file")
    if described.get("version") != _VERSION:
        raise InputError(f"{path}: written by another version of normscope; save the result again")
    if metadata.get("sha256") != _digest(metadata["normscope"], tensors):
        raise InputError(f"{path}: has been changed since .save() wrote it")
    try:
        fields = {
            name: _table(value, tensors.pop(name)) if name in tensors else _tupled(value)
            for name, value in described["fields"].items()
        }
        result = kind(**fields, **tensors)
        _check_types(result)
    except Exception as error:  # whoever forges a digest may put anything there
        raise InputError(f"{path}: has been changed since .save() wrote it: {one_line(error)}") from error
    return result


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a description and of the names, types, shapes and bytes of arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


def _check_types(result: Any) -> None:
    """Check that the fields of a result have their types, and that its arrays have as many rows as there are tokens."""
    hints = typing.get_type_hints(type(result))
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if not _fits(value, hints[field.name]):
            raise TypeError(f"{field.name}: expected {hints[field.name]}, got {type(value).__name__}")
    result._check_sizes()


def _fits(value: object, hint: Any) -> bool:
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is tuple:  # of any length
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(_fits(each, inner[1]) for each in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return value in list(kind)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _tupled(value: Any) -> Any:
    """Lists as tuples: JSON does not tell them apart, and results have only tuples."""
    return tuple(value) if isinstance(value, list) else value


def _table(described: Mapping[str, Any], numbers: np.ndarray) -> pd.DataFrame:
    columns = {at: numbers[:, place] for place, at in enumerate(described["numbers"])}
    columns |= {int(at): np.array(values, dtype=object) for at, values in described["others"].items()}
    table = pd.DataFrame({at: columns[at] for at in sorted(columns)}, index=described["index"])
    table = table.astype(dict(enumerate(described["types"])))
    return table.set_axis(described["columns"], axis=1)
