"""Presets of a user's own, in a folder outside the program."""

import json
import shlex

import pytest

from tests.end_to_end.shell import run_here


@pytest.fixture
def presets(tmp_path, saved_model):
    folder = tmp_path / "presets"
    for name, text in {
        "model/mine.yaml": f"name: {saved_model}\n",
        "dataset/mine.yaml": "kind: text\npath: ${oc.env:MINE}\nname: mine\n",
        "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /model: mine\n  - override /dataset: mine\n",
        "model/typo.yaml": "nmae: x\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.spread(1)
@pytest.mark.parametrize("searched", ["--config-dir", "hydra.searchpath"])
def test_presets_of_the_users_own(capsys, monkeypatch, tmp_path, presets, searched):
    """The run's record has the folder, so the command that it gives can be typed again."""
    (tmp_path / "mine.txt").write_text("One text.\nAnother text, a little longer.\n")
    monkeypatch.setenv("MINE", str(tmp_path / "mine.txt"))
    where = ["--config-dir", str(presets)]
    if searched == "hydra.searchpath":
        where = [f"hydra.searchpath=[file://{presets}]"]
    arguments = ["experiment=mine", "tracking=disabled", "report.enabled=false"]
    outcome = run_here(capsys, monkeypatch, *where, *arguments, f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    facts = json.loads((tmp_path / "run/results.json").read_text())["facts"]
    assert facts["examples"] == 2
    words = shlex.split(facts["command"])
    assert words == ["python", "run.py", *where, *arguments, f"output_dir={tmp_path / 'run'}"]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config-dir", "/no/such/folder"], "Additional config directory '/no/such/folder' not found"),
        (["--config-dir", "{presets}", "model=typo"], "Key 'nmae' not in 'ModelOptions'"),
        (["--config-dir", "{presets}", "model=mien"], "model=mien: no such preset; did you mean mine?"),
        (["--config-dir", "{presets}", "experiment=mine"], "dataset.path: "),
    ],
)
def test_mistakes_in_them_are_explained(capsys, monkeypatch, presets, arguments, message):
    outcome = run_here(capsys, monkeypatch, *(text.format(presets=presets) for text in arguments))
    assert outcome.status == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
