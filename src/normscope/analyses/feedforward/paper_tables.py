"""The tables of Kobayashi et al. 2024 that the feed-forward analysis reproduces."""

import pandas as pd

from normscope.analyses.paper_tables import Column, PaperTable, Results, ratio_table

_PAIRS = 3
"""Pairs of tokens that are listed for each layer; the tidy table has more."""

_LONGEST_TOKEN = 24


def paper_tables(results: Results) -> dict[str, PaperTable]:
    """Mixing ratios through the layer, and the pairs of tokens that the network amplifies."""
    tables = {}
    ratios = ratio_table(results.metrics, "over all tokens and layers, by how much of the layer is included.")
    if ratios is not None:
        tables["ratios"] = ratios
    pairs = results.tables.get("amplified")
    if pairs is not None and len(pairs):
        tables["amplified"] = _amplified(pairs)
    return tables


def _amplified(pairs: pd.DataFrame) -> PaperTable:
    shown = pairs.groupby("layer", sort=False).head(_PAIRS)
    return PaperTable(
        caption=(
            "The three pairs of tokens in each layer whose share of the query's sum the feed-forward network raises most, and "
            "their share (%) before and after the network."
        ),
        columns=[
            Column("Layer", text=True),
            Column("Query", text=True),
            Column("Key", text=True),
            Column("Kind", text=True),
            Column("Before", 1),
            Column("After", 1),
        ],
        rows=[
            [
                str(row["layer"]),
                *map(_shortened, (row["query_token"], row["key_token"])),
                str(row["category"]),
                100 * float(row["before"]),
                100 * float(row["after"]),
            ]
            for row in shown.to_dict("records")
        ],
        grouped=True,
    )


def _shortened(token: object) -> str:
    word = str(token)
    return word if len(word) <= _LONGEST_TOKEN else f"{word[: _LONGEST_TOKEN - 1]}…"
