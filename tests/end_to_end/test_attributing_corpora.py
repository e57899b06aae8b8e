"""`python run.py analysis=attribution` on a small saved model."""

import json

import numpy as np
import pandas as pd
import pytest

import normscope
from tests.end_to_end.shell import run_here

TEXTS = ["the old bridge is closed.", "a cat sees the river, and it walks", "we run"]


@pytest.mark.reports
def test_a_run_attributes_its_sample_and_the_texts_of_the_explorer(capsys, monkeypatch, tmp_path, saved_model):
    corpus, folder = tmp_path / "corpus.txt", tmp_path / "run"
    corpus.write_text("\n".join(TEXTS))
    arguments = [
        "analysis=attribution",
        "analysis.attribution.methods=[rollout,decompx,gradient_x_input]",
        "analysis.attribution.sequences=2",
        "analysis.attribution.orders=2",
        f"model.name={saved_model}",
        "dataset=text",
        f"dataset.path={corpus}",
        "report.examples=2",
        "layers=[1,3]",
        "device=cpu",
        "device.dtype=float64",
        "tracking=disabled",
    ]
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert "the model's files name no pooling that can be used" in outcome.err + outcome.out
    ranking = pd.read_parquet(folder / "tables/attribution_ranking.parquet")
    assert set(ranking["method"]) == {"rollout", "decompx", "gradient_x_input", "random"}
    assert (ranking["count"] == 2).all()
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert (
        metrics["attribution/cosine/comprehensiveness/decompx"]
        == ranking.set_index("method").loc["decompx", "comprehensiveness"]
    )
    pairs = pd.read_parquet(folder / "tables/explorer_pairs.parquet").query("head == 0 and sentence == 1")
    model = normscope.load(str(saved_model), dtype="float64")
    for method, maps in normscope.attribution_maps(model, TEXTS[0], ["rollout", "decompx"]).items():
        for layer in (1, 3):
            tokens = len(maps.tokens)
            found = pairs.query(f"layer == {layer}").sort_values(["query", "key"])[method].to_numpy()
            np.testing.assert_allclose(found.reshape(tokens, tokens), maps.cumulative[layer - 1][:, :tokens], rtol=1e-5)
    assert "DecompX (norms of vectors, up to this layer)" in (folder / "report.html").read_text()
