"""Results are the same in memory and in the folder of a run, and so is every view of them."""

import json

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from normscope.errors import InputError
from normscope.results.figures import Figure
from normscope.results.findings import Sentence
from normscope.results.maps import DependencyTree, TokenMap
from normscope.results.parts import joined
from normscope.results.result import Result
from tests.oracles.comparison import everything


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", analyses())
def test_what_an_analysis_returns_is_saved_and_read(name, tmp_path):
    part = everything(name)
    result = joined({name: part}, 3)
    assert len(result.figures) == len(part.figures)
    result.save(tmp_path)
    (tmp_path / "config.yaml").write_text(json.dumps({"analysis": {name: {"enabled": True}}}))
    found = Result.read(tmp_path)
    assert found.metrics == result.metrics
    assert found.sentences == result.sentences
    assert [vars(sentence) for sentence in found.sentences] == [vars(sentence) for sentence in result.sentences]
    assert found.notes == result.notes
    assert found.analyses == [name]
    assert list(found.tables) == list(result.tables)
    assert {key: curve.to_dict() for key, curve in found.curves.items()} == {
        key: curve.to_dict() for key, curve in result.curves.items()
    }
    for key, summary in result.summaries.items():
        assert (found.summaries[key].digits, found.summaries[key].caption) == (summary.digits, summary.caption)
        assert str(found.summaries[key]) == str(summary)
    assert list(found.figures) == list(result.figures)
    for key, figure in result.figures.items():
        assert_same(found.figures[key], figure)


def assert_same(found: Figure, figure: Figure) -> None:
    """What drawings read of two figures is the same; numbers of rows are not kept, and JSON knows no tuples."""
    assert type(found) is type(figure)
    for name, value in vars(figure).items():
        other = getattr(found, name)
        if isinstance(value, pd.DataFrame):
            texts = {column: "str" for column, kind in value.dtypes.items() if kind == "category"}
            pd.testing.assert_frame_equal(other, value.astype(texts).reset_index(drop=True), check_names=False)
        elif isinstance(value, tuple | list):
            assert list(other) == list(value), name
        else:
            assert other == value, name


def text(**changes) -> TokenMap:
    generator = np.random.default_rng(0)
    random = lambda *shape: generator.random(shape, dtype=np.float32)  # noqa: E731
    given = {
        "title": "a b c",
        "queries": ("a", "b", "=c"),
        "keys": ("a", "b", "=c"),
        "layers": (2, 4),
        "maps": {"attn_w": random(2, 3, 3), "attn_n": random(2, 3, 3), "share": -random(2, 3, 3)},
        "head_maps": {"attn_w": random(2, 5, 3, 3)},
        "norms": random(2, 5, 3),
        "query_words": (0, 1, 1),
        "key_words": (0, 1, 1),
        "tree": DependencyTree((0, 1), ((0, 1, "nsubj"),)),
    }
    return TokenMap(**given | changes)


WEIGHTS = text().head_maps["attn_w"]
TEXTS = {
    "heads": text(),
    "blocks": text(head_maps={}, norms=None, tree=None),
    "words": text(
        head_maps={"attn_w": WEIGHTS, "attn_n": WEIGHTS * 2},
        norms=None,
        unit="word",
        query_words=None,
        key_words=None,
    ),
    "translation": text(
        keys=("x", "y"),
        maps={"attn_w": WEIGHTS[:, 1, :, :2], "attn_n": WEIGHTS[:, 0, :, :2]},
        head_maps={"attn_w": WEIGHTS[..., :2]},
        norms=text().norms[..., :2],
        is_cross_attention=True,
    ),
}


def test_token_maps_are_saved_and_read_to_the_last_bit(tmp_path):
    Result(maps=list(TEXTS.values())).save(tmp_path)
    found = Result.read(tmp_path).maps
    assert len(found) == len(TEXTS)
    for now, before in zip(found, TEXTS.values(), strict=True):
        for name, value in vars(before).items():
            other = getattr(now, name)
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(other, value, strict=True)
            elif name in ("maps", "head_maps"):
                assert set(other) == set(value)
                for measure, values in value.items():
                    np.testing.assert_array_equal(other[measure], values, strict=True)
            else:
                assert other == value, name
        pd.testing.assert_frame_equal(now.pairs(), before.pairs())


def test_a_failed_run_has_no_numbers(tmp_path):
    (tmp_path / "config.yaml").write_text("model: {}\n")
    Result(status="failed", error="The disk\nis full.", facts={"model": "x"}).save_facts(tmp_path)
    found = Result.read(tmp_path)
    assert (found.status, found.error, found.facts, found.metrics) == (
        "failed",
        "The disk is full.",
        {"model": "x"},
        {},
    )
    assert list(found.tables) == list(found.figures) == list(found.maps) == []
    assert repr(found).startswith("x: failed (The disk is full.)")


def test_what_is_damaged_is_named(tmp_path):
    figure = everything("mixing").figures["by_layer"]
    Result(figures={"mixing_by_layer": figure}, maps=[text()]).save(tmp_path)
    (tmp_path / "figures" / "mixing_by_layer.parquet").write_bytes(b"PAR1")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "maps.parquet")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "figures" / "other.parquet")
    found = Result.read(tmp_path)
    with pytest.raises(InputError, match=r"mixing_by_layer\.parquet: cannot be read"):
        found.figures["mixing_by_layer"]
    with pytest.raises(InputError, match=r"other\.parquet: expected a figure that a run has written"):
        found.figures["other"]
    with pytest.raises(InputError, match=r"maps\.parquet: expected the token maps of a run"):
        found.maps[0]


def test_names_of_analyses_may_begin_alike():
    config = {"analysis": {"norms": {"enabled": True}, "norms_more": {"enabled": True}, "off": {"enabled": False}}}
    result = Result(config=config, sentences=[Sentence("a", analysis="norms")])
    names = ["norms_by_layer", "norms_more_by_layer", "curves"]
    assert result.analyses == ["norms", "norms_more"]
    assert result.owned_by("norms", names) == ["norms_by_layer"]
    assert result.owned_by("norms_more", names) == ["norms_more_by_layer"]


def test_a_representation_says_what_there_is_in_a_few_lines(tmp_path):
    (text, *_) = TEXTS.values()
    result = Result(maps=[text])
    assert len(repr(text)) < 300
    assert all(name in repr(text) for name in text.maps)
    assert repr(result).endswith("maps: arrays by layer; .maps[0].pairs() is a table of the first")
    assert "maps" not in repr(Result())
    result.save(tmp_path)
    (tmp_path / "maps.parquet").write_bytes(b"PAR1")
    assert repr(Result.read(tmp_path)) == repr(result), "the file is not read"


def test_what_a_result_cannot_draw_or_save_is_one_line(tmp_path):
    (text, *_) = TEXTS.values()
    result = Result(maps=[text])
    (tmp_path / "file").write_text("")
    for call, message in (
        (lambda: result.save(3), "folder: expected a str or a Path, got 3"),
        (lambda: result.save(tmp_path / "file"), "file: cannot be written to: "),
        (lambda: result.figure("mixing"), "figure: expected no name, but a layer of the token maps, got 'mixing'"),
        (lambda: result.figure(layer=99), "layer=99: expected "),
        (lambda: result.figure(text=99), "text: expected 1"),
        (lambda: result.figure(measure="x"), "measure: expected one of attn_w, "),
        (lambda: result.figure(layer=True), "layer: expected a whole number, or None, got True"),
        (lambda: Result().figure("a"), "figure: expected no name, as there are no figures, got 'a'"),
        (lambda: Result().figure(), "figure: expected a result with figures or token maps"),
        (lambda: Result().explorer(), "explorer: expected a result with token maps or pairs of texts"),
        (lambda: result.figure().save(tmp_path / "a.png", dpi="200"), "dpi: expected a whole number, got '200'"),
        (lambda: result.figure().save(tmp_path / "a.png", caption="no"), "caption: expected True or False, got 'no'"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert Result().table.empty
