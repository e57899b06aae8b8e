"""Building blocks of HTML pages: templates, assets, tables, images."""

import base64
import functools
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

SHOWN_ROWS = 300
"""Rows of a table that a page shows at most; the files hold all of them."""


@functools.cache
def environment() -> jinja2.Environment:
    """The template environment; every value is escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normscope.reporting", "page"), autoescape=True, undefined=jinja2.StrictUndefined
    )


def asset(name: str) -> Markup:
    """A stylesheet or script, to be inlined into a page."""
    return Markup((importlib.resources.files("normscope.reporting") / "page" / name).read_text(encoding="utf-8"))


def table(rows: pd.DataFrame, *, limit: int = SHOWN_ROWS) -> Markup:
    """An HTML table that can be sorted by clicking a column header."""
    numeric = {name: pd.api.types.is_numeric_dtype(rows[name]) and rows[name].dtype != bool for name in rows}
    head = "".join(
        f'<th scope="col"{"" if numeric[name] else _WORD}><button type="button">{escape(name)}</button></th>'
        for name in rows
    )
    body = "".join(
        f"<tr>{''.join(_cell(value, numeric[name]) for name, value in zip(rows, row, strict=True))}</tr>"
        for row in rows.head(limit).itertuples(index=False, name=None)
    )
    inside = f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return Markup(f'<div class="scroll" tabindex="0">{inside}</div>')


_WORD = ' class="word"'


def _cell(value: Any, numeric: bool) -> str:
    if not numeric:
        return f"<td{_WORD}>{escape(value)}</td>"
    if pd.isna(value):
        return '<td data-value=""></td>'
    if isinstance(value, int | np.integer):
        return f"<td>{value}</td>"
    return f'<td data-value="{float(value):.9g}">{number(float(value))}</td>'


def number(value: float) -> str:
    """A number with a readable number of digits."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"


def image_url(path: Path) -> str:
    """A figure as a data URL: the SVG if it is small, otherwise the PNG."""
    svg = path.with_suffix(".svg")
    file, kind = (svg, "svg+xml") if svg.stat().st_size <= path.stat().st_size * 2 else (path, "png")
    return f"data:image/{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def script_data(content: Mapping[str, Any]) -> Markup:
    """JSON for a script element, escaped so that no token can close the element or open another."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
