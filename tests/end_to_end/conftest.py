import pytest
from matplotlib.figure import Figure

from normscope import pipeline
from normscope.reporting import run_folder
from tests.end_to_end.disturbed import SMALL
from tests.end_to_end.shell import start


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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, saved_model):
    """A run that nothing happens to, in a process of its own."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(*SMALL, f"model.name={saved_model}", f"output_dir={folder}", OMP_NUM_THREADS="1")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return folder
