"""What the first position of a causal model adds whatever the word in it, against vectors that are built one by one."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

import normscope
from normscope.api.first_position import of_position, scores_of_first_position
from normscope.live import answers
from normscope.live.session import Session
from tests.oracles.frozen_vectors import explicit_vectors
from tests.tiny import saved_with_head

TEXT = "Old bridges were closed"


@pytest.fixture(scope="module")
def plain(tokenizer):
    """A tokenizer that puts nothing before a text."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.post_processor = None
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[SEP]")


@pytest.fixture(scope="module")
def model(plain, tmp_path_factory):
    folder = saved_with_head(AutoModelForCausalLM, "gpt2", plain, tmp_path_factory.mktemp("first") / "model")
    return normscope.load(folder, dtype="float64")


def vector_of_first(model, ids):
    """What the first token adds to the last token's vector: its own vector there, through the final norm; and the whole."""
    norm, passing = model.model.ln_f, []
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    hook = norm.register_forward_hook(lambda _, read, made: passing.append((read[0][0, -1], made[0, -1])))
    with torch.inference_mode():
        model.model(**inputs)
        vector = explicit_vectors(model.model, model.facts, inputs)[0, -1, 0]
    hook.remove()
    entering, leaving = passing[0]
    return (vector - vector.mean()) / (entering.var(correction=0) + norm.eps).sqrt() * norm.weight, leaving


def score_of_first(model, ids, target, against):
    """What the first token adds to the difference of two logits after the last."""
    weight = model.next_token_head.lm_head.weight
    return float(vector_of_first(model, ids)[0] @ (weight[target] - weight[against]))


def test_neutral_tokens_in_the_first_place(model):
    ids = model.tokenizer(TEXT)["input_ids"]
    marks = model.tokenizer.convert_tokens_to_ids([",", "."])
    found = scores_of_first_position(model, TEXT, 0.0, normscope.NextToken(2005), against=2006)
    expected = [score_of_first(model, [mark, *ids[1:]], 2005, 2006) for mark in marks]
    assert list(found) == [",", "."]
    assert list(found.values()) == pytest.approx(expected, rel=1e-9)


def test_a_special_token_is_no_word(model):
    """Its whole score is the position's, and no pass is needed."""
    assert scores_of_first_position(model, f"[SEP] {TEXT}", 1.5, normscope.NextToken(2005)) == {"[SEP]": 1.5}


def test_without_marks_the_tokens_that_end_texts_stand_in(model, monkeypatch):
    ids = model.tokenizer(TEXT)["input_ids"]
    monkeypatch.setattr("normscope.api.first_position._MARKS", ("no token",))
    found = scores_of_first_position(model, TEXT, 0.0, normscope.NextToken(2005), against=2006)
    ends = model.tokenizer.eos_token_id
    assert found == {"[SEP]": pytest.approx(score_of_first(model, [ends, *ids[1:]], 2005, 2006), rel=1e-9)}


@pytest.mark.parametrize("level", ["token", "word"])
def test_the_row_and_the_tokens_add_up(model, monkeypatch, level):
    monkeypatch.setattr(answers, "_SINK", 0.0)
    session = Session([model], 24)
    try:
        found = session.answer({"part": "prediction", "state": {"text": TEXT, "level": level}}).result()
    finally:
        session.engine.close(5)
    ids = model.tokenizer(TEXT)["input_ids"]
    inputs = {"input_ids": torch.tensor([ids])}
    with torch.inference_mode():
        logits = model.next_token_head(**inputs).logits[0, -1]
    first, second = logits.topk(2).indices.tolist()
    assert found["value"] == pytest.approx(float(logits[first] - logits[second]), rel=1e-9)
    position = found["first"]["value"]
    parts = sum(found["scores"]) + position + found["bias"] + found["remainder"]
    assert parts == pytest.approx(found["value"], rel=1e-5)  # scores are sent with six digits
    marks = model.tokenizer.convert_tokens_to_ids([",", "."])
    expected = [score_of_first(model, [mark, *ids[1:]], first, second) for mark in marks]
    own = score_of_first(model, ids, first, second)
    assert position == pytest.approx(sorted([*expected, own])[1], rel=1e-9)
    if level == "token":
        assert found["scores"][0] == pytest.approx(own - position, rel=1e-4)


def test_another_answer_is_compared_with_the_likeliest_other(model):
    """A logit alone is shared by all answers."""
    session = Session([model], 24)
    try:
        names = [
            name for name, _ in session.answer({"part": "prediction", "state": {"text": TEXT}}).result()["choices"]
        ]
        asked = {name: {"part": "prediction", "state": {"text": TEXT, "target": name}} for name in names[:2]}
        compared = {name: session.answer(request).result()["against"] for name, request in asked.items()}
    finally:
        session.engine.close(5)
    assert compared == {names[0]: names[1], names[1]: names[0]}


def test_the_row_of_an_embedding_is_a_share_of_its_length(plain, tmp_path, monkeypatch):
    """The last token's vector, along its own direction."""
    monkeypatch.setattr(answers, "_SINK", 0.0)
    folder = saved_with_head(AutoModel, "gpt2", plain, tmp_path / "model", tie_word_embeddings=False)
    model = normscope.load(folder, dtype="float64")
    session = Session([model], 24)
    try:
        found = session.answer({"part": "prediction", "state": {"text": TEXT}}).result()
    finally:
        session.engine.close(5)
    assert found["choices"] == []
    parts = sum(found["scores"]) + found["first"]["value"] + found["bias"] + found["remainder"]
    assert parts == pytest.approx(1, rel=1e-5)

    ids = model.tokenizer(TEXT)["input_ids"]
    scores = []
    for mark in model.tokenizer.convert_tokens_to_ids([",", "."]):
        part, whole = vector_of_first(model, [mark, *ids[1:]])
        scores.append(float(part @ whole / whole.norm()))
    part, whole = vector_of_first(model, ids)
    length = float(whole.norm())
    own = float(part @ whole / length)
    assert found["first"]["value"] == pytest.approx(sorted([*scores, own])[1] / length, rel=1e-9)


def test_the_position_has_what_neutral_tokens_would_add():
    """Below, within and above their range."""
    found = of_position(np.array([-0.5, 0.1, 2.0]), np.array([[0.4, -0.2], [0.4, -0.2], [0.3, 0.3]]))
    assert found.tolist() == [-0.2, 0.1, 0.3]
