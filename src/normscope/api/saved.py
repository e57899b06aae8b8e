"""Results of attribution as files: their arrays and tables in safetensors, everything else as JSON in its metadata."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from normscope.errors import InputError, one_line

_VERSION = 1
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
    described = {"normscope": type(result).__name__, "version": _VERSION, "fields": fields}
    try:
        save_file(tensors, str(path), {"normscope": json.dumps(described)})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def read_result(path: str | Path, kinds: Mapping[str, type]) -> Any:
    """Read what `save_result` has written.

    Args:
        kinds: Classes by name.

    Raises:
        InputError: If the file cannot be read, or is none of ours.
    """
    try:
        with safe_open(str(path), "numpy") as file:
            read = json.loads((file.metadata() or {}).get("normscope", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path}: expected a file that .save() has written: {one_line(error)}") from error
    described = read if isinstance(read, dict) else {}
    kind = kinds.get(str(described.get("normscope")))
    if kind is None:
        raise InputError(f"{path}: expected a file that .save() has written, got another safetensors file")
    if described.get("version", 0) > _VERSION:
        raise InputError(f"{path}: written by a later version of normscope; update normscope")
    try:
        fields = {
            name: _table(value, tensors.pop(name)) if name in tensors else _tupled(value)
            for name, value in described["fields"].items()
        }
        return kind(**fields, **tensors)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: has been changed since .save() wrote it: {one_line(error)}") from error


def _tupled(value: Any) -> Any:
    """Lists as tuples: JSON does not tell them apart, and results have only tuples."""
    return tuple(value) if isinstance(value, list) else value


def _table(described: Mapping[str, Any], numbers: np.ndarray) -> pd.DataFrame:
    columns = {at: numbers[:, place] for place, at in enumerate(described["numbers"])}
    columns |= {int(at): np.array(values, dtype=object) for at, values in described["others"].items()}
    table = pd.DataFrame({at: columns[at] for at in sorted(columns)}, index=described["index"])
    table = table.astype(dict(enumerate(described["types"])))
    return table.set_axis(described["columns"], axis=1)
