"""What maps have more than others is what loops over their cells find."""

import numpy as np
import pytest

import normscope
from normscope.reporting.page.explorer import payload
from normscope.results.map_differences import MapDifference, differences_of_maps
from normscope.results.maps import TokenMap
from normscope.results.result import Result

BEFORE, LATER = "the film was not so good", "the play was not good ."
PLACES = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 5)]
"""Tokens of the second text and of the first: `play` stands in the place of `film`; `so` and the stop have no counterpart."""


def made(text: str, seed: int, **changes) -> TokenMap:
    tokens, random = tuple(text.split()), np.random.default_rng(seed)
    maps = {
        "attn_n": random.uniform(0, 3, (2, len(tokens), len(tokens))),
        "share": random.normal(size=(2, len(tokens), len(tokens))),
    }
    return TokenMap(**{"title": text, "queries": tokens, "keys": tokens, "layers": (1, 3), "maps": maps} | changes)


def test_every_cell_is_the_difference_of_two_shares():
    later, before = made(LATER, 0), made(BEFORE, 1)
    found = MapDifference.of(later, before)
    shown = found.map("later minus before")
    assert shown.queries == shown.keys == ("the", "film → play", "was", "not", "good")
    assert shown.layers == (1, 3)
    assert shown.is_difference
    for layer in range(2):
        for row, (query, of_query) in enumerate(PLACES):
            for column, (key, of_key) in enumerate(PLACES):
                ours, theirs = later.maps["attn_n"][layer], before.maps["attn_n"][layer]
                expected = ours[query, key] / ours[query].sum() - theirs[of_query, of_key] / theirs[of_query].sum()
                np.testing.assert_allclose(shown.maps["attn_n"][layer, row, column], expected, rtol=1e-12)
                signed = later.maps["share"][layer, query, key] - before.maps["share"][layer, of_query, of_key]
                np.testing.assert_allclose(shown.maps["share"][layer, row, column], signed, rtol=1e-12)


def test_the_table_and_the_sentence_name_the_cell_that_differs_most():
    later, before = made(LATER, 0), made(BEFORE, 1)
    result = differences_of_maps([Result(maps=[before]), Result(maps=[later])], ["“a”", "“b”"])
    changes = result.tables["map_changes"]
    (whole,) = result.maps
    for name, rows in changes.groupby("measure"):
        sizes = rows["difference"].abs().to_numpy()
        assert (np.diff(sizes) <= 0).all()
        assert sizes[0] == np.abs(whole.maps[str(name)]).max()
        np.testing.assert_allclose(rows["later"] - rows["before"], rows["difference"], atol=1e-15)
    layer, query, key = np.unravel_index(np.abs(whole.maps["attn_n"]).argmax(), whole.maps["attn_n"].shape)
    first = changes[changes["measure"] == "attn_n"].iloc[0]
    assert (first["layer"], first["query"], first["key"]) == ((1, 3)[layer], PLACES[query][0], PLACES[key][0])
    (sentence,) = result.sentences
    assert sentence == (
        f"The largest change: in layer {first['layer']}, “{whole.queries[query]}” receives {100 * first['later']:.1f}% of its "
        f"‖αf(x)‖ from “{whole.keys[key]}” in “b” and {100 * first['before']:.1f}% in “a”."
    )


@pytest.mark.parametrize(
    "change",
    [{"layers": (2, 4)}, {"is_cross_attention": True}, {"maps": {"attn_w": np.ones((2, 6, 6))}}],
    ids=["layers", "attention", "measures"],
)
def test_maps_that_share_nothing_have_no_difference(change):
    assert MapDifference.of(made(LATER, 0, **change), made(BEFORE, 1)) is None


def test_a_map_does_not_differ_from_itself():
    result = differences_of_maps([Result(maps=[made(BEFORE, 0)])] * 2, ["one", "other"])
    assert not np.abs(result.maps[0].maps["attn_n"]).any()
    assert result.sentences == ["The maps of other and one do not differ."]


def test_differences_are_drawn_on_a_signed_scale_and_can_be_saved(tmp_path):
    result = differences_of_maps([Result(maps=[made(BEFORE, 0)]), Result(maps=[made(LATER, 1)])], ["one", "other"])
    figure = result.maps[0].figure()
    first = int(np.abs(result.maps[0].maps["attn_n"]).max(axis=(1, 2)).argmax())
    assert figure.largest == max(np.abs(values[first]).max() for values in result.maps[0].maps.values())
    assert f"in layer {result.maps[0].layers[first]};" in figure.caption
    layer = result.maps[0].layers[first]
    start = {"sentence": 1, "layer": layer, "measure": "attn_n", "scale": "map"}
    assert payload(result.maps)["start"] == start
    # The sentence names the cell; its row is the one that is opened.
    row = int(np.abs(result.maps[0].maps["attn_n"][first]).max(axis=1).argmax())
    assert result.sentences[0].place == {"text": 1, "layer": layer, "token": row}
    assert payload(result.maps, result.sentences[0])["start"] == start | {"token": row}
    assert figure.caption.startswith("other minus one: share of what each token (row) receives")
    assert payload(result.maps)["sentences"][0]["is_difference"]
    result.save(tmp_path)
    (read,) = normscope.read(tmp_path).maps
    assert read.is_difference
    assert read.queries == result.maps[0].queries


def test_texts_before_and_after_a_change_are_compared_cell_by_cell(saved_model):
    model = normscope.load(saved_model, device="cpu", dtype="float64")
    before, later = (normscope.decompose(model, text) for text in ("The old bridge.", "The new bridge."))
    found = normscope.compare([before, later])
    (shown,) = found.maps
    assert shown.title == "“the new bridge.” minus “the old bridge.”"
    assert all(sentence.startswith("The largest change: in layer ") for sentence in found.sentences)
    assert len(found.tables["map_changes"]) == 20 * len(shown.maps)
    assert "The largest change" in repr(found)
    assert "<h1>Comparison of 2 texts in " in normscope.page(found)
