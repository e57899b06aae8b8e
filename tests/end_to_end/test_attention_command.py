"""`normscope attention`: one text, from the command line to a table, a Parquet file and a page."""

import numpy as np
import pandas as pd
import pytest

import normscope
from normscope.results.token_labels import label
from tests.end_to_end.shell import run_here
from tests.one_text import attention

TEXT = "The old bridge was closed, so we crossed the river."


def attended(capsys, monkeypatch, folder, *arguments):
    outcome = run_here(capsys, monkeypatch, "attention", TEXT, *arguments, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(folder / "attention.html")
    assert max(map(len, outcome.out.splitlines()[:-1])) <= 80, outcome.out
    return outcome.out, normscope.read(folder).table, (folder / "attention.html").read_text()


def test_what_the_last_token_receives_from_words(capsys, monkeypatch, tmp_path, saved_model):
    out, table, page = attended(
        capsys, monkeypatch, tmp_path / "out", "queries=last", "keys=words", f"model.name={saved_model}"
    )
    found = attention(normscope.load(str(saved_model)), TEXT, queries="last", keys="words")
    pd.testing.assert_frame_equal(table, found.table, check_dtype=False)  # float32
    means = found.values.mean(axis=(0, 1))[0]
    strongest = int(means.argmax())
    name = f"{label(found.keys[strongest])} ({found.positions['key'][strongest]})"
    assert f"{means[strongest]:.3g}" in out
    assert name in out
    assert name in page
    assert "Attention weight α" in out
    assert "mean over 3 layers and 4 heads" in " ".join(out.split())
    assert 'id="row-data"' in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (["measure=norm", "reduce=max"], {"measure": "norm", "reduce": "max"}),
        (["measure=share", "top=2", "heads=[3,1]"], {"measure": "share", "top": 2, "heads": [3, 1]}),
        (["measure=score"], {"measure": "score"}),
    ],
)
def test_what_is_typed_is_what_is_asked(capsys, monkeypatch, tmp_path, saved_model, typed, asked):
    regions = ["queries=[-1,0:3,6]", "keys=[2:5,6,7]", "layers=[3,1]"]
    _, table, _ = attended(capsys, monkeypatch, tmp_path / "out", *regions, *typed, f"model.name={saved_model}")
    found = attention(
        normscope.load(str(saved_model)),
        TEXT,
        queries=[-1, slice(0, 3), 6],
        keys=[slice(2, 5), 6, 7],
        layers=[1, 3],
        **asked,
    )
    np.testing.assert_array_equal(table[asked["measure"]].to_numpy(), found.values.ravel())


@pytest.mark.parametrize("arguments", [[], ["keys=words"]])
def test_a_missing_text(capsys, monkeypatch, arguments):
    outcome = run_here(capsys, monkeypatch, "attention", *arguments)
    assert outcome.status == 2
    assert "attention: expected a text" in outcome.err
