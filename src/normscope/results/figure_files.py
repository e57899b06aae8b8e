"""Figures as files: the table that a figure draws as Parquet, and everything else that it says in the file's metadata."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from normscope.errors import InputError, one_line
from normscope.results import figures
from normscope.results.figures import Figure
from normscope.results.parquet import parquet_metadata, write_parquet
from normscope.untrusted.plain_data import parsed_json
from normscope.untrusted.tables import table

_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in typing.get_args(Figure)}
_KEY = "normscope.figure"


def write_figure(stream: BinaryIO, figure: Figure) -> None:
    """Write a figure."""
    fields = {field.name: getattr(figure, field.name) for field in dataclasses.fields(figure) if field.name != "table"}
    about = {"kind": type(figure).__name__, "fields": {name: _plain(value) for name, value in fields.items()}}
    rows = figure.table.reset_index(drop=True)
    plain = {name: kind.categories.dtype for name, kind in rows.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    write_parquet(stream, rows.astype(plain), {_KEY: json.dumps(about, ensure_ascii=False)})


def read_figure(path: Path) -> Figure:
    """Read what `write_figure` has written.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path)
    try:
        about = parsed_json(parquet_metadata(path).get(_KEY, "{}"), finite=False)
        kind = _KINDS[about["kind"]]
        hints = typing.get_type_hints(kind, vars(figures))
        fields = {name: _decoded(value) for name, value in about["fields"].items()}
        for name, value in fields.items():
            if not _fits(value, hints[name]):
                raise TypeError(f"{name}: expected {hints[name]}, got {type(value).__name__}")
        figure: Figure = kind(table=rows, **fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: expected a figure that a run has written: {one_line(error)}") from error
    return figure


def _plain(value: Any) -> Any:
    """A value for JSON, in which keys of mappings are texts alone: mappings are lists of pairs."""
    match value:
        case Mapping():
            return {"pairs": [[_plain(key), _plain(item)] for key, item in value.items()]}
        case str() | bool() | int() | float() | None:
            return value
        case np.generic():
            return value.item()
        case _:
            return [_plain(item) for item in value]


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {_decoded(key): _decoded(item) for key, item in value["pairs"]}
    return tuple(map(_decoded, value)) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, value, inner))
    if kind is Sequence:
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is Mapping:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
