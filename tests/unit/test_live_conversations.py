"""Conversations in the text box: read as messages, cut, located, and explained."""

import re

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import normscope
from normscope.errors import InputError
from normscope.live.session import Session
from normscope.live.texts import Limit, messages_of, read, units_of
from normscope.models.load.text_batches import roles_of
from normscope.rounding import number
from tests.end_to_end.shell import run_here
from tests.one_text import attribute, decompose
from tests.tiny import saved_with_head, with_chat_template
from tests.unit.test_live_server import asked, client_of

TYPED = "system: be brief.\nuser:  The old bridge\n  was closed. \nassistant: We swam.\nuser: We crossed the river."
MESSAGES = [
    {"role": "system", "content": "be brief."},
    {"role": "user", "content": "The old bridge\n  was closed."},
    {"role": "assistant", "content": "We swam."},
    {"role": "user", "content": "We crossed the river."},
]


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    folder = saved_with_head(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path_factory.mktemp("chat"))
    return with_chat_template(folder)


@pytest.fixture(scope="module")
def model(folder):
    return normscope.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def client(model, saved_model):
    models = [model, normscope.load(str(saved_model), device="cpu")]
    session = Session(models, 100, keeps=True)
    yield client_of(session)
    assert session.engine.close(5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", [("user", "Hello")]),
        ("user: a: b\nsystem of: c", [("user", "a: b\nsystem of: c")]),
        (" \nuser: a\n\nassistant:", [("user", "a\n"), ("assistant", "")]),
        ("first\nassistant:second", [("user", "first"), ("assistant", "second")]),
        ("tool: 1\ndeveloper: 2", [("tool", "1"), ("developer", "2")]),
    ],
)
def test_messages_begin_with_their_roles(text, expected):
    messages = messages_of(text)
    assert [(each.role, each.content) for each in messages] == expected
    for each in messages:
        assert text[each.start :].startswith(each.content)


@pytest.mark.spread(1)
@pytest.mark.parametrize("level", ["token", "word"])
def test_maps_have_roles_and_places(client, model, level):
    found = asked(client, text=TYPED, chat="1", level=level)
    expected = decompose(model, MESSAGES, level=level)
    assert found["tokens"] == [*expected.tokens]
    np.testing.assert_allclose(found["by_layer"]["ratios"], expected.ratios, rtol=1e-5)
    roles = found["roles"]
    assert len(roles) == len(found["tokens"])
    if level == "token":
        assert roles == roles_of(model, MESSAGES)
    assert [role for at, role in enumerate(roles) if role != "template" and roles[at - 1] != role] == [
        "system", "user", "assistant", "user"
    ]  # fmt: skip
    # Tokens of messages are what was typed in their places; those of the template have none.
    for token, role, place in zip(found["tokens"], roles, found["places"], strict=True):
        assert (place is None) == (role == "template")
        if place is not None:
            assert TYPED[slice(*place)].lower() == token.removeprefix("##")
    assert {TYPED[slice(*place)] for place in found["places"] if place} >= {"bridge", "river"}


@pytest.mark.slow
def test_predictions_are_those_of_the_conversation(client, model):
    found = asked(client, "prediction", text=TYPED, chat="1")
    best, second = (name for name, _ in found["choices"][:2])
    assert (found["target"], found["against"]) == (best, second)
    expected = attribute(model, MESSAGES, normscope.NextToken(best), against=second)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)
    assert found["value"] == expected.target
    assert found["sum"] == expected.sentence
    assert set(expected.spans) == {"system", "user", "assistant", "template"}
    assert "by span" not in asked(client, "prediction", text=TYPED)["sum"]
    before = asked(client, side=1, text=TYPED, before="user: We swam.", chat="1")
    assert before["tokens"] == [*decompose(model, [{"role": "user", "content": "We swam."}]).tokens]


@pytest.mark.slow
def test_explain_says_the_same(client, folder, capsys, monkeypatch, tmp_path):
    predicted = asked(client, "prediction", text=TYPED, chat="1")
    keys = (f"model.name={folder}", "device.name=cpu", "dataset=text", "dataset.chat_template=true")
    outcome = run_here(capsys, monkeypatch, "explain", "--", TYPED, *keys, f"output_dir={tmp_path}")
    assert outcome.status == 0, outcome.err
    assert predicted["sum"] in " ".join(outcome.out.split())
    largest = sorted(predicted["scores"], key=abs, reverse=True)[:8]
    shown = re.findall(r"^  +([+−]\d\S*)  ", outcome.out, re.MULTILINE)
    assert shown == [number(score, signed=True) for score in largest]


def test_a_long_conversation_is_cut(model):
    text = TYPED + " We swam" * 500
    cut = read(model, text, Limit(60), chat=True)
    assert text.startswith(cut.text)
    assert cut.note == "The text is truncated to at most 60 tokens (report.tokens)."
    assert 57 <= len(roles_of(model, cut.given)) <= 60
    assert len(units_of(model, cut, "token").places) <= 60
    with pytest.raises(
        InputError, match="^text: the chat template of .* alone takes more than 5 tokens \\(report.tokens\\)$"
    ):
        read(model, text, Limit(5), chat=True)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"text": "", "chat": "1"}, "text: expected a text, got an empty one"),
        ({"text": "user: \nassistant: ", "chat": "1"}, "messages: expected text in each of them, got: empty"),
        ({"text": "We swam.", "chat": "1", "model": "2"}, "has no chat template"),
    ],
)
def test_what_is_wrong_is_one_line(client, state, message):
    answer = client.post("/answer", json={"part": "maps", "state": state}).json()
    assert message in answer["error"]
    assert "\n" not in answer["error"]
    assert "dataset.chat_template" not in answer["error"]
