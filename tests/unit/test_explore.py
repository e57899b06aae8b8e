"""`explore`: the live page of a model in a notebook, which one call of the notebook or of the page uses at a time."""

import gc
import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
import weakref
from urllib.parse import urlsplit

import pytest
import torch

import normscope
from normscope.errors import InputError
from tests.one_text import decompose
from tests.tiny import sentence_encoder

TEXT = "The old bridge was closed, so we crossed the river."


@pytest.fixture(scope="module")
def model(saved_model, tmp_path_factory):
    return normscope.load(
        str(sentence_encoder(saved_model, tmp_path_factory.mktemp("encoder") / "model")), device="cpu"
    )


@pytest.fixture
def page(model):
    with normscope.explore(model, TEXT) as page:
        yield page


def ask(page, part="maps", **state):
    """What the page's server answers, with its status."""
    address, _, token = page.url.partition("#")[0].partition("?token=")
    body = json.dumps({"part": part, "state": {"text": TEXT} | state}).encode()
    headers = {"content-type": "application/json", "x-normscope-token": token}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}answer", body, headers), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ratios(answer):
    return torch.tensor(answer["by_layer"]["ratios"], dtype=torch.float64)


@pytest.mark.slow
def test_the_page_is_served_with_its_text_and_a_token(page, model):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S{20,}#text=The\+old\+bridge\S+", page.url)
    with urllib.request.urlopen(page.url.partition("#")[0]) as answer:
        assert "live" in answer.read().decode()
        assert "frame-ancestors" not in answer.headers["content-security-policy"]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(page.url.partition("?")[0])
    status, answer = ask(page)
    assert status == 200
    torch.testing.assert_close(ratios(answer), decompose(model, TEXT).ratios, rtol=1e-5, atol=0)
    shown = page._repr_html_()
    assert shown.startswith(f'<iframe src="{page.url.replace("&", "&amp;")}"')
    assert repr(page) == f"LivePage({model.name}, {page.url})"


def test_it_needs_neither_fastapi_nor_jupyter(model, monkeypatch):
    for name in ("fastapi", "IPython", "ipywidgets", "notebook", "jupyter"):
        monkeypatch.setitem(sys.modules, name, None)
    with normscope.explore(model) as page:
        assert ask(page)[0] == 200


@pytest.mark.parametrize("name", ["starlette", "uvicorn"])
def test_without_the_extra(model, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=f"^explore: {name} is not installed; run `pip install starlette uvicorn`$"):
        normscope.explore(model)


def test_what_is_wrong_is_one_line(model, page):
    taken = int(re.search(r":(\d+)/", page.url)[1])
    for arguments, message in (
        (
            {"port": taken},
            rf"^port={taken}: cannot listen on 127\.0\.0\.1: .*; set port to another number, or to 0 for any",
        ),
        ({"port": 70_000}, "^port=70000: expected a port from 0 to 65535$"),
        ({"tokens": 1}, "^tokens=1: expected at least 2$"),
        ({"text": 3}, "got int$"),
        ({"text": ("a ||| b", "c")}, "separates the two texts of a pair"),
        ({"text": [{"role": "user", "content": "a\nuser: b"}]}, "a line of a message begins with a role"),
    ):
        with pytest.raises(InputError, match=message):
            normscope.explore(model, **arguments)
    with pytest.raises(InputError, match=r"^model: expected a model from normscope\.load"):
        normscope.explore("model")
    assert not [each for each in threading.enumerate() if each.name == "normscope-page" and each != page._thread]


def test_a_long_text_is_cut_and_the_argument_is_named(model):
    with normscope.explore(model, "word " * 99, tokens=10) as page:
        assert ask(page, text="word " * 99)[1]["notes"] == ["The text is truncated to at most 10 tokens (tokens)."]


@pytest.mark.slow
def test_pairs_and_conversations_are_typed(model):
    with normscope.explore(model, ("We swam.", "They ran.")) as page:
        assert page.url.endswith("#text=We+swam.+%7C%7C%7C+They+ran.")
    with normscope.explore(
        model, [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}]
    ) as page:
        assert page.url.endswith("#text=user%3A+Hi.%0Aassistant%3A+Ho.&chat=1")


@pytest.mark.slow
def test_a_model_is_explored_twice_and_each_page_closes_by_itself(model):
    first, second = normscope.explore(model), normscope.explore(model)
    assert first.url.partition("?")[0] != second.url.partition("?")[0]
    first.close()
    first.close()
    assert repr(first) == f"LivePage({model.name}, closed)"
    assert "iframe" not in first._repr_html_()
    with pytest.raises(urllib.error.URLError):
        ask(first)
    assert ask(second)[0] == 200
    second.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("normscope")]


@pytest.mark.slow
def test_closing_releases_the_model(saved_model):
    model = normscope.load(str(saved_model), device="cpu")
    page = normscope.explore(model, TEXT)
    assert ask(page)[0] == 200
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is not None
    page.close()
    gc.collect()
    assert gone() is None


def test_a_page_that_is_closed_while_its_server_starts_leaves_no_port_open(saved_model, monkeypatch):
    async def ended(_server, sockets):  # as if it were stopped before it listens
        pass

    monkeypatch.setattr("uvicorn.Server.serve", ended)
    page = normscope.explore(normscope.load(str(saved_model), device="cpu"), TEXT)
    where = urlsplit(page.url)
    page.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((where.hostname, where.port), timeout=5)


@pytest.mark.slow
def test_where_the_reader_is_elsewhere_the_static_explorer_is_shown(page, model, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    shown = page._repr_html_()
    assert page.url.partition("#")[0] not in shown.partition("Live page, once you forward its port")[0]
    assert decompose(model, TEXT).result.explorer()._repr_html_()[:200] == shown[:200]


def test_while_a_notebook_uses_the_model_the_page_says_so(page, model):
    expected = decompose(model, TEXT).ratios
    status, answer = model.exclusively(lambda: ask(page))
    assert status == 200
    assert answer["error"].startswith("model: another call, or a loop over its blocks, is using it")
    torch.testing.assert_close(ratios(ask(page)[1]), expected, rtol=1e-5, atol=0)
