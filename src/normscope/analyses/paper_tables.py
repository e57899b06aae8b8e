"""Tables as papers print them: described here, typeset by `reporting`."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import pandas as pd

from normscope.analyses.info import AnalysisInfo

Cell = str | int | float | None
"""Text, a whole number, a number with its column's decimals, or nothing."""

METHOD_NAMES = {
    "alpha": "α",
    "f": "‖f(x)‖",
    "attn_w": "Attn-W",
    "attn_n": "Attn-N",
    "attnres_w": "AttnRes-W",
    "attnres_n": "AttnRes-N",
    "attnresln_n": "AttnResLn-N",
    "atb_n": "Atb",
    "atbff_n": "AtbFf",
    "atbffres_n": "AtbFfRes",
    "atbffresln_n": "AtbFfResLn",
}
"""The papers' names of measures and methods, in the papers' order."""

SPECIAL_TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""The papers' names of categories of special tokens."""

CATEGORY_NAMES = SPECIAL_TOKENS | {"first": "first token", "all": "all tokens"}
"""The papers' names of token categories; other categories keep theirs."""


def category_name(category: str) -> str:
    """A category of tokens in a sentence: `[CLS]`; categories of other tokens keep their names."""
    return SPECIAL_TOKENS.get(category, category)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    header: str
    """Symbols are written as they are: `‖αf(x)‖`, `ρ`."""
    digits: int = 2
    """Decimals of its numbers."""
    text: bool = False
    """Whether it is set flush left."""


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A table in its paper's order, with its paper's names."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    headline: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The numbers of the run that a comparison shows in one row, by the headers of their columns."""
    headline_caption: str = ""
    """The caption of that comparison."""
    headline_digits: int = 2
    grouped: bool = False
    """Whether rows with the same first cell stand together, and only the first of them shows it."""
    wide: bool = False
    """Whether the table needs both columns of a page."""


@runtime_checkable
class Results(Protocol):
    """The tables and metrics of one analysis of a run, by names without its prefix."""

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Tidy tables. One that was not written is missing."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Single numbers."""


def paper_tables(info: AnalysisInfo, results: Results) -> Mapping[str, PaperTable]:
    """The papers' tables that an analysis reproduces, by name. Those whose numbers the results lack are left out."""
    if not info.paper_tables:
        return {}
    module, _, name = info.paper_tables.partition(":")
    tables: Mapping[str, PaperTable] = getattr(importlib.import_module(module), name)(results)
    return tables


def category_order(categories: Sequence[str]) -> list[str]:
    """Categories in the papers' order: special tokens, punctuation, the user's own, the others, and all."""
    last = ["other", "all"]
    first = ["cls", "sep", "mask", "first", "punctuation"]
    own = [category for category in categories if category not in {*first, *last}]
    return [category for category in [*first, *own, *last] if category in set(categories)]


def ratio_table(metrics: Mapping[str, float], caption: str) -> PaperTable | None:
    """Mean, maximum and minimum of every method's mixing ratio, as in Kobayashi et al. 2021.

    Args:
        metrics: The analysis's metrics, such as `attn_n/mean`, as shares.
        caption: What the ratios are measured on, to follow "mixing ratio (%)".
    """
    methods = [method for method in METHOD_NAMES if f"{method}/mean" in metrics]
    if not methods:
        return None
    headline = {METHOD_NAMES[method]: 100 * metrics[f"{method}/mean"] for method in methods}
    last = methods[-1]
    headline |= {
        f"{METHOD_NAMES[last]} max": 100 * metrics[f"{last}/max"],
        f"{METHOD_NAMES[last]} min": 100 * metrics[f"{last}/min"],
    }
    return PaperTable(
        caption=f"Mean, largest and smallest mixing ratio (%) {caption}",
        columns=[Column("Method", text=True), Column("Mean", 1), Column("Max", 1), Column("Min", 1)],
        rows=[
            [METHOD_NAMES[method], *(100 * metrics[f"{method}/{name}"] for name in ("mean", "max", "min"))]
            for method in methods
        ],
        headline=headline,
        headline_caption=f"Mean mixing ratio (%) {caption}",
        headline_digits=1,
    )
