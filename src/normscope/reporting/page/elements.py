"""Building blocks of HTML pages: templates, assets, tables, data for scripts."""

import base64
import functools
import importlib.resources
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from normscope.analyses.registry import analyses
from normscope.errors import visible
from normscope.results.codes import in_prose, in_words
from normscope.rounding import number

SHOWN_ROWS = 1_000
"""Rows of a table that a page holds at most; the files hold all of them."""

EXPLORER_SCRIPTS = (
    "rounding.js",
    "dom.js",
    "inflate.js",
    "explorer_data.js",
    "explorer_colours.js",
    "explorer_map.js",
    "explorer_image.js",
    "explorer_sound.js",
    "explorer_export.js",
    "explorer_parts.js",
    "explorer_arcs.js",
    "explorer.js",
    "pairs.js",
)
"""The scripts of the explorer and of pairs of texts, in order: they need no others."""


ALONE = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What a browser lets a page do that needs neither another file nor a server."""


@functools.cache
def environment() -> jinja2.Environment:
    """The template environment; every value is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("normscope.reporting", "page"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    made.globals["policy"] = Markup(ALONE)
    return made


def asset(name: str) -> Markup:
    """A stylesheet or script, to be inlined into a page."""
    return Markup((importlib.resources.files("normscope.reporting") / "page" / name).read_text(encoding="utf-8"))


def style(*names: str) -> Markup:
    """Stylesheets as one."""
    return Markup().join(map(asset, names))


def script(*names: str) -> Markup:
    """Scripts as one, whose names stay out of the page's global scope."""
    return Markup('(() => {\n"use strict";\n{}\n})();').replace("{}", Markup("\n").join(map(asset, names)), 1)


def deflated(content: bytes) -> str:
    """Bytes as base64 of zlib's format: for text, a third or less of its size."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


def table(rows: pd.DataFrame, caption: str, written: Collection[object] = ()) -> Markup:
    """A small HTML table.

    Args:
        rows: Its cells.
        caption: What it shows.
        written: Columns of numbers that are text already.
    """
    numeric = {name: name in written or _is_numeric(rows[name]) for name in rows}
    head = "".join(f'<th scope="col"{"" if numeric[name] else _WORD}>{escape(name)}</th>' for name in rows)
    body = "".join(
        f"<tr>{''.join(_cell(value, numeric[name]) for name, value in zip(rows, row, strict=True))}</tr>"
        for row in rows.itertuples(index=False, name=None)
    )
    inside = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return Markup(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>{inside}</table></div>'
    )


def table_data(
    rows: pd.DataFrame,
    caption: str,
    ranked_by: Sequence[str] = (),
    *,
    meanings: Mapping[str, str] = MappingProxyType({}),
    upper_bounds: Mapping[str, Sequence[bool]] = MappingProxyType({}),
    limit: int = SHOWN_ROWS,
    digits: int = 5,
    titled: bool = True,
) -> dict[str, Any]:
    """A table for the page's script, which builds it when the reader opens it.

    Args:
        rows: The table.
        caption: What it shows, and where the rest is if it is cut.
        ranked_by: Columns to sort by, largest magnitude first.
        meanings: What the columns mean, as far as that is known.
        upper_bounds: By column, which of its numbers are upper bounds, in the order of the rows as they are shown.
        limit: Number of rows to keep.
        digits: Significant digits to keep; the reader sees three, and the others serve to sort.
        titled: Whether columns have names that stand for something, which readers see in words.
    """
    if ranked_by:
        keys = rows[list(ranked_by)].apply(lambda values: values.astype(float).abs())
        order = keys.sort_values(list(ranked_by), ascending=False, kind="stable").index
        rows = rows.loc[order]
    columns = []
    for name, values in rows.head(limit).items():
        kind = "word" if not _is_numeric(values) else "integer" if pd.api.types.is_integer_dtype(values) else "number"
        plain = [_plain(value, kind, digits) for value in values]
        title = in_words(str(name)) if titled else str(name)
        about = in_prose(meanings.get(str(name), ""))
        column = {"name": str(name), "title": title, "about": about, "kind": kind, "values": plain}
        if name in upper_bounds:
            column["bounds"] = [bool(bound) for bound in upper_bounds[str(name)]][:limit]
        columns.append(column)
    return {"caption": caption, "columns": columns}


_WORD = ' class="word"'
_LONGEST_WORD = 40
"""Characters of a text that a cell shows whole; longer ones may be cut, and are shown when the pointer is on them."""


_LARGE = 1e6
"""Whole numbers from here on are counts, whatever their type, and keep all digits."""


def _is_numeric(values: "pd.Series[Any]") -> bool:
    return bool(pd.api.types.is_numeric_dtype(values)) and values.dtype != bool


def _plain(value: Any, kind: str, digits: int) -> Any:
    if kind == "word":
        return (
            "yes"
            if value is True or value is np.True_
            else "no"
            if value is False or value is np.False_
            else visible(str(value))
        )
    if pd.isna(value):
        return None
    return int(value) if kind == "integer" else float(f"{float(value):.{digits}g}")


def _cell(value: Any, numeric: bool) -> str:
    if not numeric:
        text = value.striptags() if isinstance(value, Markup) else str(value)
        whole = f' title="{escape(text)}"' if len(text) > _LONGEST_WORD else ""
        return f"<td{_WORD}{whole}>{escape(value)}</td>"
    if isinstance(value, str) or pd.isna(value):
        return f"<td>{value if isinstance(value, str) else ''}</td>"
    is_count = isinstance(value, int | np.integer) or (abs(value) >= _LARGE and float(value).is_integer())
    return f"<td>{int(value):,}</td>" if is_count else f"<td>{number(float(value))}</td>"


def readable(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """A table with what people read for the codes in its cells. Parts of the corpus's texts stay as they are."""
    owners = (info for info in analyses().values() if name.removeprefix(f"{info.name}_") in info.declared.tables)
    info = next((info for info in owners if name.startswith(f"{info.name}_")), None)
    if info is None:
        return rows
    kinds = info.declared.tables[name.removeprefix(f"{info.name}_")].kinds
    coded = [column for column in map(str, rows) if kinds.get(column) == "text" and info.declared.axis(column)]
    words = {
        column: {value: info.declared.title(column, str(value)) for value in rows[column].unique()} for column in coded
    }
    return rows.assign(**{column: rows[column].map(titles) for column, titles in words.items()})


def id_of_table(name: str) -> str:
    """The name of a table's element; figures and tables may have the same name."""
    return f"table_{name}"


def without_folders(name: str) -> str:
    """A Hub name as given; of a local folder only the last part, since reports are shared."""
    return Path(name).name if Path(name).is_absolute() else name


def packed_data(content: Mapping[str, Any]) -> Markup:
    """JSON, compressed for `inflate.js`."""
    return Markup(deflated(json.dumps(content, separators=(",", ":")).encode()))


def script_data(content: Mapping[str, Any] | Sequence[Any]) -> Markup:
    """JSON for a script element, escaped so that no token can close the element or open another."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
