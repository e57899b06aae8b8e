"""`normscope.run` gives the numbers of a whole command over the same texts."""

import dataclasses
import io
import json
import re

import pandas as pd
import pytest
import torch

import normscope
from normscope.errors import InputError
from normscope.results.pictures import Picture
from normscope.running import memory
from normscope.running.memory import run_batch
from tests.end_to_end.shell import run_once
from tests.tiny import STACK_CONFIGS, tiny_model

TEXTS = [
    "The cat sat on the mat, and slept.",
    ("A dog barked.", "Nobody heard it, of course."),
    "The mat was red.",
    ("It was a cat.", "The dog saw the cat!"),
    "   ",
    "Rain fell, and the cat sat under the tree; the dog sat there as well.",
]
ANALYSES = ["mixing", "norms", "frequency", "outliers", "score"]
FEW = {"controls": 1, "intervention_sequences": 2}
FEW_PAIRS = {"scatter_pairs": 100}
OWN = object()  # stands for the tokenizer of the model


def as_read(table):
    """The table as a file keeps it."""
    stream = io.BytesIO()
    table.to_parquet(stream, index=False)
    return pd.read_parquet(stream)


def assert_same_results(results, folder):
    """Every table and metric, bit for bit."""
    files = {path.stem: path for path in (folder / "tables").glob("*.parquet")}
    assert set(results.tables) == set(files)
    for name, path in files.items():
        pd.testing.assert_frame_equal(as_read(results.tables[name]), pd.read_parquet(path), check_exact=True, obj=name)
    assert results.metrics == json.loads((folder / "results.json").read_text())["metrics"]
    assert set(results.figures) == {path.stem for path in (folder / "figures").glob("*.png")}


@pytest.fixture(scope="module")
def command(saved_model, tmp_path_factory):
    """A whole command over these texts in a file."""
    folder = tmp_path_factory.mktemp("command")
    rows = [dict(zip(("text", "text_pair"), [text] if isinstance(text, str) else text, strict=False)) for text in TEXTS]
    (folder / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    outcome = run_once(
        f"analysis=[{','.join(ANALYSES)}]",
        f"model.name={saved_model}",
        "dataset=text",
        f"dataset.path={folder / 'texts.jsonl'}",
        "device=cpu",
        "tracking=disabled",
        "layers=[1,3]",
        "analysis.score.controls=1",
        "analysis.score.intervention_sequences=2",
        "analysis.norms.scatter_pairs=100",
        f"output_dir={folder / 'run'}",
    )
    assert outcome.status == 0, outcome.err
    return folder / "run"


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(saved_model, device="cpu")


def test_the_numbers_are_those_of_a_command(model, command, capsys):
    torch.manual_seed(3)
    generator = torch.get_rng_state()
    results = normscope.run(ANALYSES, model=model, texts=TEXTS, layers=[1, 3], norms=FEW_PAIRS, **FEW)
    assert_same_results(results, command)
    assert capsys.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), generator)
    assert results.facts["skipped"] == {"empty": 1}


@pytest.mark.slow
def test_a_wrapped_model_gives_the_same(model, command):
    """From any iterable of texts, with the options of one analysis under its name."""
    results = normscope.run(
        ANALYSES,
        model=model.model,
        tokenizer=model.tokenizer,
        texts=iter(TEXTS),
        layers=range(1, 4, 2),
        norms=FEW_PAIRS,
        **FEW,
    )
    assert_same_results(results, command)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("analyses", "passes"), [("attribution", 0), (["attribution", "mixing"], 1)])
def test_the_model_runs_on_the_corpus_only_if_an_analysis_observes_it(model, monkeypatch, analyses, passes):
    corpus, ran = [], []
    run_model = memory._run_model

    def counted(observer, batch, analyses):
        ran.append(batch)
        run_model(observer, batch, analyses)

    def read(observer, batch, analyses):
        corpus.append(batch)
        run_batch(observer, batch, analyses)

    monkeypatch.setattr(memory, "_run_model", counted)
    monkeypatch.setattr(memory, "run_batch", read)
    results = normscope.run(analyses, model=model, texts=TEXTS)
    assert results.facts["sequences"] == sum(batch.sequences for batch in corpus) > 0
    assert len(ran) == passes * len(corpus)


@pytest.mark.slow
def test_alignment_of_pairs_in_memory(tokenizer, tmp_path):
    """It loads the stack that it needs, and takes options with several parts."""
    config = STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)}
    tiny_model(config, torch.float32).save_pretrained(tmp_path / "bart")
    tokenizer.save_pretrained(tmp_path / "bart")
    pairs = [("the cat slept", "die katze schlief"), ("a red dog", "ein roter hund")]
    (tmp_path / "gold").write_text("0-0 1-1 2-2\n0-0 1p1 2-2\n")
    (tmp_path / "pairs").write_text("".join(f"{source} ||| {target}\n" for source, target in pairs))
    results = normscope.run(
        "alignment", model=tmp_path / "bart", texts=pairs, gold={"path": tmp_path / "gold"}, words="punctuated"
    )
    outcome = run_once(
        "analysis=alignment",
        f"model.name={tmp_path / 'bart'}",
        "dataset=parallel",
        "dataset.separator='|||'",
        f"dataset.path={tmp_path / 'pairs'}",
        f"analysis.alignment.gold.path={tmp_path / 'gold'}",
        "analysis.alignment.words=punctuated",
        "device=cpu",
        "tracking=disabled",
        f"output_dir={tmp_path / 'run'}",
    )
    assert outcome.status == 0, outcome.err
    assert_same_results(results, tmp_path / "run")
    with pytest.raises(InputError, match=r"^analyses: alignment measures cross-attention, and mixing the encoder"):
        normscope.run(["alignment", "mixing"], model=tmp_path / "bart", texts=pairs, gold={"path": tmp_path / "gold"})
    encoder, cross = (normscope.load(tmp_path / "bart", stack=stack, device="cpu") for stack in ("encoder", "cross"))
    with pytest.raises(InputError, match="needs cross-attention; leave stack out"):
        normscope.run("alignment", model=encoder, texts=["a cat"], gold={"path": tmp_path / "gold"})
    with pytest.raises(InputError, match=r"^score does not support cross-attention; set stack=encoder or decoder"):
        normscope.run("score", model=cross, texts=pairs)


def test_results_show_themselves(model, tmp_path):
    results = normscope.run(["mixing", "norms"], model=model, texts=TEXTS)
    assert set(results.analyses) == {"mixing", "norms"}
    shown = repr(results)
    assert shown.startswith(f"{model.name}: 5 sequences, ")
    for text in (*results.sentences, *results.tables, *results.figures, "Mixing ratios", "Vector norms"):
        assert text in shown
    page = results._repr_html_()
    for text in (*results.tables, *results.figures, "<table", "Mixing ratios"):
        assert text in page
    figure = results.figure("mixing_heatmap")
    assert isinstance(figure, Picture)
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.save(tmp_path / "mixing.svg")
    assert "<svg" in (tmp_path / "mixing.svg").read_text()
    assert set(results.summaries) == {"mixing", "norms"}


def test_text_in_results_is_escaped(model):
    results = normscope.run("mixing", model=dataclasses.replace(model, name="<script>"), texts=TEXTS)
    assert "<script>" not in results._repr_html_()


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"analyses": "mixin"}, r"^analyses='mixin': expected one or more of mixing, .*; did you mean mixing\?$"),
        ({"analyses": []}, r"^analyses=\[\]: expected at least one of mixing, "),
        ({"layers": [9]}, r"^layers=\[9\]: expected all or numbers from 1 to 3 \(this model's layers\), got 9$"),
        ({"categories": ["verbs"]}, r"^categories=\['verbs'\]: unknown category 'verbs'"),
        ({"categories": "mask"}, r"^categories=\[mask\]: no token of these categories occurs"),
        ({"scatter_pair": 3}, r"^scatter_pair=3: no such option in norms; .*; did you mean scatter_pairs\?$"),
        ({"scatter_pairs": -3}, r"^scatter_pairs=-3: expected .* at least 1"),
        ({"scatter_pairs": "many"}, r"^scatter_pairs=many: expected a whole number of at least 1$"),
        ({"max_length": 999}, r"^max_length=999: expected at most 160"),
        ({"max_length": 2}, r"^max_length=2: expected a whole number of at least 3, or null$"),
        ({"mask_fraction": 2.0}, r"^mask_fraction=2.0: expected a number from 0 to below 1$"),
        ({"segmentation": "words"}, r"^segmentation=words: expected one of none, sentence, pair, window$"),
        ({"batch_tokens": 0}, r"^batch_tokens=0: expected a whole number of at least 1$"),
        ({"seed": -1}, r"^seed=-1: expected a whole number"),
        ({"token_categories": {"verbs": "re:("}}, r"^token_categories"),
        ({"texts": []}, r"^texts: expected at least one text, got none$"),
        ({"texts": ["", " "]}, r"^texts: no usable text \(2 empty\)$"),
        ({"texts": [3]}, r"^texts: expected texts, because the model has a tokenizer, got token ids"),
        (
            {"texts": {"a": "b"}},
            r"^texts: expected a str, a pair \(a tuple of two str\), token ids, or a list of these, got dict$",
        ),
        ({"texts": 7}, r"^texts: expected a str, .*, got 7$"),
        ({"model": "nowhere/none"}, r"^model=nowhere/none: "),
        ({"tokenizer": OWN}, r"^tokenizer: a loaded or wrapped model has one already; leave it out$"),
        ({"model": torch.nn.Linear(2, 2)}, r"^model: Linear fails on token ids"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_errors_speak_of_arguments(model, arguments, message):
    arguments = {key: model.tokenizer if value is OWN else value for key, value in arguments.items()}
    with pytest.raises(InputError, match=message) as caught:
        normscope.run(**{"analyses": "norms", "model": model, "texts": TEXTS} | arguments)
    assert not re.search(r"\b(model|dataset|device|analysis|report)\.[a-z]|dataset=|analysis=|\n", str(caught.value))


@pytest.mark.slow
def test_a_run_has_a_default_model():
    """The one that `load` loads."""
    default = normscope.run("mixing", texts=["A text."], layers=1)
    assert default.facts["model_sha256"] == normscope.load().weights()["model"]


def test_notes_say_what_was_lost(model):
    results = normscope.run("mixing", model=model, texts=["the cat sits on the mat", "", "a dog"], max_length=5)
    assert results.notes[:2] == [
        "1 example was truncated to 5 tokens (max_length)",
        "1 example was skipped: empty",
    ]
    assert "1 example was skipped: empty" in repr(results)
