"""`normscope explain PROMPT --sources …`: from the command line to numbers, files and a page in a browser."""

import json
import re

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

import normscope
from normscope.reporting.viewing import draw_again
from normscope.rounding import number
from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.shell import run_here
from tests.tiny import saved_with_head

PASSAGES = {"bridge.txt": "The old bridge was closed.", "river.txt": "We crossed the river."}


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    return saved_with_head(AutoModelForCausalLM, "gpt2", tokenizer, tmp_path_factory.mktemp("sources") / "model")


@pytest.fixture
def passages(tmp_path):
    (tmp_path / "passages").mkdir()
    for name, text in PASSAGES.items():
        (tmp_path / "passages" / name).write_text(text)
    return tmp_path / "passages"


def explained(capsys, monkeypatch, folder, *arguments):
    outcome = run_here(capsys, monkeypatch, "explain", *arguments, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[-1] == str(folder / "explain.html")
    page = (folder / "explain.html").read_text()
    (held,) = re.findall(r'<script type="application/json" id="sources-data">(.*?)</script>', page)
    return outcome.out, normscope.read(folder), json.loads(held)


def test_a_folder_of_passages(capsys, monkeypatch, tmp_path, folder, passages):
    answer = "They took a ferry。 It was slow"
    out, read, shown = explained(
        capsys, monkeypatch, tmp_path / "out", "{sources} So", "--sources", str(passages), "--answer", answer,
        "--check", "all", f"model.name={folder}",
    )  # fmt: skip
    prompt = "The old bridge was closed.\n\nWe crossed the river. So"
    found = normscope.sources(normscope.load(str(folder)), prompt, PASSAGES, answer=f" {answer}", check="all")
    for column in ("part", "handed_on", "removal"):
        np.testing.assert_allclose(read.table[column], found.table[column], rtol=1e-4, atol=1e-5)
    assert found.sentences[0] in " ".join(out.split())
    assert len(shown["sentences"]) == 2
    np.testing.assert_allclose(np.sum(shown["parts"], axis=0), found.table["part"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.sum(shown["removals"], axis=0), found.table["removal"], rtol=1e-4, atol=1e-5)
    for parts, others, sentence in zip(shown["parts"], shown["others"], shown["sentences"], strict=True):
        assert sum(parts) + sum(others) == pytest.approx(sentence["log_probability"], rel=1e-6)
    ways = np.array(shown["flow"][1])
    np.testing.assert_allclose(ways[0, :2], shown["parts"][1], rtol=1e-4, atol=1e-5)
    assert normscope.page(read).count('id="sources-data"') == 1
    again = draw_again(tmp_path / "out")
    assert 'id="sources-data"' in again.read_text()
    assert (again.parent / "figures" / "parts.png").exists()


def test_bad_input(capsys, monkeypatch, tmp_path, folder, saved_model, passages):
    def refused(*arguments):
        outcome = run_here(capsys, monkeypatch, "explain", *arguments, f"output_dir={tmp_path / 'out'}")
        assert outcome.status == 2
        return outcome.err

    model = f"model.name={folder}"
    assert "does not occur in the prompt" in refused("Some text", f"sources={passages}", "answer= a", model)
    assert "expected a file, a folder, or one of chat" in refused("Some text", "sources=nowhere", model)
    assert "sources: expected a file, a folder, or one of chat" in refused("Some text", "--sources", "", model)
    assert "set dataset=text and dataset.chat_template=true" in refused("Some text", "sources=chat", model)
    assert "check=some: expected one of top, all, none" in refused("Some text", "sources=words", "check=some", model)
    assert "row=3: expected sources=FILE.jsonl" in refused("Some text", "sources=words", "row=3", model)
    assert "sentences=no: expected a whole number" in refused("Some text", "sources=words", "sentences=no", model)
    assert "gives no answer; set model to a causal" in refused(
        "Some text", "sources=words", f"model.name={saved_model}"
    )
    assert "expected a prompt, or sources=FILE.jsonl" in refused("sources=words", model)


@pytest.mark.slow
@needs_browser
def test_a_click_on_a_sentence_shows_its_sources(capsys, monkeypatch, tmp_path, folder, passages):
    explained(
        capsys, monkeypatch, tmp_path / "out", "{sources} So", f"sources={passages}", "answer=They took a ferry。 It was slow",
        f"model.name={folder}",
    )  # fmt: skip
    page = tmp_path / "out" / "explain.html"
    whole, console = opened(page)
    second, _ = opened(page, "#answer?sentence=2")
    assert console == []
    bars = [re.findall(r'class="ranks".*?<b>(.*?)</b>', each) for each in (whole, second)]
    table = normscope.read(tmp_path / "out").tables["parts"].query("kind == 'source'")
    expected = [table.groupby("source")["value"].sum(), table.query("sentence == 2").set_index("source")["value"]]
    for shown, values in zip(bars, expected, strict=True):
        assert shown[0] == number(values.max(), signed=True)
    pressed = [re.findall(r'value="(\d)" aria-pressed="true"', each) for each in (whole, second)]
    assert pressed == [["0"], ["2"]]
    assert "<path" not in whole.partition('class="source-flow"')[2].partition("</figure>")[0]
    assert second.partition('class="source-flow"')[2].partition("</figure>")[0].count("<path") > 2
