"""The notebook runs from start to end, and shows tables and figures."""

from tests.end_to_end.shell import ROOT


def test_the_tour(monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.chdir(ROOT / "experiments")
    tour = nbformat.read(ROOT / "experiments/tour.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in tour.cells), "it is kept without outputs"
    NotebookClient(tour, timeout=None, resources={"metadata": {"path": str(ROOT / "experiments")}}).execute()
    shown = [output.get("data", {}) for cell in tour.cells for output in cell.get("outputs", [])]
    assert any("attnresln_n" in data.get("text/html", "") and "<img" in data["text/html"] for data in shown)
    assert any("image/png" in data for data in shown)
    assert any("Cosine similarity" in data.get("text/html", "") for data in shown)
    assert any("= tokens" in data.get("text/html", "") and "onion" in data["text/html"] for data in shown)
    printed = "".join(output.get("text", "") for cell in tour.cells for output in cell.get("outputs", []))
    assert printed.count("[CLS] gets") == 6
