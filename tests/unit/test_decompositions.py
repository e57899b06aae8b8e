"""Decompositions of one text and of many, of every stack, and what other libraries make of them."""

import inspect

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, AutoModel

import normscope
from normscope.errors import InputError
from normscope.models.observer import Observer
from normscope.models.text_batches import batch_from_texts
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model

TEXTS = ["The cat sat on the mat.", ("A dog barked.", "Nobody heard it, of course."), "Rain fell."]


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(saved_model, device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def cross(tokenizer):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)})
    whole = AutoModel.from_config(config).double()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return normscope.wrap(whole, tokenizer, stack="cross")


def test_many_texts_are_each_decomposed_as_if_alone(model):
    together = normscope.decompose(model, TEXTS)
    assert len(together) == 3
    for text, one in zip(TEXTS, together, strict=True):
        alone = normscope.decompose(model, text)
        assert alone.tokens == one.tokens
        for name in ("weights", "vectors", "residual", "normalised", "ratios"):
            assert torch.equal(getattr(alone, name), getattr(one, name)), name
    assert isinstance(together[1:], normscope.Decompositions)
    assert together[-1].tokens == normscope.decompose(model, TEXTS[2]).tokens
    encoding = model.tokenizer([TEXTS[0], TEXTS[2]], padding=True)
    pd.testing.assert_frame_equal(normscope.decompose(model, encoding).pairs, together[::2].pairs)
    assert isinstance(normscope.decompose(model, [TEXTS[0]]), normscope.Decompositions)


@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_maps_through_the_feed_forward_network_are_those_of_the_observed_layers(tokenizer, model_type):
    model = normscope.wrap(
        tiny_model(FAMILY_CONFIGS[model_type] | {"vocab_size": len(tokenizer)}, torch.float64), tokenizer
    )
    text = TEXTS[0]
    whole = normscope.decompose(model, text, feed_forward=True)
    observed = []
    observer = Observer(model.model, model.layout, feed_forward=True)
    with observer:
        inputs = batch_from_texts(model, text).model_inputs()
        observer.run(inputs, lambda _: None, visit_feed_forward=lambda block: observed.append(block.pair_maps()))
    stages = [f"{stage}_n" for stage in observed[0] if stage != "atb"]
    assert list(whole.feed_forward) == stages
    assert ("atbffresln_n" in stages) == (model_type != "gpt2")
    for stage in stages:
        expected = torch.stack([maps[stage.removesuffix("_n")][0] for maps in observed])
        torch.testing.assert_close(whole.feed_forward[stage], expected, rtol=1e-12, atol=0)
        np.testing.assert_array_equal(whole.pairs[stage], whole.feed_forward[stage].flatten())
    # The maps up to the attention block are the same without the networks, and nothing else is added.
    alone = normscope.decompose(model, text)
    assert not alone.feed_forward
    pd.testing.assert_frame_equal(alone.pairs, whole.pairs.drop(columns=stages))


def test_tables_of_many_texts_have_the_number_of_the_text(model):
    together = normscope.decompose(model, TEXTS)
    for name in ("pairs", "mixing"):
        table = getattr(together, name)
        assert table.columns[0] == "sequence"
        for number, one in enumerate(together):
            rows = table[table["sequence"] == number].drop(columns="sequence").reset_index(drop=True)
            pd.testing.assert_frame_equal(rows, getattr(one, name))
        assert table.index.equals(pd.RangeIndex(sum(len(getattr(one, name)) for one in together)))
    means = together.mixing.groupby(["layer", "method"])["ratio"].mean()
    for (layer, method), mean in means.items():
        assert together.table.loc[layer, method] == pytest.approx(mean)
    assert repr(together).startswith("3 texts\n")
    assert "<table" in together._repr_html_()


def test_single_heads_make_the_block(model):
    """The mean over heads of α is the block's; ‖αf(x)‖ of one head is its α times ‖f(x)‖."""
    one = normscope.decompose(model, TEXTS[0], heads=True)
    torch.testing.assert_close(one.head_weights.mean(dim=1), one.weights)
    for index, block in enumerate(normscope.observe(model, TEXTS[0])):
        explicit = torch.einsum("hqk,hkm->hqkm", block.weights[0], block.transformed()[0])
        torch.testing.assert_close(one.head_vectors[index], explicit.norm(dim=-1))
    assert normscope.decompose(model, TEXTS[0]).head_weights is None


def test_cross_attention_has_tokens_of_two_texts(cross):
    pair = ("A dog barked.", "Nobody heard it, of course.")
    one = normscope.decompose(cross, pair, heads=True)
    source = cross.tokenizer.convert_ids_to_tokens(cross.tokenizer(pair[0])["input_ids"])
    assert list(one.key_tokens) == source
    assert one.weights.shape == (2, len(one.tokens), len(source))
    assert len(one.tokens) != len(source)
    for index, block in enumerate(normscope.observe(cross, pair)):
        vectors = torch.einsum("hqk,hkm->qkm", block.weights[0], block.transformed()[0])
        torch.testing.assert_close(one.vectors[index], vectors.norm(dim=-1))
    pairs = one.pairs
    assert len(pairs) == one.weights.numel()
    assert pairs["key_token"].unique().tolist() == list(dict.fromkeys(source))
    assert one.figure(1)._repr_png_().startswith(b"\x89PNG")
    dataset = one.to_xarray()
    assert dataset["key_token"].values.tolist() == source
    with pytest.raises(
        InputError, match="draws one list of tokens, but cross-attention, and maps of some queries, have two"
    ):
        one.to_circuitsvis()


def test_pandas_and_xarray_hold_the_same_numbers(model):
    one = normscope.decompose(model, TEXTS[1], heads=True)
    assert one.to_pandas() is one.pairs
    dataset = one.to_xarray()
    assert dict(dataset.sizes) == {"layer": 3, "query": 14, "key": 14, "measure": 5, "head": 4}
    for name in ("attn_w", "attn_n", "attnres_n", "attnresln_n"):
        assert np.array_equal(dataset[name].values.ravel(), one.pairs[name].to_numpy())
    assert dataset["attn_n"].dims == ("layer", "query", "key")
    mixing = one.mixing.set_index(["method", "layer", "position"])["ratio"].sort_index()
    for method in dataset["measure"].values:
        for layer in (1, 2, 3):
            ratios = dataset["ratio"].sel(measure=method, layer=layer).values
            assert ratios.tolist() == mixing.loc[(method, layer)].tolist()
    assert np.array_equal(dataset["attn_n_heads"].sel(layer=2, head=3).values, one.head_vectors[1, 2].numpy())
    assert dataset["query_token"].values.tolist() == list(one.tokens)
    assert "head" not in normscope.decompose(model, TEXTS[1]).to_xarray().sizes


def attention_heads(
    attention,
    tokens,
    attention_head_names=None,
    max_value=None,
    min_value=None,
    negative_color=None,
    positive_color=None,
    mask_upper_tri=None,
):
    """The parameters of `circuitsvis.attention.attention_heads`, in 1.43."""


def test_circuitsvis_draws_blocks_or_heads(model):
    one = normscope.decompose(model, TEXTS[0], heads=True)
    blocks = one.to_circuitsvis("attnresln_n")
    inspect.signature(attention_heads).bind(**blocks)
    assert blocks["attention"].dtype == np.float32
    assert np.array_equal(blocks["attention"], one.normalised.float().numpy())
    assert blocks["attention_head_names"] == ["layer 1", "layer 2", "layer 3"]
    assert blocks["tokens"] == list(one.tokens)
    assert blocks["max_value"] == pytest.approx(float(one.normalised.max()))
    assert blocks["mask_upper_tri"] is False
    heads = one.to_circuitsvis("attn_n", layer=2)
    assert np.array_equal(heads["attention"], one.head_vectors[1].float().numpy())
    assert heads["attention_head_names"][3] == "layer 2, head 4"
    for arguments, message in (
        (("attn",), "^measure='attn': expected one of attn_w, attn_n, attnres_n, attnresln_n$"),
        (("attnres_n", 2), "^measure='attnres_n': expected one of attn_w, attn_n$"),
        (("attn_n", 4), "^layer=4: expected 1 to 3$"),
        (("layer",), r"^measure='layer': no map goes through the whole layer; call decompose\(…, feed_forward=True\)$"),
        (("layer", 2), "^measure='layer': expected one of attn_w, attn_n$"),
    ):
        with pytest.raises(InputError, match=message):
            one.to_circuitsvis(*arguments)
    with pytest.raises(InputError, match="no maps of single heads; call decompose"):
        normscope.decompose(model, TEXTS[0]).to_circuitsvis("attn_n", 1)


@pytest.mark.parametrize(("model_type", "last"), [("bert", "atbffresln_n"), ("gpt2", "atbffres_n")])
def test_the_layer_stands_for_its_last_stage(tokenizer, model_type, last):
    model = normscope.wrap(
        tiny_model(FAMILY_CONFIGS[model_type] | {"vocab_size": len(tokenizer)}, torch.float32), tokenizer
    )
    one = normscope.decompose(model, TEXTS[0], feed_forward=True)
    assert np.array_equal(one.to_circuitsvis("layer")["attention"], one.maps[last].float().numpy())


def test_circuitsvis_hides_later_tokens_of_a_causal_model(tokenizer):
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", n_embd=24, n_layer=1, n_head=2, n_positions=32, vocab_size=len(tokenizer))
    causal = normscope.wrap(AutoModel.from_config(config), tokenizer)
    assert normscope.decompose(causal, TEXTS[0]).to_circuitsvis()["mask_upper_tri"] is True


@pytest.mark.parametrize("level", ["token", "word"])
@pytest.mark.parametrize("model_type", ["bert", "olmo2", "gpt2"])
def test_shares_of_an_output_add_up(tokenizer, model_type, level):
    """By pair with the biases' share, and by part; what others and the token itself give is what the pairs give."""
    config = FAMILY_CONFIGS[model_type] | {"vocab_size": len(tokenizer)}
    model = normscope.wrap(tiny_model(config, torch.float64), tokenizer)
    one = normscope.decompose(model, TEXTS[0], level=level)
    parts = one.output_shares
    assert list(parts) == ["layer", "method", "position", "token", "share", "own", "residual", "bias"]
    assert np.allclose(parts[["share", "own", "residual", "bias"]].sum(axis=1), 1, rtol=1e-9)
    last = parts[parts["method"] == parts["method"].iloc[-1]]
    bias = last.pivot(index="layer", columns="position", values="bias").to_numpy()
    assert np.allclose(one.shares.sum(dim=-1).numpy() + bias, 1, rtol=1e-9)
    others = last.pivot(index="layer", columns="position", values="share").to_numpy()
    assert np.allclose(one.shares.sum(dim=-1).numpy() - one.shares.diagonal(dim1=1, dim2=2).numpy(), others, atol=1e-9)
    assert np.allclose(one.pairs["share"], one.shares.flatten().numpy())
    assert np.array_equal(one.to_xarray()["share"], one.shares.numpy())
    several = normscope.decompose(model, [TEXTS[0], TEXTS[0]], level=level)
    assert next(iter(several.output_shares)) == "sequence"
    assert len(several.output_shares) == 2 * len(parts)
