"""Bad files of token frequencies."""

import random

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import spoiled_bytes, write
from tests.end_to_end.bad_input.stock import Stock


def frequencies(draw: random.Random, stock: Stock) -> Case:
    """A file of token frequencies that is broken."""
    line = draw.choice(
        [
            "1 2",
            "1 2 3 4",
            "x 2 3",
            "1 2 99999999",
            "-1 2 3",
            "0 1 2",
            "1 -2 3",
            "1.5 2 3",
            "9" * 5000 + " 1 2",
            "² ² ²",
            "1 1 " + "9" * 5000,
        ]
    )
    content = f"1 10 5\n{line}\n2 4 7\n".encode()
    if draw.random() < 0.5:
        content = spoiled_bytes(draw, content)
    key = draw.choice(["path", "source"])
    name = f"f{draw.choice(['.txt', '.jsonl', ''])}"
    arguments = [*stock.common(), "analysis=frequency", f"analysis.frequency.{key}={name}"]
    return Case(
        f"frequency {key} {content[:40]!r}",
        arguments,
        [name, f"frequency.{key}"],
        lambda folder: write(folder / name, content),
        statuses=EITHER,
    )
