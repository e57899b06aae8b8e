"""The state of a live page: what its address says is what is shown, and what is wrong with it is one line."""

import pytest

from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.state import LONGEST_TEXT, VIEW, Side, State, parse


def test_an_address_is_read():
    given = {"text": "a", "before": "", "model": "2", "compare": "1", "chat": "1", "level": "word", "through": "1"}
    shown = {"target": "x", "against": "y"} | dict.fromkeys(VIEW, "3")
    assert parse(given | shown, 2) == State("a", "", 2, 1, True, Level.word, True, "x", "y")
    assert parse({}, 1) == State()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "state: expected an object with the values of the address, got NoneType"),
        ([], "state: expected an object with the values of the address, got list"),
        ({"text": 1}, "state: expected a text for text, got int"),
        ({"text": None}, "state: expected a text for text, got NoneType"),
        ({"txt": ""}, "state: unknown name 'txt'; expected some of text, before,"),
        ({"text": "x" * (LONGEST_TEXT + 1)}, "text: expected at most 100,000 characters, got 100,001"),
        ({"text": "\ud800"}, "text: expected text, got a character that no text has"),
        ({"model": "one"}, "model='one': expected a whole number"),
        ({"model": "²"}, "model='²': expected a whole number"),
        ({"model": "0"}, "model=0: expected a model from 1 to 2"),
        ({"compare": "3"}, "compare=3: expected a model from 1 to 2"),
        ({"level": "sentence"}, "level='sentence': expected one of token, word"),
        ({"chat": "yes"}, "chat='yes': expected 0 or 1"),
        ({"through": "yes"}, "through='yes': expected 0 or 1"),
        ({"target": "x" * 201}, "target: expected at most 200 characters, got 201"),
        ({"layer": "x" * 201}, "layer: expected at most 200 characters, got 201"),
        ({"against": "x"}, "against='x': expected a target as well"),
    ],
)
def test_what_is_wrong_with_a_state_is_one_line(given, message):
    with pytest.raises(InputError, match="^[^\n]*$") as raised:
        parse(given, 2)
    assert message in str(raised.value)


def test_there_are_two_sides_only_if_they_differ():
    assert State("a").sides == (Side("a", 1),)
    assert State("a", before="a").sides == (Side("a", 1),)
    assert State("a", before="b").sides == (Side("a", 1), Side("b", 1))
    assert State("a", compare=2).sides == (Side("a", 1), Side("a", 2))
    assert State("a", before="b", chat=True).sides == (Side("a", 1, chat=True), Side("b", 1, chat=True))
    assert State("a", before="", model=2, compare=1).sides == (Side("a", 2), Side("", 1))
