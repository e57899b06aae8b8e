"""The main numbers of an analysis."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """The main numbers of an analysis, ready to print."""

    table: pd.DataFrame
    digits: int = 2
    """Decimals."""
    caption: str = ""
    """What it shows, in a few words."""

    def __str__(self) -> str:
        return self.table.to_string(float_format=f"{{:.{self.digits}f}}".format, na_rep="")

    def _repr_html_(self) -> str:
        return str(self.table.style.format(f"{{:.{self.digits}f}}", na_rep="", escape="html").to_html())

    def plain(self) -> dict[str, Any]:
        """The summary for JSON."""
        return {
            "caption": self.caption,
            "digits": self.digits,
            "rows": _plain_index(self.table.index),
            "columns": _plain_index(self.table.columns),
            "values": [[_plain(value) for value in values] for _, values in self.table.items()],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Summary":
        """What `plain` has returned.

        Raises:
            KeyError, TypeError, ValueError: If it is something else.
        """
        rows, columns = _index(plain["rows"]), _index(plain["columns"])
        if len(plain["values"]) != len(columns):
            raise ValueError(f"expected {len(columns)} columns, got {len(plain['values'])}")
        table = pd.concat([pd.Series(_column(values), index=rows) for values in plain["values"]], axis=1)
        return cls(table.set_axis(columns, axis=1), int(plain["digits"]), str(plain["caption"]))


def _column(values: list[Any]) -> Any:
    """A column with NaN for what is missing."""
    if all(value is None or isinstance(value, float) for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=float)
    return pd.array(values, dtype="Int64") if None in values and not any(map(_is_text, values)) else values


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _plain_index(index: pd.Index) -> dict[str, Any]:
    return {"names": list(index.names), "values": [_plain(value) for value in index]}


def _index(plain: Mapping[str, Any]) -> pd.Index:
    names, values = plain["names"], plain["values"]
    if len(names) > 1:
        return pd.MultiIndex.from_tuples([tuple(value) for value in values], names=names)
    return pd.Index(values, name=names[0])
