"""The state of a live page: what its address says is what is shown, and what is wrong with it is one line."""

import random

import pytest

from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.request import LONGEST_TEXT, SHOWN, Side, State, read_state
from tests.end_to_end.bad_input.spoil import spoiled


def test_an_address_is_read():
    given = {"text": "a", "before": "", "model": "2", "compare": "1", "chat": "1", "level": "word", "through": "1"}
    given["sources"] = "1"
    shown = {"target": "x", "against": "y"} | dict.fromkeys(SHOWN, "3")
    assert read_state(given | shown, 2) == State("a", "", 2, 1, True, Level.word, True, True, "x", "y")
    assert read_state({}, 1) == State()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "state=null: expected values by name"),
        ([], "state=[]: expected values by name"),
        ({"text": 1}, "text=1: expected text of at most 100,000 characters"),
        ({"text": None}, "text=null: expected text of at most 100,000 characters"),
        ({"txt": ""}, "unknown key txt; did you mean text?"),
        ({"text": "x" * (LONGEST_TEXT + 1)}, ": expected text of at most 100,000 characters"),
        ({"text": "\ud800"}, ": expected text of at most 100,000 characters"),
        ({"model": "one"}, "model=one: expected a whole number"),
        ({"model": "²"}, "model=²: expected a whole number"),
        ({"model": "0"}, "model=0: expected a model from 1 to 2"),
        ({"compare": "3"}, "compare=3: expected a model from 1 to 2"),
        ({"level": "sentence"}, "level=sentence: expected one of token, word"),
        ({"chat": "x"}, "chat=x: expected true or false"),
        ({"through": "x"}, "through=x: expected true or false"),
        ({"target": "x" * 201}, ": expected text of at most 200 characters"),
        ({"layer": 1}, "layer=1: expected text of at most 100,000 characters"),
        ({"before": 1}, "before=1: expected text of at most 100,000 characters, or null"),
        ({"against": "x"}, "against='x': expected a target as well"),
    ],
)
def test_what_is_wrong_with_a_state_is_one_line(given, message):
    with pytest.raises(InputError, match="^[^\n]*$") as raised:
        read_state(given, 2)
    assert message in str(raised.value)


def test_whatever_an_address_holds_is_a_state_or_one_line():
    right = {"text": "a", "before": "b", "model": "2", "compare": "1", "chat": "1", "level": "word", "target": "x"}
    for number in range(300):
        given, what = spoiled(random.Random(number), right | dict.fromkeys(SHOWN, "3"))
        try:
            read_state(given, 2)
        except InputError as error:
            assert str(error).isprintable(), what  # noqa: PT017 - some of them are fine


def test_there_are_two_sides_only_if_they_differ():
    assert State("a").sides == (Side("a", 1),)
    assert State("a", before="a").sides == (Side("a", 1),)
    assert State("a", before="b").sides == (Side("a", 1), Side("b", 1))
    assert State("a", compare=2).sides == (Side("a", 1), Side("a", 2))
    assert State("a", before="b", chat=True).sides == (Side("a", 1, chat=True), Side("b", 1, chat=True))
    assert State("a", before="", model=2, compare=1).sides == (Side("a", 2), Side("", 1))
