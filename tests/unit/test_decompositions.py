"""Decompositions of one text and of many, of every stack."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

import normscope
from normscope.api.decomposition import sentences_of
from normscope.errors import InputError
from normscope.models.load.text_batches import batch_from_texts
from normscope.models.observe.observer import Observer
from tests.one_text import decompose
from tests.tiny import FAMILY_CONFIGS, tiny_model

TEXTS = ["The cat sat on the mat.", ("A dog barked.", "Nobody heard it, of course."), "Rain fell."]


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(saved_model, device="cpu", dtype="float64")


@pytest.mark.slow
def test_many_texts_are_each_decomposed_as_if_alone(model):
    together = decompose(model, TEXTS)
    assert len(together) == 3
    for text, one in zip(TEXTS, together, strict=True):
        alone = decompose(model, text)
        assert alone.tokens == one.tokens
        assert list(alone.maps) == list(one.maps) == ["attn_w", "attn_n", "attnres_n", "attnresln_n", "share"]
        assert torch.equal(alone.ratios, one.ratios)
        for name, values in alone.maps.items():
            assert torch.equal(values, one.maps[name]), name
    assert together[-1].tokens == decompose(model, TEXTS[2]).tokens
    encoding = model.tokenizer([TEXTS[0], TEXTS[2]], padding=True)
    for one, other in zip(decompose(model, encoding), together[::2], strict=True):
        pd.testing.assert_frame_equal(one.pairs, other.pairs)
    assert len(decompose(model, [TEXTS[0]])) == 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_maps_through_the_feed_forward_network_are_those_of_the_observed_layers(tokenizer, model_type):
    model = normscope.wrap(
        tiny_model(FAMILY_CONFIGS[model_type] | {"vocab_size": len(tokenizer)}, torch.float64), tokenizer
    )
    text = TEXTS[0]
    whole = decompose(model, text, feed_forward=True)
    observed = []
    observer = Observer(model.model, model.facts, feed_forward=True)
    with observer:
        inputs = batch_from_texts(model, text).model_inputs()
        observer.run(inputs, lambda _: None, visit_feed_forward=lambda block: observed.append(block.pair_maps()))
    stages = [f"{stage}_n" for stage in observed[0] if stage != "atb"]
    assert [name for name in whole.maps if name.startswith("atbff")] == stages
    assert ("atbffresln_n" in stages) == (model_type != "gpt2")
    for stage in stages:
        expected = torch.stack([maps[stage.removesuffix("_n")][0] for maps in observed])
        torch.testing.assert_close(whole.maps[stage], expected, rtol=1e-12, atol=0)
        np.testing.assert_array_equal(whole.pairs[stage], whole.maps[stage].flatten())
    # The maps up to the attention block are the same without the networks, and nothing else is added.
    alone = decompose(model, text)
    assert alone.maps.keys().isdisjoint(stages)
    pd.testing.assert_frame_equal(alone.pairs, whole.pairs.drop(columns=stages))


def test_tables_of_many_texts_have_the_number_of_the_text(model):
    together = normscope.decompose(model, TEXTS)
    for name in ("ratios", "output_shares"):
        table = together.tables[name]
        assert table.columns[0] == "sequence"
        for number, text in enumerate(TEXTS):
            rows = table[table["sequence"] == number].drop(columns="sequence").reset_index(drop=True)
            pd.testing.assert_frame_equal(rows, normscope.decompose(model, text).tables[name])
    by_layer = together.table.set_index(["layer", "method"])["ratio"]
    means = together.tables["ratios"].groupby(["layer", "method"])["ratio"].mean()
    for key, mean in means.items():
        assert by_layer[key] == pytest.approx(mean)
    assert repr(together).startswith(f"{model.name}: 3 sequences\n")
    assert "<table" in together._repr_html_()


def test_what_is_measured_is_what_is_said_and_compared(model):
    """Metrics and curves are means over the tokens' ratios, under the names that a run gives them; one is in the sentence."""
    found = normscope.decompose(model, TEXTS[0])
    ratios = found.tables["ratios"]
    for method, rows in ratios.groupby("method"):
        assert found.metrics[f"mixing/{method}/mean"] == pytest.approx(sum(rows["ratio"]) / len(rows), rel=1e-12)
        for layer, of_layer in rows.groupby("layer"):
            mean = sum(of_layer["ratio"]) / len(of_layer)
            assert found.curves[f"mixing/{method}"][layer] == pytest.approx(mean, rel=1e-12)
    of_run = normscope.run("mixing", model=model, texts=[TEXTS[0]])
    assert found.metrics.keys() <= of_run.metrics.keys()
    for name, value in found.metrics.items():
        assert value == pytest.approx(of_run.metrics[name], rel=1e-6)
    (sentence,) = sentences_of({"attn_w": 0.861, "attnresln_n": 0.2291})
    assert sentence == (
        "The mean mixing ratio over tokens and layers is 23% (attention block, AttnResLn-N); attention weights alone suggest "
        "86%."
    )
    assert (
        sentences_of({"attn_n": 0.5})[0]
        == "The mean mixing ratio over tokens and layers is 50% (weighted vectors, Attn-N)."
    )


def test_what_is_saved_is_read_back(model, tmp_path):
    found = normscope.decompose(model, TEXTS, heads=True)
    found.save(tmp_path)
    read = normscope.read(tmp_path)
    assert repr(read) == repr(found)
    assert read.metrics == found.metrics
    for name, rows in found.tables.items():
        pd.testing.assert_frame_equal(read.tables[name], rows)
    for one, other in zip(read.maps, found.maps, strict=True):
        assert (one.title, one.queries, one.keys) == (other.title, other.queries, other.keys)
        for name, values in other.maps.items():
            np.testing.assert_array_equal(one.maps[name], values, strict=True)
        np.testing.assert_array_equal(one.of_heads("attn_n"), other.of_heads("attn_n"), strict=True)
    assert normscope.page(read) == normscope.page(found)


def test_a_page_of_texts_has_no_column_of_what_is_unknown(model):
    texts = [normscope.decompose(model, text) for text in (TEXTS[0], TEXTS[2])]
    runs = re.search(r"<caption>Runs</caption>(.*?)</table>", normscope.page(texts), re.S)
    assert re.findall(r"<th [^>]*>(.*?)</th>", runs[1]) == [
        *("run", "text", "mixing ratio (attention block, AttnResLn-N)", "sequences")
    ]


def test_single_heads_make_the_block(model):
    """The mean over heads of α is the block's; ‖αf(x)‖ of one head is its α times ‖f(x)‖."""
    one = decompose(model, TEXTS[0], heads=True)
    torch.testing.assert_close(one.head_maps["attn_w"].mean(dim=1), one.maps["attn_w"])
    for index, block in enumerate(normscope.observe(model, TEXTS[0])):
        explicit = torch.einsum("hqk,hkm->hqkm", block.weights[0], block.transformed()[0])
        torch.testing.assert_close(one.head_maps["attn_n"][index], explicit.norm(dim=-1))
    assert decompose(model, TEXTS[0]).head_maps == {}


def test_pandas_holds_the_same_numbers(model):
    one = decompose(model, TEXTS[1])
    for name, values in one.maps.items():
        assert np.array_equal(values.numpy().ravel(), one.pairs[name].to_numpy())
    mixing = one.mixing.set_index(["method", "layer", "position"])["ratio"].sort_index()
    for method, ratios in zip(one.methods, one.ratios, strict=True):
        for layer, of_layer in enumerate(ratios, start=1):
            assert of_layer.tolist() == mixing.loc[(str(method), layer)].tolist()


@pytest.mark.spread(1)
@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("model_type", ["bert", "olmo2", "gpt2"])
def test_shares_of_an_output_add_up(tokenizer, model_type, level):
    """By pair with the biases' share, and by part; what others and the token itself give is what the pairs give."""
    config = FAMILY_CONFIGS[model_type] | {"vocab_size": len(tokenizer)}
    model = normscope.wrap(tiny_model(config, torch.float64), tokenizer)
    one = decompose(model, TEXTS[0], level=level)
    parts = one.output_shares
    assert list(parts) == ["layer", "method", "position", "token", "share", "own", "residual", "bias"]
    assert np.allclose(parts[["share", "own", "residual", "bias"]].sum(axis=1), 1, rtol=1e-9)
    last = parts[parts["method"] == parts["method"].iloc[-1]]
    bias = last.pivot(index="layer", columns="position", values="bias").to_numpy()
    shares = one.maps["share"]
    assert np.allclose(shares.sum(dim=-1).numpy() + bias, 1, rtol=1e-9)
    others = last.pivot(index="layer", columns="position", values="share").to_numpy()
    assert np.allclose(shares.sum(dim=-1).numpy() - shares.diagonal(dim1=1, dim2=2).numpy(), others, atol=1e-9)
    assert np.allclose(one.pairs["share"], shares.flatten().numpy())


def test_results_of_texts_are_compared(model, tmp_path):
    """Whatever made them: the table has the numbers of each, and the comparison is a result like others."""
    texts = ["Rain fell.", "No rain fell."]
    makers = (
        lambda text: normscope.decompose(model, text),
        lambda text: normscope.similarity(model, "A cat.", text, pooling="mean"),
        lambda text: normscope.attribute(model, text, lambda hidden: hidden[0, 0]),
        lambda text: normscope.attention(model, text, queries="last", keys=[1, 2]),
    )
    for place, make in enumerate(makers):
        results = [make(text) for text in texts]
        found = normscope.compare(results)
        table = found.table.set_index("metric")
        assert [*table.index] == list(dict.fromkeys(name for result in results for name in result.metrics))
        for column, result in zip(table, results, strict=True):
            assert table[column].dropna().to_dict() == pytest.approx(dict(result.metrics), rel=1e-12)
        sentence = found.sentences[0]
        assert all(f"“{result.config['text']}”" in sentence for result in results)
        found.save(tmp_path / str(place))
        assert repr(normscope.read(tmp_path / str(place))) == repr(found)
        assert sentence[:20] in normscope.page(found)
    with pytest.raises(InputError, match="results: expected at least one Result with metrics or token maps, got none"):
        normscope.compare([normscope.Result(), normscope.Result()])
