"""Figures in the formats, at the width and in the style that a paper needs."""

import html
import json

import matplotlib as mpl
import pytest
import yaml

from tests.end_to_end.shell import draw_nothing, run_here
from tests.end_to_end.wandb_file import run_of

PAPER = ["figures.format=[pdf,svg]", "figures.width=column", "figures.caption=false", "figures.dpi=300"]


@pytest.mark.draws
@pytest.mark.reports
@pytest.mark.slow
def test_a_run_writes_figures_for_a_paper(capsys, monkeypatch, tmp_path, saved_model):
    folder = tmp_path / "run"
    with mpl.rc_context({"axes.labelcolor": "#123456"}):
        outcome = run_here(
            capsys, monkeypatch, f"model.name={saved_model}", "dataset.limit=2", "layers=[1]", "report.examples=0", *PAPER,
            "tracking=offline",
            f"output_dir={folder}",
        )  # fmt: skip
    assert outcome.status == 0, outcome.err
    figures = {path.name for path in (folder / "figures").iterdir()}
    names = ("mixing_by_layer", "mixing_heatmap", "mixing_shares")
    assert figures == {f"{name}.{extension}" for name in names for extension in ("pdf", "svg", "txt", "parquet")}
    svg = (folder / "figures/mixing_by_layer.svg").read_text()
    assert 'width="241.2pt"' in svg
    assert "#123456" in svg
    caption = (folder / "figures/mixing_by_layer.txt").read_text().strip()
    assert caption.startswith("Mean mixing ratio over all tokens")
    assert caption not in svg
    assert caption in html.unescape((folder / "report.html").read_text())
    assert yaml.safe_load((folder / "config.yaml").read_text())["figures"]["width"] == "column"
    logged = {key: value for row in run_of(folder)["history"] for key, value in row.items()}
    assert logged["mixing/by layer figure"]["_type"] == "image-file"
    assert logged["mixing/by layer figure"]["width"] == 1005

    draw_nothing(monkeypatch)
    repeated = run_here(capsys, monkeypatch, f"reproduce={folder}", "figures.format=[svg]", "tracking=disabled",
                        f"output_dir={tmp_path / 'again'}")  # fmt: skip
    assert repeated.status == 0, repeated.err
    assert {path.suffix for path in (tmp_path / "again/figures").iterdir()} == {".svg", ".txt", ".parquet"}
    first, again = (json.loads((path / "results.json").read_text()) for path in (folder, tmp_path / "again"))
    assert first["metrics"] == again["metrics"]
