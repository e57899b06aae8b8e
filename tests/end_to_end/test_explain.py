"""`normscope explain`: one text, from the command line to a page in a browser."""

import html
import io
import json
import re

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

import normscope
from normscope.live import answers
from normscope.live.predictions import prediction_of
from normscope.rounding import brief_share, number, percentage
from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.shell import run_here
from tests.one_text import attribute, decompose
from tests.tiny import saved_with_head

TEXT = "The old bridge was closed, so we crossed the river."


def explained(capsys, monkeypatch, folder, *arguments):
    outcome = run_here(capsys, monkeypatch, "explain", *arguments, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(folder / "explain.html")
    page = (folder / "explain.html").read_text()
    (held,) = re.findall(r'<script type="application/json" id="saved">(.*?)</script>', page)
    return outcome.out, {part: json.loads(answer) for part, answer in json.loads(held)["answers"].items()}


@pytest.mark.slow
def test_an_embedding(capsys, monkeypatch, tmp_path, saved_model):
    out, shown = explained(capsys, monkeypatch, tmp_path / "out", TEXT, f"model.name={saved_model}")
    model = normscope.load(str(saved_model))
    assert shown["prediction 0"]["choices"] == []
    assert shown["prediction 0"]["sum"] in " ".join(out.split())
    assert shown["maps 0"]["tokens"] == [*decompose(model, TEXT).tokens]
    assert {"heads 0", "chained 0", "carried 0"} <= shown.keys()
    # What each token adds to the mean vector along its direction, as a share of its length.
    inputs = model.tokenizer(TEXT, return_tensors="pt")
    with torch.inference_mode():
        mean = model.model(**inputs).last_hidden_state[0].mean(dim=0)
    length = float(mean.norm())
    along = mean / length
    alone = attribute(model, TEXT, lambda hidden: hidden.mean(dim=0) @ along)
    found = shown["prediction 0"]
    assert found["value"] == 1.0
    assert found["scores"] == pytest.approx(list(alone.scores / length), rel=1e-3, abs=1e-5)
    assert sum(found["scores"]) + found["bias"] + found["remainder"] == pytest.approx(1, abs=1e-4)
    assert f"{percentage(sum(found['scores']))} of the embedding comes from tokens" in " ".join(out.split())
    heads = attribute(model, TEXT, lambda hidden: hidden.mean(dim=0) @ along, by=["layer", "head"])
    (strongest,) = heads.strongest(1).itertuples(index=False, name=None)
    assert shown["heads 0"]["strongest"][0] == pytest.approx([*strongest[:2], strongest[2] / length], rel=1e-3)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("auto", "family", "text", "what"),
    [
        (AutoModelForSequenceClassification, "bert", TEXT, "class"),
        (AutoModelForMaskedLM, "bert", "The old bridge was [MASK].", "masked token"),
        (AutoModelForCausalLM, "gpt2", TEXT, "next token"),
    ],
)
def test_predictions(capsys, monkeypatch, tmp_path, tokenizer, auto, family, text, what):
    folder = saved_with_head(auto, family, tokenizer, tmp_path / "model")
    out, shown = explained(capsys, monkeypatch, tmp_path / "out", text, f"model.name={folder}")
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        logits = auto.from_pretrained(folder)(**inputs).logits[0]
    if what == "masked token":
        logits = logits[int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0])]
    elif what == "next token":
        logits = logits[-2]  # before [SEP]
    probability, best = logits.double().softmax(dim=-1).max(dim=-1)
    name = f"LABEL_{int(best)}" if what == "class" else tokenizer.convert_ids_to_tokens(int(best))
    assert f"{folder}: {what}" in out
    assert f"{100 * float(probability):7.3g}%  {name}" in out
    assert shown["prediction 0"]["choices"][0] == [name, pytest.approx(float(probability), rel=1e-4)]
    parts = attribute(
        model := normscope.load(str(folder)),
        text,
        prediction_of(model, text).target,
        against=shown["prediction 0"]["against"],
        by=["layer", "head"],
    )
    assert shown["heads 0"]["strongest"] == parts.strongest(8).to_numpy().tolist()


@pytest.mark.slow
def test_the_first_answer_is_compared_with_the_second_and_a_sink_has_a_row(capsys, monkeypatch, tmp_path, tokenizer):
    """Of the special token that texts begin with, all belongs to the position."""
    folder = saved_with_head(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path / "model")
    model = normscope.load(str(folder))
    ids = tokenizer(TEXT)["input_ids"]
    names = [name for name, _ in prediction_of(model, TEXT).choices]
    first, second = tokenizer.convert_tokens_to_ids(names[:2])
    found = attribute(model, TEXT, normscope.NextToken(first), against=second)
    weight = float(decompose(model, TEXT).maps["attn_w"][:, 1:, 0].mean())
    for least, apart in ((weight + 1e-4, False), (weight - 1e-4, True)):
        monkeypatch.setattr(answers, "_SINK", least)
        out, shown = explained(capsys, monkeypatch, tmp_path / str(apart), TEXT, f"model.name={folder}")
        assert found.sentence in " ".join(out.split())
        rows = [line.split() for line in out.split("biases")[1].splitlines()[2:] if line.startswith("  ")]
        strongest = sorted(range(apart, len(ids)), key=lambda at: -abs(found.scores[at]))[:8]
        written = number(found.scores[0], signed=True)
        position = [[written, "the"]] if apart else []
        assert [row[:2] for row in rows] == [
            *([number(found.scores[at], signed=True), found.tokens[at]] for at in strongest),
            *position,
        ]
        said = f"The first position, whatever the word, adds {written}: [CLS] is not a word."
        assert (said in " ".join(out.split())) is apart
        assert shown["prediction 0"]["first"] == (
            {
                "value": pytest.approx(found.scores[0]),
                "name": "the first position, whatever the word",
                "said": f"{said} The position is an attention sink: later tokens give it {brief_share(weight)} of their "
                "attention weight.",
            }
            if apart
            else None
        )


@pytest.mark.slow
def test_a_translation(capsys, monkeypatch, tmp_path, tokenizer):
    folder = saved_with_head(AutoModelForSeq2SeqLM, "marian", tokenizer, tmp_path / "model", decoder_start_token_id=0)
    out, shown = explained(
        capsys, monkeypatch, tmp_path / "out", f"{TEXT} ||| the bridge", f"model.name={folder}", "model.stack=cross"
    )
    assert "the next token of the translation" in out
    assert "heads 0" not in shown
    assert {*shown["chained 0"]["maps"]} == {"alti"}


def test_files_and_standard_input(capsys, monkeypatch, tmp_path, saved_model):
    (tmp_path / "a.txt").write_text(f"{TEXT}\n")
    outputs = []
    for place, text in enumerate((str(tmp_path / "a.txt"), "-")):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\n"))
        out, page = explained(capsys, monkeypatch, tmp_path / str(place), text, f"model.name={saved_model}")
        outputs.append((out.splitlines()[:-1], page))
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_attention_weights_are_followed_if_asked(capsys, monkeypatch, tmp_path, saved_model):
    out, answered = explained(capsys, monkeypatch, tmp_path, TEXT, f"model.name={saved_model}", "attention=through")
    model = normscope.load(str(saved_model))
    prediction = prediction_of(model, TEXT)
    rules = [attribute(model, TEXT, prediction.target, attention=each) for each in ("through", "held")]
    strongest = [max(range(len(each.scores)), key=lambda at, each=each: abs(each.scores[at])) for each in rules]
    shown = [number(each.scores[at] / each.target, signed=True) for each, at in zip(rules, strongest, strict=True)]
    assert shown[0] != shown[1]
    assert shown[0] in out
    assert shown[1] not in out
    assert "attention weights are followed to queries and keys" in answered["prediction 0"]["rule"]
    assert "heads 0" not in answered


def test_a_file_that_is_no_text(capsys, monkeypatch, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\x00")
    outcome = run_here(capsys, monkeypatch, "explain", str(tmp_path / "a.bin"))
    assert outcome.status == 2
    assert "expected a text in UTF-8" in outcome.err


@pytest.mark.slow
def test_a_text_that_is_markup(capsys, monkeypatch, tmp_path, saved_model):
    explained(capsys, monkeypatch, tmp_path / "out", "<script>alert(1)</script>", f"model.name={saved_model}")
    page = (tmp_path / "out" / "explain.html").read_text()
    assert "<script>alert" not in page
    assert html.escape("<script>alert(1)</script>") in page.partition("</title>")[0]


@pytest.mark.slow
def test_long_texts_are_shown_without_what_is_too_large(capsys, monkeypatch, tmp_path, saved_model):
    monkeypatch.setattr(answers, "_LARGEST", 6000)
    _, shown = explained(capsys, monkeypatch, tmp_path / "heads", TEXT, f"model.name={saved_model}")
    assert "shown without individual heads: the text is too large to show them" in shown["maps 0"]["notes"][0]
    monkeypatch.setattr(answers, "_LARGEST", 100)
    _, shown = explained(capsys, monkeypatch, tmp_path / "maps", TEXT, f"model.name={saved_model}")
    assert "are too many for maps of all pairs on one page" in shown["maps 0"]["notes"][0]
    assert shown["maps 0"]["maps"] is None
    assert {"chained 0", "carried 0"}.isdisjoint(shown)


@pytest.mark.slow
@needs_browser
def test_a_page_without_maps_in_a_browser(capsys, monkeypatch, tmp_path, saved_model):
    monkeypatch.setattr(answers, "_LARGEST", 100)
    explained(capsys, monkeypatch, tmp_path / "out", TEXT, f"model.name={saved_model}")
    dom, console = opened(tmp_path / "out" / "explain.html")
    assert console == []
    assert "are too many for maps" in dom
    assert "Mixing by layer" in dom
    assert "DecompX" not in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
