"""Alignments of a finished run in the opposite direction, for symmetrisation."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from normscope.alignment.links import parsed
from normscope.data.examples import Link
from normscope.errors import InputError, one_line
from normscope.untrusted.tables import Columns, table

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
        rates, links = (table(folder / "tables" / f"{name}.parquet", columns) for name, columns in _TABLES.items())
    except InputError as error:
        raise InputError(
            f"{KEY}={folder}: expected the folder of a finished run of analysis=alignment: {one_line(error)}"
        ) from error
    try:
        return _best(folder, rates, links, rows)
    except ValueError as error:
        raise InputError(f"{KEY}={folder}: its table alignment_links is damaged: {one_line(error)}") from error


_TABLES = {
    "alignment_aer": Columns({"method": "text", "setting": "text", "layer": "whole", "head": "whole", "aer": "number"}),
    "alignment_links": Columns(
        {"method": "text", "setting": "text", "layer": "whole", "row": "whole", "links": "text"},
        key=("method", "setting", "layer", "row"),
    ),
}


def _best(
    folder: Path, rates: pd.DataFrame, links: pd.DataFrame, rows: Mapping[int, tuple[int, int]]
) -> dict[tuple[str, str], ReverseAlignment]:
    layers = rates[(rates["head"] == 0) & (rates["layer"] > 0)]
    alignments = {}
    for (method, setting), of_layers in layers.groupby(["method", "setting"]):
        layer = int(of_layers["layer"].iloc[of_layers["aer"].argmin()])
        lines = links[(links["method"] == method) & (links["setting"] == setting) & (links["layer"] == layer)]
        flipped = {int(row): _flipped(parsed(line)) for row, line in zip(lines["row"], lines["links"], strict=True)}
        _check(folder, flipped, rows)
        alignments[str(method), str(setting)] = ReverseAlignment(layer, flipped)
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
