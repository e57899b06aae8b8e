"""`python run.py analysis=attribution` on a small saved model."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import normscope
from normscope.data.toy_corpus import ToyCorpus
from normscope.translation.vocabulary import joint_vocabulary
from tests.end_to_end.shell import run_here
from tests.one_text import attribution_maps
from tests.tiny import STACK_CONFIGS

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
    assert "the model's files name no pooling that can be used" in outcome.said + outcome.out
    ranking = pd.read_parquet(folder / "tables/attribution_ranking.parquet")
    assert set(ranking["method"]) == {"rollout", "decompx", "gradient_x_input", "random"}
    assert (ranking["count"] == 2).all()
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert (
        metrics["attribution/cosine/comprehensiveness/decompx"]
        == ranking.set_index("method").loc["decompx", "comprehensiveness"]
    )
    pairs = pd.read_parquet(folder / "maps.parquet").query("head == 0 and sentence == 1")
    model = normscope.load(str(saved_model), dtype="float64")
    for method, maps in attribution_maps(model, TEXTS[0], ["rollout", "decompx"]).items():
        for layer in (1, 3):
            tokens = len(maps.tokens)
            found = pairs.query(f"layer == {layer}").sort_values(["query", "key"])[method].to_numpy()
            np.testing.assert_allclose(found.reshape(tokens, tokens), maps.cumulative[layer - 1][:, :tokens], rtol=1e-5)
    assert "DecompX (norms of vectors, up to this layer)" in (folder / "report.html").read_text()


PAIRS = list(ToyCorpus(9, 4).examples())


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A tiny random translation model with its head and tokenizer."""
    folder = tmp_path_factory.mktemp("translators") / "marian"
    tokenizer = joint_vocabulary([text for pair in PAIRS for text in (pair.text, pair.text_pair)], 90, 64)
    end = tokenizer.convert_tokens_to_ids("</s>")
    ends = [("</s>", end)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    config = STACK_CONFIGS["marian"] | {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": end,
        "bos_token_id": end,
        "decoder_start_token_id": end,
        "max_position_embeddings": 64,
    }
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """A tiny random causal language model with a tokenizer."""
    folder = tmp_path_factory.mktemp("causal") / "llama"
    tokenizer = joint_vocabulary([text for pair in PAIRS for text in (pair.text, pair.text_pair)], 90, 64)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def questions(capsys, monkeypatch, tmp_path, causal):
    """Runs the analysis of a causal model on texts with answers."""
    corpus = tmp_path / "questions.jsonl"
    rows = [{"text": pair.text, "reply": " ".join(pair.text_pair.split()[:2])} for pair in PAIRS]
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def run(*more):
        return run_here(
            capsys,
            monkeypatch,
            "analysis=attribution",
            "analysis.attribution.methods=[alti,decompx]",
            f"model.name={causal}",
            "dataset=text",
            f"dataset.path={corpus}",
            "device=cpu",
            "device.dtype=float64",
            "tracking=disabled",
            "report.enabled=false",
            f"output_dir={tmp_path / 'run'}",
            *more,
        )

    return run


@pytest.mark.slow
def test_answers_of_a_column_are_attributed(questions, tmp_path):
    outcome = questions("analysis.attribution.target=answer", "dataset.pair_column=reply", "level=word")
    assert outcome.status == 0, outcome.err
    metrics = json.loads((tmp_path / "run/results.json").read_text())["metrics"]
    assert {"attribution/answer/comprehensiveness/decompx", "attribution/answer/sufficiency/random"} <= metrics.keys()
    assert "more than the model reads" not in outcome.said
    assert "ean drop in the probability of the answer" in " ".join(outcome.out.split())


@pytest.mark.slow
def test_answers_that_do_not_fit_are_left_out(questions):
    outcome = questions("analysis.attribution.target=answer", "dataset.pair_column=reply", "dataset.max_length=30")
    assert outcome.status == 0, outcome.err
    assert (
        "left out: the text or its answer has no tokens, or together they exceed the model's maximum length"
        in " ".join((outcome.out + outcome.err).split())
    )


@pytest.mark.slow
def test_losses_are_attributed(questions, tmp_path):
    outcome = questions("analysis.attribution.target=loss")
    assert outcome.status == 0, outcome.err
    metrics = json.loads((tmp_path / "run/results.json").read_text())["metrics"]
    assert "attribution/loss/comprehensiveness/decompx" in metrics
    assert "ean drop in the loss of the remaining tokens" in " ".join(outcome.out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["analysis.attribution.target=answer"],
            "target=answer: expected texts and their answers (dataset.pair_column)",
        ),
        (["analysis.attribution.target=answer", "dataset.pair_column=none"], "dataset.pair_column=none: row 1 of"),
        (
            ["analysis.attribution.target=answer", "dataset.pair_column=reply", "dataset.max_length=4"],
            "in every sampled pair, the text or its answer has no tokens, or together they exceed the model's maximum length",
        ),
        (["analysis.attribution.target=loss", "analysis.attribution.erasure=mask"], "leave erasure out"),
        (["analysis.attribution.target=answers"], "analysis.attribution.target"),
    ],
)
def test_wrong_calls_about_answers(questions, arguments, message):
    outcome = questions(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert len([line for line in outcome.err.splitlines() if line.startswith("normscope: ")]) == 1


@pytest.mark.slow
def test_answers_need_a_causal_model(questions, saved_model):
    outcome = questions("analysis.attribution.target=answer", "dataset.pair_column=reply", f"model.name={saved_model}")
    assert outcome.status == 2
    assert "analysis.attribution.target=answer:" in outcome.err


@pytest.fixture
def translations(capsys, monkeypatch, tmp_path, translator):
    """Runs the analysis on translations."""
    corpus = tmp_path / "pairs.jsonl"
    with corpus.open("w") as file:
        for pair in PAIRS:
            file.write(json.dumps({"text": pair.text, "text_pair": pair.text_pair}) + "\n")

    def run(*more):
        return run_here(
            capsys,
            monkeypatch,
            "analysis=attribution",
            f"model.name={translator}",
            "model.stack=cross",
            "dataset=text",
            f"dataset.path={corpus}",
            "device=cpu",
            "tracking=disabled",
            f"output_dir={tmp_path / 'run'}",
            *more,
        )

    return run


@pytest.mark.slow
@pytest.mark.reports
def test_translations_are_attributed_to_source_and_target(translations, tmp_path):
    outcome = translations("analysis.attribution.sequences=20")
    assert outcome.status == 0, outcome.err
    words = pd.read_parquet(tmp_path / "run/tables/attribution_target_words.parquet")
    assert set(words["row"]) == set(range(1, 10))
    of_first = words.query("method == 'decompx' and row == 1")
    assert of_first["text"].tolist() == PAIRS[0].text_pair.split()
    metrics = json.loads((tmp_path / "run/results.json").read_text())["metrics"]
    by_row = words.query("method == 'decompx'").groupby("row")["source"].mean()
    assert metrics["attribution/translation/decompx/source"] == pytest.approx(by_row.mean())
    page = (tmp_path / "run/report.html").read_text()
    assert "According to ALTI+" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analysis.attribution.methods=[globenc]"], "globenc is not defined for translations"),
        (["model.stack=decoder"], "set stack=encoder, or attribute translations with stack=cross"),
    ],
)
def test_wrong_calls_about_translations(translations, arguments, message):
    outcome = translations(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
def test_a_corpus_without_translations(translations, tmp_path):
    (tmp_path / "alone.jsonl").write_text('{"text": "der Hund sieht"}\n')
    outcome = translations(f"dataset.path={tmp_path / 'alone.jsonl'}")
    assert outcome.status == 2
    assert "expected texts and their translations" in outcome.err
