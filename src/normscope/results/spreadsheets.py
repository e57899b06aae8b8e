"""Tables as CSV, in which no spreadsheet takes text for a formula."""

import csv
import re
from typing import Any, Literal

import pandas as pd

_FORMULA = re.compile(r"[=+\-@\t\r\n\0]")
"""What a formula begins with, or what spreadsheets skip in front of one. The pages' own files: `dom.js`."""


def as_csv(table: pd.DataFrame) -> str:
    """A table as CSV for people and spreadsheets.

    Tokens, labels and names come from corpora and models: opened in a spreadsheet, a token `=HYPERLINK(…)` would be a formula.
    An apostrophe in front of such text, in cells and headers, makes it text again. Numbers stay as they are, to all digits.

    Source: OWASP, CSV Injection (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    texts = table[[name for name in table if not pd.api.types.is_numeric_dtype(table[name])]]
    # Python's writer leaves a carriage return without quotes, and spreadsheets begin a row there.
    returns = any("\r" in str(cell) for row in (table.columns, *texts.to_numpy()) for cell in row)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    harmless = table.assign(**{str(name): texts[name].map(_harmless) for name in texts}).rename(columns=_harmless)
    return harmless.to_csv(index=False, quoting=quoting)


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value
