import pytest
from matplotlib.figure import Figure

from normscope.reporting import run_folder


@pytest.fixture(autouse=True)
def quick_figures(request, monkeypatch):
    """Empty figures: drawing takes longer than all the rest of a small run. Tests that look at them are marked `draws`."""
    if "draws" not in request.keywords:
        monkeypatch.setattr(run_folder, "draw", lambda _figure, paths: [Figure((1, 1)).savefig(path) for path in paths])
