"""Numbers and curves from declared tables, by brute force."""

import math

import pandas as pd
import pytest

from normscope.results.declare import Axis, Declared, Rollup, Table, at_largest, at_smallest, declared
from normscope.results.rollups import roll_up

ROWS = [
    # layer, method, first, value, weight
    (1, "a", True, 0.5, -3.0),
    (1, "a", False, 0.7, 2.0),
    (1, "b", True, 0.1, 1.0),
    (2, "a", True, 0.9, 1.0),
    (2, "a", False, math.nan, 4.0),
    (2, "b", True, 0.4, 2.0),
]
TABLE = pd.DataFrame(ROWS, columns=["layer", "method", "first", "value", "weight"])
AXES = (
    Axis("layer", "Layer.", kind="whole"),
    Axis("method", "Method.", titles={"a": "method A"}),
    Axis("first", "First.", noun="being first", names={True: "first", False: "later"}),
)


def values_of(**chosen) -> list[float]:
    return [row[3] for row in ROWS if all(row[list(TABLE).index(key)] == value for key, value in chosen.items())]


def mean(values):
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known)


@pytest.mark.parametrize(
    ("rollup", "expected"),
    [
        (Rollup("x", "", of="table.value"), mean(values_of())),
        (Rollup("x", "", of="table.value", how="max"), 0.9),
        (Rollup("x", "", of="table.value", where={"method": "b"}), mean(values_of(method="b"))),
        (Rollup("x", "", of="table.value", where={"weight": lambda w: w > 1}), mean([0.7, math.nan, 0.4])),
        # The largest layer among the rows that the first condition leaves.
        (Rollup("x", "", of="table.value", where={"first": False, "layer": lambda x: x == x.min()}), 0.7),
        (Rollup("x", "", of="table.value", how=at_smallest("weight")), 0.5),
        (Rollup("x", "", of="table.method", how="nunique"), 2.0),
        (Rollup("layer_of", "", of="table.layer", how=at_largest("value")), 2.0),
        (Rollup("x", "", of="table.value", where={"method": "c"}, how="count"), 0.0),
    ],
)
def test_rows_are_chosen_and_reduced(rollup, expected):
    table = TABLE.fillna({"value": 0.0}) if rollup.name == "layer_of" else TABLE
    metrics = roll_up(Declared({"table": Table(AXES, {})}, metrics=(rollup,)), {"table": table}).metrics
    assert metrics == {rollup.name: pytest.approx(expected)}


def test_a_name_without_placeholders_wins_over_one_that_also_matches():
    rollups = (Rollup("f/<category>", "one"), Rollup("f/mean", "two"))
    assert declared(rollups, "f/mean")[0].meaning == "two"
    assert declared(rollups, "f/cls")[1] == {"category": "cls"}
    assert declared(rollups, "g/cls") is None
