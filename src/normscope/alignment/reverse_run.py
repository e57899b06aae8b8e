"""Alignments of a finished run in the opposite direction, for symmetrisation."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from normscope.alignment.links import parsed
from normscope.data.examples import Link
from normscope.errors import InputError, one_line

KEY = "analysis.alignment.reverse"


@dataclasses.dataclass(frozen=True)
class ReverseAlignment:
    """The best layer of a model in the opposite direction, by one method and setting."""

    layer: int
    links: Mapping[int, frozenset[Link]]
    """By row, as (source, target) of this run."""


def read(folder: Path, rows: Mapping[int, tuple[int, int]]) -> dict[tuple[str, str], ReverseAlignment]:
    """The best layer's links by (method, setting).

    Args:
        folder: Folder of a finished run of `analysis=alignment`.
        rows: The number of source and target words of each row in this run.

    Raises:
        InputError: If the folder is not of such a run, or the run used other sentences.
    """
    try:
        rates = _table(folder, "alignment_aer", ("method", "setting", "layer", "head", "aer"))
        table = _table(folder, "alignment_links", ("method", "setting", "layer", "row", "links"))
        return _best(folder, rates, table, rows)
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{KEY}={folder}: expected the folder of a finished run of analysis=alignment: {one_line(error)}"
        ) from error


def _table(folder: Path, name: str, columns: Sequence[str]) -> pd.DataFrame:
    table = pd.read_parquet(folder / "tables" / f"{name}.parquet", columns=list(columns))
    numbers = table[[column for column in ("layer", "head", "row", "aer") if column in columns]]
    if not all(pd.api.types.is_numeric_dtype(kind) for kind in numbers.dtypes) or numbers.isna().any(axis=None):
        raise ValueError(f"the table {name} has columns of the wrong type")
    return table


def _best(
    folder: Path, rates: pd.DataFrame, table: pd.DataFrame, rows: Mapping[int, tuple[int, int]]
) -> dict[tuple[str, str], ReverseAlignment]:
    layers = rates[(rates["head"] == 0) & (rates["layer"] > 0)]
    alignments = {}
    for (method, setting), of_layers in layers.groupby(["method", "setting"]):
        layer = int(of_layers["layer"].iloc[of_layers["aer"].argmin()])
        lines = table[(table["method"] == method) & (table["setting"] == setting) & (table["layer"] == layer)]
        links = {int(row): _flipped(parsed(line)) for row, line in zip(lines["row"], lines["links"], strict=True)}
        _check(folder, links, rows)
        alignments[str(method), str(setting)] = ReverseAlignment(layer, links)
    return alignments


def _flipped(links: frozenset[Link]) -> frozenset[Link]:
    return frozenset((target, source) for source, target in links)


def _check(folder: Path, links: Mapping[int, frozenset[Link]], rows: Mapping[int, tuple[int, int]]) -> None:
    if set(links) != set(rows):
        raise InputError(
            f"{KEY}={folder}: expected the {len(rows):,} sentence pairs of this run, got {len(links):,}; run both on the "
            "same pairs"
        )
    for row, pairs in links.items():
        source, target = rows[row]
        if any(first >= source or second >= target for first, second in pairs):
            raise InputError(
                f"{KEY}={folder}: row {row} has links past the end of its sentences here; expected a run on the same pairs "
                "with source and target swapped"
            )
