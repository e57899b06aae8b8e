"""A sweep over the checkpoints of a training: one command, one comparison, and the checkpoints that cannot be had are named."""

import json
import shutil
import weakref

import pandas as pd
import pytest
import safetensors.torch

from normscope.models.load import loading
from tests.end_to_end.shell import run_once

STEPS = (20, 3, 100)


@pytest.fixture(scope="module")
def training(saved_model, tmp_path_factory):
    """The folder of a training with three checkpoints; the weights of the last are missing."""
    folder = tmp_path_factory.mktemp("a training") / "run"
    weights = safetensors.torch.load_file(saved_model / "model.safetensors")
    for step in STEPS:
        checkpoint = folder / f"checkpoint-{step}"
        shutil.copytree(saved_model, checkpoint)
        scaled = {name: tensor * (1 + step / 10) for name, tensor in weights.items()}
        safetensors.torch.save_file(scaled, checkpoint / "model.safetensors", {"format": "pt"})
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "checkpoint-100/model.safetensors").unlink()
    return folder


@pytest.mark.slow
def test_checkpoints_of_a_training_are_one_sweep(training, tmp_path, monkeypatch):
    load, loaded = loading._pretrained, []

    def alone(*arguments):
        assert all(earlier() is None for earlier in loaded), "the weights of an earlier checkpoint are still in memory"
        model = load(*arguments)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loading, "_pretrained", alone)
    outcome = run_once(
        f"model.checkpoints='{training}/checkpoint-*'",
        "dataset.limit=2",
        "tracking=disabled",
        "device=cpu",
        f"output_dir={tmp_path}/sweep",
    )
    assert outcome.status == 1
    assert "1 of 3 jobs failed" in outcome.err
    assert "checkpoint-100: expected model.safetensors in the folder" in outcome.err
    assert len(loaded) == 2
    results = [json.loads((tmp_path / "sweep" / str(job) / "results.json").read_text()) for job in range(2)]
    assert [result["facts"]["training_step"] for result in results] == [3, 20]
    values = pd.read_parquet(tmp_path / "sweep/comparison.parquet")
    assert list(dict.fromkeys(values["label"])) == ["step 3", "step 20"]
    table = pd.read_parquet(tmp_path / "sweep/training.parquet").query("metric == 'mixing/attn_n/mean' and layer == 0")
    assert table["mean"].tolist() == [result["metrics"]["mixing/attn_n/mean"] for result in results]
    assert set(table["group"]) == {"run"}
    page = (tmp_path / "sweep/comparison.html").read_text()
    assert "<h1>2 checkpoints of run on the sample corpus</h1>" in page
