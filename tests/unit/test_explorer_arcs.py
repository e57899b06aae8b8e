"""Gold trees in the explorer: words and arcs of the corpus, and which of them a map finds."""

import re

import numpy as np
import pytest

from normscope.api import load
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.reporting.options import ReportOptions
from normscope.reporting.page.explorer import explorer_page, payload
from normscope.results.maps import DependencyTree, TokenMap
from normscope.running.token_maps import select_examples, token_maps
from tests.end_to_end.browser import needs_browser, opened
from tests.treebank import write_treebank


def test_the_words_and_the_tree_are_the_corpuss(tmp_path, saved_model):
    model = load(str(saved_model), device="cpu")
    options = DatasetOptions(kind=DatasetKind.conllu, path=str(write_treebank(tmp_path)), seed=0)
    encoder = Encoder(model, options)
    texts = select_examples(open_corpus(options), encoder, ReportOptions(examples=2), 1)
    (first, second), _ = token_maps(model, encoder, texts, [1])
    assert first.queries == tuple("[CLS] the old cat doesn ' t see the river . [SEP]".split())
    assert first.query_words == first.key_words == (0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10)
    assert first.tree.words == tuple(range(1, 10))
    assert first.tree.arcs[:4] == ((1, 3, "det"), (2, 3, "amod"), (3, 6, "nsubj"), (4, 6, "aux"))
    assert (6, 6) not in [arc[:2] for arc in first.tree.arcs]
    # `zu` and `dem` are both `zum`, before `river`.
    assert [arc for arc in second.tree.arcs if arc[0] == 3] == [(3, 4, "case"), (3, 4, "det")]
    assert payload([first])["sentences"][0]["tree"]["arcs"][0] == (1, 3, "det")


@pytest.mark.slow
@needs_browser
def test_the_page_tells_arcs_that_the_map_finds_from_others(tmp_path):
    tokens = ("[CLS]", "big", "do", "##g", "barks")
    weights = np.zeros((1, 5, 5), dtype=np.float32)
    weights[0, :, 0] = 0.9
    weights[0, 1, [1, 3]] = 0.5, 0.2  # `big` looks at `dog`, beside itself and [CLS]
    weights[0, 2:4, 1] = 0.3  # `dog` at `big`
    maps = {"attn_w": weights, "attn_n": weights}
    tree = DependencyTree((1, 2, 3), ((1, 2, "amod"), (2, 3, "<nsubj>")))
    words = (0, 1, 2, 2, 3)
    sentence = TokenMap("t", tokens, tokens, (1,), maps, query_words=words, key_words=words, tree=tree)
    page = tmp_path / "page.html"
    page.write_text(explorer_page([sentence]))
    shown, console = opened(page)
    assert not console
    [figure] = re.findall(r'<figure class="arcs">.*?</figure>', shown, re.DOTALL)
    arcs = re.findall(r'<g class="(\w+)"><title>(.*?)</title>', figure)
    assert arcs == [("found", "dog → big, amod"), ("gold", "barks → dog, &lt;nsubj&gt;"), ("instead", "big → dog")]
    assert "(1 of 2)" in figure
