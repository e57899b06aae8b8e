"""Inputs of several sizes, and vectors of any kind: tokens, names and blocks of each are those that hooks give, in float64."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import normscope
from normscope.attribution.baselines import Baseline, baseline_scores
from normscope.attribution.readouts import Readout
from normscope.data.batching import batches_of, unpacked
from normscope.data.encoding import Encoder
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.token_sequence import Batching, OwnInput
from normscope.errors import InputError
from normscope.maths.mixing import Method
from normscope.models.load.text_batches import batch_from_texts
from tests.contract.test_vectors import SMALL, made, vit
from tests.tiny import FAMILY_CONFIGS, tiny_model

HEADS = 4
CONVOLUTIONS = {
    "conv_dim": (16, 16), "conv_stride": (10, 8), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


def pixels(rows: int, columns: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8))


def sound(samples: int) -> np.ndarray:
    return np.random.default_rng(samples).normal(size=samples).astype(np.float32)


def dinov3():
    """Rotations depend on the grid, and only patches are turned."""
    config = transformers.DINOv3ViTConfig(**SMALL, image_size=32, patch_size=8, num_register_tokens=2)
    return transformers.DINOv3ViTModel(config), {}


def wav2vec2():
    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SMALL, **CONVOLUTIONS)), {}


def hubert():
    config = transformers.HubertConfig(**SMALL, **CONVOLUTIONS, feat_extract_norm="layer", do_stable_layer_norm=True)
    return transformers.HubertModel(config), {}


@pytest.fixture(scope="module")
def wrapped():
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    processors = {dinov3: transformers.ViTImageProcessorPil(do_resize=False), wav2vec2: extractor, hubert: extractor}
    kept = {}

    def one(build):
        if build not in kept:
            kept[build] = normscope.wrap(made(build)[0], processors[build])
        return kept[build]

    return one


def layers_of(model):
    """The list of layers that attend."""
    lists = (each for each in model.modules() if isinstance(each, torch.nn.ModuleList))
    return next(each for each in lists if any(name.endswith("q_proj") for name, _ in each.named_modules()))


def attention_by_hooks(model, inputs):
    """For each layer, ‖F_ij‖ by query and key, from what W_Q, W_K and W_V return, the rotation and W_O."""
    kept, hooks = [], []

    def keep(values, name):
        return lambda _module, _args, output: values.__setitem__(name, output)

    for layer in layers_of(model):
        values = {}
        kept.append(values)
        parts = {name.split(".")[-1]: part for name, part in layer.named_modules()}
        for name in ("q_proj", "k_proj", "v_proj"):
            hooks.append(parts[name].register_forward_hook(keep(values, name)))
        hooks.append(
            layer.register_forward_pre_hook(
                lambda _m, _args, given, values=values: values.update(turn=given.get("position_embeddings")),
                with_kwargs=True,
            )
        )
        values["W"] = parts.get("o_proj", parts.get("out_proj")).weight
        values["scale"] = parts["layer_scale1"].lambda1 if "layer_scale1" in parts else torch.ones(32)
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    for values in kept:
        query, key, value = (
            values[each].unflatten(-1, (HEADS, -1)).transpose(1, 2)[0] for each in ("q_proj", "k_proj", "v_proj")
        )
        if values["turn"] is not None:
            cosine, sine = values["turn"]
            first = query.shape[1] - len(cosine)

            def turned(x, cosine=cosine, sine=sine, first=first):
                half = x.shape[-1] // 2
                swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
                return torch.cat([x[:, :first], x[:, first:] * cosine + swapped[:, first:] * sine], dim=1)

            query, key = turned(query), turned(key)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        transformed = torch.einsum("hkd,mhd->hkm", value, values["W"].unflatten(-1, (HEADS, -1))) * values["scale"]
        yield weights, torch.einsum("hqk,hkm->qkm", weights, transformed).norm(dim=-1)


@pytest.mark.parametrize(("build", "inputs"), [
    (dinov3, [pixels(32, 32), pixels(41, 30)]),
    (wav2vec2, [sound(800), sound(1600)]),
    pytest.param(hubert, [sound(960), sound(1200)], marks=pytest.mark.slow),
], ids=["dinov3", "wav2vec2", "hubert"])  # fmt: skip
def test_inputs_of_any_size_are_those_of_the_model(wrapped, build, inputs):
    model = wrapped(build)
    for given in inputs:
        (found,) = normscope.decompose(model, given).maps
        own = model.reader.read(given).arguments
        for layer, (weights, norms) in enumerate(attention_by_hooks(model.model.model, own)):
            np.testing.assert_allclose(found.maps["attn_w"][layer], weights.mean(dim=0), atol=1e-10)
            np.testing.assert_allclose(found.maps["attn_n"][layer], norms, atol=1e-10)


def test_tokens_are_named_by_the_grid_of_their_input(wrapped):
    model = wrapped(dinov3)
    for (rows, columns), grid in {(32, 32): (4, 4), (24, 40): (3, 5), (30, 47): (3, 5)}.items():
        own = model.reader.read(pixels(rows, columns))
        geometry = model.reader.geometry(own)
        assert geometry.grid == grid
        patches = [f"{row},{column}" for row in range(1, grid[0] + 1) for column in range(1, grid[1] + 1)]
        assert list(geometry.names) == ["[CLS]", "[REGISTER1]", "[REGISTER2]", *patches]
        ids, kinds = model.reader.tokens(own)
        assert model.tokenizer.convert_ids_to_tokens(ids) == list(geometry.names)
        border = {f"{row},{column}" for row in (1, grid[0]) for column in range(1, grid[1] + 1)}
        border |= {f"{row},{column}" for row in range(1, grid[0] + 1) for column in (1, grid[1])}
        assert kinds == [
            "other", "register", "register", *("border" if each in border else "patch" for each in patches),
        ]  # fmt: skip
    with pytest.raises(InputError, match=r"expected at most 128 × 128 patches, .* got a token 129,1"):
        model.reader.tokens(model.reader.read(pixels(129 * 8, 8)))


def test_batches_hold_inputs_of_one_size_and_a_sample_is_read_again(wrapped):
    model = wrapped(dinov3)
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.images, seed=0))
    sizes = [(32, 32), (16, 64), (24, 40), (32, 32), (64, 16)]
    single = [batch_from_texts(model, pixels(*size, seed=seed)) for seed, size in enumerate(sizes)]
    sequences = [unpacked(torch.as_tensor(each.by_sequence()[0]), model.reader) for each in single]
    found = [*batches_of(sequences, encoder, batch_tokens=10_000)]
    assert sorted(batch.sequences for batch in found) == [1, 1, 1, 2]
    for batch in found:
        (size,) = {tuple(each.shape[1:]) for each in batch.own.arguments.values()}
        assert batch.input_ids.shape[1] == 3 + size[1] * size[2] // 64
    assert sorted(each for batch in found for each in batch.fingerprints) == sorted(
        each for batch in single for each in batch.fingerprints
    )
    assert sorted(number for batch in found for number in batch.own.numbers) == sorted(
        number for batch in single for number in batch.own.numbers
    )


@pytest.mark.slow
def test_a_run_measures_inputs_of_several_sizes_by_category(wrapped):
    model = wrapped(dinov3)
    images = [pixels(*size, seed=seed) for seed, size in enumerate([(32, 32), (24, 40), (32, 32), (40, 32)])]
    result = normscope.run(["mixing", "norms", "score", "feedforward"], model=model, texts=images, progress=False)
    by_layer = result.tables["mixing_by_layer"].query("layer == 1").drop_duplicates("category")
    counts = by_layer.set_index("category")["count"].to_dict()
    assert {name: counts[name] for name in ("cls", "register", "border", "patch")} == {
        "cls": 4, "register": 8, "border": 12 + 12 + 12 + 14, "patch": 4 + 3 + 4 + 6,
    }  # fmt: skip
    method = str(Method.ATTNRES_N)
    tables = [normscope.decompose(model, image).tables["ratios"] for image in images]
    ratios = np.concatenate([table.query(f"method == '{method}'")["ratio"].to_numpy() for table in tables])
    expected = result.tables["mixing_by_layer"].query(f"method == '{method}' and category == 'all'")
    assert np.average(expected["mean"], weights=expected["count"]) == pytest.approx(ratios.mean())


def test_queries_and_keys_have_weights_where_only_patches_are_turned(wrapped):
    model, image = wrapped(dinov3), pixels(24, 40)
    angles = []
    tower = model.model.model
    hook = tower.rope_embeddings.register_forward_hook(lambda _module, _args, output: angles.append(output))
    blocks = [*normscope.observe(model, image)]
    hook.remove()
    for block, layer in zip(blocks, layers_of(tower), strict=True):
        projections, turn = block.parameters.projections, block.key_map
        for found, part in ((projections.query, layer.attention.q_proj), (projections.key, layer.attention.k_proj)):
            torch.testing.assert_close(found.weight, part.weight.T.unflatten(1, (HEADS, -1)).transpose(0, 1))
        cosine, sine = angles[-1]
        torch.testing.assert_close(turn.own[0, 0], torch.cat([torch.ones(3, 8), cosine]).double())
        torch.testing.assert_close(turn.other[0, 0].abs(), torch.cat([torch.zeros(3, 8), sine.abs()]).double())


def test_padding_within_an_input_is_one_line():
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)

    def padded(samples):
        return extractor(samples, sampling_rate=16_000, padding="max_length", max_length=2_000, return_tensors="pt")

    with pytest.raises(InputError, match="expected an input without padding, got 400 of 2,000 masked"):
        normscope.wrap(made(wav2vec2)[0], lambda _image: padded(sound(1_600)))


SERIES = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip


def series():
    config = transformers.TimeSeriesTransformerConfig(
        prediction_length=4, context_length=16, lags_sequence=[1, 2], num_time_features=1, **SERIES
    )
    return transformers.TimeSeriesTransformerModel(config).encoder, {}


def as_embeddings(vectors: np.ndarray) -> dict[str, torch.Tensor]:
    return {"inputs_embeds": torch.as_tensor(vectors)[None].double()}


def vectors_of(tokens: int, size: int) -> np.ndarray:
    return np.random.default_rng(tokens).normal(size=(tokens, size))


@pytest.mark.slow
def test_time_steps_are_tokens():
    model, _ = made(series)
    size = model.config.feature_size
    names = [f"{hour}h" for hour in range(16)]
    night = {"night": names[:6], "day": names[6:]}
    wrapped = normscope.wrap(model, as_embeddings, example=vectors_of(8, size), tokens=night)
    for steps in (16, 10):
        given = vectors_of(steps, size)
        (found,) = normscope.decompose(wrapped, given).maps
        assert list(found.queries) == names[:steps]
        for layer, (weights, norms) in enumerate(attention_by_hooks(model, as_embeddings(given))):
            np.testing.assert_allclose(found.maps["attn_w"][layer], weights.mean(dim=0), atol=1e-10)
            np.testing.assert_allclose(found.maps["attn_n"][layer], norms, atol=1e-10)
    result = normscope.run("mixing", model=wrapped, texts=[vectors_of(16, size), vectors_of(10, size)], progress=False)
    by_layer = result.tables["mixing_by_layer"].query("layer == 1").drop_duplicates("category")
    assert by_layer.set_index("category")["count"].to_dict() == {"night": 12, "day": 10 + 4, "all": 26}
    with pytest.raises(InputError, match="expected a name for each of 17 tokens, got 16"):
        normscope.decompose(wrapped, vectors_of(17, size))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_vectors_given_to_a_model_of_texts_are_what_its_tokens_would_be(family):
    whole = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    ids = [5, 9, 7, 30, 8]
    with torch.no_grad():
        given = whole.get_input_embeddings()(torch.tensor(ids)).numpy()
    wrapped = normscope.wrap(whole, as_embeddings, example=given[:3], tokens=["a", "b", "c", "d", "e"])
    (found,) = normscope.decompose(wrapped, given).maps
    (expected,) = normscope.decompose(normscope.wrap(whole), ids).maps
    assert list(found.queries) == ["a", "b", "c", "d", "e"]
    assert wrapped.causal is (family == "llama")
    for name, values in expected.maps.items():
        np.testing.assert_allclose(found.maps[name], values, atol=1e-10)


class Features(torch.nn.Module):
    """A token for each feature of a table's row, and one for the row."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Linear(1, 32)
        self.cls = torch.nn.Parameter(torch.zeros(1, 1, 32))
        self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2)

    def forward(self, row):
        features = self.value(row.unsqueeze(-1))
        return self.encoder(torch.cat([self.cls.expand(len(row), -1, -1), features], dim=1))[:, 0]


def test_features_of_a_table_are_tokens_of_any_module():
    model, _ = made(lambda: (Features(), {}))
    row = np.random.default_rng(0).normal(size=4)

    def read(values):
        return {"row": torch.as_tensor(values)[None]}

    kinds = {"summary": ["[CLS]"], "body": ["age", "height", "weight"], "money": ["income"]}
    wrapped = normscope.wrap(model, read, example=row, tokens=kinds)
    (found,) = normscope.decompose(wrapped, row).maps
    assert list(found.queries) == ["[CLS]", "age", "height", "weight", "income"]
    with torch.no_grad():
        vectors = torch.cat([model.cls[0], model.value(torch.as_tensor(row)[:, None])])
        attention = model.encoder.layers[0].self_attn
        query, key, value = (vectors @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=-1)
        query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in (query, key, value))
        weights = (query @ key.mT / 8**0.5).softmax(-1)
        transformed = torch.einsum("hkd,mhd->hkm", value, attention.out_proj.weight.unflatten(-1, (HEADS, -1)))
        norms = torch.einsum("hqk,hkm->qkm", weights, transformed).norm(dim=-1)
    np.testing.assert_allclose(found.maps["attn_w"][0], weights.mean(dim=0), atol=1e-10)
    np.testing.assert_allclose(found.maps["attn_n"][0], norms, atol=1e-10)
    unnamed = normscope.wrap(model, read, example=row)
    assert unnamed.reader.positions.names[:5] == ("[CLS]", "1", "2", "3", "4")
    with pytest.raises(InputError, match="read fails on .*; if it takes no image, pass example="):
        normscope.wrap(made(vit)[0], read)
    with pytest.raises(InputError, match="for a module that reads other vectors, pass example="):
        normscope.wrap(model, read)
    with pytest.raises(InputError, match="example: expected a function of an input"):
        normscope.wrap(model, example=row)


def test_towers_of_patches_in_a_row_are_read_one_image_at_a_time():
    config = transformers.CONFIG_MAPPING["qwen2_vl"]().vision_config
    for name, value in {"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 4, "patch_size": 4}.items():
        setattr(config, name, value)
    kind = transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel
    model, _ = made(lambda: (kind(config), {}))

    def read(grid):
        rows, columns = grid
        values = np.random.default_rng(rows).normal(size=(rows * columns, 3 * 2 * 4 * 4))
        return {"hidden_states": torch.as_tensor(values), "grid_thw": torch.tensor([[1, rows, columns]])}

    wrapped = normscope.wrap(model, read, example=(4, 4))
    assert wrapped.batching is Batching.SINGLE
    for grid in ((4, 4), (4, 6)):
        kept = []
        hook = model.blocks[1].attn.qkv.register_forward_hook(lambda _m, _a, output, kept=kept: kept.append(output))
        turn = model.blocks[1].register_forward_pre_hook(
            lambda _m, _a, given, kept=kept: kept.append(given["position_embeddings"]), with_kwargs=True
        )
        with torch.no_grad():
            model(**read(grid))
        hook.remove()
        turn.remove()
        (cosine, sine), output = kept
        query, key, _ = (each.unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in output.chunk(3, dim=-1))

        def turned(x, cosine=cosine, sine=sine):
            return x * cosine + torch.cat([-x[..., 4:], x[..., :4]], dim=-1) * sine

        weights = (turned(query) @ turned(key).mT / 8**0.5).softmax(-1)
        (found,) = normscope.decompose(wrapped, grid).maps
        assert len(found.queries) == grid[0] * grid[1]
        np.testing.assert_allclose(found.maps["attn_w"][1], weights.mean(dim=0), atol=1e-6)  # angles are in float32


def test_what_is_left_of_an_image_keeps_its_rotations(wrapped):
    """Patches that are taken out are missing in every layer; the others stay at their places."""
    model = wrapped(dinov3)
    inputs = batch_from_texts(model, pixels(24, 40)).model_inputs()
    kept = [0, 2, 3, 5, 9, 17]
    left = inputs | {"input_ids": inputs["input_ids"][:, kept], "attention_mask": inputs["attention_mask"][:, kept]}
    tower = model.model.model
    with torch.no_grad():
        vectors = tower.embeddings(inputs["pixel_values"])[:, kept]
        cosine, sine = tower.rope_embeddings(inputs["pixel_values"])
        turn = tuple(each[[place - 3 for place in kept[2:]]] for each in (cosine, sine))
        for layer in layers_of(tower):
            vectors = layer(vectors, position_embeddings=turn)
        torch.testing.assert_close(model.model(**left)[0], tower.norm(vectors))
        twice = {name: torch.cat([each, each]) for name, each in left.items()}
        torch.testing.assert_close(model.model(**twice)[0], tower.norm(vectors).expand(2, -1, -1))
    result = normscope.run("attribution", model=model, texts=[pixels(24, 40)], progress=False)
    assert result.tables["attribution_faithfulness"]["mean"].notna().all()


def test_an_input_is_hashed_once(wrapped, monkeypatch):
    model, hashed = wrapped(dinov3), []
    number = OwnInput._number
    monkeypatch.setattr(OwnInput, "_number", lambda own, row: hashed.append(row) or number(own, row))
    batch = batch_from_texts(model, [pixels(24, 40), pixels(24, 40, seed=1)])
    assert batch.to(torch.device("cpu")).part(1, 2).own.numbers == batch.own.numbers[1:]
    assert len({*batch.own.numbers}) == 2
    assert batch.packed()[5, :, 0].tolist() == list(batch.own.numbers)
    assert hashed == [0, 0]


class FirstVector(Readout):
    """The square of a sum of the first token's vector."""

    def answers(self, output, _inputs):
        return output[0][:, 0]

    def scalars(self, answers, _untouched):
        return answers.sum(dim=1) ** 2

    values = scalars


def test_gradients_are_of_the_image_that_is_given(wrapped):
    model = wrapped(dinov3)
    inputs = batch_from_texts(model, pixels(24, 40)).model_inputs()
    readout = FirstVector(model.model)
    scores = baseline_scores(Baseline.GRADIENT_X_INPUT, model.model, inputs, readout, 1)
    tower = model.model.model
    vectors = tower.embeddings(inputs["pixel_values"]).detach().requires_grad_()
    hidden, turn = vectors, tower.rope_embeddings(inputs["pixel_values"])
    for layer in layers_of(tower):
        hidden = layer(hidden, position_embeddings=turn)
    (gradient,) = torch.autograd.grad(tower.norm(hidden)[:, 0].sum() ** 2, vectors)
    torch.testing.assert_close(scores, (gradient * vectors.detach()).sum(dim=-1))
