"""Word alignment as a user runs it; tests/oracles compares its numbers with a brute force."""

import dataclasses
import json
import runpy
import shutil
import sys

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from normscope.alignment.links import pharaoh
from normscope.data.toy_corpus import ToyCorpus
from normscope.reporting.published import published
from normscope.translation.vocabulary import joint_vocabulary
from tests.end_to_end.forks import run_several
from tests.end_to_end.shell import ROOT, run_here
from tests.tiny import STACK_CONFIGS, tiny_model

PAIRS = list(ToyCorpus(9, 4).examples())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Pairs of different lengths and their links, as files."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "pairs.txt").write_text("".join(f"{pair.text} ||| {pair.text_pair}\n" for pair in PAIRS))
    (folder / "pairs.de").write_text("".join(f"{pair.text}\n" for pair in PAIRS))
    (folder / "pairs.en").write_text("".join(f"{pair.text_pair}\n" for pair in PAIRS))
    gold = [
        " ".join(
            [f"{s + 1}-{t + 1}" for s, t in sorted(pair.links.sure)]
            + [f"{s + 1}p{t + 1}" for s, t in sorted(pair.links.possible - pair.links.sure)]
        )
        for pair in PAIRS
    ]
    (folder / "gold").write_text("\n".join(gold) + "\n")
    (folder / "perfect").write_text("".join(f"{pharaoh(pair.links.sure)}\n" for pair in PAIRS))
    (folder / "flipped").write_text(
        "".join(f"{pharaoh(frozenset((t, s) for s, t in pair.links.sure))}\n" for pair in PAIRS)
    )
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A tiny random model saved to disk with its tokenizer."""
    folder = tmp_path_factory.mktemp("translators") / "marian"
    tokenizer = joint_vocabulary([text for pair in PAIRS for text in (pair.text, pair.text_pair)], 90, 64)
    ends = [("</s>", tokenizer.convert_tokens_to_ids("</s>"))]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    config = STACK_CONFIGS["marian"] | {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.eos_token_id,
        "max_position_embeddings": 64,
    }
    tiny_model(config, torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(capsys, monkeypatch, translator, corpus, folder, *more):
    return run_here(
        capsys,
        monkeypatch,
        "analysis=alignment",
        f"model.name={translator}",
        "dataset=parallel",
        f"dataset.path={corpus / 'pairs.txt'}",
        f"analysis.alignment.gold.path={corpus / 'gold'}",
        "analysis.alignment.gold.base=1",
        f"output_dir={folder}",
        "device=cpu",
        "tracking=disabled",
        *more,
    )


@pytest.mark.slow
@pytest.mark.draws
def test_other_aligners_are_in_the_same_table_and_a_pair_is_drawn(capsys, monkeypatch, translator, corpus, tmp_path):
    flipped = f"{{path: {corpus / 'flipped'}, direction: target-source}}"
    baselines = f"analysis.alignment.baselines={{perfect: {corpus / 'perfect'}, flipped: {flipped}}}"
    outcome = run(
        capsys,
        monkeypatch,
        translator,
        corpus,
        tmp_path / "run",
        "layers=[2]",
        "analysis.alignment.smoothgrad=2",
        baselines,
        "analysis.alignment.sentences=[1]",
    )
    assert outcome.status == 0, outcome.err
    rates = pd.read_parquet(tmp_path / "run/tables/alignment_aer.parquet").set_index("method")
    for name in ("perfect", "flipped"):
        assert rates.loc[name, ["layer", "head", "aer", "precision", "recall"]].tolist() == [0, 0, 0.0, 1.0, 1.0]
    metrics = json.loads((tmp_path / "run/results.json").read_text())["metrics"]
    named = {name for group in published("kobayashi2020") for name in group.get("values", {})}
    assert {name for name in named if name.startswith("alignment/attn")} <= set(metrics)
    names = {path.stem for path in (tmp_path / "run/figures").glob("*.png")}
    assert names == {f"alignment_{name}" for name in ("by_layer", "norm_and_aer", "map_1", "map_layers_1")}
    for name in ("map_1", "map_layers_1"):
        drawn = (tmp_path / f"run/figures/alignment_{name}.svg").read_text()
        for word in {*PAIRS[0].text.split(), *PAIRS[0].text_pair.split()}:
            assert word in drawn


@pytest.mark.slow
@pytest.mark.usefixtures("small_toy")
def test_toy_chain_from_training_to_error_rates(capsys, monkeypatch, tmp_path):
    for name in ("first", "second"):
        outcome = run_here(
            capsys,
            monkeypatch,
            "experiment=alignment_toy",
            "dataset.limit=20",
            "tracking=disabled",
            f"output_dir={tmp_path / name}",
        )
        assert outcome.status == 0, outcome.err
        assert ("was trained before" in outcome.said) == (name == "second")
    first, second = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("first", "second"))
    assert first["metrics"] == second["metrics"]
    assert first["facts"]["model"] == "alignment-toy"
    assert first["facts"]["sequences"] == 20


# What the files and options of links may hold is tested in unit/test_alignment.py, test_gold.py and test_analysis_options.py.
BAD = {
    "a link out of range": ("seed=1", {"gold": "1-1\n" * 8 + "99-1\n"}, "line 9: 99-1 points at source word 99"),
    "no such gold": ("analysis.alignment.gold.path=/nowhere", {}, "/nowhere: no such file"),
    "sides of different length": (
        "seed=1",
        {"pairs.txt": "a ||| b\n" * 8 + "a b\n"},
        "line 9: expected '|||' once, got it 0 times",
    ),
    "too long": ("dataset.max_length=5", {}, "row 1: the source has"),
    "no such row": ("analysis.alignment.sentences=[77]", {}, "no sentence pair in row 77"),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_line(capsys, monkeypatch, translator, corpus, tmp_path, case):
    override, files, message = BAD[case]
    for name in ("pairs.txt", "gold"):
        (tmp_path / name).write_text(files.get(name, (corpus / name).read_text()))
    outcome = run(capsys, monkeypatch, translator, tmp_path, tmp_path / "run", override)
    assert outcome.status == 2
    assert message in outcome.err, outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "run").exists()


def test_models_without_cross_attention_are_refused(capsys, monkeypatch, saved_model, corpus, tmp_path):
    outcome = run(capsys, monkeypatch, saved_model, corpus, tmp_path / "run")
    assert outcome.status == 2
    assert "no cross-attention" in outcome.err


@pytest.mark.slow
def test_trained_models_translate(capsys, monkeypatch, tmp_path):
    """Training leaves a complete checkpoint with a head, and says how far it has come in sentences only."""
    from normscope.translation import toy
    from normscope.translation.training import Recipe

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape = {"vocabulary": 90, "model": 16, "feed_forward": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    said: list[str] = []
    folder = toy.toy_model(3, said.append, Recipe(epochs=4, batch_pairs=1, **shape), pairs=25)
    assert said[0].startswith("training a toy translation model")
    assert [message.partition(", loss ")[0] for message in said[1:]] == ["training: step 100 of 100"]
    assert "{" not in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(["der Hund sieht die Katze ."], return_tensors="pt")
    assert model.generate(**inputs, max_length=8).shape[0] == 1


SMALL_PAPER = (
    *("--recipe", "kobayashi2020", "--vocabulary", "120", "--model", "16", "--feed-forward", "16", "--heads", "2"),
    *("--encoder-layers", "1", "--decoder-layers", "1", "--dropout", "0", "--epochs", "2", "--learning-rate", "1e-3"),
    *("--warmup-steps", "3", "--batch-tokens", "400", "--pass-tokens", "100", "--log-every", "1", "--save-every", "2"),
)


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_the_papers_recipe_comes_to_the_same_in_two_processes_and_after_an_interruption(tmp_path):
    """A step has the same tokens however many processes share them."""
    script = ROOT / "experiments/translation/train.py"
    pairs = list(ToyCorpus(72, 8).examples())
    for side, texts in (("de", [pair.text for pair in pairs]), ("en", [pair.text_pair for pair in pairs])):
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts))
    given = (*SMALL_PAPER, "--train", str(tmp_path / "de"), str(tmp_path / "en"))

    def trained(processes, name):
        outcomes = run_several(processes, *given, "--output", str(tmp_path / name), program=script)
        assert [outcome.status for outcome in outcomes] == [0] * processes, outcomes[0].err
        assert not any("training" in outcome.out for outcome in outcomes[1:]), "the first process says it all"
        lines = [line for line in outcomes[0].out.splitlines() if line.startswith("training: step")]
        return [float(line.partition("loss ")[2]) for line in lines]

    losses = trained(1, "alone")
    assert trained(2, "shared") == pytest.approx(losses, abs=0.011)  # they are printed with two decimals
    checkpoints = (tmp_path / "alone/checkpoints").glob("checkpoint-*")
    last = max(checkpoints, key=lambda path: int(path.name.partition("-")[2]))
    shutil.copytree(tmp_path / "alone", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/checkpoints" / last.name)
    (tmp_path / "resumed/model.safetensors").unlink()
    again = trained(1, "resumed")
    assert again == losses[-len(again) :]
    assert len(again) < len(losses)
    other = run_several(1, *given, "--heads", "4", "--output", str(tmp_path / "resumed"), program=script)[0]
    assert other.status == 2
    assert "heads was 2 in its checkpoints and is 4 now; expected the same recipe" in other.err
    alone = weights(tmp_path / "alone")
    for name, tensor in alone.items():
        torch.testing.assert_close(weights(tmp_path / "resumed")[name], tensor, rtol=0, atol=1e-6)
        torch.testing.assert_close(
            weights(tmp_path / "shared")[name], tensor, rtol=0, atol=2e-3
        )  # Adam amplifies rounding


@pytest.mark.slow
def test_wrong_values_of_a_recipe_are_refused_in_one_line(monkeypatch, capsys, tmp_path):
    script = str(ROOT / "experiments/translation/train.py")
    for wrong, message in {
        ("--dropout", "1"): "dropout=1: expected a number from 0 to below 1",
        ("--heads", "3"): "model=256: expected a multiple of heads=3",
        ("--schedule", "cosine"): "schedule=cosine: expected one of linear, inverse_sqrt",
    }.items():
        given = ["--train", "de", "en", "--output", str(tmp_path / "model"), *wrong]
        monkeypatch.setattr(sys, "argv", [script, *given])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(script, run_name="__main__")
        assert exit_.value.code == 2
        assert capsys.readouterr().err == f"train.py: {message}\n"


@pytest.mark.slow
def test_the_translation_recipe_trains_goes_on_and_measures(capsys, monkeypatch, tmp_path):
    from normscope.translation import toy

    script = str(ROOT / "experiments/translation/train.py")
    sides = [tmp_path / "train.de", tmp_path / "train.en"]
    pairs = list(ToyCorpus(70, 8).examples())
    sides[0].write_text("".join(f"{pair.text}\n" for pair in pairs))
    sides[1].write_text("".join(f"{pair.text_pair}\n" for pair in pairs))
    given = ["--train", *map(str, sides), "--output", str(tmp_path / "model"), "--save-every", "1"]

    def trained(*more: str) -> None:
        monkeypatch.setattr(sys, "argv", [script, *given, *more])
        runpy.run_path(script, run_name="__main__")

    def steps() -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in (tmp_path / "model/checkpoints").glob("checkpoint-*"))

    trained("--epochs", "1")
    assert steps() == [1, 2]
    few = [tmp_path / "test.de", tmp_path / "test.en"]
    for path, whole in zip(few, sides, strict=True):
        path.write_text("".join(whole.read_text().splitlines(keepends=True)[:3]))
    trained("--epochs", "2", "--test", *map(str, few))
    assert steps() == [3, 4], "it goes on from the second step"
    score = json.loads((tmp_path / "model/bleu.json").read_text())
    assert score["sentences"] == 3
    assert "version:" in score["signature"]
    monkeypatch.setattr(toy, "PAIRS", 70)
    monkeypatch.setattr(toy, "RECIPE", dataclasses.replace(toy.RECIPE, model=16, feed_forward=16))
    monkeypatch.setattr(
        sys, "argv", [script, "--toy", "--output", str(tmp_path / "toy"), "--epochs", "1", "--save-every", "1"]
    )
    runpy.run_path(script, run_name="__main__")
    assert json.loads((tmp_path / "toy/config.json").read_text())["d_model"] == 16
    sides[1].write_text("one line\n")
    with pytest.raises(SystemExit) as exit_:
        trained("--epochs", "1")
    assert exit_.value.code == 2
    assert "70 lines" in capsys.readouterr().err
