"""Bad word alignments: files of links, and runs in the opposite direction."""

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import spoiled_bytes
from tests.end_to_end.bad_input.stock import Stock


def links(draw: random.Random, stock: Stock) -> Case:
    """A file of links that is broken, as gold, as baseline or for the command."""
    line = draw.choice(
        [
            *(
                "0-0",
                "9-9",
                "-1-0",
                "a",
                "0_0",
                "0-",
                "²-1",
                "9" * 5000 + "-0",
                "0-0-0",
                "٣-٣",
                "0-0\x00",
                "\ufeff0-0",
                "0p0",
            ),
            *("0-0\u2028", "\x1b[31m", "é" * 400),
        ]
    )
    content = f"0-0\n{line}\n0-0\n".encode()
    if draw.random() < 0.4:
        content = spoiled_bytes(draw, content)
    name = draw.choice(["links.txt", "links.txt.gz"])

    def prepare(folder: Path) -> None:
        (folder / name).write_bytes(content)

    use = draw.choice(["gold", "baseline", "command", "command gold"])
    gold = str(stock.folder / "gold.txt")
    what = f"links {use} {content[:40]!r}"
    if use.startswith("command"):
        files = ["--gold", name, gold] if use == "command gold" else ["--gold", gold, name]
        options = draw.choice(
            [[], ["--base", "1"], ["--symmetrise", "union"], [f"{name}:sideways"], ["--base", "9" * 5000]]
        )
        if use == "command" and draw.random() < 0.3:
            options = [
                "--symmetrise",
                "intersection",
                name,
                "--output",
                draw.choice(["folder/x", "/proc/x", "out.txt"]),
            ]
        return Case(
            what,
            [*files, *options],
            [name, "--", "FILE"],
            prepare,
            statuses=EITHER,
            module="normscope.alignment.link_scores",
        )
    key = "analysis.alignment.gold.path" if use == "gold" else "+analysis.alignment.baselines.x"
    given = draw.choice(
        [name, name, name, f"{{path: {name}, base: x}}", f"{{path: {name}, base: 7}}", "{path: [1]}", "[1]"]
    )
    return Case(what, [*stock.aligning(), f"{key}={given}"], [name, "alignment"], prepare, statuses=EITHER)


def reverse_run(draw: random.Random, stock: Stock) -> Case:
    """A run in the opposite direction whose tables are broken."""
    table, state = draw.choice(["alignment_aer", "alignment_links"]), draw.getstate()

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.aligned, folder / "before")
        path = folder / "before/tables" / f"{table}.parquet"
        rows = pq.read_table(path)
        column = inner.choice(rows.column_names)
        how = inner.random()
        if how < 0.4:
            path.write_bytes(spoiled_bytes(inner, path.read_bytes()))
        elif how < 0.6:
            pq.write_table(rows.drop_columns([column]), path)
        else:
            place = rows.column_names.index(column)
            junk = inner.choice([None, "x", "9-9", -1, 10**6])
            pq.write_table(rows.set_column(place, column, pa.array([junk] * len(rows))), path)

    return Case(
        f"reverse {table}",
        [*stock.aligning(), "analysis.alignment.reverse=before"],
        ["before"],
        prepare,
        statuses=EITHER,
    )
