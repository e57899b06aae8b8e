"""`normscope serve`: the command, and its page in a real browser."""

import asyncio
import json
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlencode

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import normscope
from benchmarks import live
from normscope.live.server import TOKEN_HEADER, Access, Server, address, bound
from normscope.live.session import Session
from normscope.live.texts import opening
from normscope.results.token_labels import label
from normscope.rounding import number as written
from tests.end_to_end.browser import needs_browser
from tests.end_to_end.shell import run_here, start
from tests.end_to_end.tabs import browsing
from tests.one_text import attribute, decompose, similarity
from tests.tiny import saved_with_head, sentence_encoder, with_chat_template

TEXT = "The old bridge was closed, so we crossed the river."


@pytest.fixture(scope="module")
def loaded(saved_model, tokenizer, tmp_path_factory):
    """Loads the models, again with every call: one call at a time uses a model, and the page computes when it likes."""
    predicting = saved_with_head(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path_factory.mktemp("gpt2"))
    chatting = with_chat_template(
        saved_with_head(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path_factory.mktemp("chat"))
    )
    encoder = sentence_encoder(saved_model, tmp_path_factory.mktemp("encoder") / "model")
    return lambda: [
        normscope.load(str(encoder), device="cpu"),
        normscope.load(str(saved_model), random_init=True),
        normscope.load(str(predicting), device="cpu"),
        normscope.load(str(chatting), device="cpu"),
    ]


@pytest.fixture(scope="module")
def models(loaded):
    return loaded()


@pytest.fixture(scope="module")
def page(loaded):
    """The address of a page that is served by a thread."""
    session, listening = Session(loaded(), 64), bound("127.0.0.1", 0)
    access = Access.of(listening, "127.0.0.1")
    server = Server(session, access)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    yield address(listening, "127.0.0.1", access.token)
    server.stop()
    thread.join(10)
    listening.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def tab(browser, page):
    """A tab with the page, which must have said nothing on the console and asked nobody else once a test ends."""
    browser.said.clear()
    browser.fetched.clear()
    tab = browser.open(f"{page}#{urlencode({'text': TEXT})}")
    tab.until("document.querySelector('#explorer-root .ranks li')", seconds=10)
    yield tab
    tab.close()
    assert browser.said == []
    own = page.partition("?")[0]
    assert [each for each in browser.fetched if not each.startswith((own, "data:", "blob:"))] == []


def chips(tab):
    return tab.run("[...document.querySelectorAll('.tokens [data-at] > span')].map((each) => each.textContent)")


def choose(tab, menu, value):
    tab.run(
        f"(() => {{ const menu = document.querySelector('[name={menu}]'); menu.value = '{value}'; menu.onchange(); }})()"
    )


@needs_browser
def test_what_is_typed_is_shown(tab, models):
    assert chips(tab) == [*decompose(models[0], TEXT).tokens]
    tab.type("textarea", "a small <b>cat</b>")
    tab.until("document.querySelectorAll('.tokens [data-at]')[2].textContent === 'small'")
    decomposed = decompose(models[0], "a small <b>cat</b>")
    assert chips(tab) == [*decomposed.tokens]
    # What the chosen token receives in the last layer, as the lists say.
    choose(tab, "head", "0")
    tab.run("document.querySelector('.row-labels [data-at=\"1\"]').click()")
    received = decomposed.maps["attn_n"][-1, 1].numpy()
    largest = int(received.argmax())
    listed = tab.run("document.querySelector('#explorer-root .ranks li').innerText").split()
    assert listed[:2] == [decomposed.tokens[largest], f"({largest})"]
    assert float(listed[2]) == pytest.approx(received[largest], rel=5e-3)


@pytest.mark.slow
@needs_browser
def test_the_page_opens_on_a_question_with_an_answer(browser, page, models):
    """An encoder on two texts and what connects them; a causal model on what comes next."""
    shown = "document.querySelector('#prediction {}').textContent"
    tab = browser.open(page)
    tab.until("document.querySelector('.pair-sum b')")
    state = opening(models[0])
    assert tab.run("[...document.querySelectorAll('textarea')].map((each) => each.value)") == [*state.values()]
    assert tab.run(shown.format("h2")) == "Why are the two texts similar?"
    found = similarity(models[0], *state.values())
    matrix = found.matrix[:-1, :-1]
    row, column = np.unravel_index(matrix.argmax(), matrix.shape)
    first = f"{found.tokens_a[row]} – {found.tokens_b[column]} (+{written(float(matrix.max()))})"
    assert tab.run(shown.format(".answer-line")).startswith(f"The pairs that add most: {first}")
    assert not tab.run("document.querySelector('.tokens s')")  # one is no edit of the other
    assert tab.run("document.querySelector('.of-heads').hidden")
    tab.close()
    tab = browser.open(f"{page}#model=3")
    tab.until("document.querySelector('.answers li')")
    assert tab.run(shown.format("h2")) == "Which token comes next, and why?"
    likely = tab.run("document.querySelector('.answers .answer').textContent")
    assert tab.run(shown.format(".answer-line")).startswith(f"“{likely.strip()}” (")
    assert tab.run(shown.format(".answer-line")).endswith("it most.")
    tab.close()


MAP = "document.querySelector('#explorer-root .map-title').textContent"
PINNED = "document.querySelector('#explorer-root .row-labels .pinned')?.textContent"


@pytest.mark.slow
@needs_browser
def test_the_map_opens_where_the_answer_comes_from(browser, page, models):
    """At the head that adds most and the token that predicts, before [SEP]; once the reader has chosen, the map stays there."""
    tab = browser.open(f"{page}#{urlencode({'text': TEXT, 'model': '3'})}")
    tab.until("document.querySelector('.of-heads .link')")
    first, second = (
        attribute(models[2], text, normscope.NextToken(), by=["layer", "head"]) for text in (TEXT, "We swam")
    )
    heads = [
        each.effects[each.effects["part"] == "attention"].groupby(["layer", "head"])["value"].sum().abs().idxmax()
        for each in (first, second)
    ]
    (layer, head), (next_layer, next_head) = heads
    tab.until(f"{MAP} === '‖αf(x)‖ (weighted vector), layer {layer}, head {head:.0f}'")
    assert tab.run(PINNED) == label(first.tokens[-2])
    opened = "document.querySelector('#opened').textContent"
    assert tab.run(opened).endswith(f"“{label(first.tokens[-2])}”, the token that the answer is read from.")
    tab.type("textarea", "We swam")
    tab.until(f"{MAP} === '‖αf(x)‖ (weighted vector), layer {next_layer}, head {next_head:.0f}'")
    assert tab.run(PINNED) == label(second.tokens[-2])
    # Another one of the named heads; from now on, the reader has chosen.
    tab.click(".of-heads .link", 1)
    chosen = tab.run(MAP)
    assert chosen.endswith(
        tab.run("document.querySelectorAll('.of-heads .link')[1].textContent").replace(" head", ", head")
    )
    tab.type("textarea", TEXT)
    tab.until(f"document.querySelectorAll('.tokens [data-at]').length === {len(first.tokens)}")
    tab.until("!document.querySelector('.of-heads.stale')")
    assert tab.run(MAP) == chosen
    assert tab.run("document.querySelector('#opened').hidden")
    tab.close()


@pytest.mark.slow
@needs_browser
def test_a_question_waits_for_its_answer(browser, page):
    tab = browser.open(page)
    tab.until("document.getElementById('prediction')")
    shown = "document.querySelector('#prediction:not([hidden]) h2')"
    answered = "document.querySelector('.pair-sum b')"
    deadline = time.monotonic() + 30
    while (state := tab.run(f"[Boolean({shown}), Boolean({answered})]")) != [True, True]:
        assert state == [False, False], "a question without an answer"
        assert time.monotonic() < deadline
    tab.close()


@pytest.mark.slow
@needs_browser
def test_the_small_map_of_a_difference_names_its_largest_cell(tab, models):
    tab.click("[name=keep]")
    tab.type("textarea", TEXT.replace("closed", "open"))
    tab.until("document.querySelector('.strip small')")
    now, before = (decompose(models[0], text).maps["attn_n"] for text in (TEXT.replace("closed", "open"), TEXT))
    choose(tab, "head", "0")
    layer = int(tab.run(MAP).split("layer ")[1].split(",")[0])
    change = (now - before).numpy()[layer - 1]
    tokens = [label(token) for token in decompose(models[0], TEXT.replace("closed", "open")).tokens]
    said, value = tab.run("document.querySelector('.strip small').textContent").rsplit(" ", 1)
    row, column = map(tokens.index, said.split(" ← "))
    # The page has three digits of each value, so cells that differ by less are as large.
    assert abs(change[row, column]) == pytest.approx(np.abs(change).max(), rel=2e-2)
    assert float(value.replace("−", "-")) == pytest.approx(change[row, column], rel=3e-2)


@pytest.mark.slow
@needs_browser
def test_the_benchmark_sees_the_picture_of_an_edit(browser, page, monkeypatch):
    monkeypatch.setattr(live, "TEXT", "The old bridge was {word}.")
    tab = browser.open(f"{page}#{urlencode({'text': 'The old bridge was closed.'})}")
    tab.until("document.querySelector('#explorer-root .row-labels span') && !document.querySelector('.stale')")
    found = live._edited(tab, "open")
    assert 0 < found["map"] <= found["answer"] < 30_000
    assert "open" in chips(tab)
    tab.close()


@pytest.mark.slow
@needs_browser
def test_a_link_reproduces_the_page(tab, browser):
    tab.run("document.querySelector('[name=keep]').click()")
    tab.type("textarea", "The new bridge was closed, so we swam across the river.")
    tab.until("document.querySelectorAll('.tokens s').length")
    choose(tab, "head", "2")
    tab.click(".step", 0)
    tab.click(".strip button", 2)
    parts = json.dumps(["#explorer-root .map-title", ".tokens", "#explorer-root .lists"])
    shown = f"{parts}.map((part) => document.querySelector(part).innerText)"
    seen = tab.run(shown)
    assert "this text − the other text" in seen[0]
    other = browser.open(tab.run("location.href"))
    other.until("document.querySelector('#explorer-root .ranks li')")
    assert other.run(shown) == seen
    assert (
        other.run("document.querySelector('textarea').value")
        == "The new bridge was closed, so we swam across the river."
    )


@pytest.mark.slow
@needs_browser
def test_a_token_is_replaced_and_shows_what_it_was(tab, models):
    tab.click(".tokens [data-at='3']")
    tab.until("document.querySelector('.editing b')?.textContent === 'bridge'")
    tab.type(".editing input", "road")
    tab.click(".editing button", 0)
    tab.until("document.querySelector('.tokens [data-at=\"3\"] s')?.textContent === 'bridge'")
    assert tab.run("document.querySelector('textarea').value") == TEXT.replace("bridge", "road")
    tab.click(".strip button", 2)
    tab.run("document.querySelector('#explorer-root .row-labels [data-at=\"3\"]').click()")
    now, before = (decompose(models[0], text).maps["attn_n"][-1] for text in (TEXT.replace("bridge", "road"), TEXT))
    change = (now - before)[3].numpy()
    largest = int(abs(change).argmax())
    listed = tab.run("document.querySelector('#explorer-root .ranks li').innerText").split()
    assert listed[1] == f"({largest})"
    assert float(listed[2].replace("−", "-")) == pytest.approx(change[largest], rel=1e-2, abs=1e-3)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    "before",
    ["👩‍👩‍👧 😀😀 ", "😀 ||| the 𝔘 "],  # joined ones; a pair, with a letter beyond U+FFFF
)
def test_what_is_edited_after_an_emoji_is_what_was_chosen(tab, before):
    for last, word, button, changed in (
        ("swam", "bridge", 0, "road was 😀 swam"),
        ("small", "bridge", 1, "[MASK] was 😀 small"),
        ("cat", "cat", 2, "bridge was 😀"),
    ):
        tab.type("textarea", f"{before}bridge was 😀 {last}")
        chip = (
            "[...document.querySelectorAll('.tokens [data-at]')].find((each) => each.firstChild.textContent === '{}')"
        )
        tab.until(chip.format(last))
        tab.run(f"{chip.format(word)}.click()")
        tab.until(f"document.querySelector('.editing b')?.textContent === '{word}'")
        tab.run("document.querySelector('.editing input').value = 'road'")
        tab.click(".editing button", button)
        assert tab.run("document.querySelector('textarea').value") == f"{before}{changed}"


@pytest.mark.slow
@needs_browser
def test_a_token_is_masked_or_deleted(tab):
    for at, button, expected in ((2, 1, "The [MASK] bridge"), (2, 2, "The bridge")):
        tab.click(f".tokens [data-at='{at}']")
        tab.until("document.querySelector('.editing b')")
        tab.click(".editing button", button)
        tab.until(f"document.querySelector('textarea').value.startsWith('{expected}')")
        tab.until("document.querySelector('.tokens s')")
    tab.until("document.querySelector('.tokens .gone')?.textContent === 'old'")
    tab.click("[name=keep]")
    tab.until("!document.querySelector('.tokens s')")


@pytest.mark.slow
@needs_browser
def test_what_is_wrong_is_said_and_what_was_there_stays(tab):
    tokens = chips(tab)
    tab.type("textarea", "")
    tab.until("document.querySelector('#problem').textContent === 'text: expected a text, got an empty one'")
    assert chips(tab) == tokens
    tab.type("textarea", TEXT)
    tab.until("document.querySelector('#problem').hidden")


@pytest.mark.slow
@needs_browser
def test_models_words_and_maps_up_to_each_layer(tab, models):
    tab.click("[name=through]")
    tab.until("[...document.querySelector('[name=measure]').options].some(({ value }) => value === 'decompx')")
    tab.click("[name=level]")
    tab.until("document.querySelector('#maps-title').textContent === 'What each word receives from every other'")
    choose(tab, "model", "2")
    ratio = decompose(models[1], TEXT, level="word").ratios[-1, -1].mean()
    tab.until(f"document.querySelector('.mixing').textContent.includes('{100 * ratio:.1f}%')")


@pytest.mark.slow
@needs_browser
def test_a_prediction_is_clicked_and_a_head_is_shown(tab, models):
    model = models[2]
    choose(tab, "model", "3")
    tab.until("document.querySelectorAll('.answers li').length === 8")
    tab.click(".answers .answer", 1)
    tab.until("document.querySelectorAll('.answers .answer')[1].getAttribute('aria-pressed') === 'true'")
    first, second, third = tab.run(
        "[...document.querySelectorAll('.answers .answer')].slice(0, 3).map((each) => each.title)"
    )
    expected = attribute(model, TEXT, normscope.NextToken(second), against=first)
    titles = tab.run("[...document.querySelectorAll('.tokens [data-at]')].map((each) => each.title)")
    assert [title.rpartition("adds ")[2] for title in titles] == [
        written(score, signed=True) for score in expected.scores
    ]
    # Rather than the third one.
    tab.click(".answers span > button", 1)
    tab.until(f"document.querySelector('.sum').textContent.includes(`minus that of '${{{json.dumps(third)}}}'`)")
    # The first layer's second head, by its place in the map of heads.
    tab.until("document.querySelector('.of-heads .row-labels')?.children.length === 3")
    tab.run(
        "(() => { const box = document.querySelector('.of-heads .cells').getBoundingClientRect(); "
        "const event = { clientX: box.left + box.width * 0.375, clientY: box.top + 3, bubbles: true }; "
        "document.querySelector('.of-heads .cells').dispatchEvent(new MouseEvent('click', event)); })()"
    )
    tab.until("document.querySelector('.of-heads .editing b')?.textContent === 'layer 1 head 2'")
    tab.click(".of-heads .editing button", 0)
    tab.until("['layer=1', 'head=2'].every((each) => location.hash.slice(1).split('&').includes(each))")


@pytest.mark.slow
@needs_browser
def test_two_models_are_compared(tab, models):
    choose(tab, "compare", "2")
    tab.until("document.querySelectorAll('.strip button').length === 3")
    names = tab.run("[...document.querySelector('[name=model]').options].map(({ text }) => text)")
    assert tab.run("[...document.querySelectorAll('.strip button span')].map((each) => each.textContent)") == [
        *names[:2],
        "difference",
    ]
    assert f"pale: {names[1]}" in tab.run("document.querySelector('#mixing').textContent")
    tab.click(".strip button", 2)
    assert f": {names[0]} − {names[1]}" in tab.run("document.querySelector('#explorer-root .map-title').textContent")
    now, before = (decompose(model, TEXT).maps["attn_n"][-1, 1].numpy() for model in models[:2])
    change = now - before
    listed = tab.run("document.querySelector('#explorer-root .ranks li').innerText").split()
    at = int(listed[1][1:-1])
    assert abs(change[at]) == pytest.approx(abs(change).max(), rel=1e-2)
    assert float(listed[-1].replace("−", "-")) == pytest.approx(change[at], rel=1e-2, abs=1e-3)
    assert not tab.run("document.querySelector('.tokens s')")  # the same tokens in both
    # The slider, from one model to the next.
    ratio = decompose(models[2], TEXT).ratios[-1, -1].mean()
    tab.run(
        "(document.querySelector('[name=checkpoint]').value = 3, document.querySelector('[name=checkpoint]').oninput())"
    )
    tab.until(f"document.querySelector('.mixing').textContent.includes('{100 * ratio:.1f}%')")
    assert {"model=3", "compare=2"} <= {*tab.run("location.hash").split("&")}


@pytest.mark.slow
@needs_browser
def test_the_text_before_can_be_typed_too(tab, models):
    tab.click("[name=keep]")
    tab.until("!document.querySelector('textarea[aria-label=\"compared with\"]').closest('label').hidden")
    tab.type("textarea[aria-label='compared with']", "The old bridge was open, so we crossed the river.")
    tab.until("document.querySelector('.tokens s')?.textContent === 'open'")
    pair = similarity(models[0], TEXT, "The old bridge was open, so we crossed the river.")
    tab.until("document.querySelectorAll('.pair-text')[1]?.textContent.includes('open')")
    assert float(tab.run("document.querySelector('.pair-sum b').textContent")) == pytest.approx(pair.value, rel=5e-3)


@pytest.mark.slow
@needs_browser
def test_texts_that_were_typed_are_chosen(tab):
    tab.type("textarea", "We swam.")
    typed = "[...document.querySelectorAll('.texts li')].findIndex((each) => each.textContent === 'We swam.')"
    tab.until(f"{typed} === 0")
    tab.type("textarea", TEXT)
    tab.until(f"{typed} > 0")
    tab.run(f"document.querySelectorAll('.texts li')[{typed}].firstChild.click()")
    tab.until("document.querySelectorAll('.tokens [data-at]').length === 5")


@pytest.mark.slow
@needs_browser
def test_a_page_is_saved_and_shows_the_same_without_a_server(tab, browser, tmp_path):
    tab.click("[name=keep]")
    tab.type("textarea", "The </script> bridge was closed, so we crossed the river.")
    tab.until("document.querySelector('.tokens s') && document.querySelector('.pairs canvas')")
    tab.click(".strip button", 2)
    tab.until("document.querySelector('#progress').hidden")
    parts = json.dumps(["#explorer-root .legend", ".tokens", "#explorer-root .lists", "#prediction", "#mixing"])
    shown = f"{parts}.map((part) => document.querySelector(part).innerText)"
    seen = tab.run(shown)
    browser.keep_downloads(tmp_path)
    tab.click("#save")
    saved = tmp_path / "normscope.html"
    deadline = time.monotonic() + 20
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    asked = len(browser.fetched)
    other = browser.open(saved.as_uri())
    other.until("document.querySelector('.pairs canvas') && document.querySelector('#explorer-root .ranks li')")
    assert other.run(shown) == seen
    assert other.run("document.querySelector('textarea').readOnly")
    assert "connect-src" not in saved.read_text().partition("</head>")[0]
    assert set(browser.fetched[asked:]) <= {saved.as_uri(), "data:,"}
    other.close()
    browser.fetched[asked:] = []


@pytest.mark.slow
@needs_browser
def test_an_answer_is_shown_with_its_sources(tab, models):
    assert tab.run(
        "document.querySelector('[name=sources]').closest('label').hidden"
    )  # the first model gives no answer
    choose(tab, "model", "3")
    tab.type("textarea", "The bridge was closed. We swam.")
    tab.click("[name=sources]")
    tab.until("document.querySelectorAll('#sources-root .source-list li').length === 2 * 3")
    found = normscope.sources(models[2], "The bridge was closed. We swam.")
    named = tab.run("[...document.querySelectorAll('.source-name b')].map((each) => each.textContent)")
    assert named == found.table.sort_values("part", ascending=False, kind="stable")["source"].tolist()
    assert tab.run("document.querySelector('#answer-findings li').textContent") == found.sentences[0]
    tab.run("location.hash = '#text=We+swam.&model=1&sources=1'")
    tab.until("document.querySelector('#answer-findings').textContent.includes('gives no answer')")
    assert not tab.run("document.querySelector('#sources-root').checkVisibility()")


@pytest.mark.slow
@needs_browser
def test_a_conversation_is_typed(tab, models):
    text = "system: be brief.\nuser: We swam.\nassistant: We crossed the river."
    assert tab.run("document.querySelector('[name=chat]').closest('label').hidden")  # the first model has no template
    choose(tab, "model", "4")
    tab.type("textarea", text)
    tab.click("[name=chat]")
    tab.until("document.querySelectorAll('.tokens .role').length === 7")
    roles = tab.run("[...document.querySelectorAll('.tokens .role')].map((each) => each.textContent)")
    assert roles == ["template", "system", "template", "user", "template", "assistant", "template"]
    messages = [
        {"role": role, "content": said} for role, _, said in (line.partition(": ") for line in text.split("\n"))
    ]
    assert chips(tab) == [*decompose(models[3], messages).tokens]
    # Each role begins with a name beside its first row, and a line through the map.
    named = "[...document.querySelectorAll('.row-labels [data-role]')].map((each) => each.dataset.role)"
    assert tab.run(named) == roles
    assert tab.run("document.querySelectorAll('#explorer-root .borders .across').length") == 6
    tab.until("document.querySelector('.sum').textContent.includes('by span: template ')")
    # A token of a message is replaced where it was typed.
    at = chips(tab).index("swam")
    tab.click(f".tokens [data-at='{at}']")
    tab.type(".editing input", "closed")
    tab.click(".editing button", 0)
    tab.until("document.querySelector('textarea').value.includes('user: We closed.')")
    tab.until("document.querySelector('.tokens s')?.textContent === 'swam'")
    assert "chat=1" in tab.run("location.hash")


@pytest.mark.slow
@needs_browser
def test_a_notebook_shows_the_page_in_a_frame(browser, models, tmp_path, monkeypatch):
    with normscope.explore(models[0], TEXT) as page:
        (tmp_path / "notebook.html").write_text(page._repr_html_())
        asked, answer = [], page._session.answer
        monkeypatch.setattr(page._session, "answer", lambda body: asked.append(body["part"]) or answer(body))
        browser.said.clear()
        tab = browser.open((tmp_path / "notebook.html").as_uri())
        tab.until("document.querySelector('iframe').clientWidth > 300")
        end = time.monotonic() + 20
        while time.monotonic() < end and "heads" not in asked and "prediction" not in asked:
            time.sleep(0.05)
        assert "maps" in asked  # by the framed page
        assert browser.said == []
        tab.close()


@pytest.mark.slow
@needs_browser
def test_the_printed_address_logs_in_and_links_work_afterwards(browser, page, tmp_path):
    """Links, of a file and of the page itself, need the cookie, which the printed address sets; its token is seen nowhere."""
    plain, _, token = page.partition("?")
    browser.send("Storage.clearCookies")
    shown = "document.querySelector('.tokens [data-at]')"
    link = f"{plain}#text=We+swam."
    tab = browser.open(link)
    tab.until("document.body.innerText.includes('open the address that normscope printed')")
    assert not tab.run(shown)
    tab.go(f"{page}#text=The+cat.")
    tab.until(shown)
    assert tab.run("location.href") == f"{plain}#text=The+cat."
    assert token not in tab.run("document.documentElement.outerHTML + document.cookie + document.referrer")
    assert tab.run("history.length") <= 4
    tab.go(link)
    tab.until(f"{shown} && document.querySelector('textarea').value === 'We swam.'")
    # Another site's link brings no SameSite cookie along, and a page of another port must not ask.
    (tmp_path / "mail.html").write_text(f'<a href="{plain}#text=The+river.">link</a>')
    tab.go((tmp_path / "mail.html").as_uri())
    tab.until("document.querySelector('a')")
    tab.click("a")
    tab.until("document.querySelector('textarea')?.value === 'The river.'")
    tab.until(shown)
    assert tab.run("location.href") == f"{plain}#text=The+river."
    tab.close()
    browser.said.clear()  # that a page was refused


@pytest.mark.spread(1)
@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_nothing_is_wider_than_the_page(tab, width, dark):
    tab.look(width, 844, dark=dark)
    tab.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    tab.until("document.querySelector('.mixing').width.baseVal.value <= document.documentElement.clientWidth")


@pytest.mark.slow
def test_ctrl_c_ends_the_server_within_a_second(saved_model):
    process = start("serve", "live.port=0", f"model.name={saved_model}", "report.tokens=160")
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"normscope live: (http://127\.0\.0\.1:\d+/)\?token=(\S{22})   \(Ctrl-C stops\)\n", line)
    assert found, process.communicate()
    # In the middle of what takes seconds: forty texts.
    answers = []

    def ask(number):
        state = {"text": f"{number} " + "word " * 500}
        body = json.dumps({"part": "carried", "state": state}).encode()
        headers = {"content-type": "application/json", TOKEN_HEADER: found[2]}
        request = urllib.request.Request(f"{found[1]}answer", body, headers)
        try:
            urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            answers.append((error.code, json.load(error)))

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for each in asking:
        each.start()
    time.sleep(0.3)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert time.monotonic() - begun < 1
    assert process.communicate() == ("", "")
    for each in asking:
        each.join(10)
    assert answers
    assert all(answer == (409, {"outdated": True}) for answer in answers)


def test_a_port_in_use(capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = run_here(capsys, monkeypatch, "serve", f"live.port={port}")
    assert outcome.status == 2
    assert outcome.err == (
        f"normscope: live.port={port}: cannot listen on 127.0.0.1: [Errno 98] Address already in use; set live.port to another "
        "number, or to 0 for any free port\n"
    )


def test_the_address_has_the_token_and_a_name_that_others_reach():
    with bound("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert address(listening, "127.0.0.1", "secret") == f"http://127.0.0.1:{port}/?token=secret"
        assert address(listening, "::1", "secret") == f"http://[::1]:{port}/?token=secret"
        assert address(listening, "0.0.0.0", "secret") == f"http://{socket.gethostname()}:{port}/?token=secret"


@pytest.mark.slow
def test_without_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    outcome = run_here(capsys, monkeypatch, "serve")
    assert outcome.status == 2
    assert outcome.err == "normscope: serve: starlette is not installed; run `pip install starlette uvicorn`\n"
