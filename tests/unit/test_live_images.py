"""The live page of a model of images: a file is sent, and the page of `normscope explain` comes back."""

import io
import re

import pytest
from starlette.testclient import TestClient

import normscope
from normscope.live import server
from normscope.live.server import TOKEN_HEADER, Access, app
from normscope.live.session import Session
from normscope.models.load import input_reading
from tests.contract.test_images import classifier, pixels, processor, vit
from tests.contract.test_towers import clip
from tests.contract.test_vectors import made
from tests.end_to_end.browser import needs_browser

BINARY = {"Content-Type": "application/octet-stream"}


def client_of(model):
    session = Session([model], 24)
    return session, TestClient(
        app(session, Access("secret")),
        "http://127.0.0.1:8765",
        raise_server_exceptions=False,
        headers={TOKEN_HEADER: "secret"},
    )


@pytest.fixture(scope="module")
def client():
    session, client = client_of(normscope.wrap(made(vit)[0], processor()))
    yield client
    assert session.engine.close(10)


def file_of(image, kind="PNG"):
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


def sent(client, content, **query):
    return client.post("/image", content=content, headers=BINARY, params=query)


def test_the_page_asks_for_an_image(client):
    page = client.get("/").text
    assert '<input type="file"' in page
    assert 'id="text"' not in page  # the model reads no texts


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_image_is_shown_as_explain_shows_it(client, kind):
    answer = sent(client, file_of(pixels(), kind), name="a/cat & dog.png")
    assert answer.status_code == 200, answer.text
    assert "<h1" in answer.text
    assert re.search(r"<title>cat &amp; dog.png in ", answer.text)
    assert "image-maps" in answer.text


@pytest.mark.slow
def test_what_patches_add_to_a_class_or_to_the_similarity_with_a_text(tokenizer):
    import transformers

    for build, query, expected in (
        (classifier, {}, "ogit of the class"),
        (clip, {"text": "a cat"}, "osine similarity"),
    ):
        reader = transformers.CLIPProcessor(image_processor=processor(), tokenizer=tokenizer)
        session, client = client_of(normscope.wrap(made(build)[0], reader))
        assert ('id="text"' in client.get("/").text) is bool(query)
        answer = sent(client, file_of(pixels()), name="x.png", **query)
        assert answer.status_code == 200, answer.text
        assert expected in answer.text
        assert session.engine.close(10)


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        (b"no image", 400, "image: cannot read this image: expected one of PNG, JPEG, WEBP, GIF, BMP, TIFF"),
        (b"", 400, "image: cannot read this image: expected one of PNG"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            400,
            "image: cannot read this image: expected one of PNG",
        ),
        (file_of(pixels())[:300], 400, "image: cannot read this image: "),
    ],
)
def test_what_is_no_image_is_refused(client, content, status, error):
    answer = sent(client, content, name="x.png")
    assert answer.status_code == status
    assert answer.json()["error"].startswith(error)
    assert "\n" not in answer.json()["error"]


def test_images_that_are_too_large_are_refused(client, monkeypatch):
    monkeypatch.setattr(input_reading, "MEGAPIXELS", 0.001)
    assert sent(client, file_of(pixels())).json()["error"] == (
        "image: expected at most 0.001 megapixels, got 32 × 32; make the image smaller"
    )
    monkeypatch.setattr(server, "LARGEST_IMAGE", 100)
    answer = sent(client, file_of(pixels()))
    assert (answer.status_code, answer.json()["error"]) == (413, "request: expected at most 100 bytes")


def test_strangers_and_other_sites_are_refused(client):
    content = file_of(pixels())
    assert client.post("/image", content=content, headers=BINARY | {TOKEN_HEADER: "x"}).status_code == 403
    assert client.post("/image", content=content, headers=BINARY | {"Origin": "http://elsewhere"}).status_code == 403
    assert client.post("/image", content=content, headers={"Content-Type": "image/png"}).status_code == 415


def test_a_model_of_texts_takes_no_image(saved_model):
    session, client = client_of(normscope.load(str(saved_model), device="cpu"))
    assert sent(client, file_of(pixels())).json()["error"].startswith("image: expected a text, which ")
    assert session.engine.close(10)


@needs_browser
@pytest.mark.slow
def test_a_dropped_image_is_shown_in_a_browser(tmp_path):
    import asyncio
    import base64
    import threading

    from tests.end_to_end.tabs import browsing

    session, listening = Session([normscope.wrap(made(vit)[0], processor())], 24), server.bound("127.0.0.1", 0)
    access = Access.of(listening, "127.0.0.1")
    running = server.Server(session, access)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve(sockets=[listening])))
    thread.start()
    content = base64.b64encode(file_of(pixels())).decode()
    try:
        with browsing(tmp_path) as browser:
            tab = browser.open(server.address(listening, "127.0.0.1", access.token))
            tab.until("document.getElementById('file')")
            for name, shown in (
                (content, "!document.getElementById('shown').hidden"),
                ("AAAA", "!document.getElementById('problem').hidden"),
            ):
                tab.run(
                    f"(() => {{ const bytes = Uint8Array.from(atob('{name}'), (each) => each.charCodeAt(0)); const given = new "
                    "DataTransfer(); given.items.add(new File([bytes], 'cat.png')); dispatchEvent(new DragEvent('drop', { "
                    "dataTransfer: given })); })()"
                )
                tab.until(shown)
            assert "cat.png in " in tab.run("document.getElementById('shown').srcdoc")
            assert "expected one of PNG" in tab.run("document.getElementById('problem').textContent")
            tab.close()
            assert [each for each in browser.said if "400" not in each] == []
    finally:
        running.stop()
        thread.join(10)
        listening.close()
