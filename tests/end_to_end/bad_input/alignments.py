"""Bad files of links."""

import random
from pathlib import Path

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import spoiled_bytes
from tests.end_to_end.bad_input.stock import Stock


def links(draw: random.Random, stock: Stock) -> Case:
    """A file of links that is broken, as gold or as baseline."""
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

    use = draw.choice(["gold", "baseline"])
    what = f"links {use} {content[:40]!r}"
    key = "analysis.alignment.gold.path" if use == "gold" else "+analysis.alignment.baselines.x"
    given = draw.choice(
        [name, name, name, f"{{path: {name}, base: x}}", f"{{path: {name}, base: 7}}", "{path: [1]}", "[1]"]
    )
    return Case(what, [*stock.aligning(), f"{key}={given}"], [name, "alignment"], prepare, statuses=EITHER)
