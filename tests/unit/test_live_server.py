"""The server of a live page: its answers are the Python interface's numbers, and whatever else is asked gets one line."""

import base64
import contextlib
import dataclasses
import datetime
import json
import re
import threading
import time
import zlib

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

import normscope
from normscope import Label, MaskedToken, NextToken
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live import answers
from normscope.live.answers import CARRIED, CHAINED
from normscope.live.server import LARGEST_BODY, TOKEN_HEADER, Access, app
from normscope.live.session import Session
from normscope.live.texts import SEPARATOR, Limit, opening, read, units_of
from normscope.rounding import brief_share
from tests.one_text import attribute, attribution_maps, decompose
from tests.tiny import saved_with_head as saved
from tests.tiny import sentence_encoder

TEXT = "The old bridge was closed, so we crossed the river."


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(str(saved_model), device="cpu")


@pytest.fixture(scope="module")
def session(model):
    session = Session([model, model], 24)
    yield session
    assert session.engine.close(10)


def client_of(session, base_url="http://127.0.0.1:8765"):
    """A client that shows the token."""
    return TestClient(
        app(session, Access("secret")), base_url, raise_server_exceptions=False, headers={TOKEN_HEADER: "secret"}
    )


@pytest.fixture(scope="module")
def client(session):
    return client_of(session)


IN_USE = "another call, or a loop over its blocks, is using it"


def ask(client, part="maps", side=0, **state):
    return client.post("/answer", json={"part": part, "side": side, "state": state})


def asked(client, part="maps", side=0, **state):
    answer = ask(client, part, side, **state)
    assert answer.status_code == 200, answer.text
    assert "error" not in answer.json(), answer.text
    return answer.json()


def unpacked(packed, shape):
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["codes"])), np.uint8).astype(int)
    codes = 256 * planes[: len(planes) // 2] + planes[len(planes) // 2 :]
    sizes = codes & ~(1 << 15)
    steps = np.minimum(sizes, 1000) * (1 + 1 / 1000) ** np.maximum(sizes - 1000, 0) / 65535
    values = np.where(codes >> 15, -steps, steps).reshape(shape)
    return values * np.array(packed["largest"]).reshape(-1, *[1] * (len(shape) - 1))


@pytest.mark.parametrize("level", ["token", "word"])
def test_maps_are_those_of_decompose(client, model, level):
    found = asked(client, text=TEXT, level=level)
    expected = decompose(model, TEXT, heads=True, level=level)
    assert found["tokens"] == [*expected.tokens]
    for name, values in expected.maps.items():
        shown = unpacked(found["maps"]["maps"][name], values.shape)
        assert np.abs(shown - values.numpy()).max() <= 1e-3 * np.abs(values.numpy()).max()
    weights = unpacked(found["maps"]["head_maps"]["attn_w"], expected.head_maps["attn_w"].shape)
    assert np.abs(weights - expected.head_maps["attn_w"].numpy()).max() <= 1e-3
    np.testing.assert_allclose(found["by_layer"]["ratios"], expected.ratios, rtol=1e-5)
    assert found["by_layer"]["methods"] == [*expected.methods]


def test_maps_up_to_each_layer_are_those_of_attribution_maps(client, model):
    found = {"maps": {}}
    for part in ("chained", "carried"):
        found["maps"] |= asked(client, part, text=TEXT)["maps"]
    for method in (*CHAINED, *CARRIED):
        expected = attribution_maps(model, TEXT, [method])[method].cumulative
        count = expected.shape[1]
        shown = unpacked(found["maps"][method], (len(expected), count, count))
        assert np.abs(shown - expected[:, :, :count]).max() <= 1e-3 * np.abs(expected).max()


def test_a_sink_is_told_from_the_weights_of_the_maps(tokenizer, tmp_path, monkeypatch):
    """Both parts of one page need them, and they are computed once."""
    model = normscope.load(str(saved(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path)), device="cpu")
    calls = []
    monkeypatch.setattr(
        answers, "decompose", lambda *given, **options: calls.append(options) or normscope.decompose(*given, **options)
    )
    monkeypatch.setattr(answers, "_SINK", 0.0)
    session = Session([model], 24, keeps=True)
    client = client_of(session)
    asked(client, "maps", text=TEXT)
    assert len(calls) == 1
    weight = float(decompose(model, TEXT).maps["attn_w"][:, 1:, 0].mean())
    assert (
        f"give it {brief_share(weight)} of their attention" in asked(client, "prediction", text=TEXT)["first"]["said"]
    )
    assert len(calls) == 1
    assert "sink" in asked(client, "prediction", text="We swam.")["first"]["said"]
    assert len(calls) == 2
    assert session.engine.close(10)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("auto", "family", "shown"),
    [
        (AutoModelForSequenceClassification, "bert", {"text": "The film was long, but I was never bored."}),
        (AutoModelForMaskedLM, "bert", {"text": "The capital of France is [MASK]."}),
        (AutoModelForCausalLM, "gpt2", {"text": "The capital of France is"}),
    ],
)
def test_the_page_opens_on_what_the_checkpoint_predicts(tokenizer, tmp_path, auto, family, shown):
    model = normscope.load(str(saved(auto, family, tokenizer, tmp_path)), device="cpu")
    assert opening(model) == shown
    session = Session([model], 24)
    assert session.about()["models"][0]["opening"] == shown
    assert asked(client_of(session), "prediction", **shown)["choices"]
    assert session.engine.close(10)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("auto", "family", "text"),
    [
        (AutoModelForSequenceClassification, "bert", TEXT),
        (AutoModelForMaskedLM, "bert", "The old bridge was [MASK]."),
        (AutoModelForCausalLM, "gpt2", TEXT),
    ],
)
def test_predictions_are_those_of_the_whole_checkpoint(tokenizer, tmp_path, auto, family, text):
    folder = saved(auto, family, tokenizer, tmp_path)
    model = normscope.load(str(folder))
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        logits = auto.from_pretrained(folder)(**inputs).logits[0]
    if family == "gpt2":
        logits = logits[-2]  # before [SEP]
    elif auto is AutoModelForMaskedLM:
        logits = logits[int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0])]

    def name(number):
        return f"LABEL_{number}" if logits.ndim and len(logits) < 9 else tokenizer.convert_ids_to_tokens(number)

    order = logits.argsort(descending=True).tolist()
    best, other = name(order[0]), name(order[-1])
    session = Session([model], 24)
    client = client_of(session)
    found = asked(client, "prediction", text=text)
    assert [chosen for chosen, _ in found["choices"]] == [name(number) for number in order[:8]]
    likely = logits.double().softmax(dim=-1)[order[:8]]
    np.testing.assert_allclose([probability for _, probability in found["choices"]], likely, rtol=1e-4)
    assert found["target"] == best
    # Why the best rather than the second, and why any other rather than the best.
    assert found["against"] == name(order[1])
    assert found["value"] == pytest.approx(float(logits[order[0]] - logits[order[1]]), rel=1e-3)
    last = asked(client, "prediction", text=text, target=other)
    assert (last["against"], last["value"]) == (best, pytest.approx(float(logits.min() - logits.max()), rel=1e-4))
    first = found["first"]["value"] if found["first"] else 0.0
    assert sum(found["scores"]) + first + found["bias"] + found["remainder"] == pytest.approx(found["value"], rel=1e-3)
    # Why the best rather than the worst, by token and by head.
    rather = asked(client, "prediction", text=text, target=best, against=other)
    assert other in [chosen for chosen, _ in rather["choices"]]
    assert rather["value"] == pytest.approx(float(logits[order[0]] - logits[order[-1]]), rel=1e-3)
    heads = asked(client, "heads", text=text, target=best, against=other)
    aim = {"bert": Label if len(logits) < 9 else MaskedToken, "gpt2": NextToken}[family](best)
    expected = attribute(model, text, aim, against=other, by=["layer", "head"]).effects
    of_heads = expected[expected["part"] == "attention"]
    assert heads["layers"] == [1, 2, 3]
    np.testing.assert_allclose(np.ravel(heads["values"]), of_heads["value"], rtol=1e-5, atol=1e-9)
    wrong = client.post("/answer", json={"part": "prediction", "state": {"text": text, "target": "no such answer"}})
    assert "no such answer" in wrong.json()["error"]
    assert session.engine.close(5)


def test_the_sources_of_an_answer_are_those_of_the_whole_text(tokenizer, tmp_path, client):
    model = normscope.load(str(saved(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path)), device="cpu")
    session = Session([model], 4)
    text = "We swam.\n\nThe bridge was closed.\n\nWhat was closed?"
    shown = asked(client_of(session), "sources", text=text, sources="1")
    found = normscope.sources(normscope.load(str(tmp_path), device="cpu"), text)
    assert [each["source"] for each in shown["sources"]] == found.table["source"].tolist()
    np.testing.assert_allclose(np.sum(shown["parts"], axis=0), found.table["part"], rtol=1e-4, atol=1e-5)
    assert shown["findings"] == found.sentences
    assert json.loads(session.saved({"text": text, "sources": "1"})["answers"]["sources 0"]) == shown
    assert "sources 0" not in session.saved({"text": text})["answers"]
    assert [each["answers"] for each in session.about()["models"]] == [True]
    session.engine.close(1)
    assert "gives no answer" in ask(client, "sources", text=text).json()["error"]


@pytest.mark.slow
def test_an_embedding_and_the_similarity_of_two(saved_model, tmp_path):
    folder = sentence_encoder(saved_model, tmp_path / "encoder")
    model = normscope.load(str(folder))
    session = Session([model], 24)
    client = client_of(session)
    found = asked(client, "prediction", text=TEXT)
    assert (found["what"], found["choices"], found["target"]) == ("embedding", [], "")
    assert found["value"] == pytest.approx(1), "shares of the embedding along its own direction"
    pair = asked(client, "pair", text=TEXT, before="We swam.")
    other = "We swam."
    with torch.inference_mode():
        hiddens = [
            model.model(**model.tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in (TEXT, other)
        ]
    cosine = torch.cosine_similarity(*(hidden.mean(dim=0) for hidden in hiddens), dim=0)
    assert sum(pair["values"]) == pytest.approx(float(cosine), rel=1e-3)
    refused = client.post("/answer", json={"part": "pair", "state": {"text": TEXT}})
    assert "expected another text in the same model" in refused.json()["error"]
    refused = client.post("/answer", json={"part": "prediction", "state": {"text": TEXT, "target": "x"}})
    assert "the model computes no predictions for this text" in refused.json()["error"]
    assert session.engine.close(5)


@pytest.mark.parametrize("level", [*Level])
@pytest.mark.parametrize("text", [TEXT, f"An unbelievable{SEPARATOR}second  text", " a\n b"])
def test_places_are_where_tokens_lie_in_what_was_typed(model, text, level):
    places = units_of(model, read(model, text, Limit(24)), level).places
    tokens = decompose(model, (*text.split(SEPARATOR),) if SEPARATOR in text else text, level=str(level)).tokens
    assert len(places) == len(tokens)
    for place, token in zip(places, tokens, strict=True):
        if place is None:
            assert token in ("[CLS]", "[SEP]")
        else:
            assert text[slice(*place)].lower() == token.removeprefix("##")


@pytest.mark.parametrize(
    "text",
    ["word " * 10_000, "unbelievabilities " * 300, "x" * 50_000, "一" * 5_000, f"a b c{SEPARATOR}" + "word " * 900],
)
def test_a_long_text_is_cut_and_the_page_says_so(model, text):
    cut, _, note, _ = read(model, text, Limit(24))
    assert text.startswith(cut)
    count = len(model.tokenizer(*cut.split(SEPARATOR))["input_ids"])
    assert count <= 24
    if len(cut) < len(text):
        assert note == "The text is truncated to at most 24 tokens (report.tokens)."
        assert len(model.tokenizer(*text[: len(cut) + 40].split(SEPARATOR))["input_ids"]) > 24
    else:
        assert note == ""


BAD_BODIES = [
    ("", "request: expected JSON"),
    ("{", "request: expected JSON"),
    ("[" * 100_000, "request: expected JSON"),
    (b"\xff\xfe", "request: expected JSON"),
    ("[]", "request=[]: expected values by name"),
    ("1", "request=1: expected values by name"),
    ("null", "request=null: expected values by name"),
    ("{}", "part: expected one of maps, chained, carried, prediction, heads, pair, sources, got nothing"),
    ('{"part": []}', "part=[]: expected one of maps, chained"),
    ('{"part": "maps"}', "state: expected values by name, got nothing"),
    ('{"part": "maps", "state": {"text": ""}}', "text: expected a text, got an empty one"),
    ('{"part": "maps", "state": {"text": " \\n "}}', "text: expected a text, got an empty one"),
    ('{"part": "maps", "state": {"text": "a"}, "side": 1}', "side=1: expected a number below 1"),
    ('{"part": "maps", "state": {"text": "a"}, "side": true}', "side=true: expected a whole number"),
    ('{"part": "maps", "state": {"text": "a"}, "number": 1.5}', "number=1.5: expected a whole number from 0"),
    (
        '{"part": "maps", "state": {"text": "a"}, "number": -1}',
        "number=-1: expected a whole number from 0 to below 9,007,199,254,740,992",
    ),
    (
        '{"part": "maps", "state": {"text": "a"}, "tab": "<b>"}',
        "tab=<b>: expected at most 40 letters, digits and hyphens",
    ),
    ('{"part": "maps", "state": {"text": "\\ud800"}}', ": expected text of at most 100,000 characters"),
]


@pytest.mark.spread(6)
@pytest.mark.parametrize(("body", "message"), BAD_BODIES)
def test_a_bad_request_gets_one_line_and_the_server_goes_on(client, capsys, body, message):
    answer = client.post("/answer", content=body, headers={"content-type": "application/json"})
    of_text = message.startswith("text: expected a text")
    assert answer.status_code == (200 if of_text else 400)
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert capsys.readouterr().err.count("\n") <= 1
    assert asked(client, text=TEXT)["tokens"]


def test_the_same_error_is_printed_once(client, capsys):
    for _ in range(3):
        client.post("/answer", json={"part": "never"})
    assert (
        capsys.readouterr().err
        == "normscope: part=never: expected one of maps, chained, carried, prediction, heads, pair, sources\n"
    )


def test_a_request_that_is_too_large_is_refused_without_being_kept(client):
    def parts():
        for _ in range(100):
            yield b" " * 1_000_000

    answer = client.post("/answer", content=parts(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json() == {"error": f"request: expected at most {LARGEST_BODY:,} bytes"}


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8765"}, 421),
        ({"host": "evil.example@127.0.0.1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:8765"}, 403),
        ({"origin": "http://127.0.0.1:9"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"origin": "http://127.0.0.1:8765"}, 200),
        ({"host": "localhost:9000", "origin": "http://localhost:9000"}, 200),  # a forwarded port
        ({"host": "[::1]:8765"}, 200),
    ],
)
def test_only_a_page_of_this_server_may_ask(client, headers, status):
    body = json.dumps({"part": "maps", "state": {"text": TEXT}})
    answer = client.post("/answer", content=body, headers=JSON | headers)
    assert answer.status_code == status, answer.text


BODY = {"part": "maps", "state": {"text": TEXT}}


@pytest.mark.parametrize("hosts", [frozenset({"127.0.0.1"}), None], ids=["local", "any"])
def test_nothing_is_answered_without_the_token(session, capsys, hosts):
    client = TestClient(app(session, Access("secret", hosts)), "http://127.0.0.1:8765", follow_redirects=False)
    refused = [
        client.get("/"),
        client.get("/", headers={"cookie": "normscope-8765=secre"}),
        client.get("/", headers={"cookie": "normscope-9000=secret"}),  # another server's
        client.get("/?token=secre"),
        client.get("/?token="),
        client.get("/?token=secr%C3%A9t"),
        client.get("/?token=%ED%A0%80"),
    ]
    assert {answer.status_code for answer in refused} == {403}
    assert len({answer.text for answer in refused}) == 1  # a wrong token is told no more than none
    for headers in ({}, {TOKEN_HEADER: "x"}, {"cookie": "normscope-8765=x"}, {TOKEN_HEADER: ""}):
        for path in ("/answer", "/answer?token=secret"):
            assert client.post(path, json=BODY, headers=headers).status_code == 403
    assert client.post("/answer", json=BODY, headers={TOKEN_HEADER: "secret"}).status_code == 200
    wrong = {TOKEN_HEADER: "secret", "origin": "http://a"}
    assert client.post("/answer", json=BODY, headers=wrong).status_code == 403
    assert "secret" not in capsys.readouterr().err


def test_opening_the_printed_address_sets_a_cookie_and_links_need_no_token(session):
    client = TestClient(app(session, Access("secret")), "http://localhost:9000")
    opened = client.get("/?token=secret", follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert opened.headers["set-cookie"] == "normscope-9000=secret; HttpOnly; Path=/; SameSite=strict"
    assert opened.headers["referrer-policy"] == "no-referrer"
    page = client.get("/")
    assert page.status_code == 200
    assert "secret" not in page.text
    assert client.get("/?again", follow_redirects=False).headers["location"] == "/"
    assert client.post("/answer", json=BODY).status_code == 200
    crossed = client.post("/answer", json=BODY, headers={"origin": "http://localhost:1"})
    assert crossed.status_code == 403  # the browser's cookie is not enough for another port's page


def test_a_frame_gets_the_page_and_keeps_its_token(session):
    client = TestClient(app(session, Access("secret", framed=True)), "http://127.0.0.1:1", follow_redirects=False)
    assert client.get("/?token=x", headers={"sec-fetch-dest": "iframe"}).status_code == 403
    framed = client.get("/?token=secret", headers={"sec-fetch-dest": "iframe"})
    assert framed.status_code == 200
    assert "set-cookie" not in framed.headers
    assert client.get("/?token=secret", headers={"sec-fetch-dest": "document"}).status_code == 303


@pytest.mark.parametrize("hosts", [frozenset({"localhost", "127.0.0.1"}), None], ids=["local", "any"])
@pytest.mark.parametrize(
    "host", ["", " ", "localhost\t", "localhost ", "local host", "localhost:", "a@localhost", "[::1"]
)
def test_a_host_that_no_browser_sends_is_refused(session, host, hosts):
    client = TestClient(app(session, Access("secret", hosts)), "http://localhost")
    assert client.post("/answer", json=BODY, headers={TOKEN_HEADER: "secret", "host": host}).status_code == 421


@pytest.mark.slow
def test_strangers_cannot_flood_the_terminal(session, capsys):
    client = TestClient(app(session, Access("secret")), "http://localhost")
    session._said_once.clear()
    for number in range(50):
        client.get("/")
        client.get(f"/{number}")
        client.get("/", headers={"host": f"evil-{number}"})
        client.post("/answer", json=BODY, headers={"origin": f"http://evil-{number}"})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.endswith("(printed once)") for line in lines)


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/answer", 405), ("/../etc/passwd", 404), ("/x", 404)])
def test_every_answer_says_what_a_browser_may_do(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("; connect-src 'self'; frame-ancestors 'none'")
    assert "http" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "state", [{"text": "a b"}, {"text": "a b", "through": "1"}, {"text": "a", "before": "b", "through": "1"}]
)
def test_a_page_is_saved_part_by_part(session, state):
    bars = []

    def progress(steps, total, title):
        parts = [*steps]
        bars.append((total, len(parts), title))
        return parts

    assert session.saved(state, progress) == session.saved(state)
    ((total, parts, title),) = bars
    assert (total, title) == (parts, "parts of the page")


@pytest.mark.parametrize("path", ["/answer", "/saved"])
@pytest.mark.parametrize(
    "body",
    [
        {"part": "maps", "state": {"\ud800": "x", "text": "a"}},
        {"part": "maps", "state": {"text": "\ud800"}},
        {"part": "maps", "state": {"text": "a", "model": "\udfff"}},
        {"\ud800": 1, "state": {"text": "\udc00"}},
        ["\ud800"],
    ],
)
def test_half_a_sign_is_refused_in_one_line(client, capsys, path, body):
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert len(answer.json()["error"].splitlines()) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_keeps_its_traceback_in_the_terminal_and_the_server_goes_on(client, session, capsys, monkeypatch):
    monkeypatch.setattr(session.answers, "maps", lambda *_: 1 / 0)
    answer = client.post("/answer", json={"part": "maps", "state": {"text": "zero"}})
    assert answer.status_code == 500
    assert answer.json()["error"].endswith("ZeroDivisionError: division by zero")
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.undo()
    assert asked(client, text="zero")["tokens"]


def test_names_and_texts_are_never_markup(model):
    named = dataclasses.replace(model, name="</script><script>alert(1)</script>")
    _ = named.verification
    session = Session([named], 24)
    page = client_of(session).get("/").text
    assert "<script>alert" not in page
    session.engine.close(1)


@pytest.mark.slow
def test_a_saved_page_has_its_answers_and_asks_nobody(session, client):
    state = {"text": TEXT, "before": "</script><b>", "layer": "2"}
    page = session.saved_page(state)
    assert "connect-src" not in page.partition("</head>")[0]
    assert "</script><b>" not in page
    (held,) = re.findall(r'<script type="application/json" id="saved">(.*?)</script>', page)
    answers = json.loads(held)["answers"]
    assert {"maps 0", "maps 1", "prediction 0", "prediction 1", "heads 0"} <= answers.keys()
    assert json.loads(answers["maps 1"]) == asked(client, side=1, **state)
    with pytest.raises(InputError, match="text: expected a text, got an empty one"):
        session.saved_page({"text": ""})


@pytest.mark.slow
def test_the_server_saves_the_page(session, client):
    state = {"text": TEXT, "layer": "2"}
    saved = client.post("/saved", json={"state": state})
    assert saved.status_code == 200
    today = datetime.date.today().isoformat()
    assert saved.text == session.saved_page(state, when=today)
    assert today in saved.text
    for body, status in (({"state": {"text": ""}}, 400), ({}, 400), ([], 400)):
        refused = client.post("/saved", json=body)
        assert refused.status_code == status
        assert list(refused.json()) == ["error"]
    strange = TestClient(app(session, Access("secret")), "http://127.0.0.1:8765")
    assert strange.post("/saved", json={"state": state}).status_code == 403


@pytest.mark.slow
def test_another_thread_may_use_the_model(tokenizer, tmp_path):
    """As a notebook does whose page is open: an answer is right, or says that the model is in use."""
    model = normscope.load(str(saved(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path)))
    session = Session([model], 24)
    client = client_of(session)
    expected = [asked(client, "prediction", text=f"{TEXT} {number}") for number in range(20)]
    stop = threading.Event()

    def use():
        while not stop.is_set():
            with contextlib.suppress(InputError):
                decompose(model, TEXT)
            time.sleep(0.02)

    thread = threading.Thread(target=use)
    thread.start()
    answered = 0
    end = time.monotonic() + 20
    try:
        while answered < 20 and time.monotonic() < end:
            number = answered
            session.engine._results.clear()
            found = ask(client, "prediction", text=f"{TEXT} {number}").json()
            if IN_USE in found.get("error", found.get("note", "")):
                continue
            assert found == expected[number]
            answered += 1
    finally:
        stop.set()
        thread.join()
    assert answered == 20
    assert session.engine.close(5)
