"""Some layers and some receiving tokens of a text: the same numbers as in the whole."""

import numpy as np
import pandas as pd
import pytest

from normscope.errors import InputError
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.load.loaded import LoadedModel
from tests.contract.test_answers import PROMPT, causal
from tests.one_text import decompose
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model

FAMILIES = ["llama", "deberta-v2"]


def loaded(family, tokenizer):
    import torch

    model = tiny_model(FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer)}, torch.float64)
    return LoadedModel(model, tokenizer, facts_for(family, config=model.config), "tiny", None, 30)


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("layers", "queries"), [([2], None), (None, [0, 3]), ([3, 1], [-1, 2])])
def test_parts_equal_the_whole(family, layers, queries, tokenizer):
    model = loaded(family, tokenizer)
    whole = decompose(model, PROMPT, heads=True)
    part = decompose(model, PROMPT, heads=True, layers=layers, queries=queries)
    length = len(whole.tokens)
    kept = sorted(layers or range(1, model.layers + 1))
    places = [place % length for place in queries] if queries else list(range(length))
    assert part.tokens == tuple(whole.tokens[place] for place in places)
    assert part.key_tokens == whole.key_tokens

    def chosen(table, column):
        rows = table[table["layer"].isin(kept) & table[column].isin(places)]
        order = {place: number for number, place in enumerate(places)}
        keys = [*(["method"] if "method" in rows else []), "layer", column, *(["key"] if "key" in rows else [])]
        return rows.sort_values(keys, key=lambda values: values.map(order) if values.name == column else values)

    for name, column in (("pairs", "query"), ("mixing", "position"), ("output_shares", "position")):
        expected, found = (chosen(getattr(each, name), column).reset_index(drop=True) for each in (whole, part))
        assert len(found) == len(getattr(part, name))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-10, atol=1e-12)
    rows = np.ix_(np.array(kept) - 1, range(model.facts.heads), places, range(length))
    for name, values in part.head_maps.items():
        np.testing.assert_allclose(values, whole.head_maps[name].numpy()[rows], rtol=1e-10, atol=1e-12)
    assert part.result.figure(layer=kept[-1]).description.table["query"].drop_duplicates().tolist() == places
    assert part.map.layers == tuple(kept)
    if layers:
        with pytest.raises(InputError, match=f"layer=9: expected {', '.join(map(str, kept))}"):
            part.result.figure(layer=9)


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("level", ["token", "word"])
def test_some_measures_equal_the_whole(family, level, tokenizer, monkeypatch):
    model = loaded(family, tokenizer)
    whole = decompose(model, PROMPT, level=level)
    columns = [name for name in whole.pairs if name.startswith("attn") or name == "share"]
    for measures in ([], "share", columns[1:3]):
        with monkeypatch.context() as patched:
            if level == "token" and "share" not in measures:  # nothing is built that was not asked for
                patched.delattr(GroupedBlock, "pair_shares")
            part = decompose(model, PROMPT, level=level, measures=measures)
        names = {"attn_w", *([measures] if isinstance(measures, str) else measures)}
        assert [name for name in part.pairs if name in columns] == [name for name in columns if name in names]
        for name in names:
            np.testing.assert_allclose(part.pairs[name], whole.pairs[name], rtol=1e-12, atol=1e-14)
        pd.testing.assert_frame_equal(part.mixing, whole.mixing)
        pd.testing.assert_frame_equal(part.output_shares, whole.output_shares)
        assert len(part.result.figure().description.panel_titles) == len(names - {"share"})
        assert {*part.maps} == names
    assert decompose(model, PROMPT, measures=["attn_n"], layers=[2], queries=[-1]).maps["attn_n"].shape[:2] == (1, 1)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": []}, "layers: expected at least one number, got none"),
        ({"layers": [0]}, "layers: expected whole numbers from 1 to 3, got 0"),
        ({"layers": ["1"]}, "layers: expected a list of items, each a whole number, or None, got '1' in a list"),
        ({"queries": [99]}, "queries: expected whole numbers from 0 to"),
        ({"queries": [True]}, "queries: expected a list of items, each a whole number, or None, got True in a list"),
        ({"queries": [0], "feed_forward": True}, "leave out feed_forward and level"),
        ({"queries": [0], "level": "word"}, "leave out feed_forward and level"),
        ({"measures": ["attn_n", "norms"]}, "measures='norms': expected some of attn_w, attn_n, attnres_n"),
        ({"measures": [3]}, "measures: expected a list of items, each a str, or None, got 3 in a list"),
    ],
)
def test_what_is_not_there(tokenizer, arguments, message):
    with pytest.raises(InputError, match=message):
        decompose(causal("llama", tokenizer), PROMPT, **arguments)
