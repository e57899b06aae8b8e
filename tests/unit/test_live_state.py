"""The state of a live page: what its address says is what is shown, and what is wrong with it is one line."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.state import LONGEST_TEXT, RANKINGS, VIEW, Side, State, parse

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
STATES = st.builds(
    State,
    text=TEXTS,
    before=st.none() | TEXTS,
    model=st.integers(1, 3),
    compare=st.none() | st.integers(1, 3),
    chat=st.booleans(),
    level=st.sampled_from(Level),
    through=st.booleans(),
    target=NAMES,
    examples=st.sampled_from(["", *RANKINGS]),
    view=st.dictionaries(st.sampled_from(VIEW), NAMES, max_size=3),
)


@given(STATES)
def test_an_address_holds_the_whole_state(state):
    assert parse(dict(parse_qsl(state.address(), keep_blank_values=True)), 3) == state


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
