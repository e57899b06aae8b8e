"""Results of attribution as files: their arrays and tables in safetensors, everything else as JSON in its metadata."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from normscope.errors import InputError, one_line
from normscope.untrusted.tensor_files import DAMAGE, packed, unpacked
from normscope.untrusted.writing import write_named

_VERSION = 4
"""Of what is written."""


SAVED = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
"""Of a class whose instances are saved, as `__pydantic_config__`. Pydantic reads what JSON has no types for: tuples, enums."""


def save_result(result: Any, path: str | Path) -> None:
    """Write a dataclass of numbers, texts, arrays and tables.

    Raises:
        InputError: If the file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        match value:
            case np.ndarray():
                arrays[field.name] = np.array(value, order="C")
            case pd.DataFrame():
                numbers = [at for at, kind in enumerate(value.dtypes) if kind == np.float64]
                arrays[field.name] = np.array(value.iloc[:, numbers].to_numpy(), order="C")
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
    content = {"kind": type(result).__name__, "version": _VERSION, "fields": fields}
    write_named(path, packed(content, {name: torch.from_numpy(array) for name, array in arrays.items()}))


def read_result(path: str | Path, kinds: Mapping[str, type]) -> Any:
    """Read what `save_result` has written.

    Args:
        kinds: Classes by name.

    Raises:
        InputError: If the file cannot be read, was not written by normscope, or has been changed.
    """
    try:
        described, tensors = unpacked(Path(path), finite=True)
    except DAMAGE as error:
        raise InputError(f"{path}: expected a file that .save() has written: {one_line(error)}") from error
    kind = kinds.get(str(described.get("kind")))
    if kind is None or described.get("version") != _VERSION:
        raise InputError(f"{path}: written by another version of normscope; save the result again")
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        fields = {
            name: _table(value, arrays.pop(name)) if name in arrays else value
            for name, value in described["fields"].items()
        }
        result = TypeAdapter(kind).validate_python(fields | arrays)
        result._check_sizes()
    except ValidationError as error:
        field = error.errors()[0]["loc"][0]
        raise InputError(f"{path}: has been changed since .save() wrote it: {field} is of another type") from error
    except Exception as error:  # whoever forges a digest may put anything there
        raise InputError(f"{path}: has been changed since .save() wrote it: {one_line(error)}") from error
    return result


def _table(described: Mapping[str, Any], numbers: np.ndarray) -> pd.DataFrame:
    columns = {at: numbers[:, place] for place, at in enumerate(described["numbers"])}
    columns |= {int(at): np.array(values, dtype=object) for at, values in described["others"].items()}
    table = pd.DataFrame({at: columns[at] for at in sorted(columns)}, index=described["index"])
    table = table.astype(dict(enumerate(described["types"])))
    return table.set_axis(described["columns"], axis=1)
