"""Tables as LaTeX for booktabs. Whatever they contain, the result compiles with pdfLaTeX, XeLaTeX and LuaLaTeX."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

from normscope.analyses.findings import Findings
from normscope.analyses.paper_tables import Cell, Column, PaperTable, paper_tables
from normscope.analyses.registry import analyses
from normscope.distribution import VERSION

MISSING = "--"

_MATHS = {
    "‖αf(x)‖": r"$\|\alpha f(x)\|$",
    "‖f(x)‖": r"$\|f(x)\|$",
    "‖x‖": r"$\|x\|$",
    "f(x)": "$f(x)$",
    "Cⱼ": "$C_j$",
    "αₖ": r"$\alpha_k$",
    "q·k": r"$q \cdot k$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "γ": r"$\gamma$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "‖": r"$\|$",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "→": r"$\to$",
}
"""Symbols of the papers; longer ones win."""

_ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    # After the end of a row, TeX would read them as an argument.
    **{character: f"{{{character}}}" for character in "[]*"},
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\u00a0": "~",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "▁": r"\_",  # SentencePiece's mark of a word's beginning
}

_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}

_OTHER = r"\normscopecharacter"
_DEFINITION = rf"\providecommand{{{_OTHER}}}[2]{{\ifdefined\Umathcode#1\else#2\fi}}"
"""XeLaTeX and LuaLaTeX set any character; pdfLaTeX stops at most, so it gets the code point."""

_LIGATURES = r"-{2,}|`{2,}|'{2,}|[?!]`"
"""Characters that would become another one together."""

_PARTS = re.compile(
    "|".join([*map(re.escape, sorted(_MATHS, key=len, reverse=True)), f"(?P<ligature>{_LIGATURES})", "."]), re.DOTALL
)


def text(words: str) -> str:
    """Any text as LaTeX in pure ASCII, but for characters that only XeLaTeX and LuaLaTeX know."""
    parts = _PARTS.finditer(unicodedata.normalize("NFC", words))
    return "".join(
        "{}".join(part[0]) if part["ligature"] else _MATHS.get(part[0]) or _character(part[0]) for part in parts
    )


def _character(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    if not character.isprintable():
        return " "
    if character.isascii():
        return character
    base, *marks = list(unicodedata.normalize("NFD", character))
    if len(marks) == 1 and marks[0] in _ACCENTS and base.isascii():
        base = rf"\{base}" if base in "ij" else base
        return rf"\{_ACCENTS[marks[0]]}{{{base}}}"
    return rf"{_OTHER}{{{character}}}{{U+{ord(character):04X}}}"


def number(value: float, digits: int) -> str:
    """A number with fixed decimals, so that those of a column are aligned at the point."""
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else "$\\infty$" if value > 0 else "$-\\infty$"
    written = f"{abs(value):,.{digits}f}"
    return f"$-${written}" if value < 0 and float(written.replace(",", "")) else written


def tables_of_run(findings: Mapping[str, Findings], subject: str, sequences: int, tokens: int) -> dict[str, str]:
    """The papers' tables that a run reproduces, as LaTeX by the names of their files.

    Args:
        findings: The findings of each analysis, by its name.
        subject: What was measured, for the captions: `bert-base-uncased on wikipedia`.
        sequences: Number of sequences.
        tokens: Number of tokens.
    """
    about = f"{subject}: {sequences:,} sequence{'' if sequences == 1 else 's'}, {tokens:,} token{'' if tokens == 1 else 's'}."
    return {
        f"{name}_{table}": document([(f"{name}-{table}", content)], f"{subject}, by normscope {VERSION}", about)
        for name, results in findings.items()
        for table, content in paper_tables(analyses()[name], results).items()
    }


def document(tables: Sequence[tuple[str, PaperTable]], source: str, about: str = "") -> str:
    """A file to `\\input`, with every table as a float.

    Args:
        tables: Tables by the names that follow `tab:` in their labels.
        source: Where the numbers come from, for a comment.
        about: Sentence that every caption ends with.
    """
    return _file([_float(table, name, about) for name, table in tables], source)


def bare(table: PaperTable, source: str) -> str:
    """A file with a table alone, to `\\input` where the caption is written by hand."""
    return _file(["\n".join(line.strip() for line in _tabular(table))], source)


def _file(bodies: Sequence[str], source: str) -> str:
    definitions = [_DEFINITION] if any(_OTHER in body for body in bodies) else []
    packages = "booktabs,graphicx" if any(r"box{" in body for body in bodies) else "booktabs"
    comment = "% " + " ".join(f"{source}. Needs \\usepackage{{{packages}}}.".split())
    return "\n".join([comment, *definitions, *bodies]) + "\n"


def _float(table: PaperTable, name: str, about: str) -> str:
    wide = table.wide or _width(table) > _ONE_COLUMN
    environment = "table*" if wide else "table"
    caption = " ".join(text(part) for part in (table.caption, about) if part)
    lines = [
        rf"\begin{{{environment}}}[t]",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \label{{tab:{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}}}",
        *(
            [r"  \small", r"  \setlength{\tabcolsep}{4pt}"]
            if len(table.columns) > 6 or _width(table) > _BOTH_COLUMNS
            else []
        ),
        *(f"  {line}" for line in _tabular(table)),
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines)


_ONE_COLUMN, _BOTH_COLUMNS = 48, 100
"""Characters of a table's row, with two for the space between columns, that fit the columns of a page in most styles."""


def _width(table: PaperTable, turned: Sequence[bool] = ()) -> int:
    """Characters of the widest row that could be, without the headers that are turned."""
    sizes = [
        0 if turn else len(column.header) for column, turn in zip(table.columns, turned or _upright(table), strict=True)
    ]
    for row in table.rows:
        sizes = [
            max(size, len(_plain(cell, column))) for size, cell, column in zip(sizes, row, table.columns, strict=True)
        ]
    return sum(sizes) + 2 * len(sizes)


def _upright(table: PaperTable) -> list[bool]:
    return [False] * len(table.columns)


def _turned(table: PaperTable) -> list[bool]:
    """Which headers are set upwards: in a table wider than a page, those of numbers that are longer than these."""
    if _width(table) <= _BOTH_COLUMNS:
        return _upright(table)
    return [
        not column.text
        and len(column.header) > max((len(_plain(row[at], column)) for row in table.rows), default=0) + 2
        for at, column in enumerate(table.columns)
    ]


def _tabular(table: PaperTable) -> list[str]:
    """The table alone. Where it is wider than a page, long headers are turned; if that is not enough, it is made smaller."""
    turned = _turned(table)
    lines = _lines(table, turned)
    if _width(table, turned) <= _BOTH_COLUMNS:
        return lines
    return [r"\resizebox{\linewidth}{!}{%", *(f"  {line}" for line in lines), "}"]


def _lines(table: PaperTable, turned: Sequence[bool]) -> list[str]:
    columns = "".join("l" if column.text else "r" for column in table.columns)
    header = " & ".join(
        rf"\rotatebox{{90}}{{{text(column.header)}}}" if turn else text(column.header)
        for column, turn in zip(table.columns, turned, strict=True)
    )
    return [
        rf"\begin{{tabular}}{{{columns}}}",
        r"  \toprule",
        rf"  {header} \\",
        r"  \midrule",
        *_rows(table),
        r"  \bottomrule",
        r"\end{tabular}",
    ]


def _rows(table: PaperTable) -> list[str]:
    lines, previous = [], None
    for row in table.rows:
        cells = [_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        if table.grouped:
            if previous is not None and row[0] != previous:
                lines.append(r"  \addlinespace")
            if row[0] == previous:
                cells[0] = ""
            previous = row[0]
        lines.append(f"  {' & '.join(cells)} \\\\")
    return lines


def _plain(cell: Cell, column: Column) -> str:
    """A cell as it is read, by which its width is estimated."""
    return cell if isinstance(cell, str) else re.sub(r"\$|\\infty", "", _cell(cell, column))


def _cell(cell: Cell, column: Column) -> str:
    match cell:
        case None:
            return MISSING
        case str():
            return text(cell)
        case int():
            return f"{cell:,}"
        case float():
            return number(cell, column.digits)
