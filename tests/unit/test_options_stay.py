"""The config of a run is parsed once, and no room of the house changes it."""

import copy

from normscope.running import pipeline
from normscope.running.options import run_options


def test_a_run_does_not_change_its_options(tmp_path, saved_model, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    options = run_options(
        {
            "model": {"name": saved_model},
            "dataset": {"kind": "sample", "limit": 2},
            "analysis": {"mixing": {"enabled": True}, "norms": {"enabled": True}},
            "device": {"name": "cpu"},
            "report": {"enabled": False},
        }
    )
    before = copy.deepcopy(options)
    done = pipeline.run(options, tmp_path / "run")
    assert done.metrics
    assert options == before
