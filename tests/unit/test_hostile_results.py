"""Results that somebody has changed: characters that no picture holds, numbers beyond 64 bits, and arguments of other types."""

import dataclasses
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
import yaml

import normscope
from normscope.errors import InputError, visible
from normscope.models.load.tokenizer_loading import TokenNames
from normscope.reporting import viewing
from normscope.reporting.drawing import figure_files, svg
from normscope.results.figures import ColouredText, Heatmaps, Lines

ODD = "a\x1b[31m\0\x0b\x7f\ufffe"
SHOWN = r"a\x1b[31m\x00\x0b\x7f\ufffe"


def test_what_cannot_be_seen_is_escaped_and_all_else_stays():
    assert visible(f"{ODD}\ud800") == rf"{SHOWN}\ud800"
    plain = "é 中文 \u200d\u200f \n\t“…” 🙂"
    assert visible(plain) == plain


def figures():
    words = pd.Series([ODD, f"{ODD}2"], dtype=object)
    rows = pd.DataFrame({"one": words, "two": ["x", "y"], "value": [1.0, 2.0], "number": [1, 2]})
    title = {"value": f"title {ODD}"}
    return {
        "rows": Heatmaps(rows, title, "one", "two", f"Caption {ODD}."),
        "columns": Heatmaps(rows, title, "two", "one", "Caption.", panel="one"),
        "lines": Lines(rows, "number", "value", "one", "Caption.", f"label {ODD}"),
        "panels": Lines(rows, "number", "value", "two", "Caption.", "label", panel="one"),
        "tokens": ColouredText(rows.assign(token=words, text=ODD), "text", f"Caption {ODD}.", f"label {ODD}"),
    }


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", figures())
def test_every_figure_can_be_drawn_and_read(name):
    figure = figures()[name]
    content = svg(figure)
    text = "".join(ElementTree.fromstring(content).itertext())
    assert r"\x1b" in content + text
    assert "\x1b" not in content
    for _, file in figure_files({name: figure}):
        assert file


@pytest.fixture(scope="module")
def result(saved_model):
    return normscope.run("mixing", model=saved_model, texts=["A short text.", "And another one."])


def test_pages_of_odd_names_are_written(result, tmp_path):
    config = json.loads(json.dumps(dict(result.config)))
    config["model"]["name"] = ODD
    odd = dataclasses.replace(
        result, config=config, facts={**result.facts, "model": config["model"]["name"], "model_sha256": "0"}
    )
    for results in (odd, [result, odd]):
        page = normscope.page(results, tmp_path / "page.html")
        assert not re.search("[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe]", page)
        assert r"\x1b[31m" in page
    assert r"\x1b[31m" in " ".join(normscope.compare([result, odd]).sentences)


@pytest.mark.parametrize("given", ["abc", b"abc", None, 3, [], {}, [1], [None], range(10**12), {"a": 1}])
def test_results_of_another_type_are_refused_at_once(given):
    for view in (normscope.page, normscope.compare):
        with pytest.raises(InputError, match=r"^results: expected a normscope\.Result"):
            view(given)


def test_neither_endless_results_nor_odd_paths_are_waited_for(result):
    for view in (normscope.page, normscope.compare):
        with pytest.raises(InputError, match="^results: expected .*, got repeat$"):
            view(itertools.repeat(result))
    for path in (["x"], 5, b"x"):
        with pytest.raises(InputError, match="^path: expected a str or a Path, or None, got "):
            normscope.page(result, path)


@pytest.mark.parametrize("value", [2**63, -(2**63), 10**40])
def test_numbers_beyond_64_bits_are_refused_where_they_are_read(result, value, tmp_path):
    result.save(tmp_path)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config["layers"] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    for view in (normscope.read, viewing.draw_again, lambda folder: viewing.compare_folders([folder], folder / "c")):
        with pytest.raises(InputError, match="config.yaml: layers: expected a smaller number"):
            view(tmp_path)
    result.save(tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    results["summaries"][0]["values"][0][0] = value
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(InputError, match=r"results\.json: summaries\.0\.values\.0\.0: expected a smaller number"):
        normscope.read(tmp_path)


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), NotImplementedError("dictionary<int>"), SyntaxError("not well-formed")]
)
def test_whatever_fails_in_a_changed_folder_is_one_line(result, error, tmp_path, monkeypatch):
    result.save(tmp_path)

    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(viewing.report, "page", fail)
    monkeypatch.setattr(viewing, "compared", fail)
    for view in (
        viewing.draw_again,
        lambda folder: viewing.compare_folders([folder], folder / "c"),
        lambda folder: normscope.page(normscope.read(folder)),
        lambda folder: normscope.compare(normscope.read(folder)),
    ):
        with pytest.raises(InputError, match=f"cannot be drawn: {type(error).__name__}: "):
            view(tmp_path)


def test_names_of_tokens_that_are_no_text_are_refused():
    with pytest.raises(InputError, match="tokens: expected a name without spaces for each token id"):
        TokenNames.of(["a", "b\ud800"])
