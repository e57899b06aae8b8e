"""`analysis=similarity` over files of pairs: results, limits, resuming, batches in parts, and bad input."""

import json

import pandas as pd
import pytest

import normscope
from normscope.running import memory
from normscope.running.memory import BatchRunner
from tests.end_to_end.shell import run_here

PAIRS = [
    ("The cat sat on the mat, and slept.", "A cat was asleep.", 4.2),
    ("A dog barked.", "Nobody heard the dog, of course.", 2),
    ("It rained.", None, 1.0),
    ("The river is old.", "It walks, it sees, and it is cold today.", None),
    ("", "An empty first text.", 3.0),
    ("Rain fell, and the cat sat under the tree.", "Rain fell.", 3.5),
    ("One.", "Two.", "0.5"),
]
USED = [1, 2, 4, 6, 7]
QUICK = ["tracking=disabled", "report.enabled=false", "device=cpu", "analysis.similarity.pooling=mean"]
# A batch of one pair, or of two short ones.
SMALL_BATCHES = "device.batch_tokens=24"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"text": text, "text_pair": pair, "score": score} for text, pair, score in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, saved_model, corpus):
    """Runs the analysis with more arguments; returns how it ended and its folder."""

    def run(*arguments, folder="run"):
        data = ["dataset=text", f"dataset.path={corpus}", "dataset.score_column=score"]
        base = ["analysis=similarity", f"model.name={saved_model}", *data, *QUICK, f"output_dir={tmp_path / folder}"]
        return run_here(capsys, monkeypatch, *base, *arguments), tmp_path / folder

    return run


def tables(folder):
    return {path.stem: pd.read_parquet(path) for path in sorted((folder / "tables").glob("similarity*.parquet"))}


@pytest.mark.reports
def test_the_text_for_the_explorer_may_be_a_single_one(command):
    outcome, folder = command("report.enabled=true", "report.text='It rained in the town.'")
    assert outcome.status == 0, outcome.err
    assert "rained" in (folder / "report.html").read_text()


def test_a_file_of_pairs_gives_the_cosines_of_normscope_similarity(command, saved_model):
    outcome, folder = command("analysis.similarity.rows=[1,3,6]")
    assert outcome.status == 0, outcome.err
    found = tables(folder)
    pairs = found["similarity_pairs"]
    assert pairs["row"].tolist() == USED
    assert pairs["gold"].fillna(-1).tolist() == pytest.approx([4.2, 2, -1, 3.5, 0.5])
    model = normscope.load(str(saved_model))
    for row in pairs.itertuples():
        expected = normscope.similarity(model, *PAIRS[row.row - 1][:2], pooling="mean")
        assert row.value == pytest.approx(expected.value, abs=1e-5)
        words = expected.matrix[:-1, :-1].sum()
        assert row.bias_share == pytest.approx(1 - words / expected.value, rel=1e-3, abs=1e-4)
    result = json.loads((folder / "results.json").read_text())
    assert result["metrics"]["similarity/cosine"] == pytest.approx(pairs["value"].mean())
    assert found["similarity_by_category"]["contribution"].sum() == pytest.approx(pairs["value"].mean(), abs=1e-5)
    assert result["metrics"]["similarity/gold/count"] == 4
    ranks = pairs.dropna()[["value", "gold"]].rank()
    assert result["metrics"]["similarity/gold/spearman"] == pytest.approx(ranks.corr().iloc[0, 1])
    skipped = result["provenance"]["skipped"]
    assert skipped == {"without a second text (dataset.pair_column)": 1, "empty": 1}
    assert result["provenance"]["examples_used"] == len(USED)
    assert result["provenance"]["sequences"] == 2 * len(USED)
    drawn = {path.stem for path in (folder / "figures").glob("similarity_pair_*.png")}
    assert drawn == {"similarity_pair_1", "similarity_pair_6"}


def test_the_limit_counts_pairs(command):
    outcome, folder = command("dataset.limit=2", "analysis.similarity.rows=[]")
    assert outcome.status == 0, outcome.err
    assert tables(folder)["similarity_pairs"]["row"].tolist() == [1, 2]


def test_other_analyses_read_pairs_as_they_would_alone(command):
    """And single texts, which are skipped for the comparison."""
    outcome, folder = command("analysis=[similarity,mixing]")
    assert outcome.status == 0, outcome.err
    mixing = pd.read_parquet(folder / "tables/mixing_by_layer.parquet")
    sequences = len(USED) + 1
    assert (mixing[mixing["category"] == "cls"]["count"] == sequences).all()
    assert f"{sequences} sequences, " in outcome.out + outcome.err
    assert f"similarity: {2 * len(USED)} sequences, " in outcome.out + outcome.err
    assert "similarity: 1 example was skipped: without a second text" in outcome.out + outcome.err


@pytest.mark.parametrize("analyses", ["similarity", "[mixing,similarity,frequency]"])
@pytest.mark.spread(1)
def test_a_resumed_run_is_that_of_an_uninterrupted_one(capsys, command, monkeypatch, analyses):
    _, whole = command(f"analysis={analyses}", SMALL_BATCHES, folder="whole")
    run, seen = BatchRunner._run, []

    def interrupted(self, batch):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(batch)
        run(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(BatchRunner, "_run", interrupted)
        outcome, folder = command(f"analysis={analyses}", SMALL_BATCHES, "checkpoint.every_seconds=0")
    assert outcome.status != 0
    assert run_here(capsys, monkeypatch, f"resume={folder}").status == 0
    facts = [json.loads((each / "results.json").read_text()) for each in (whole, folder)]
    assert facts[0]["metrics"] == facts[1]["metrics"]
    assert facts[0]["provenance"]["compared"] == facts[1]["provenance"]["compared"]
    for (name, expected), found in zip(tables(whole).items(), tables(folder).values(), strict=True):
        pd.testing.assert_frame_equal(found, expected, check_exact=True, obj=name)


def test_batches_are_split_between_pairs(command, monkeypatch):
    _, whole = command(folder="whole")
    sizes, run = [], BatchRunner._run

    def noted(self, batch):
        sizes.append((batch.sequences, len(batch.scores), batch.rows))
        run(self, batch)

    monkeypatch.setattr(BatchRunner, "_run", noted)
    monkeypatch.setitem(memory.PAIR_ENTRIES_AT_ONCE, "cpu", 1)
    outcome, folder = command()
    assert outcome.status == 0, outcome.err
    assert [size[:2] for size in sizes] == [(2, 1)] * len(USED)
    assert all(first == second for *_, (first, second) in sizes)
    found, expected = tables(folder)["similarity_pairs"], tables(whole)["similarity_pairs"]
    pd.testing.assert_frame_equal(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dataset.score_column=label"], "dataset.score_column=label: row 1"),
        (["dataset.score_column=text"], "dataset.score_column=text: row 1 of"),
        (["dataset.segmentation=window"], "dataset.segmentation=window: expected whole texts"),
        (["dataset.pair_column=other"], "dataset.pair_column=other: row 1"),
        (["analysis.similarity.rows=[0]"], "analysis.similarity.rows=0: expected a whole number of at least 1"),
        (["analysis.similarity.pooling=max"], "analysis.similarity.pooling"),
        (["analysis.similarity.pooling=null"], "analysis.similarity.pooling: "),
        (["dataset.pair_path=other.jsonl"], "dataset.score_column is set, but the texts of a pair come from two files"),
    ],
)
@pytest.mark.spread(4)
def test_bad_input_is_one_line(command, arguments, message):
    outcome, folder = command(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not folder.exists()


def test_a_file_without_pairs_says_which_column_is_missing(command, tmp_path):
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    outcome, _ = command(f"dataset.path={tmp_path / 'texts.txt'}", "dataset.score_column=null")
    assert outcome.status == 2
    assert "2 without a second text (dataset.pair_column)" in outcome.err


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ((60,), "row 1 is not drawn: it has texts of up to 62 tokens, and maps show at most"),
        ((50, 60), "rows 1, 2 are not drawn: they have texts of up to 62 tokens, and maps show at most"),
    ],
)
def test_texts_too_long_to_draw_are_noted_once(command, tmp_path, counts, note):
    pairs = [{"text": "cat " * count, "text_pair": "river"} for count in counts]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    outcome, folder = command(f"dataset.path={tmp_path / 'long.jsonl'}", "dataset.score_column=null")
    assert outcome.status == 0, outcome.err
    assert note in " ".join((outcome.out + outcome.err).split())
    assert not list((folder / "figures").glob("similarity_pair_*"))
