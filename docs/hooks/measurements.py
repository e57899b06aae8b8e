"""Tables of measurements on the pages: a page says `<!-- shapes -->` where the table of what `make bench` wrote belongs, and
`<!-- machine of shapes -->` where the machine belongs that it was measured on.
"""

import contextlib
import csv
import itertools
import re
from collections.abc import Callable
from typing import Any

from benchmarks.commands import PHASES as COMMAND_PHASES
from benchmarks.peer_tasks import TASKS
from benchmarks.scenarios import BARE, BLOCKS, BY_SENTENCE, EAGER, LAST_ROW
from docs.hooks.markdown import ROOT, table

MEASURED = ROOT / "benchmarks" / "measured"

FOUR = "mixing+norms+outliers+score"
WAYS = {
    "outliers+score": "outliers and score",
    "mixing+norms+frequency+outliers+score": "all five",
    "straightforward": "mixing, straightforward",
    "feedforward": "feedforward (whole layers)",
}
"""What the measurements call combinations of analyses, in words."""


def with_tables(page: str) -> str:
    """A page in Markdown, with the tables and the machines that it asks for."""
    return _MARKER.sub(lambda found: TABLES[found[1]](), _MACHINE.sub(lambda found: _machine(found[1]), page))


def _machine(suite: str) -> str:
    """The machine of a suite, or the machines."""
    return "; ".join(dict.fromkeys(str(row["machine"]) for row in _rows(suite)))


def _rows(suite: str) -> list[dict[str, Any]]:
    with (MEASURED / f"{suite}.csv").open(newline="") as file:
        return [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _tokens(row: dict[str, Any]) -> str:
    return f"{row['sequences']} × {row['length']:,}"


def _shapes() -> str:
    rows = [
        (
            row["shape"],
            _tokens(row),
            WAYS.get(row["way"], row["way"]),
            f"{row['time_ratio']:.2f}",
            f"{row['memory_ratio']:.2f}" if row["memory_ratio"] != "" else "–",
        )
        for row in _rows("shapes")
        if row["way"] != "bare"
    ]
    return table(("shapes", "batch", "analyses", "time / bare", "memory / bare"), rows)


def _lengths() -> str:
    rows = []
    for (shape, tokens), same in itertools.groupby(_rows("lengths"), key=lambda row: (row["shape"], _tokens(row))):
        by_way = {row["way"]: row for row in same}
        times = [f"{by_way[way]['time_ratio']:.2f}" for way in ("mixing", "norms", "outliers", FOUR)]
        memory = [f"{by_way[way]['memory_ratio']:.2f}" for way in ("mixing", FOUR)]
        rows.append((shape, tokens, *times, *memory))
    header = (
        "shapes",
        "tokens",
        "mixing, time / bare",
        "norms",
        "outliers",
        "all four",
        "memory / bare, mixing",
        "all four",
    )
    return table(header, rows)


def _attention() -> str:
    """Attention between tokens and regions by length, compared with a pass with fused attention and with eager mode."""
    rows = []
    passes = [row for row in _rows("attention") if row["way"] != BARE]
    bare = {row["length"]: row for row in _rows("attention") if row["way"] == BARE}
    for length, same in itertools.groupby(passes, key=lambda row: row["length"]):
        by_way, of_pass = {row["way"]: row for row in same}, bare[length]
        cells = [
            f"{by_way[way]['time_ratio']:.2f}, {by_way[way]['mebibytes'] - of_pass['mebibytes']:+,} MiB"
            if way in by_way and by_way[way]["note"] == ""
            else "–"
            for way in (LAST_ROW, BY_SENTENCE, BLOCKS, EAGER)
        ]
        told = (f"{length:,}", str(of_pass["layers"]), f"{of_pass['seconds']:.1f} s, {of_pass['mebibytes']:,} MiB")
        rows.append((*told, *cells))
    return table(
        ("tokens", "layers", "fused pass, peak", LAST_ROW, "the same by sentence", BLOCKS, "`output_attentions=True`"),
        rows,
    )


def _commands() -> str:
    """Commands by model and number of examples: seconds, and what their phases cost relative to a bare pass."""
    columns = ("ratio", *(f"{phase}_ratio" for phase in COMMAND_PHASES))
    rows = [
        (
            row["shape"],
            f"{row['examples']:,}",
            f"all {len(together)}" if len(together := row["way"].split("+")) > 1 else row["way"],
            f"{row['seconds']:.0f}",
            f"{row['bare_pass']:.1f}",
            *(f"{row[column]:.2f}" for column in columns),
        )
        for row in _rows("commands")
    ]
    header = ("model", "examples", "analysis", "seconds", "bare pass, seconds", "all phases / bare", *COMMAND_PHASES)
    picture = "\n![The phases of commands as multiples of the bare pass](../images/commands.png)\n"
    return table(header, rows) + (picture if (ROOT / "docs" / "images" / "commands.png").exists() else "")


def _sources() -> str:
    """How well methods find the sources of an answer, over all prompts, and by kind for ρ."""
    rows = [
        (
            row["kind"],
            row["method"],
            str(row["prompts"]).removesuffix(".0"),
            f"{row['top1']:.2f}",
            f"{row['top3']:.2f}",
            f"{row['rho']:.2f} ({row['rho_low']:.2f} to {row['rho_high']:.2f})",
            f"{row['passes']:.0f}",
        )
        for row in _rows("sources")
    ]
    return table(("prompts", "method", "count", "first", "all in three", "ρ, median (95%)", "passes"), rows)


def _gpu() -> str:
    """What has been measured on a GPU: shapes with time and memory, the tests, and a command; or that nothing has."""
    if not (MEASURED / "gpu.csv").exists():
        return "No GPU has been measured yet. `bash benchmarks/gpu.sh` does so in at most six minutes."
    rows = _rows("gpu")
    peaks = {_scenario(row): row for row in rows if row["step"] == "memory"}
    lines = []
    for row in rows:
        if row["step"] == "fast":
            time = "–" if row["time_ratio"] == "" else f"{row['time_ratio']:.2f}"
            speed = "–" if row["tokens_per_second"] == "" else f"{row['tokens_per_second']:,.0f}"
            lines.append(
                (*_scenario(row)[:-1], _way(row), time, speed, *_peak(peaks.get(_scenario(row), row)), _failure(row))
            )
    header = (
        "shape",
        "dtype",
        "layers",
        "batch",
        "measured",
        "time / bare",
        "tokens/s",
        "memory / bare",
        "peak GiB",
        "",
    )
    parts = [table(header, lines)] if lines else []
    for row in rows:
        if row["step"] == "command":
            parts.append(
                f"`{row['way']}` ({row['shape']}, the sample corpus) analyses {row['tokens_per_second']:,.0f} tokens/s, and "
                f"takes {row['time_ratio']:.2f} times as long as the untouched model on the same batches."
            )
        if row["step"] == "right":
            parts.append(
                f"Tests that compare the GPU with the CPU: {row['note'] or row['way'].partition(' ')[0] + ' passed'}."
            )
    return "\n\n".join([*parts, f"Measured on: {_machine('gpu')}."])


def _scenario(row: dict[str, Any]) -> tuple[str, ...]:
    """What rows of the same scenario and way share, in words."""
    numbers = {name: f"{row[name]:,.0f}" for name in ("layers", "sequences", "length")}
    return row["shape"], row["dtype"], numbers["layers"], f"{numbers['sequences']} × {numbers['length']}", row["way"]


def _way(row: dict[str, Any]) -> str:
    return WAYS.get(row["way"], row["way"])


def _peak(row: dict[str, Any]) -> tuple[str, str]:
    """Peak memory relative to the bare pass, and in GiB."""
    ratio, peak = row.get("memory_ratio", ""), row.get("mebibytes", "")
    return "–" if ratio == "" else f"{ratio:.2f}", "–" if peak == "" else f"{peak / 1024:.1f}"


def _failure(row: dict[str, Any]) -> str:
    """Why there is no time."""
    return "out of memory" if "out of memory" in row["note"].lower() else row["note"]


def _peers() -> str:
    """One row per task and tool."""
    rows = _rows("peers")
    lines: list[tuple[str, ...]] = []
    for name, task in TASKS.items():
        of_task = {row["tool"]: row for row in rows if row["task"] == name}
        for tool in task.tools:
            row = of_task.pop(tool.name, None)
            if row is None:
                continue
            first = not any(line[0].startswith(task.name) for line in lines)
            what = f"{task.name} ({row['inputs']})" if first else ""
            version = f" {row['version']}" if tool.package != "normscope" else ""
            named = tool.name.replace(tool.package, f"{tool.package}{version}", 1)
            if row["note"] != "":
                lines.append((what, named, row["note"], "", "", ""))
                continue
            numbers = (f"{row['startup']:.1f}", f"{row['seconds']:.1f}", f"{row['mebibytes']:,.0f}")
            lines.append((what, named, *numbers, _agreement(row)))
    return table(("task (inputs)", "tool", "startup, s", "work, s", "peak MiB", "agreement of numbers"), lines)


def _agreement(row: dict[str, Any]) -> str:
    if row["numbers"] == "":
        return ""
    equal = "equal to" if row["difference"] == 0 else f"within {row['difference']:.0e} of"
    return f"{row['numbers']}: {equal} {row['beside'].split(',')[0]}'s"


TABLES: dict[str, Callable[[], str]] = {
    "shapes": _shapes,
    "lengths": _lengths,
    "attention": _attention,
    "commands": _commands,
    "peers": _peers,
    "gpu": _gpu,
    "sources": _sources,
}
"""The table of each marker."""

_MARKER = re.compile(rf"<!-- ({'|'.join(TABLES)}) -->")
_MACHINE = re.compile(r"<!-- machine of ([\w-]+) -->")
