"""Models of images and sounds: their tokens are named by what they come from, and measured as those of texts are."""

import html
import json
import re

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import normscope
from normscope.data.batching import collate, unpacked
from normscope.data.encoding import Encoder
from normscope.data.given_texts import GivenTexts
from normscope.data.input_files import InputFiles
from normscope.data.options import DatasetKind, DatasetOptions, check_dataset
from normscope.errors import InputError
from normscope.live.texts import require_kind
from normscope.models.load import input_reading
from normscope.models.load.text_batches import batch_from_texts, example_of
from normscope.reporting.drawing import laid_out
from normscope.reporting.options import ReportOptions
from normscope.results.figures import end_of_scale
from normscope.results.maps import pixels_of
from normscope.rounding import number
from normscope.running.token_maps import select_examples, token_maps
from tests.contract.test_configs import composed
from tests.contract.test_vectors import IMAGES, SMALL, explicit, made
from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.shell import run_here

SIZE = {"height": 32, "width": 32}


def pixels(seed: int = 0, size: tuple[int, int] = (32, 32)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def geometry_of(model):
    """What the tokens of an input are that has the size of the probe."""
    return model.reader.positions.of(model.model.probe)


def processor(**more):
    return transformers.ViTImageProcessorPil(size=SIZE, **more)


def vit():
    return transformers.ViTModel(transformers.ViTConfig(**SMALL, **IMAGES), add_pooling_layer=False), {}


def deit():
    return transformers.DeiTModel(transformers.DeiTConfig(**SMALL, **IMAGES)), {}


def siglip():
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SMALL, **IMAGES)), {}


def dinov2():
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, num_register_tokens=2, **IMAGES
    )
    return transformers.Dinov2WithRegistersModel(config), {}


def clip():
    config = transformers.CLIPConfig(text_config={**SMALL, "vocab_size": 50}, vision_config={**SMALL, **IMAGES})
    return transformers.CLIPModel(config), {}


def classifier():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, **IMAGES, num_labels=5)), {}


MODELS = {each.__name__: each for each in (vit, deit, siglip, dinov2, clip, classifier)}
BEFORE = {
    "vit": ["[CLS]"],
    "deit": ["[CLS]", "[DISTILLATION]"],
    "siglip": [],
    "dinov2": ["[CLS]", "[REGISTER1]", "[REGISTER2]"],
    "clip": ["[CLS]"],
    "classifier": ["[CLS]"],
}
TWINS = {"deit", "classifier"}
"""Whose layers are those of ViT."""
PATCHES = [f"{row},{column}" for row in range(1, 5) for column in range(1, 5)]


@pytest.fixture(scope="module")
def wrapped():
    kept = {}

    def one(name: str):
        if name not in kept:
            kept[name] = normscope.wrap(made(MODELS[name])[0], processor())
        return kept[name]

    return one


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in TWINS)) for name in MODELS])
def test_tokens_are_what_their_vectors_depend_on(wrapped, name):
    geometry = geometry_of(wrapped(name))
    assert list(geometry.names) == BEFORE[name] + PATCHES
    assert geometry.grid == (4, 4)
    inner = ["2,2", "2,3", "3,2", "3,3"]
    assert geometry.categories["patch"] == inner
    assert geometry.categories["border"] == [each for each in PATCHES if each not in inner]
    assert geometry.categories.get("register", []) == [each for each in BEFORE[name] if "REGISTER" in each]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in TWINS)) for name in MODELS])
def test_maps_of_an_image_are_those_of_its_pixels(wrapped, name):
    model, image = wrapped(name), pixels()
    own = {"pixel_values": torch.as_tensor(processor()(images=image, return_tensors="pt")["pixel_values"]).double()}
    result = normscope.decompose(model, image)
    (found,) = result.maps
    assert list(found.queries) == BEFORE[name] + PATCHES
    for layer, values in enumerate(explicit(model.model.model, own)):
        query, key, value = (
            values[each].unflatten(-1, (4, -1)).transpose(1, 2) for each in ("q_proj", "k_proj", "v_proj")
        )
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        transformed = torch.einsum("bhkd,mhd->bhkm", value, values["weight"].unflatten(-1, (4, -1))) * values["scale"]
        vectors = torch.einsum("bhqk,bhkm->bqkm", weights, transformed)
        np.testing.assert_allclose(found.maps["attn_w"][layer], weights[0].mean(dim=0), atol=1e-12)
        np.testing.assert_allclose(found.maps["attn_n"][layer], vectors[0].norm(dim=-1), atol=1e-10)


def test_patches_of_a_picture_that_is_not_square_have_rows_and_columns():
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, mlp_ratio=2, image_size=28, patch_size=7
    )
    torch.manual_seed(0)
    model = normscope.wrap(
        transformers.Dinov2Model(config).eval(), transformers.ViTImageProcessorPil(size={"height": 14, "width": 28})
    )
    geometry = geometry_of(model)
    assert geometry.grid == (2, 4)
    assert geometry.names == ("[CLS]", "1,1", "1,2", "1,3", "1,4", "2,1", "2,2", "2,3", "2,4")


def test_a_function_may_prepare_images(wrapped):
    def prepare(image: Image.Image) -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.as_tensor(np.array(image)[None, :32, :32] / 127.5 - 1).permute(0, 3, 1, 2)}

    model = normscope.wrap(made(vit)[0], prepare)
    for one, other in zip(
        normscope.decompose(model, pixels()).maps, normscope.decompose(wrapped("vit"), pixels()).maps, strict=True
    ):
        np.testing.assert_allclose(one.maps["attn_w"], other.maps["attn_w"], atol=1e-6)


def encoder_of_whisper():
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=1,
        decoder_attention_heads=4, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=50,
    )  # fmt: skip
    return transformers.WhisperModel(config), {}


def test_sounds_have_a_token_for_each_frame():
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1, sampling_rate=16_000)
    model = normscope.wrap(made(encoder_of_whisper)[0], extractor)
    assert len(model.reader.names) == 50
    sound = np.random.default_rng(0).normal(size=16_000).astype(np.float32)
    (found,) = normscope.decompose(model, sound).maps
    own = extractor(sound, sampling_rate=16_000, return_tensors="pt")["input_features"].double()
    for layer, values in enumerate(explicit(model.model.model, {"input_features": own})):
        query, key = (values[each].unflatten(-1, (4, -1)).transpose(1, 2) for each in ("q_proj", "k_proj"))
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        np.testing.assert_allclose(found.maps["attn_w"][layer], weights[0].mean(dim=0), atol=1e-12)
    with pytest.raises(InputError, match="expected audio: a file, or samples"):
        normscope.decompose(model, sound.reshape(2, -1))


def test_a_sample_of_a_corpus_reads_its_images_again(wrapped):
    model = wrapped("dinov2")
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.images, seed=0))
    batch = batch_from_texts(model, [pixels(1), pixels(2)])
    assert batch.fingerprints[0] != batch.fingerprints[1]
    sequences = [unpacked(torch.as_tensor(kinds), model.reader) for kinds in batch.by_sequence()]
    again = collate(sequences, encoder)
    assert again.fingerprints == batch.fingerprints
    assert torch.equal(again.own.arguments["pixel_values"], batch.own.arguments["pixel_values"])
    assert batch.part(1, 2).own.titles == ("image",)


def test_what_is_left_of_an_image_enters_the_first_layer(wrapped):
    """Patches that are taken out are missing in the first layer; the others are what they were."""
    model, image = wrapped("dinov2"), pixels()
    inputs = batch_from_texts(model, image).model_inputs()
    kept = [0, 1, 2, 5, 9, 18]
    left = inputs | {"input_ids": inputs["input_ids"][:, kept], "attention_mask": inputs["attention_mask"][:, kept]}
    tower = model.model.model
    with torch.no_grad():
        vectors = tower.embeddings(inputs["pixel_values"])[:, kept]
        for layer in tower.encoder.layer:
            vectors = layer(vectors)
        torch.testing.assert_close(model.model(**left)[0], tower.layernorm(vectors))


def test_analyses_measure_images(wrapped):
    images = [pixels(seed) for seed in range(3)]
    result = normscope.run("mixing", model=wrapped("dinov2"), texts=images, progress=False)
    ratios = np.concatenate(
        [each.tables["ratios"].query("method == 'attnresln_n' or method == 'attnres_n'")["ratio"].to_numpy()
         for each in (normscope.decompose(wrapped("dinov2"), image) for image in images)]
    )  # fmt: skip
    method = wrapped("dinov2").facts.methods[-1]
    assert result.metrics[f"mixing/{method}/mean"] == pytest.approx(ratios.mean())
    by_layer = result.tables["mixing_by_layer"]
    counts = by_layer[by_layer["layer"] == 1].drop_duplicates("category").set_index("category")["count"].to_dict()
    assert {name: counts[name] for name in ("cls", "register", "border", "patch")} == {
        "cls": 3, "register": 6, "border": 36, "patch": 12,
    }  # fmt: skip


@pytest.mark.draws
def test_a_map_is_laid_on_the_picture_and_saved_with_it(wrapped, tmp_path):
    image = pixels()
    result = normscope.decompose(wrapped("dinov2"), image)
    result.save(tmp_path / "saved")
    again = normscope.read(tmp_path / "saved")
    for each in (result, again):
        (found,) = each.maps
        drawn = found.figure(layer=2)
        np.testing.assert_array_equal(pixels_of(drawn.image), np.array(image))
        np.testing.assert_allclose(drawn.values_of("attn_w"), found.maps["attn_w"][1][0, 3:].reshape(4, 4))
        row = found.maps["attn_n"][1][0]
        share = row[0] / row.sum()
        assert re.match(r"\[CLS\] ([\d.]+)% · \[REGISTER1\] ", drawn.beside["attn_n"])[1] == f"{100 * share:.1f}"
        assert "tokens other than patches" in drawn.caption
        assert "click a patch to choose its token" in normscope.page(each)
    canvas = laid_out(again.maps[0].figure(layer=2))
    panels = canvas.axes[: 1 + len(found.maps) - 1]  # the image, and the measures that are not signed
    assert [panel.get_title().split()[0] for panel in panels[:3]] == ["image", "α", "‖αf(x)‖"]
    tops = {round(panel.get_position().y1, 6) for panel in panels}
    assert len(tops) == 1, "images are level"
    np.testing.assert_allclose(panels[1].images[1].get_array(), found.maps["attn_w"][1][0, 3:].reshape(4, 4))
    assert panels[1].images[1].get_extent() == panels[1].images[0].get_extent() == [-0.5, 31.5, 31.5, -0.5]


def test_without_a_token_before_the_patches_all_tokens_are_read(wrapped):
    (found,) = normscope.decompose(wrapped("siglip"), pixels()).maps
    np.testing.assert_allclose(
        found.figure(layer=1).values_of("attn_w"), found.maps["attn_w"][0].mean(axis=0).reshape(4, 4)
    )


def test_images_that_cannot_be_read_are_one_line(wrapped, tmp_path, monkeypatch):
    model = wrapped("vit")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    monkeypatch.setattr(input_reading, "MEGAPIXELS", 0.001)
    pixels(size=(50, 50)).save(tmp_path / "large.png")
    for given, line in (
        (tmp_path / "none.png", "expected an image file; there is none"),
        (tmp_path / "broken.png", "cannot read this image"),
        (tmp_path / "large.png", r"expected at most 0.001 megapixels, got 50 × 50"),
        (np.zeros((4, 4, 3)), "expected an image: .* got an array of float64"),
        (np.zeros((4, 4, 7), dtype=np.uint8), "rows × columns × 3, got one of shape"),
        ("a text", "expected an image file; there is none"),
    ):
        with pytest.raises(InputError, match=line):
            normscope.decompose(model, given)


def test_a_size_that_the_model_cannot_read_is_one_line():
    model = normscope.wrap(
        made(vit)[0], lambda image: processor(do_resize=image.width == 64)(image, return_tensors="pt")
    )
    with pytest.raises(InputError, match=r"^image: .* Input image size \(20\*32\) doesn't match model \(32\*32\)"):
        normscope.decompose(model, pixels(size=(20, 32)))


@pytest.mark.parametrize("key", ["max_length=5", "segmentation=sentence", "wikitext=true", "mask_fraction=0.5"])
def test_keys_of_texts_are_refused_with_images(key):
    with pytest.raises(InputError, match=f"dataset.{key.partition('=')[0]} applies only to texts"):
        check_dataset(composed("dataset=images", "dataset.path=photos", f"dataset.{key}").dataset)


def test_texts_and_images_are_not_mistaken_for_each_other(wrapped, tmp_path):
    with pytest.raises(InputError, match="dataset=text: .* reads images; set dataset=images"):
        Encoder(wrapped("vit"), DatasetOptions(kind=DatasetKind.text, seed=0))
    with pytest.raises(InputError, match="expected image files"):
        InputFiles.images(str(tmp_path))
    with pytest.raises(InputError, match="reads token ids; pass its tokenizer"):
        normscope.wrap(transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=50)).eval(), processor())


CLICK = """<script>setTimeout(() => {
  const figures = () => [...document.querySelectorAll('.image-maps figure figcaption')].map((each) => each.textContent);
  const first = figures();
  const { left, top, width, height } = document.querySelector('.image-map canvas').getBoundingClientRect();
  const others = document.querySelector('.image-maps p').textContent;
  const at = { clientX: left + 2.5 * width / 4, clientY: top + 1.5 * height / 4, bubbles: true };
  document.querySelector('.image-map canvas').dispatchEvent(new MouseEvent('click', at));
  const { data } = document.querySelector('.image-map canvas').getContext('2d').getImageData(0, 0, 4, 4);
  const shown = Array.from(data).filter((_, at) => at % 4 === 3);
  const seen = Object.assign(document.createElement('pre'), { id: 'seen' });
  seen.textContent = JSON.stringify({ first, others, then: figures(), shown });
  document.body.append(seen);
}, 2000)</script></body>"""
"""Clicks on the patch of the second row and third column, and says what the images show."""


@pytest.mark.slow
@needs_browser
def test_a_click_on_a_patch_lays_what_it_receives_on_the_image(wrapped, tmp_path):
    found = normscope.decompose(wrapped("dinov2"), pixels())
    (shown,) = found.maps
    page = tmp_path / "page.html"
    page.write_text(normscope.page(found).replace("</body>", CLICK))
    dom, console = opened(page)
    assert console == []
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', dom)[1]))
    assert seen["first"] == ["image", "“[CLS]” receives: α", "“[CLS]” receives: ‖αf(x)‖"]
    assert seen["then"][1:] == ["“2,3” receives: α", "“2,3” receives: ‖αf(x)‖"]
    layer = json.loads(re.search(r'"start":\s*(\{.*?\})', page.read_text())[1])["layer"] - 1
    share = 100 * shown.maps["attn_w"][layer, 0, 0]
    assert seen["others"].split(" · ")[0] == f"[CLS] {share:.3g}%"
    row = shown.maps["attn_w"][layer][shown.queries.index("2,3"), 3:]
    np.testing.assert_allclose(
        np.array(seen["shown"]) / 255, 0.9 * np.minimum(row / end_of_scale(row[None])[0], 1), atol=0.01
    )


@pytest.mark.draws
@pytest.mark.parametrize("stored", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_logit_of_a_class_comes_from_patches(tmp_path, stored):
    """Parts add up to what transformers returns, and a file gives the same model."""
    labels = {0: "cat", 1: "dog", 2: "cup"}
    config = transformers.ViTConfig(
        **SMALL, **IMAGES, id2label=labels, label2id={name: at for at, name in labels.items()}
    )
    model, _ = made(lambda: (transformers.ViTForImageClassification(config), {}))
    pixels().save(tmp_path / "photo.png")
    own = torch.as_tensor(processor()(images=pixels(), return_tensors="pt")["pixel_values"]).double()
    with torch.no_grad():
        logits = model(pixel_values=own).logits[0]
    found = normscope.wrap(model, processor())
    if stored:
        model.save_pretrained(tmp_path / "model")
        processor().save_pretrained(tmp_path / "model")
        found = normscope.load(str(tmp_path / "model"), dtype="float64")
        assert found.drawn is None
    result = normscope.attribute(found, tmp_path / "photo.png", normscope.Label("dog"))
    assert result.metrics["target"] == pytest.approx(float(logits[1]))
    assert result.table["value"].sum() + result.metrics["bias"] == pytest.approx(float(logits[1]))
    assert result.table["token"].tolist() == ["[CLS]", *PATCHES]
    drawn = result.figures["tokens"]
    np.testing.assert_allclose(drawn.values_of("0").to_numpy().ravel(), result.table["value"][1:])
    assert drawn.beside["0"] == f"[CLS] {number(float(result.table['value'][0]), signed=True)}"
    scale = laid_out(drawn).axes[1].images[1].norm
    assert scale.vmin == -scale.vmax, "a scale of both signs"
    assert "<h1>photo.png in " in re.sub("<h1[^>]*>", "<h1>", normscope.page(result))
    with pytest.raises(InputError, match="no weights of a"):
        normscope.attribute(normscope.wrap(made(vit)[0], processor()), pixels(), normscope.Label())


@pytest.fixture(scope="module")
def of_cats(tmp_path_factory):
    """A folder with a classifier of images and a photograph."""
    folder = tmp_path_factory.mktemp("cats")
    config = transformers.ViTConfig(**SMALL, **IMAGES, id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1})
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
    processor().save_pretrained(folder)
    pixels().save(folder / "photo.png")
    return folder


@pytest.mark.slow
def test_an_image_is_explained_from_the_command_line(of_cats, capsys, monkeypatch, tmp_path):
    model = f"model.name={of_cats}"
    outcome = run_here(
        capsys, monkeypatch, "explain", str(of_cats / "photo.png"), model, f"output_dir={tmp_path / 'out'}"
    )
    assert outcome.status == 0, outcome.err
    classifier = transformers.ViTForImageClassification.from_pretrained(of_cats)
    with torch.no_grad():
        logits = classifier(**processor()(images=pixels(), return_tensors="pt")).logits[0]
    best, other = ("cat", "dog") if logits[0] > logits[1] else ("dog", "cat")
    said = f"Logit of the class {best} minus that of the class {other}: {number(float(logits.max() - logits.min()))}"
    assert said in " ".join(outcome.out.split())
    page = (tmp_path / "out" / "explain.html").read_text()
    assert "photo.png in " in page
    assert re.search(r'"image":\s*\{"png"', page)


@pytest.mark.slow
def test_attention_of_an_image_from_the_command_line(of_cats, capsys, monkeypatch, tmp_path, saved_model):
    photo, out = str(of_cats / "photo.png"), f"output_dir={tmp_path / 'out'}"
    outcome = run_here(capsys, monkeypatch, "attention", photo, "queries=0", f"model.name={of_cats}", out)
    assert outcome.status == 0, outcome.err
    table = normscope.read(tmp_path / "out").table
    assert table["key_token"].drop_duplicates().tolist() == ["[CLS]", *PATCHES]
    for command in ("explain", "attention"):
        outcome = run_here(capsys, monkeypatch, command, photo, f"model.name={saved_model}", out)
        assert outcome.status == 2
        assert "reads texts, not images; set model.name to a model of images" in " ".join(outcome.err.split())


def test_a_model_of_images_stays_as_it_is():
    """What a token before the patches is, is found without writing into the weights that the copy shares."""
    model, _ = made(dinov2)
    before = {name: (parameter._version, parameter.clone()) for name, parameter in model.named_parameters()}
    assert normscope.wrap(model, processor()).reader.positions.names[1] == "[REGISTER1]"
    for name, parameter in model.named_parameters():
        version, values = before[name]
        assert parameter._version == version
        assert torch.equal(parameter, values)


def test_the_explorer_merges_patches_into_regions(wrapped):
    """Squares of 2 × 2 patches: what reaches a region is the mean over its patches of sums over those of the other."""
    model, image = wrapped("dinov2"), pixels(3)
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.images, seed=0))
    options = ReportOptions(tokens=8, examples=1)
    chosen = select_examples(GivenTexts((example_of(model, image),)), encoder, options, 3, reader=model.reader)
    (shown,), notes = token_maps(model, encoder, chosen, model.facts.attends)
    assert shown.keys == ("[CLS]", "[REGISTER1]", "[REGISTER2]", "1,1", "1,3", "3,1", "3,3")
    assert shown.unit == "region"
    assert notes == ["neighbouring patches are shown as one region, named by its upper left patch (report.tokens)"]
    assert (shown.image.grid, shown.image.places) == ((2, 2), (3, 4, 5, 6))
    assert np.array_equal(shown.image.pixels, model.reader.pixels(model.reader.read(image)))
    (whole,) = normscope.decompose(model, image).maps
    of_first, of_last = [3, 4, 7, 8], [13, 14, 17, 18]
    expected = whole.maps["attn_w"][:, of_first][:, :, of_last].sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(shown.maps["attn_w"][:, 3, 6], expected, rtol=1e-5)


def test_regions_at_the_end_may_be_smaller():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, image_size=40, patch_size=8)
    size = {"height": 40, "width": 40}
    model = normscope.wrap(transformers.ViTModel(config).eval(), transformers.ViTImageProcessorPil(size=size))
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.images, seed=0))
    image = pixels(3, (40, 40))
    chosen = select_examples(
        GivenTexts((example_of(model, image),)), encoder, ReportOptions(tokens=10, examples=1), 3, reader=model.reader
    )
    (shown,), _ = token_maps(model, encoder, chosen, model.facts.attends)
    assert shown.keys[1:] == tuple(f"{row},{column}" for row in (1, 3, 5) for column in (1, 3, 5))
    seen = shown.image.pixels
    assert seen.shape == (48, 48, 3)
    assert (seen[40:] == 255).all()
    assert np.array_equal(seen[:40, :40], model.reader.pixels(model.reader.read(image)))


def test_a_text_is_no_file_of_an_image(wrapped):
    for text in ("a cat", "one line\nand another.png", "x" * 300 + ".png"):
        with pytest.raises(InputError, match="reads images: expected the name of a file, got '"):
            require_kind(wrapped("vit"), text)
    require_kind(wrapped("vit"), "none.png")  # which is refused where it is opened
