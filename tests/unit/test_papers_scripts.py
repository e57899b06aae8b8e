"""The scripts that repeat papers: which runs they start, and how they read 8-bit weights."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.papers import repeat
from experiments.real_weights.quire import dequantised
from normscope.reporting.exhibits import reproduction_of
from tests.contract.test_configs import composed


@pytest.mark.slow
def test_every_preset_is_run_on_every_model_or_by_the_one_that_stands_in_for_it(tmp_path):
    for paper in repeat.papers():
        runs = repeat.jobs(paper, ["minilm", str(tmp_path)])
        reproduction = reproduction_of(paper)
        own = [preset for preset in reproduction.presets if preset not in reproduction.offline]
        assert list(runs) == [
            *(f"minilm/{preset}" for preset in own),
            *(f"{tmp_path.name}/{preset}" for preset in own),
            *reproduction.offline.values(),
        ]
        for words in runs.values():
            options = composed(*words)
            assert options.recipe.paper == paper
        assert composed(*runs[f"{tmp_path.name}/{own[0]}"]).model.name == str(tmp_path)


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The commands that are started; those with `fails` in them fail, and runs leave a folder of a finished run."""
    commands = []

    def start(words):
        commands.append(words)
        return not any("fails" in word for word in words)

    monkeypatch.setattr(repeat, "_started", start)
    monkeypatch.setattr(repeat, "DISTILBERT", tmp_path / "nothing")
    return commands


def test_a_run_that_failed_is_not_on_the_page_and_one_that_is_complete_is_not_repeated(
    started, monkeypatch, tmp_path, capsys
):
    done = tmp_path / "kobayashi2021/minilm/kobayashi2021_mixing"
    done.mkdir(parents=True)
    (done / "results.json").write_text('{"status": "completed"}')
    monkeypatch.setattr("sys.argv", ["repeat.py", "--paper", "kobayashi2021", "--output", str(tmp_path), "seed=7"])
    assert repeat.main() == 0
    run, page = started
    assert run[:2] == ["experiment=kobayashi2021_frequency", "model=minilm"]
    assert "seed=7" in run
    assert page == [
        *("page", str(done), str(tmp_path / "kobayashi2021/minilm/kobayashi2021_frequency")),
        *("--output", str(tmp_path / "kobayashi2021/index.html")),
    ]
    started.clear()
    half = tmp_path / "kobayashi2021/minilm/kobayashi2021_frequency"
    half.mkdir()
    (half / "config.yaml").write_text("")
    assert repeat.main() == 0
    assert started[0][:2] == [f"resume={half}", "seed=7"]
    (half / "config.yaml").unlink()
    started.clear()
    monkeypatch.setattr("sys.argv", ["repeat.py", "--paper", "kobayashi2021", "--output", str(tmp_path), "name=fails"])
    assert repeat.main() == 1
    assert started[-1][:2] == ["page", str(done)]
    assert started[-1][2] == "--output"
    assert "failed: " in capsys.readouterr().err


def test_integers_become_the_numbers_that_they_stand_for():
    node = SimpleNamespace(input=["w", "scale", "zero"], attribute=[SimpleNamespace(name="axis", i=0)])
    stored = {
        "w": np.array([[1, 2], [3, 4]], dtype=np.int8),
        "scale": np.array([0.5, 2.0], dtype=np.float32),
        "zero": np.array([1, 0], dtype=np.int8),
    }
    assert dequantised(node, stored).tolist() == [[0.0, 0.5], [6.0, 8.0]]
    one = SimpleNamespace(input=["w", "scale", "zero"], attribute=[])
    single = {**stored, "scale": np.float32(0.5), "zero": np.int8(-1)}
    assert dequantised(one, single).tolist() == [[1.0, 1.5], [2.0, 2.5]]
    by_column = dequantised(one, stored)  # ONNX's default axis
    assert by_column.tolist() == [[0.0, 4.0], [1.0, 8.0]]


def test_numbers_that_are_kept_have_a_column_for_each_model(monkeypatch, started, tmp_path):
    del started
    frame = pd.DataFrame({"exhibit": ["Table 1"], "measure": ["x"], "published": [1.23456], "a": [2.0]})
    monkeypatch.setattr(repeat, "numbers_of_paper", lambda _results: frame)
    monkeypatch.setattr(repeat, "ROOT", tmp_path)
    (tmp_path / "experiments/maruta2024").mkdir(parents=True)
    monkeypatch.setattr(
        "sys.argv", ["repeat.py", "--paper", "maruta2024", "--output", str(tmp_path / "out"), "--record"]
    )
    assert repeat.main() == 0
    kept = (tmp_path / "experiments/maruta2024/measured.csv").read_text().splitlines()
    assert kept == ["exhibit,measure,published,a", "Table 1,x,1.235,2"]
