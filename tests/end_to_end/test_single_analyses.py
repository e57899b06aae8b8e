"""What whole runs say of outliers, scores, norms and frequencies; the oracles compare their numbers."""

import pandas as pd
import pytest

from tests.end_to_end.shell import run_here


@pytest.fixture
def run(capsys, monkeypatch, tmp_path, saved_model):
    """Runs analyses of the tiny model; returns how it ended, and a function that reads its tables."""

    def run(*arguments, text=None):
        given = [f"model.name={saved_model}", "tracking=disabled", "device=cpu", f"output_dir={tmp_path / 'run'}"]
        if text is not None:
            (tmp_path / "corpus.txt").write_text(text)
            given += ["dataset=text", f"dataset.path={tmp_path / 'corpus.txt'}"]
        outcome = run_here(capsys, monkeypatch, *given, *arguments)
        return outcome, lambda name: pd.read_parquet(tmp_path / f"run/tables/{name}.parquet")

    return run


@pytest.mark.spread(1)
@pytest.mark.parametrize("dimensions", ["[5,24]", "[-1]"])
def test_a_dimension_out_of_range_names_the_range(run, tmp_path, dimensions):
    outcome, _ = run("analysis=score", f"analysis.outliers.dimensions={dimensions}")
    assert outcome.status == 2
    assert "analysis.outliers.dimensions=" in outcome.said
    assert "from 0 to 23" in outcome.said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("given", "missing"), [("known=[3]", "known_for"), (f"known_for=[{'a' * 64}]", "known")])
def test_known_dimensions_come_with_the_weights_that_have_them(run, given, missing):
    outcome, _ = run("analysis=score", f"analysis.outliers.{given}")
    assert outcome.status == 2
    assert f"analysis.outliers.{given}: expected analysis.outliers.{missing} beside it, got null" in outcome.said


@pytest.mark.slow
def test_a_hundred_and_thirty_custom_categories(run, tokenizer):
    vocabulary = sorted(tokenizer.get_vocab())  # it comes in any order
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 5][:130]
    own = ",".join(f"own{number}:[{word}]" for number, word in enumerate(words))
    given = ["analysis=[norms,score]", f"+dataset.categories={{{own}}}", "layers=[1]", "report.enabled=false"]
    given += ["analysis.score.interventions=false"]
    outcome, table = run(*given, text=" ".join(words) + "\n")
    assert outcome.status == 0, outcome.err
    assert set(table("score_contributions")["category"]) >= {f"own{number}" for number in range(130)}


@pytest.mark.slow
def test_ranks_from_a_file(run, tmp_path):
    """`.`, `,`, `!` and `the`, as MiniLM numbers them."""
    (tmp_path / "ranks").write_text("1 90 1012\n2 80 1010\n7 3 1996\n")
    outcome, table = run(
        "analysis=frequency", f"analysis.frequency.path={tmp_path / 'ranks'}", text="the cat , the .\n"
    )
    assert outcome.status == 0, outcome.err
    assert table("frequency_by_token").set_index("token")["rank"].to_dict() == {
        ".": 1,
        ",": 2,
        "the": 7,
        "cat": 8,
        "[CLS]": 8,
        "[SEP]": 8,
    }


@pytest.mark.slow
def test_the_conventional_ranks(run):
    given = ["analysis=frequency", "analysis.frequency.conventional=true", "dataset.mask_fraction=0.1"]
    outcome, table = run(*given, text="the cat , , the river . . a cat ?\n")
    assert outcome.status == 0, outcome.err
    by_token = table("frequency_by_token").set_index("token")["rank"]
    assert by_token[["[CLS]", "[SEP]", ".", ","]].tolist() == [1, 2, 3, 4]
    assert by_token[["[MASK]", "?", "a"]].isna().all()
    assert by_token["the"] > 4


@pytest.mark.slow
def test_categories_that_never_occur_are_reported(run):
    outcome, table = run("analysis=norms", text="no stops at all\n")
    assert outcome.status == 0, outcome.err
    assert "no token of category punctuation occurs in the corpus" in outcome.said
    for name in ("norms_by_layer", "norms_by_head", "norms_correlation"):
        assert "punctuation" not in set(table(name)["category"])
    assert not table("norms_by_layer").isna().any().any()
