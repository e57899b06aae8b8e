"""Tokens as readers see them: without the marks of their vocabulary, wherever they are shown."""

import dataclasses

import numpy as np
import pytest

import normscope
from normscope.live.answers import Answers
from normscope.live.request import Side
from normscope.live.texts import Limit
from normscope.reporting.figure_text import word_label
from normscope.reporting.page.explorer import packed, pairs_payload
from normscope.results.figures import TextPair
from normscope.results.maps import TokenMap
from normscope.results.token_labels import as_text, continues, label, labels

MARKED = {
    "word pieces": ("[CLS] play ##ing ## ### chess [SEP]", "[CLS] play ing ## ### chess [SEP]", [2]),
    "spaces": ("<s> ▁The ▁chess board ▁ !", "<s> The chess board ␣ !", [3, 5]),
    "bytes": ("The Ġchess board ĠĠ ␊ Ġ##", "The chess board ␣␣ ⏎ ##", [2, 4]),
    "ends of words": ("un believ able</w> chess</w>", "un believ able chess", [1, 2]),
    "no marks": ("[CLS] a chess - board", "[CLS] a chess - board", []),
}


@pytest.mark.parametrize("kind", MARKED)
def test_marks_are_left_out(kind):
    tokens, read, joined = MARKED[kind]
    assert labels(tokens.split()) == read.split()
    assert [place for place, each in enumerate(continues(tokens.split())) if each] == joined


def test_a_token_of_several_words_or_in_place_of_another_reads_as_text():
    assert label("ĠofĠthe") == "of the"
    assert label("Ġplay → ##ing") == "play → ing"
    assert label("</w>") == "</w>"
    assert as_text(["<s>", "▁un", "believ", "able", "▁is", "."]) == "<s> unbelievable is."
    assert as_text(["[CLS]", "play", "##ing"]) == "[CLS] playing"


PIECES = ("[CLS]", "play", "##ing")


def test_pages_and_figures_show_labels_and_keep_the_exact_tokens():
    of = TokenMap("", PIECES, PIECES, (1,), {"attn_w": np.eye(3)[None]})
    page = packed(of)
    assert (page["queries"], page["query_labels"], page["key_labels"]) == (PIECES, *2 * [["[CLS]", "play", "ing"]])
    (pair,) = pairs_payload([TextPair("", PIECES, PIECES[:2], np.zeros((4, 3)))])
    assert pair["texts"][0] == {
        "tokens": list(PIECES),
        "labels": ["[CLS]", "play", "ing"],
        "continues": [False, False, True],
    }
    assert word_label("##ing") == "ing"
    assert set(of.figure().table["key_token"]) == set(PIECES)


def test_what_the_live_page_says_has_labels(saved_model):
    model = normscope.load(saved_model, device="cpu")
    answers = Answers([model], Limit(64))
    text = "unbelievably quick"
    maps = answers.maps(Side(text, 1), normscope.data.options.Level.token, None)
    assert any(token.startswith("##") for token in maps["tokens"]), "the tokenizer cuts this text"
    assert maps["labels"] == labels(maps["tokens"])
    found = normscope.attribution_maps(model, text)
    assert "##" not in found.sentences[0]
    assert "##" not in dataclasses.replace(found.maps[0]).title
