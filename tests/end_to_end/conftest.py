import pytest

from tests.end_to_end import forks
from tests.end_to_end.disturbed import SMALL


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, saved_model):
    """A run that nothing happens to, in a process of its own."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = forks.run(*SMALL, f"model.name={saved_model}", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder


@pytest.fixture
def small_toy(monkeypatch, tmp_path) -> None:
    """The toy translation model is tiny, trained in a second, and kept in a cache of its own."""
    from normscope.translation import toy  # imports transformers' trainer, which takes seconds
    from normscope.translation.training import Recipe

    small = Recipe(epochs=1, vocabulary=150, model=16, feed_forward=16, heads=2, encoder_layers=1, decoder_layers=2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(toy, "RECIPE", small)
    monkeypatch.setattr(toy, "PAIRS", 64)
