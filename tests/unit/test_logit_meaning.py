"""What the numbers of a head mean, wherever they are shown: as transformers' own pipeline reads them."""

import json
import re

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, pipeline

import normscope
from normscope.attribution.readouts import readout_of
from normscope.live.predictions import prediction_of
from normscope.models.stored.logit_meaning import LogitMeaning
from tests.end_to_end.shell import run_here
from tests.one_text import attribute
from tests.tiny import saved_with_head

TEXT = "The old bridge was closed."
HEADS = {
    "one class of three": ({"num_labels": 3}, "softmax"),
    "said to be one of three": ({"num_labels": 3, "problem_type": "single_label_classification"}, "softmax"),
    "labels": ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
    "one label": ({"num_labels": 1}, "sigmoid"),
    "a value": ({"num_labels": 1, "problem_type": "regression"}, "value"),
    "values": ({"num_labels": 3, "problem_type": "regression"}, "value"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_explain_and_the_analysis_read_logits_as_transformers_does(capsys, monkeypatch, tmp_path, tokenizer, name):
    changes, meaning = HEADS[name]
    folder = saved_with_head(AutoModelForSequenceClassification, "bert", tokenizer, tmp_path / "model", **changes)
    model = normscope.load(str(folder))
    scores = pipeline("text-classification", model=str(folder), tokenizer=tokenizer)(TEXT, top_k=None)
    expected = {each["label"]: each["score"] for each in scores}
    found = prediction_of(model, TEXT)
    assert str(found.meaning) == meaning
    assert found.what == ("value" if meaning == "value" else "class")
    assert dict(found.choices) == pytest.approx(expected, rel=1e-4)
    assert [label for label, _ in found.choices] == sorted(expected, key=lambda label: -expected[label])

    readout, _ = readout_of(model, None)
    logits = torch.tensor([[1.5, -0.5, 0.25][: changes["num_labels"]]])
    value = float(readout.values(logits, logits))
    by_hand = {"softmax": float(logits.softmax(-1).max()), "sigmoid": float(logits.sigmoid().max()), "value": 1.5}
    assert value == pytest.approx(by_hand[meaning])
    assert readout.quantity == ("value" if meaning == "value" else "probability")

    outcome = run_here(capsys, monkeypatch, "explain", TEXT, f"model.name={folder}", f"output_dir={tmp_path / 'out'}")
    assert outcome.status == 0
    best, number = found.choices[0]
    written = f"{number:+.3g}".replace("-", "−") if meaning == "value" else f"{100 * number:.3g}%"
    assert f"{written}  {best}" in outcome.out
    (saved,) = re.findall(r'id="saved">(.*?)</script>', (tmp_path / "out" / "explain.html").read_text(), re.S)
    answer = json.loads(json.loads(saved)["answers"]["prediction 0"])
    assert answer["choices"][0] == [best, pytest.approx(number)]
    assert answer["meaning"] == meaning
    said = attribute(model, TEXT, normscope.Label()).what
    assert said.startswith("value of LABEL" if meaning == "value" else "logit of the class LABEL")


@pytest.mark.parametrize(
    ("config", "meaning"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "value"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "value"),
        ({"sentence_transformers": {"version": "5.0.0"}}, "sigmoid"),
    ],
)
def test_cross_encoders_name_their_activation(config, meaning):
    assert str(LogitMeaning.of(BertConfig(num_labels=1, **config))) == meaning


def test_a_regression_that_falls_is_measured_by_its_size():
    tiny = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    model = BertForSequenceClassification(BertConfig(**tiny, num_labels=1, problem_type="regression"))
    readout, _ = readout_of(normscope.wrap(model), None)
    values = readout.values(torch.tensor([[-0.5]]), torch.tensor([[-2.0]]))
    assert values.tolist() == [0.5]
