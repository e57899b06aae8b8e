"""The captions of the documentation's pictures are text, once."""

import pytest

from docs.hooks import captions

PICTURE = "![What it is](../images/sinks.png)"


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setattr(captions, "IMAGES", tmp_path)
    return tmp_path


def test_a_caption_stands_below_its_picture_as_it_is_written(images):
    (images / "sinks.txt").write_text("Weight α_k of *sinks*,\n[CLS] first.\n")
    page = f"Before.\n\n{PICTURE}\n\nBehind.\n"
    expected = f"Before.\n\n{PICTURE}\n\n*Weight α\\_k of \\*sinks\\*, \\[CLS\\] first.*\n\nBehind.\n"
    assert captions.with_captions(page) == expected


@pytest.mark.parametrize("page", [f"{PICTURE}\n\n*A caption of its own.*\n", f"Within {PICTURE} a sentence.\n"])
def test_no_picture_has_two_captions(images, page):
    (images / "sinks.txt").write_text("Another.\n")
    assert captions.with_captions(page) == page


@pytest.mark.usefixtures("images")
def test_a_picture_without_a_text_stays_as_it_is():
    assert captions.with_captions(f"{PICTURE}\n\n**Bold.**\n") == f"{PICTURE}\n\n**Bold.**\n"
