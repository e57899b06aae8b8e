"""The state of a live page: what its address says is what is shown, and what is wrong with it is one line."""

import pytest

from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.request import LONGEST_TEXT, VIEW, Side, State, read_state


def test_an_address_is_read():
    given = {"text": "a", "before": "", "model": "2", "compare": "1", "chat": "1", "level": "word", "through": "1"}
    shown = {"target": "x", "against": "y"} | dict.fromkeys(VIEW, "3")
    assert read_state(given | shown, 2) == State("a", "", 2, 1, True, Level.word, True, "x", "y")
    assert read_state({}, 1) == State()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "state=None: input should be a valid dictionary"),
        ([], "state=[]: input should be a valid dictionary"),
        ({"text": 1}, "text=1: input should be a valid string"),
        ({"text": None}, "text=None: input should be a valid string"),
        ({"txt": ""}, "txt='': unexpected keyword argument"),
        ({"text": "x" * (LONGEST_TEXT + 1)}, "string should have at most 100000 characters"),
        ({"text": "\ud800"}, "input should be a valid string, unable to parse raw data as a unicode string"),
        ({"model": "one"}, "model='one': input should be a valid integer"),
        ({"model": "²"}, "model='²': input should be a valid integer"),
        ({"model": "0"}, "model=0: expected a model from 1 to 2"),
        ({"compare": "3"}, "compare=3: expected a model from 1 to 2"),
        ({"level": "sentence"}, "level='sentence': input should be 'token' or 'word'"),
        ({"chat": "x"}, "chat='x': input should be a valid boolean"),
        ({"through": "x"}, "through='x': input should be a valid boolean"),
        ({"target": "x" * 201}, "string should have at most 200 characters"),
        ({"layer": 1}, "layer=1: input should be a valid string"),
        ({"against": "x"}, "against='x': expected a target as well"),
    ],
)
def test_what_is_wrong_with_a_state_is_one_line(given, message):
    with pytest.raises(InputError, match="^[^\n]*$") as raised:
        read_state(given, 2)
    assert message in str(raised.value)


def test_there_are_two_sides_only_if_they_differ():
    assert State("a").sides == (Side("a", 1),)
    assert State("a", before="a").sides == (Side("a", 1),)
    assert State("a", before="b").sides == (Side("a", 1), Side("b", 1))
    assert State("a", compare=2).sides == (Side("a", 1), Side("a", 2))
    assert State("a", before="b", chat=True).sides == (Side("a", 1, chat=True), Side("b", 1, chat=True))
    assert State("a", before="", model=2, compare=1).sides == (Side("a", 2), Side("", 1))
