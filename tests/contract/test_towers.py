"""Models that embed images and texts: either tower is a model, and a similarity is a sum over patches and words."""

import copy
import functools

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

import normscope
from normscope.data.encoding import Encoder
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.errors import InputError
from normscope.models.options import Tower
from normscope.results.figures import PatchMaps
from tests.contract.test_images import PATCHES, pixels, processor
from tests.contract.test_vectors import IMAGES, SMALL, made

TEXT = "a photo of a cat"
WORDS = {
    "vocab_size": 30522,
    "max_position_embeddings": 16,
    "eos_token_id": 102,
    "bos_token_id": 101,
    "pad_token_id": 0,
}


def clip():
    config = transformers.CLIPConfig(
        text_config={**SMALL, **WORDS}, vision_config={**SMALL, **IMAGES}, projection_dim=24
    )
    return transformers.CLIPModel(config), {}


def siglip():
    text = {**SMALL, **WORDS, "projection_size": 32}
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config={**SMALL, **IMAGES})), {}


def dual():
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
        transformers.ViTConfig(**SMALL, **IMAGES), transformers.BertConfig(**SMALL, vocab_size=30522), projection_dim=24
    )
    return transformers.VisionTextDualEncoderModel(config), {}


BUILDS = {each.__name__: each for each in (clip, siglip, dual)}


@pytest.fixture(scope="module")
def whole():
    return functools.cache(lambda name: made(BUILDS[name])[0])


@pytest.fixture(scope="module")
def both(tokenizer):
    return transformers.CLIPProcessor(image_processor=processor(), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def wrapped(whole, both):
    return functools.cache(lambda name: normscope.wrap(whole(name), both))


def pixel_values(image):
    return processor()(images=image, return_tensors="pt")["pixel_values"].double()


def features(model, image, text, tokenizer):
    """Both embeddings of the untouched model."""
    with torch.no_grad():
        of_image = model.get_image_features(pixel_values=pixel_values(image))
        of_text = model.get_text_features(input_ids=tokenizer(text, return_tensors="pt")["input_ids"])
    return [each.pooler_output[0] for each in (of_image, of_text)]


@pytest.mark.parametrize("name", ["clip", *(pytest.param(name, marks=pytest.mark.slow) for name in ("siglip", "dual"))])
def test_pairs_add_up_to_the_cosine_of_the_untouched_model(wrapped, whole, tokenizer, name):
    result = normscope.similarity(wrapped(name), pixels(), TEXT)
    value = float(torch.cosine_similarity(*features(whole(name), pixels(), TEXT, tokenizer), dim=0))
    table = result.tables["pairs"]
    np.testing.assert_allclose([result.metrics["value"], table["value"].sum()], value, rtol=0, atol=1e-12)
    tokens = ["[CLS]"] * (name != "siglip") + PATCHES
    words = tokenizer.tokenize(TEXT, add_special_tokens=True)
    assert table.drop_duplicates("a").sort_values("a")["token_a"].tolist() == [*tokens, "bias"]
    assert table.drop_duplicates("b").sort_values("b")["token_b"].tolist() == [*words, "bias"]
    assert result.facts["tower"] == "image"


def normed(norm, parts, at):
    """γ ⊙ (v − mean(v)) / σ with the deviation of `at`."""
    deviation = at.var(dim=-1, unbiased=False).add(norm.eps).sqrt()
    return (parts - parts.mean(dim=-1, keepdim=True)) * norm.weight / deviation[..., None, None]


def explicit(layers, run, *, causal):
    """x_{i⇐k} (1, query, source, model) before the last norm, and the hidden vectors there: every vector is built."""
    entered = []
    handles = [
        each.register_forward_pre_hook(lambda _, args: entered.append(args[0]), with_kwargs=False) for each in layers
    ]
    handles.append(layers[-1].register_forward_hook(lambda _module, _args, output: entered.append(output)))
    run()
    for handle in handles:
        handle.remove()
    vectors = torch.eye(entered[0].shape[1], dtype=torch.float64)[None, :, :, None] * entered[0][:, :, None]
    for layer, hidden in zip(layers, entered, strict=False):
        own, network, first, second = layer.self_attn, layer.mlp, layer.layer_norm1, layer.layer_norm2
        query, key = (
            each(first(hidden)).unflatten(-1, (own.num_heads, -1)).transpose(1, 2) for each in (own.q_proj, own.k_proj)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        before = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(before & causal, -torch.inf).softmax(-1)

        def attended(read, of, weights=weights, own=own):
            values = of(read).unflatten(-1, (own.num_heads, -1))
            return torch.einsum("bhij,bj...hd->bi...hd", weights, values).flatten(-2)

        read = normed(first, vectors, hidden)
        vectors = vectors + attended(read, lambda each, own=own: each @ own.v_proj.weight.T) @ own.out_proj.weight.T
        middle = hidden + own.out_proj(attended(first(hidden), own.v_proj))
        neurons = network.fc1(second(middle))
        slopes = (network.activation_fn(neurons) / neurons)[:, :, None]
        read = normed(second, vectors, middle)
        vectors = vectors + read @ network.fc1.weight.T * slopes @ network.fc2.weight.T
    return vectors, entered[-1]


def of_text(model, ids, *, causal):
    """P_k of a text: explicit vectors at the last token, the last norm and the projection."""
    tower = model.text_model
    vectors, hidden = explicit(tower.encoder.layers, lambda: tower(input_ids=ids), causal=causal)
    projection = tower.head if hasattr(tower, "head") else model.text_projection
    return normed(tower.final_layer_norm, vectors, hidden)[0, -1] @ projection.weight.T


def of_image_of_clip(model, parts, entered):
    return normed(model.vision_model.post_layernorm, parts, entered)[0, 0] @ model.visual_projection.weight.T


def of_image_of_siglip(model, parts, entered):
    """Through the head that pools by attention: its weights, its norm's deviation and its activation's slopes are held."""
    head, norm = model.vision_model.head, model.vision_model.post_layernorm
    attention, width = head.attention, entered.shape[-1]
    (query, key, value), (at_query, at_key, at_value) = (
        each.split(width) for each in (attention.in_proj_weight, attention.in_proj_bias)
    )
    parts, read = normed(norm, parts, entered)[0], norm(entered)[0]
    heads = attention.num_heads
    scores = torch.einsum(
        "hd,thd->ht",
        (head.probe[0, 0] @ query.T + at_query).unflatten(-1, (heads, -1)),
        (read @ key.T + at_key).unflatten(-1, (heads, -1)),
    )
    weights = (scores / (width / heads) ** 0.5).softmax(-1)

    def pooled(vectors, bias=0.0):
        values = (vectors @ value.T + bias).unflatten(-1, (heads, -1))
        return torch.einsum("ht,t...hd->...hd", weights, values).flatten(-2) @ attention.out_proj.weight.T

    of_sources, of_all = pooled(parts), pooled(read, at_value) + attention.out_proj.bias
    first, second = head.mlp.fc1, head.mlp.fc2
    neurons = first(head.layernorm(of_all))
    slopes = F.gelu(neurons, approximate="tanh") / neurons
    read = normed(head.layernorm, of_sources, of_all)
    return of_sources + read @ first.weight.T * slopes @ second.weight.T


@pytest.mark.parametrize(("name", "of_image"), [("clip", of_image_of_clip), ("siglip", of_image_of_siglip)])
def test_pairs_are_products_of_explicit_vectors(wrapped, whole, tokenizer, name, of_image):
    model, layers = whole(name), whole(name).vision_model.encoder.layers
    with torch.no_grad():
        words = of_text(model, tokenizer(TEXT, return_tensors="pt")["input_ids"], causal=name == "clip")
        given = explicit(layers, lambda: model.vision_model(pixel_values(pixels())), causal=False)
        patches = of_image(model, *given)
    lengths = [each.norm() for each in features(model, pixels(), TEXT, tokenizer)]
    table = normscope.similarity(wrapped(name), pixels(), TEXT).tables["pairs"]
    found = table.pivot(index="a", columns="b", values="value").to_numpy()[:-1, :-1]
    np.testing.assert_allclose(found, patches @ words.T / (lengths[0] * lengths[1]), rtol=0, atol=1e-10)


def test_gradients_and_carried_parts_are_one(wrapped):
    """An image is recorded beside a text, and carried beside another image."""
    model, image = wrapped("siglip"), pixels()
    together = normscope.similarity(model, image, image)
    assert together.metrics["value"] == pytest.approx(1, abs=1e-12)
    matrix = together.tables["pairs"].pivot(index="a", columns="b", values="value").to_numpy()
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=1e-12)
    turned = normscope.similarity(model, TEXT, image).tables["pairs"].sort_values(["b", "a"])["value"]
    straight = normscope.similarity(model, image, TEXT).tables["pairs"].sort_values(["a", "b"])["value"]
    np.testing.assert_allclose(turned, straight, rtol=0, atol=1e-12)


def test_each_word_is_laid_on_the_image(wrapped, tokenizer):
    result = normscope.similarity(wrapped("clip"), pixels(), TEXT)
    figure, (found,) = result.figures["pair"], result.maps
    assert isinstance(figure, PatchMaps)
    table = result.tables["pairs"].pivot(index="a", columns="b", values="value").to_numpy()
    words = tokenizer.tokenize(TEXT, add_special_tokens=True)
    assert len(figure.panel_titles) == len(words) + 2  # all together, and the biases of the text
    panels = [table[1:-1].sum(axis=1), *table[1:-1].T]
    for panel, expected in zip(figure.panel_titles, panels, strict=True):
        np.testing.assert_allclose(figure.values_of(panel).to_numpy().ravel(), expected, rtol=0, atol=1e-12)
    rows = [table[:-1].sum(axis=1), *table[:-1].T]
    np.testing.assert_allclose(found.maps["token_score"][0], rows, atol=1e-7)


def test_several_texts_are_ranked_for_an_image(wrapped, whole, tokenizer):
    texts = [TEXT, "dogs", "a cat"]
    result = normscope.similarity(wrapped("clip"), pixels(), texts)
    values = [
        float(torch.cosine_similarity(*features(whole("clip"), pixels(), text, tokenizer), dim=0)) for text in texts
    ]
    ranking = result.tables["ranking"]
    np.testing.assert_allclose(ranking.sort_values("number")["value"], values, atol=1e-12)
    best = 1 + int(np.argmax(values))
    assert result.sentences[0].startswith(f"Of 3 pairs of an image and a text, number {best} ")


def test_texts_of_one_length_are_padded_where_no_mask_tells(whole, tokenizer):
    """SigLIP's tokenizer makes no mask: padding is read like a text, and is one source."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_input_names, tokenizer.model_max_length = ["input_ids"], 16
    reader = transformers.CLIPProcessor(image_processor=processor(), tokenizer=tokenizer)
    result = normscope.similarity(normscope.wrap(whole("siglip"), reader), pixels(), "a cat")
    ids = tokenizer("a cat", padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    assert ids.shape == (1, 16)
    with torch.no_grad():
        image = whole("siglip").get_image_features(pixel_values=pixel_values(pixels())).pooler_output
        text = whole("siglip").get_text_features(input_ids=ids).pooler_output
    assert result.metrics["value"] == pytest.approx(float(torch.cosine_similarity(image, text)), abs=1e-12)
    table = result.tables["pairs"]
    assert table["value"].sum() == pytest.approx(result.metrics["value"], abs=1e-12)
    words = table.drop_duplicates("b").sort_values("b")["token_b"].tolist()
    assert words == ["[CLS]", "a", "cat", "[SEP]", "[PADDING]", "bias"]


def test_the_tower_is_a_choice(whole, both, tokenizer):
    model = whole("clip")
    for reader, chosen, expected in (
        (both, None, "image"),
        (both, "text", "text"),
        (both.image_processor, None, "image"),
        (tokenizer, None, "text"),
    ):
        loaded = normscope.wrap(model, reader, tower=chosen)
        assert (loaded.tower, loaded.reader is None) == (expected, expected == "text")
        assert f"({expected} tower)" in repr(loaded)
    with pytest.raises(InputError, match="tower=image: expected the processor of CLIPModel, .* got a tokenizer"):
        normscope.wrap(model, tokenizer, tower="image")
    with pytest.raises(InputError, match="tower=text: expected the processor or tokenizer"):
        normscope.wrap(model, both.image_processor, tower="text")
    with pytest.raises(InputError, match="expected the processor of CLIPModel"):
        normscope.similarity(normscope.wrap(model, tokenizer), pixels(), TEXT)
    with pytest.raises(InputError, match="tower=text: expected a model with an image tower and a text tower"):
        normscope.wrap(model.vision_model, both.image_processor, tower="text")


def test_the_other_tower_is_named_where_the_inputs_are_of_the_other_kind(wrapped):
    for tower, given, other in (("image", DatasetKind.text, "text"), ("text", DatasetKind.images, "image")):
        loaded = wrapped("clip").of_tower(Tower(tower))
        with pytest.raises(InputError, match=f"and dataset.path, or model.tower={other}$"):
            Encoder(loaded, DatasetOptions(kind=given, path="x", seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_a_folder_has_both_towers(wrapped, whole, both, tmp_path, name):
    whole(name).save_pretrained(tmp_path)
    both.image_processor.save_pretrained(tmp_path)
    both.tokenizer.save_pretrained(tmp_path)
    expected = normscope.similarity(wrapped(name), pixels(), TEXT)
    for tower, used in ((None, "image"), ("image", "image"), ("text", "text")):
        loaded = normscope.load(tmp_path, tower=tower, device="cpu", dtype="float64")
        assert loaded.tower == used
        result = normscope.similarity(loaded, pixels(), TEXT)
        np.testing.assert_allclose(result.tables["pairs"]["value"], expected.tables["pairs"]["value"], atol=1e-12)
        assert result.facts["tower"] == used
    random = normscope.load(tmp_path, random_init=True, device="cpu", dtype="float64")
    assert normscope.similarity(random, pixels(), TEXT).metrics["value"] != expected.metrics["value"]


def test_photographs_are_no_negatives_in_dark_mode(wrapped):
    page = normscope.page(normscope.similarity(wrapped("clip"), pixels(), TEXT))
    assert 'class="photograph"' in page
    assert "figure:not(.photograph) image { filter: invert" in page
