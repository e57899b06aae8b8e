"""What is made once and read by later runs."""

import os

import pytest

from normscope.user_cache import folder, remembered


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "normscope"


def refused() -> bytes:
    raise AssertionError("made again")


def test_bytes_are_made_once(cache):
    assert remembered("a", lambda: b"first") == b"first"
    assert remembered("a", refused) == b"first"
    assert remembered("b", lambda: b"") == b""
    assert remembered("b", refused) == b""
    assert sorted(os.listdir(cache)) == ["a", "b"]


@pytest.mark.parametrize("damage", [lambda stored: stored[:-1], lambda stored: stored + b"x", lambda _: b""])
def test_a_damaged_file_is_made_again(cache, damage):
    remembered("a", lambda: b"content")
    (cache / "a").write_bytes(damage((cache / "a").read_bytes()))
    assert remembered("a", lambda: b"content") == b"content"
    assert remembered("a", refused) == b"content"


def test_without_a_cache_they_are_made_every_time(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    assert remembered("a", lambda: b"first") == b"first"
    assert remembered("a", lambda: b"second") == b"second"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", _homeless)
    assert remembered("a", lambda: b"third") == b"third"


def test_a_failed_write_leaves_nothing(cache, monkeypatch):
    def full(*_, **__) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert remembered("a", lambda: b"content") == b"content"
    assert os.listdir(cache) == []


def test_the_cache_is_where_the_user_wants_it(tmp_path, monkeypatch):
    assert folder() == tmp_path / "cache" / "normscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    assert folder() == tmp_path / ".cache" / "normscope"


def _homeless() -> None:
    raise RuntimeError("Could not determine home directory.")
