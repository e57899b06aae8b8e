import pytest
from matplotlib.figure import Figure

from normscope import pipeline
from normscope.reporting import run_folder


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch):
    """Empty figures: drawing takes longer than all the rest of a small run. Tests that look at them are marked `draws`."""
    if "draws" not in request.keywords:
        monkeypatch.setattr(run_folder, "draw", lambda _figure, paths: [Figure((1, 1)).savefig(path) for path in paths])


@pytest.fixture(autouse=True)
def quick_report(request, monkeypatch):
    """No explorer and an empty page, but for tests that look at them: those are marked `reports`."""
    if "reports" not in request.keywords:
        monkeypatch.setattr(pipeline, "_chosen", lambda *_: [])
        monkeypatch.setattr(pipeline, "page", lambda *_: "")
