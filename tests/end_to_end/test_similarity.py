"""`analysis=similarity` over files of pairs: results, limits, resuming, batches in parts, and bad input."""

import json
import re

import pandas as pd
import pytest
import torch

import normscope
from normscope.data.batching import LOOKAHEAD
from normscope.data.encoders import ComparedPairs
from normscope.data.text_files import TextFile
from normscope.errors import InputError
from normscope.results.figures import TextPair, read_figure
from normscope.running import memory
from normscope.running.memory import BatchRunner
from tests.end_to_end.shell import run_here
from tests.one_text import similarity

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


@pytest.mark.slow
@pytest.mark.reports
def test_the_text_for_the_explorer_may_be_a_single_one(command):
    outcome, folder = command("report.enabled=true", "report.text='It rained in the town.'")
    assert outcome.status == 0, outcome.err
    assert "rained" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_file_of_pairs_gives_the_cosines_of_normscope_similarity(command, saved_model):
    outcome, folder = command("analysis.similarity.rows=[1,3,6]")
    assert outcome.status == 0, outcome.err
    found = tables(folder)
    pairs = found["similarity_pairs"]
    assert pairs["row"].tolist() == USED
    assert pairs["gold"].fillna(-1).tolist() == pytest.approx([4.2, 2, -1, 3.5, 0.5])
    model = normscope.load(str(saved_model))
    for row in pairs.itertuples():
        expected = similarity(model, *PAIRS[row.row - 1][:2], pooling="mean")
        assert row.value == pytest.approx(expected.value, abs=1e-5)
        words = expected.matrix[:-1, :-1].sum()
        assert row.bias_share == pytest.approx(1 - words / expected.value, rel=1e-3, abs=1e-4)
    result = json.loads((folder / "results.json").read_text())
    assert result["metrics"]["similarity/cosine"] == pytest.approx(pairs["value"].mean())
    assert found["similarity_by_category"]["contribution"].sum() == pytest.approx(pairs["value"].mean(), abs=1e-5)
    assert result["metrics"]["similarity/gold/count"] == 4
    ranks = pairs.dropna(subset="gold")[["value", "gold"]].rank()
    assert result["metrics"]["similarity/gold/spearman"] == pytest.approx(ranks.corr().iloc[0, 1])
    skipped = result["facts"]["skipped"]
    assert skipped == {"without a second text (dataset.pair_column)": 1, "empty": 1}
    assert result["facts"]["examples_used"] == len(USED)
    assert result["facts"]["sequences"] == 2 * len(USED)
    drawn = {path.stem for path in (folder / "figures").glob("similarity_pair_*.png")}
    assert drawn == {"similarity_pair_1", "similarity_pair_6"}


@pytest.mark.slow
def test_the_limit_counts_pairs(command):
    outcome, folder = command("dataset.limit=2", "analysis.similarity.rows=[]")
    assert outcome.status == 0, outcome.err
    assert tables(folder)["similarity_pairs"]["row"].tolist() == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("analyses", ["similarity", "[mixing,similarity,frequency]"])
def test_a_resumed_run_is_that_of_an_uninterrupted_one(capsys, command, corpus, monkeypatch, analyses):
    printed, whole = command(f"analysis={analyses}", SMALL_BATCHES, folder="whole")
    if "mixing" in analyses:  # which reads single texts too
        assert f"similarity: {2 * len(USED)} sequences, " in printed.out + printed.said
        assert "similarity: 1 example was skipped: without a second text" in printed.out + printed.said
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
    assert run_here(capsys, monkeypatch, f"resume={folder}", f"dataset.path={corpus}").status == 0
    facts = [json.loads((each / "results.json").read_text()) for each in (whole, folder)]
    assert facts[0]["metrics"] == facts[1]["metrics"]
    assert facts[0]["facts"]["compared"] == facts[1]["facts"]["compared"]
    for (name, expected), found in zip(tables(whole).items(), tables(folder).values(), strict=True):
        pd.testing.assert_frame_equal(found, expected, check_exact=True, obj=name)


@pytest.mark.slow
def test_batches_are_split_between_pairs(command, monkeypatch):
    sums = "analysis.similarity.sums=true"
    _, whole = command(sums, folder="whole")
    sizes, run = [], BatchRunner._run

    def noted(self, batch):
        sizes.append((batch.sequences, len(batch.pairing.scores), batch.rows))
        run(self, batch)

    monkeypatch.setattr(BatchRunner, "_run", noted)
    monkeypatch.setitem(memory.ENTRIES_AT_ONCE, "cpu", 1)
    outcome, folder = command(sums)
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
        (
            ["analysis.similarity.rows=[0]"],
            "analysis.similarity.rows=[0]: expected a list of items, each a whole number of at least 1",
        ),
        (["analysis.similarity.pooling=median"], "analysis.similarity.pooling"),
        (["analysis.similarity.pooling=null"], "analysis.similarity.pooling: "),
        (
            ["analysis.similarity.prompts=[a,b,c]"],
            "analysis.similarity.prompts=['a', 'b', 'c']: expected one prompt for both texts, or one for each",
        ),
        (
            ["analysis.similarity.prompts=[query,passages]"],
            "analysis.similarity.prompts: expected the name of one of the model's prompts (document, query)",
        ),
        (["dataset.pair_path=other.jsonl"], "dataset.score_column is set, but the texts of a pair come from two files"),
    ],
)
@pytest.mark.spread(1)
def test_bad_input_is_one_line(command, arguments, message):
    outcome, folder = command(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not folder.exists()


@pytest.mark.slow
def test_a_file_without_pairs_says_which_column_is_missing(command, tmp_path):
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    outcome, _ = command(f"dataset.path={tmp_path / 'texts.txt'}", "dataset.score_column=null")
    assert outcome.status == 2
    assert "2 without a second text (dataset.pair_column)" in outcome.said


@pytest.mark.slow
def test_of_texts_too_long_to_draw_the_parts_that_add_most_are_drawn(command, tmp_path, saved_model):
    """The 40 tokens in a row that add most; what stands before and behind them is one cell each. All add up to the cosine."""
    pairs = [
        {"text": "river " * 80, "text_pair": "cat " * 70},
        {"text": "river " * 30 + "cat " * 50, "text_pair": "river " * 20 + "cat " * 40 + "river " * 20},
    ]
    outcome, folder = command(f"dataset.path={written(tmp_path / 'long.jsonl', pairs)}", "dataset.score_column=null")
    assert outcome.status == 0, outcome.err
    values = tables(folder)["similarity_pairs"].set_index("row")["value"]
    model = normscope.load(str(saved_model))
    for row, texts in enumerate(pairs, start=1):
        pair = TextPair.of(read_figure(folder / f"figures/similarity_pair_{row}.parquet"))
        assert pair.value == pytest.approx(values[row], abs=1e-5)
        matrix = similarity(model, *texts.values(), pooling="mean").matrix
        for tokens, added in ((pair.tokens_a, matrix.sum(axis=1)[:-1]), (pair.tokens_b, matrix.sum(axis=0)[:-1])):
            before = max(range(len(added) - 39), key=lambda start, added=added: added[start : start + 40].sum())
            behind = len(added) - before - 40
            assert [tokens[0], tokens[-1]] == [f"[… {before} tokens]", f"[… {behind} tokens]"]
            assert len(tokens) == 42


@pytest.mark.slow
def test_maps_of_the_shortest_pairs_are_those_of_normscope_similarity(command, saved_model):
    outcome, folder = command()
    assert outcome.status == 0, outcome.err
    model = normscope.load(str(saved_model))
    expected = {row: similarity(model, *PAIRS[row - 1][:2], pooling="mean") for row in USED}
    shortest = sorted(USED, key=lambda row: max(len(expected[row].tokens_a), len(expected[row].tokens_b)))[:3]
    drawn = {path.stem for path in (folder / "figures").glob("similarity_pair_*.parquet")}
    assert drawn == {f"similarity_pair_{row}" for row in shortest}
    for row in shortest:
        found = TextPair.of(read_figure(folder / f"figures/similarity_pair_{row}.parquet"))
        assert (found.tokens_a, found.tokens_b) == (list(expected[row].tokens_a), list(expected[row].tokens_b))
        assert found.matrix == pytest.approx(expected[row].matrix, abs=1e-5)


@pytest.mark.slow
def test_of_the_sample_only_pairs_are_read(command):
    arguments = ["dataset=sample", "dataset.path=null", "dataset.score_column=null", "dataset.limit=102"]
    outcome, folder = command(*arguments)
    assert outcome.status == 0, outcome.err
    facts = json.loads((folder / "results.json").read_text())["facts"]
    assert (facts["examples_used"], facts["skipped"]) == (100, {})


RANKINGS = [
    {
        "query": "the old bridge",
        "documents": ["A bridge is closed.", "It rained.", "The bridge is old."],
        "scores": [2, 0, 3],
    },
    {"query": "rain", "documents": [{"id": "a", "text": "It rained."}, {"id": "b", "text": "The river is old."}]},
]


@pytest.fixture(scope="module")
def encoder(saved_model, tmp_path_factory):
    """A sentence encoder with prompts for queries and documents, which it does not pool, and the folder it is saved in."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer

    torch.manual_seed(0)
    transformer = Transformer(str(saved_model))
    size = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(size, pooling_mode="mean", include_prompt=False), Dense(size, size - 3)]
    prompts = {"query": "search query: ", "document": "search document: "}
    made = SentenceTransformer(modules=modules, device="cpu", prompts=prompts).eval()
    folder = tmp_path_factory.mktemp("encoder")
    made.save_pretrained(str(folder))
    return made, folder


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ranked(command, encoder, tmp_path, *arguments, rows=RANKINGS, folder="run"):
    data = [f"dataset.path={written(tmp_path / 'rankings.jsonl', rows)}", "dataset.score_column=null"]
    return command(f"model.name={encoder[1]}", *data, "analysis.similarity.pooling=null", *arguments, folder=folder)


@pytest.mark.spread(1)
@pytest.mark.parametrize("sums", ["true", "false"])
def test_documents_are_ranked_with_the_prompts_of_the_model(command, encoder, tmp_path, sums):
    outcome, folder = ranked(command, encoder, tmp_path, f"analysis.similarity.sums={sums}")
    assert outcome.status == 0, outcome.err
    found, made = tables(folder), encoder[0]
    expected = []
    for number, row in enumerate(RANKINGS, start=1):
        documents = [each["text"] if isinstance(each, dict) else each for each in row["documents"]]
        values = made.similarity(made.encode_query(row["query"]), made.encode_document(documents))[0].tolist()
        places = sorted(range(len(values)), key=lambda place: -values[place])
        expected += [(number, place + 1, rank, values[place]) for rank, place in enumerate(places, start=1)]
    rankings = found["similarity_pairs"]
    columns = ["query", "document", "rank"]
    assert rankings[columns].to_numpy().tolist() == [list(each[:3]) for each in expected]
    assert rankings["value"].tolist() == pytest.approx([each[3] for each in expected], abs=1e-5)
    assert rankings.sort_values("row")["gold"].fillna(-1).tolist() == [2, 0, 3, -1, -1]
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    spans = {name: value for name, value in metrics.items() if name.startswith("similarity/span/")}
    assert {name.rpartition("/")[2] for name in spans} == {"special", "prompt", "text", "bias"}
    assert sum(spans.values()) == pytest.approx(rankings["value"].mean(), abs=1e-5)
    assert spans["similarity/span/prompt"] == pytest.approx(sum(of_prompts(made)) / 5, abs=1e-5)
    assert ("similarity_by_category" in found) == (sums == "false")


def of_prompts(encoder):
    """What the prompts add to the similarity of each query and document, from the pairs of tokens."""
    lengths = [
        len(encoder.tokenizer(encoder.prompts[name], add_special_tokens=False)["input_ids"])
        for name in ("query", "document")
    ]
    model = normscope.wrap(encoder)
    for row in RANKINGS:
        for document in row["documents"]:
            texts = row["query"], document["text"] if isinstance(document, dict) else document
            matrix = similarity(model, *texts, prompts=("query", "document")).matrix
            yield sum(matrix.sum(axis=1 - side)[1 : 1 + length].sum() for side, length in enumerate(lengths)) / 2


@pytest.mark.slow
@pytest.mark.reports
def test_the_report_ranks_the_documents_of_the_first_query(command, encoder, tmp_path):
    outcome, folder = ranked(command, encoder, tmp_path, "report.enabled=true")
    assert outcome.status == 0, outcome.err
    assert "The cosine similarity of query 1 and document" in " ".join(outcome.out.split())
    page = (folder / "report.html").read_text()
    assert 'id="ranking-root"' in page
    assert 'id="explorer-root"' not in page
    (pairs,) = re.findall(r'id="pairs-data">(.*?)</script>', page)
    rankings = tables(folder)["similarity_pairs"].query("query == 1")
    sums = [sum(pair["values"]) for pair in json.loads(pairs)["similarity"]]
    assert sums == pytest.approx(rankings["value"].tolist(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "texts"),
    [
        ("[query,document]", ("search query: ", "search document: ")),
        ("['so: ']", ("so: ", "so: ")),
        ("null", ("", "")),
    ],
)
def test_prompts_are_chosen(command, encoder, prompts, texts):
    outcome, folder = command(
        f"model.name={encoder[1]}", f"analysis.similarity.prompts={prompts}", "analysis.similarity.pooling=null"
    )
    assert outcome.status == 0, outcome.err
    made = encoder[0]
    for row in tables(folder)["similarity_pairs"].itertuples():
        sides = [made.encode(text, prompt=prompt) for text, prompt in zip(PAIRS[row.row - 1][:2], texts, strict=True)]
        assert row.value == pytest.approx(float(made.similarity(*sides)[0, 0]), abs=1e-5)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"documents": ["One.", " "]}, "document 2 is empty: expected a text; fill it in or leave it out"),
        ({"documents": []}, "documents: expected a list of at least one text, got an empty list"),
        ({"documents": "One."}, "documents: expected a list of at least one text, got 'One.'"),
        ({"documents": ["One.", 2]}, "document 2: expected a text, or an object with a `text`, got 2"),
        ({"query": ""}, "query is empty: expected a text"),
        ({"scores": [1]}, "scores: expected a list of 2 numbers, one for each document, got 1"),
        ({"scores": [1, "high"]}, "scores: document 2: expected a number, got 'high'"),
        ({"scores": [1, True]}, "scores: document 2: expected a number, got True"),
        ({"scores": 3}, "scores: expected a list of 2 numbers, one for each document, got 3"),
        (
            {"documents": [{"id": 7, "text": "One."}, {"id": 7, "text": "Two."}]},
            "document 2: its id 7 is also that of document 1; expected each document once",
        ),
    ],
)
def test_a_ranking_that_cannot_be_read_is_one_line(tmp_path, row, message):
    rows = [*RANKINGS, {"query": "rain", "documents": ["One.", "Two."]} | row]
    path = written(tmp_path / "rankings.jsonl", rows)
    with pytest.raises(InputError) as caught:
        list(TextFile(path).examples())
    assert f"row 3 of {path}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_thousands_of_documents_are_read_a_window_at_a_time(command, encoder, tmp_path, monkeypatch):
    """Of one query, as of any other corpus: at most a window of pairs is encoded at a time."""
    documents = [f"The cat saw {number} dogs." for number in range(2 * LOOKAHEAD + 100)]
    sizes, encoded = [], ComparedPairs.encode

    def noted(self, examples, counts):
        sizes.append(len(examples))
        return encoded(self, examples, counts)

    monkeypatch.setattr(ComparedPairs, "encode", noted)
    rows = [{"query": "How many dogs?", "documents": documents}]
    outcome, folder = ranked(command, encoder, tmp_path, "analysis.similarity.sums=true", rows=rows)
    assert outcome.status == 0, outcome.err
    assert sizes == [LOOKAHEAD, LOOKAHEAD, 100]
    rankings = tables(folder)["similarity_pairs"]
    assert rankings["document"].nunique() == len(documents)
    assert rankings["value"].is_monotonic_decreasing
