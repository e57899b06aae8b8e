"""A single query's row of attention, read as text: where keys lie, what their sentences add up to, what is listed apart."""

import copy
import json
import re

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import normscope
from normscope.reporting.page import report
from normscope.results.maps import TokenMap
from normscope.rounding import number
from tests.end_to_end.browser import needs_browser, opened
from tests.tiny import saved_with_head

TEXT = "The old bridge was closed. So we crossed the unbelievably cold river, 🌉 twice.\n\nNobody saw us. It was late."


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(str(saved_model), dtype="float64")


@pytest.fixture(scope="module")
def causal(tokenizer, tmp_path_factory):
    """A causal model whose tokenizer puts nothing before a text."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.post_processor = None
    plain = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    folder = saved_with_head(AutoModelForCausalLM, "gpt2", plain, tmp_path_factory.mktemp("row") / "model")
    return normscope.load(folder, dtype="float64")


def row_of(result) -> tuple[TokenMap, np.ndarray]:
    (found,) = result.maps
    return found, found.maps["attn_w"].mean(axis=0)[0]


@pytest.mark.parametrize("keys", ["tokens", "words"])
def test_keys_are_where_the_text_has_them(model, keys):
    found, _ = row_of(normscope.attention(model, TEXT, queries="last", keys=keys))
    assert found.title == TEXT
    assert len(found.key_spans) == len(found.keys)
    for key, span in zip(found.keys, found.key_spans, strict=True):
        if span is None:
            assert key in ("[CLS]", "[SEP]")
        elif key != "[UNK]":
            assert TEXT[slice(*span[1:])].lower() == key.removeprefix("##")
    emoji = found.keys.index("[UNK]")
    assert TEXT[slice(*found.key_spans[emoji][1:])] == "🌉"


@pytest.mark.parametrize("measure", ["weight", "norm", "share"])
def test_sentences_add_up_to_regions_of_their_own(model, measure):
    """The page adds up words; `keys="sentences"` adds up tokens while the model runs."""
    words = normscope.attention(model, TEXT, queries=3, keys="words", measure=measure).maps[0]
    sentences = normscope.attention(model, TEXT, queries=3, keys="sentences", measure=measure).maps[0]
    owners = np.array([-1 if span is None else span[0] for span in words.key_spans])
    assert len(sentences.keys) == 4
    values, expected = words.maps[words.leading][:, 0], sentences.maps[words.leading][:, 0]
    for at in range(len(sentences.keys)):
        np.testing.assert_allclose(values[:, owners == at].sum(axis=1), expected[:, at], rtol=1e-9, atol=1e-12)


def test_special_tokens_and_the_query_itself_are_apart(model):
    found, row = row_of(normscope.attention(model, TEXT, queries=3, keys="words"))
    last = len(found.keys) - 1
    assert found.apart == {0: "special token", 3: "the query itself", last: "special token"}
    assert row.sum() == pytest.approx(1)
    found, _ = row_of(normscope.attention(model, TEXT, queries="last", keys="words"))
    assert found.apart == {0: "special token", last: "special token"}


def test_the_first_token_is_apart_if_the_query_takes_most_from_it():
    def apart(*row):
        spans = tuple((0, at, at + 1) for at in range(len(row)))
        return TokenMap(
            "abc",
            ("c",),
            tuple("abc"),
            (1, 2),
            {"attn_w": np.array([[row], [row]])},
            query_places=(2,),
            key_places=(0, 1, 2),
            key_spans=spans,
        ).apart

    assert apart(0.4, 0.1, 0.5) == {0: "first token, an attention sink", 2: "the query itself"}
    assert apart(0.1, 0.4, 0.5) == {2: "the query itself"}


def test_the_first_sentence_says_what_is_taken_from_which(causal):
    result = normscope.attention(causal, TEXT, queries="last", keys="words", reduce="mean")
    found, row = row_of(result)
    apart = found.apart
    sums = {}
    for at, span in enumerate(found.key_spans):
        if at not in apart:
            sums[span[0]] = sums.get(span[0], 0) + row[at]
    best = max(sums, key=sums.get)
    texts = [
        "The old bridge was closed",
        "So we crossed the unbelievably cold river, 🌉 twice",
        "Nobody saw us",
        "It was late",
    ]
    said = str(result.sentences[0])
    assert said.startswith(f"Of the 4 sentences, “.” (token {found.query_places[0]}) receives the most from “")
    assert texts[best].removeprefix("The ") in said
    assert f": {number(sums[best])} on average." in said
    assert f". ({found.query_places[0]}), the query itself, {number(row[-1])}" in said


def test_several_queries_and_regions_are_maps(model):
    """So are pairs of texts and scores, which do not add up."""
    for arguments in (
        {"queries": [1, 2]},
        {"queries": slice(1, 4)},
        {"queries": "last", "measure": "score"},
        {"keys": [5, 2]},
    ):
        (found,) = normscope.attention(model, TEXT, **{"queries": "last", "keys": "words"} | arguments).maps
        assert found.key_spans == ()
    (found,) = normscope.attention(model, ("One text.", "Another."), queries="last", keys="words").maps
    assert found.key_spans == ()


def test_the_page_names_the_query_and_counts_in_tokens(model, tmp_path):
    result = normscope.attention(model, TEXT, queries="last", keys="words")
    tokens = len(model.tokenizer(TEXT)["input_ids"])
    result.save(tmp_path)
    for page in (report.page(result), report.page(normscope.read(tmp_path))):
        assert f"<h1>What “[SEP]” (the last of {tokens} tokens) receives</h1>" in page
        assert 'id="explorer-data"' not in page
        (data,) = re.findall(r'id="row-data">(.*?)</script>', page)
        row = json.loads(data)
        assert row["sentence"]["places"]["columns"] == list(result.maps[0].key_places)
        assert row["spans"] == [None if span is None else list(span) for span in result.maps[0].key_spans]
        assert row["apart"][-1] == [len(row["spans"]) - 1, "special token"]
    third = normscope.attention(model, TEXT, queries=2, keys="words")
    assert f"What “old” (token 2 of {tokens}) receives" in report.page(third)


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser(causal, tmp_path):
    result = normscope.attention(causal, TEXT, queries="last", keys="words")
    found, row = row_of(result)
    click = "<script>setTimeout(() => document.querySelector('.strongest button').click(), 2000)</script></body>"
    (tmp_path / "page.html").write_text(report.page(result).replace("</body>", click))
    dom, console = opened(tmp_path / "page.html")
    assert console == []
    shown = re.search(r'<div class="row-text">(.*?)</div>', dom, flags=re.DOTALL)[1]
    assert re.sub(r"<small.*?</small>|<.*?>", "", shown) == TEXT
    sums = np.zeros(4)
    for at, span in enumerate(found.key_spans):
        sums[span[0]] += row[at] if at not in found.apart else 0
    listed = re.findall(
        r"<b>([\d.]+)</b><span class=\"track\">", re.search(r'<ol class="strongest">(.*?)</ol>', dom)[1]
    )
    assert listed == [number(float(value)) for value in sorted(sums, reverse=True)]
    written = re.findall(r'class="sum-of-sentence"[^>]*>([^<]*)<', shown)
    assert written == [number(float(value)) for value in sums]
    (outlined,) = re.findall(r'<span class="sentence outlined"[^>]*><small[^>]*>([^<]*)<', shown)
    assert outlined == number(float(sums.max()))


@pytest.mark.slow
@needs_browser
def test_words_of_several_queries_have_the_numbers_of_their_tokens(model, tmp_path):
    """One numbering on a page: that of its tables."""
    result = normscope.attention(model, TEXT, queries=[1, 20], keys="words")
    (tmp_path / "page.html").write_text(report.page(result))
    dom, console = opened(tmp_path / "page.html")
    assert console == []
    (found,) = result.maps
    places = dict(zip(found.key_places, found.keys, strict=True))
    listed = re.findall(r'<span class="token" title="(\S+)">\S+ \((\d+)\)<', dom)
    assert any(int(place) > 12 for _, place in listed)  # behind a word of several tokens
    assert all(places[int(place)] == word for word, place in listed)
