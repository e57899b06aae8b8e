import pytest

from normscope.running import publish, session
from tests.end_to_end import forks
from tests.end_to_end.disturbed import SMALL
from tests.end_to_end.shell import draw_nothing


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch):
    """Empty figures, but for tests that look at them: those are marked `draws`."""
    if "draws" not in request.keywords:
        draw_nothing(monkeypatch)


@pytest.fixture(autouse=True)
def quick_report(request, monkeypatch):
    """No explorer and an empty page, but for tests that look at them: those are marked `reports`."""
    if "reports" not in request.keywords:
        monkeypatch.setattr(session, "_texts", lambda *_: [])
        monkeypatch.setattr(publish, "page", lambda *_: "")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, saved_model):
    """A run that nothing happens to, in a process of its own."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    outcome = forks.run(*SMALL, f"model.name={saved_model}", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder
