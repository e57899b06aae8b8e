"""`python run.py model.name=FOLDER` with every analysis, for a small saved model of every kind of family."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.end_to_end.shell import run_here
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, UNKNOWN_NETWORKS, tiny_model

TEXTS = [
    "the old river walks, and the cat sees it.",
    "a cat",
    "the river is old. it walks, it sees, and it is cold today",
]


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, as GPT-2 has them: no special token at all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, family, byte_tokenizer):
    path = tmp_path_factory.mktemp("families") / family
    limit = "n_positions" if family in ("gpt2", "t5") else "max_position_embeddings"
    config = (FAMILY_CONFIGS | STACK_CONFIGS)[family]
    tiny_model(config | {"vocab_size": 300, limit: 130}, torch.float32).save_pretrained(path)
    byte_tokenizer.save_pretrained(path)
    return path


@pytest.mark.kinds("bert", "gpt2", "deberta-v2", "olmo2", "gpt_oss")
@pytest.mark.spread(1)
def test_every_analysis_runs(capsys, monkeypatch, tmp_path, family, folder):
    """That blocks are the model's own is what the contracts of families prove; what is made of them, the oracles."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    names = ["mixing", "norms", "outliers", "score", *([] if family in UNKNOWN_NETWORKS else ["feedforward"])]
    chosen = [f"analysis=[{','.join(names)}]", "analysis.outliers.dimensions=[3,7]"]
    quick = ["analysis.score.controls=2", "tracking=disabled"]
    data = ["dataset=text", f"dataset.path={corpus}", "device=cpu"]
    outcome = run_here(
        capsys, monkeypatch, f"model.name={folder}", *chosen, *quick, *data, f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 0, outcome.err
    assert "category cls" not in outcome.said  # the tokenizer has no such token
    result = json.loads((tmp_path / "run/results.json").read_text())
    assert result["facts"]["verification_error"] < 1e-4
    assert {name.partition("/")[0] for name in result["metrics"]} == set(names)
    assert np.isfinite(list(result["metrics"].values())).all()


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    path = tmp_path_factory.mktemp("parallel") / "corpus.jsonl"
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    rows = [{"text": text, "text_pair": pair} for text, pair in pairs] + [{"text": "nobody translates me"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("stack", ["decoder", "cross"])
@pytest.mark.parametrize("model_type", ["bart", "t5"])
@pytest.mark.slow
def test_stacks_of_an_encoder_decoder(
    capsys, monkeypatch, tmp_path, tmp_path_factory, byte_tokenizer, parallel, model_type, stack
):
    folder = tmp_path_factory.mktemp("stacks") / model_type
    model = tiny_model(STACK_CONFIGS[model_type] | {"vocab_size": 300}, torch.float32)
    model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    names = "mixing,norms" if stack == "cross" else "mixing,norms,outliers,score"
    given = [f"analysis=[{names}]", f"model.name={folder}", f"model.stack={stack}", "dataset=text"]
    quick = ["analysis.score.controls=2", "tracking=disabled", "device=cpu"]
    outcome = run_here(
        capsys, monkeypatch, *given, *quick, f"dataset.path={parallel}", f"output_dir={tmp_path / 'run'}"
    )
    assert outcome.status == 0, outcome.err
    assert "1 example was skipped: without a target text" in outcome.err

    table = pd.read_parquet(tmp_path / "run/tables/norms_by_layer.parquet")
    assert sorted(table["layer"].unique()) == [1, 2]


@pytest.mark.slow
def test_analyses_that_do_not_support_cross_attention_refuse_it(
    capsys, monkeypatch, tmp_path, tmp_path_factory, byte_tokenizer
):
    folder = tmp_path_factory.mktemp("refused") / "marian"
    tiny_model(STACK_CONFIGS["marian"] | {"vocab_size": 300}, torch.float32).save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    given = ["analysis=score", f"model.name={folder}", "model.stack=cross", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 2
    assert "analysis=score does not support cross-attention" in outcome.err
    outcome = run_here(capsys, monkeypatch, "model=minilm", "model.stack=cross", f"output_dir={tmp_path / 'run'}")
    assert (outcome.status, "bert has only one stack" in outcome.err) == (2, True)
