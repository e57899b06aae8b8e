"""Where the user's cache is."""

from normscope.translation.toy import _cache


def test_the_cache_is_where_the_user_wants_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _cache() == tmp_path / "cache" / "normscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    assert _cache() == tmp_path / ".cache" / "normscope"
