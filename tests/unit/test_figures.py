"""Figures whose words, names and captions are any text."""

import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest

from normscope.analyses.findings import Scatter, WordMaps
from normscope.reporting.drawing import draw

# Each of them, or a pair of them, is mathematics to matplotlib, and most of it is broken.
HOSTILE = ["$", "$x$", "$x_{$", "$$", "\\$", "\\frac", "^_{}", "a\x00b", "\x1b[1m", "<&>\"'", "x" * 10_000, "{%"]


def word_map(words: list[str], title: str) -> WordMaps:
    cells = [
        {
            "method": "a",
            "target": i,
            "source": j,
            "target_word": target,
            "source_word": source,
            "value": 0.5,
            "gold": "none",
        }
        for i, target in enumerate(words)
        for j, source in enumerate(words)
    ]
    return WordMaps(
        table=pd.DataFrame(cells),
        panel="method",
        panel_titles={"a": title},
        row="target",
        row_label="target_word",
        column="source",
        column_label="source_word",
        value="value",
        frame="gold",
        caption=title,
    )


@pytest.mark.draws
def test_words_of_a_corpus_are_drawn_as_they_are(tmp_path):
    paths = [tmp_path / "map.svg", tmp_path / "map.png"]
    draw(word_map(HOSTILE, "costs $5 or $x_{ more"), paths)
    svg = paths[0].read_text()
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    for word in ("$", "$x$", "$x_{$", "$$", "\\$", "\\frac", "^_{}", "a\ufffdb", "\ufffd[1m", "<&>\"'", "{%"):
        assert texts.count(word) == 2, word
    assert texts.count("x" * 39 + "…") == 2
    assert texts.count("costs $5 or $x_{ more") == 2, "title and caption"
    assert paths[1].stat().st_size


@pytest.mark.draws
def test_powers_of_ten_are_written_without_mathematics(tmp_path):
    table = pd.DataFrame({"x": [1e-3, 1.0, 1e4], "y": [1e-2, 1.0, 1e2], "panel": "p"})
    figure = Scatter(
        table=table, x="x", y="y", panel="panel", panel_titles={"p": "$"}, x_label="$x", y_label="y$", caption="$ $",
        log_x=True, log_y=True,
    )  # fmt: skip
    draw(figure, [tmp_path / "scatter.svg"])
    svg = (tmp_path / "scatter.svg").read_text()
    assert "mathdefault" not in svg
    assert "10⁻²" in svg
