"""The tables of suites that are measured in parts: other tools, how cost grows, and the plan that follows from it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.growth import PARTS, WAYS
from benchmarks.peer_tasks import TASKS
from docs.hooks.markdown import table

Row = dict[str, Any]

NOT_RECORDED = "*(No run is recorded yet.)*"

SEQUENCES, LENGTH = 10**9, 128
"""The corpus that is planned for: number of sequences, and tokens in each."""
PROCESSES = (1, 1_000)

_MEBIBYTE, _DAY, _HOUR = 2**20, 86_400, 3_600


def peers(rows: Sequence[Row]) -> str:
    """One row per task and tool."""
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


def _agreement(row: Row) -> str:
    if row["numbers"] == "":
        return ""
    equal = "equal to" if row["difference"] == 0 else f"within {row['difference']:.0e} of"
    return f"{row['numbers']}: {equal} {row['beside'].split(',')[0]}'s"


def growth(rows: Sequence[Row]) -> str:
    """The smallest and the largest size of each part, model and combination of analyses."""
    lines: list[tuple[str, ...]] = []
    for part in PARTS:
        for model in dict.fromkeys(row["model"] for row in rows):
            for way in WAYS:
                same = [row for row in rows if (row["part"], row["model"], row["way"]) == (part, model, way)]
                same.sort(key=lambda row: row["at"])
                lines += [_grown(row) for row in (same[:1] + same[1:][-1:])]
    return table(
        ("what grows", "size", "model", "analyses", "tokens per second", "bare pass", "peak MiB", "state, MiB"),
        lines,
    )


def _grown(row: Row) -> tuple[str, ...]:
    bare, state = row["bare_tokens_per_second"], row["state_bytes"]
    return (
        row["part"],
        f"{row['at']:,}",
        row["model"],
        row["way"].replace("+", ", "),
        f"{row['tokens_per_second']:,}",
        "" if bare == "" else f"{bare:,.0f}",
        f"{row['mebibytes']:,}",
        "" if state == "" else _three_digits(state / _MEBIBYTE),
    )


class Measured(NamedTuple):
    """The measurements that a plan is extrapolated from."""

    tokens_per_second: float
    """Of one process with one thread."""
    bytes_per_token: float
    """Of text."""
    state: float
    """Bytes that a shard leaves."""
    merging: float
    """Seconds to merge one more shard."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Measured | None":
        """From the measurements; None if a part is missing."""
        shards = sorted((row for row in rows if row["part"] == "shards"), key=lambda row: row["at"])
        alone = [row for row in rows if row["part"] == "processes" and row["at"] == 1]
        if len(shards) < 2 or not alone:
            return None
        few, many = shards[0], shards[-1]
        return cls(
            tokens_per_second=alone[0]["tokens_per_second"],
            bytes_per_token=alone[0]["text_bytes"] / alone[0]["tokens"],
            state=many["state_bytes"] / many["at"],
            merging=(many["merge_seconds"] - few["merge_seconds"]) / (many["at"] - few["at"]),
        )


def plan(rows: Sequence[Row]) -> str:
    """What 10⁹ sequences take, extrapolated."""
    measured = Measured.of(rows)
    if measured is None:
        return NOT_RECORDED
    tokens = SEQUENCES * LENGTH
    seconds, read = tokens / measured.tokens_per_second, tokens * measured.bytes_per_token
    hours = seconds / _HOUR
    rate = f"passes of MiniLM, `mixing` and `norms`, at {measured.tokens_per_second:,.0f} tokens per second per process"
    lines = [
        (rate, *(_duration(seconds / number) for number in PROCESSES)),
        ("process-hours", *(f"{hours:,.0f}" for _ in PROCESSES)),
        ("text read by each process", *(_size(read / number, 1000) for number in PROCESSES)),
        ("parts of one MiB read by each process", *(f"{read / _MEBIBYTE / number:,.0f}" for number in PROCESSES)),
        ("states saved by all shards", "none", _size(measured.state * PROCESSES[1], 1024)),
        (
            f"merging them, at {_three_digits(measured.merging)} s each",
            "none",
            _duration(measured.merging * PROCESSES[1]),
        ),
    ]
    header = ("", *("one process" if number == 1 else f"{number:,} processes" for number in PROCESSES))
    return table(header, lines)


def _duration(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two."""
    for unit, size in (("days", _DAY), ("hours", _HOUR), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{_three_digits(seconds)} s"


def _size(number: float, step: int) -> str:
    """Bytes in GB or GiB, or in MB or MiB if there are fewer."""
    middle = "i" if step == 1024 else ""
    for name, power in (("G", 3), ("M", 2)):
        if number >= step**power:
            return f"{_three_digits(number / step**power)} {name}{middle}B"
    return f"{number:,.0f} B"


def _three_digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
