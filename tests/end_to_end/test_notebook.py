"""The notebook runs from start to end, shows tables and figures, and is stored with the outputs of today's program."""

import itertools
import re

import pytest

from tests.end_to_end.shell import ROOT

TOUR = ROOT / "experiments" / "tour.ipynb"


@pytest.fixture
def tour():
    import nbformat

    return nbformat.read(TOUR, as_version=4)


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_tour_is_stored_with_its_outputs(tour):
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make figures`"
    assert all(cell.outputs for cell in code)
    assert TOUR.stat().st_size < 1_500_000
    assert_clean(tour)


@pytest.mark.slow
def test_the_tour(monkeypatch, tour):
    from nbclient import NotebookClient

    stored = [kinds(cell) for cell in tour.cells]
    numbers = [numbers_of(cell) for cell in tour.cells]
    monkeypatch.chdir(TOUR.parent)
    NotebookClient(tour, timeout=600, resources={"metadata": {"path": str(TOUR.parent)}}).execute()
    assert_clean(tour)
    shown = [output.get("data", {}) for output in outputs(tour)]
    assert any("attnresln_n" in data.get("text/html", "") and "<img" in data["text/html"] for data in shown)
    assert any("<iframe" in data.get("text/html", "") and "image/png" in data for data in shown)
    assert any("Cosine similarity" in data.get("text/html", "") for data in shown)
    assert any("= tokens" in data.get("text/html", "") and "onion" in data["text/html"] for data in shown)
    printed = "".join(output.get("text", "") for output in outputs(tour))
    assert printed.count("[CLS] gets") == 6
    for cell, before, known in zip(tour.cells, stored, numbers, strict=True):
        assert kinds(cell) == before, f"run `make figures`: {cell.source}"
        # The last digit may differ between machines.
        assert numbers_of(cell) == pytest.approx(known, rel=0.02, abs=0.02), f"run `make figures`: {cell.source}"


def assert_clean(notebook):
    """No errors, no warnings."""
    for output in outputs(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.text


def kinds(cell):
    """What a cell's outputs are, without their content. On a busy machine, what is printed may come in several parts."""
    each = [(output.output_type, sorted(output.get("data", {}))) for output in cell.get("outputs", [])]
    return [kind for kind, _ in itertools.groupby(each)]


def numbers_of(cell):
    """The numbers in a cell's plain text."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.get("outputs", [])]
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", "\n".join(texts))]
