"""Vision–language models: their language layers, on texts with images, are measured from pixels and ids on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import normscope
from normscope.attribution.passes import held_pass
from normscope.data.batching import collate, unpacked, windows
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example, Message
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.token_sequence import ImageTokens, OwnInput
from normscope.errors import InputError
from normscope.models.load.text_batches import batch_from_texts, example_of
from normscope.results.figures import PatchMaps
from normscope.running.token_maps import patched_image
from tests.end_to_end.shell import run_here
from tests.image_text_models import MODELS, QUESTION, asked, attention_noted, made, picture


def variants(*quick: str, but: tuple[str, ...] = ()):
    """The models, of which those that are not named belong to the slow tests."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in quick)) for name in MODELS if name not in but]


GRID = [f"{row},{column}" for row in (1, 2) for column in (1, 2)]


@pytest.fixture(scope="module")
def wrapped(tokenizer):
    kept = {}

    def one(name: str):
        if name not in kept:
            model, processor = made(name, tokenizer)
            kept[name] = normscope.wrap(model, processor), model, processor
        return kept[name]

    return one


IMAGES = {
    "llava": [f"{row},{column}" for row in range(1, 5) for column in range(1, 5)],
    "idefics3": [f"image {number}: {place}" for number in range(1, 6) for place in GRID],
    "qwen2_vl": [f"{row},{column}" for row in range(1, 5) for column in range(1, 4)],
    "qwen3_vl": [f"{row},{column}" for row in range(1, 5) for column in range(1, 4)],
    "gemma3": GRID,
}
"""The tokens of an image, of 32 × 24 pixels for Qwen-VL and 32 × 32 for the others."""


def image_for(name: str):
    return picture(size=(32, 24) if "qwen" in name else (32, 32))


@pytest.mark.parametrize("name", variants("llava", "idefics3", "qwen2_vl"))
def test_image_tokens_are_those_that_pixels_change(wrapped, name):
    model, whole, processor = wrapped(name)
    image = image_for(name)
    batch = batch_from_texts(model, (image, QUESTION))
    inputs = asked(processor, image)
    assert torch.equal(batch.input_ids, inputs["input_ids"])
    names = batch.unit_texts(model.tokenizer)
    entered = []
    tower = model.model.tower
    hook = type(tower).forward
    try:
        type(tower).forward = lambda self, *args, **given: (
            entered.append(given["inputs_embeds"][0].clone()) or hook(self, *args, **given)
        )
        for pixels in (inputs["pixel_values"], torch.randn_like(inputs["pixel_values"])):
            whole(**{**inputs, "pixel_values": pixels})
    finally:
        type(tower).forward = hook
    changed = (entered[0] != entered[1]).any(dim=-1).tolist()
    assert [each for each, one in zip(names, changed, strict=True) if one] == IMAGES[name]
    assert {"is", "there", "a", "dog", ",", "please", "?"} <= {
        each for each, one in zip(names, changed, strict=True) if not one
    }


@pytest.mark.parametrize("name", variants("llava", "idefics3", "qwen2_vl"))
def test_maps_of_a_text_with_an_image_are_those_that_hooks_give(wrapped, name):
    model, whole, processor = wrapped(name)
    image = image_for(name)
    (found,) = normscope.decompose(model, (image, QUESTION)).maps
    language = next(each for each in whole.modules() if type(each) is type(model.model.tower))
    with attention_noted(language) as noted:
        whole(**asked(processor, image))
    assert found.layers == (1, 2)
    assert len(noted) == 2
    for layer, (weights, value) in enumerate(noted):
        np.testing.assert_allclose(found.maps["attn_w"][layer], weights.mean(dim=0), rtol=0, atol=1e-10)
        if name != "gemma3":  # whose norm behind attention scales what W_O writes
            written = language.layers[layer].self_attn.o_proj.weight.unflatten(-1, (len(weights), -1))
            vectors = torch.einsum("hqk,hkd,mhd->qkm", weights, value, written)
            np.testing.assert_allclose(found.maps["attn_n"][layer], vectors.norm(dim=-1), rtol=0, atol=1e-10)
    first = found.queries.index(IMAGES[name][0])
    assert (found.maps["attn_w"][0][first, first + 1] > 0) == (name == "gemma3")  # whose image tokens see one another


@pytest.mark.parametrize("name", variants("llava", "qwen2_vl", but=("qwen3_vl",)))
def test_what_patches_and_words_add_is_the_logit(wrapped, name):
    model, whole, processor = wrapped(name)
    image = image_for(name)
    inputs = asked(processor, image)
    logits = whole(**inputs).logits[0, -1]
    result = normscope.attribute(model, (image, QUESTION), normscope.NextToken())
    parts = result.metrics
    assert parts["target"] == pytest.approx(float(logits.max()), abs=1e-10)
    assert parts["tokens"] + parts["bias"] == pytest.approx(parts["target"], abs=1e-10)
    spans = result.tables["spans"].set_index("span")["value"]
    scores = result.tables["scores"].set_index("token")["value"]
    of_image = scores[scores.index.isin(IMAGES[name])]
    assert len(of_image) == len(IMAGES[name])
    assert spans.drop("text").sum() == pytest.approx(of_image.sum(), abs=1e-12)
    assert spans.sum() == pytest.approx(parts["tokens"], abs=1e-12)


def test_scores_are_those_of_a_model_with_everything_held(wrapped):
    """The model's logit is a sum over vectors that enter the first layer: double one, and its score is added again."""
    model, _, _ = wrapped("llava")
    image = picture()
    batch = batch_from_texts(model, (image, QUESTION))
    result = normscope.attribute(model, (image, QUESTION), normscope.NextToken())
    passed = held_pass(model.model, model.facts, batch.model_inputs(), model.next_token_head)
    best = passed.output.logits[0, -1].max()
    (gradients, _) = passed.at_output(best)
    back = passed.back(gradients)
    expected = (back.inputs[0] * passed.sources[0].vectors).sum(dim=-1)[0]
    np.testing.assert_allclose(result.tables["scores"]["value"], expected.detach(), atol=1e-12)
    vectors, _ = model.model.entry({"input_ids": batch.input_ids, **batch.own.arguments})
    torch.testing.assert_close(passed.sources[0].vectors[0], vectors, rtol=0, atol=0)


@pytest.mark.parametrize("name", variants("qwen2_vl", but=("idefics3", "qwen3_vl")))
def test_an_answer_about_an_image_is_the_sum_of_its_logits(wrapped, name):
    model, whole, processor = wrapped(name)
    image = image_for(name)
    answer = [2053, 1010, 3899]
    inputs = asked(processor, image)
    length = inputs["input_ids"].shape[1]
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer[:-1]])], dim=1)
    longer = {
        each: torch.nn.functional.pad(given, (0, 2)) if given.shape == (1, length) else given
        for each, given in inputs.items()
    }
    logits = whole(**longer | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits[0]
    expected = sum(float(logits[length - 1 + at, token]) for at, token in enumerate(answer))
    result = normscope.attribute(model, (image, QUESTION), normscope.Answer(answer))
    parts = result.metrics
    assert parts["target"] == pytest.approx(expected, abs=1e-10)
    assert parts["tokens"] + parts["bias"] == pytest.approx(expected, abs=1e-10)
    assert isinstance(result.figures["image"], PatchMaps)


def test_the_answer_of_the_model_itself_follows_the_image(wrapped):
    model, whole, processor = wrapped("llava")
    inputs = asked(processor, picture())
    ids = inputs["input_ids"]
    for _ in range(2):
        more = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        ids = torch.cat([ids, whole(**inputs | more).logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    result = normscope.attribute(model, (picture(), QUESTION), normscope.Answer(tokens=2, matrix=True))
    said = model.tokenizer.decode(ids[0, -2:])
    assert repr(said) in result.tables["parts"]["what"].item()


def test_what_is_added_between_layers_is_measured_but_not_attributed(wrapped):
    model, _, _ = wrapped("qwen3_vl")
    assert model.facts.writes_between
    with pytest.raises(InputError, match="adds something of the image to the vectors between layers as well"):
        normscope.attribute(model, (image_for("qwen3_vl"), QUESTION), normscope.NextToken())
    assert normscope.attribute(model, QUESTION, normscope.NextToken()).metrics["target"]


@pytest.mark.slow
def test_a_text_without_images_is_one_of_the_language_model(wrapped):
    model, whole, processor = wrapped("llava")
    plain = normscope.wrap(whole, processor.tokenizer)
    tables = [normscope.decompose(each, "One short text.").table for each in (model, plain)]
    np.testing.assert_allclose(tables[0]["ratio"], tables[1]["ratio"], atol=1e-14)


def test_a_conversation_has_categories_of_its_roles_and_images(wrapped):
    model, _, _ = wrapped("idefics3")
    images = [picture(1), picture(2)]
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": images[0]}, {"type": "text", "text": "Is it red?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "No."}]},
        {"role": "user", "content": [{"type": "image", "image": images[1]}, {"type": "text", "text": "And that"}]},
    ]
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0, chat_template=True))
    batch = batch_from_texts(model, said)
    names = [encoder.categories.names[each] for each in batch.categories[0].tolist()]
    tokens = batch.unit_texts(model.tokenizer)
    of = {category: [t for t, n in zip(tokens, names, strict=True) if n == category] for category in set(names)}
    assert of["image"] == [f"image {number}: {place}" for number in range(1, 11) for place in GRID]
    assert of["system"] == ["be", "brief"]
    assert of["user"] == ["is", "it", "red", "?", "and", "that"]
    assert of["assistant"] == ["no"]
    assert of["punctuation"] == [".", "."]
    assert "<row_1_col_1>" in of["template"]


def test_tokens_that_lie_otherwise_are_numbered(tokenizer):
    model, processor = made("llava", tokenizer)

    class Shuffled(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, features):
            return self.inner(features)[:, torch.randperm(16, generator=torch.Generator().manual_seed(1))]

    model.model.multi_modal_projector = Shuffled(model.model.multi_modal_projector)
    found = normscope.wrap(model, processor)
    (image,) = batch_from_texts(found, (picture(), QUESTION)).own.images
    assert image.grid is None
    assert image.names == tuple(map(str, range(1, 17)))


def test_tiles_are_put_together_as_their_borders_fit():
    """Six tiles of a smooth picture in two rows, and the whole picture, which has a row of its own."""
    slope = np.add.outer(np.arange(16) * 8, np.arange(24) * 5)
    whole = np.repeat(slope[:, :, None], 3, axis=2).astype(np.uint8)
    tiles = [whole[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] for row in (0, 1) for column in (0, 1, 2)]
    frames = [*tiles, np.full((8, 8, 3), 7, dtype=np.uint8)]
    images = tuple(
        ImageTokens(("a", "b", "c", "d"), tuple(range(4 * number, 4 * number + 4)), (2, 2)) for number in range(7)
    )

    class One:
        own = OwnInput({}, ("a picture",), images=images, tokens=28)
        image_texts = type("", (), {"pixels": lambda _own: frames})

    mosaic = patched_image(One, One)
    assert mosaic.grid == (6, 6)
    assert np.array_equal(mosaic.pixels[:16], whole)
    assert mosaic.places[:12] == (0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11)
    assert mosaic.places[24:] == (24, 25, -1, -1, -1, -1, 26, 27, -1, -1, -1, -1)
    assert mosaic.others(30) == [28, 29]
    assert mosaic.of(np.arange(28.0) + 1)[24:30].tolist() == [25, 26, 0, 0, 0, 0]


def test_figures_show_the_image_beside_its_text(wrapped, tmp_path):
    model, _, _ = wrapped("llava")
    result = normscope.attribute(model, (picture(), QUESTION), normscope.NextToken())
    scores = result.tables["scores"]
    is_image = scores["token"].isin(IMAGES["llava"])
    text = result.figures["tokens"].table
    assert text["value"].sum() == pytest.approx(scores["value"].sum(), abs=1e-12)
    assert text.loc[text["token"] == "[image]", "value"].item() == pytest.approx(scores["value"][is_image].sum())
    assert len(text) == (~is_image).sum() + 1
    shown = result.figures["image"]
    panel = next(iter(shown.panel_titles))
    np.testing.assert_allclose(shown.values_of(panel).to_numpy().ravel(), scores["value"][is_image])
    assert shown.signed
    assert "removing them from the image alone misleads" in shown.caption
    result.save(tmp_path / "saved")
    found = normscope.read(tmp_path / "saved").maps[0]
    assert found.image.places == result.maps[0].image.places
    assert found.image.within_text
    one = normscope.decompose(model, (picture(), QUESTION))
    assert "what the last token takes from each patch" in one.maps[0].figure(layer=2).caption
    np.testing.assert_allclose(
        one.maps[0].figure(layer=2, measure="attn_w").table["value"], one.maps[0].maps["attn_w"][1][-1][is_image]
    )


def chats(folder):
    picture(3).save(folder / "one.png")
    picture(4).save(folder / "two.png")
    lines = [
        {"messages": [{"role": "user", "content": [{"type": "image", "path": name}, {"type": "text", "text": said}]}]}
        for name, said in (("one.png", "What is it?"), ("two.png", "And what, pray, is that?"))
    ]
    path = folder / "chats.jsonl"
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in [*lines, {"messages": [{"role": "user", "content": "No image."}]}])
    )
    return path


def test_a_file_of_conversations_has_images_beside_it(wrapped, tmp_path):
    model, _, _ = wrapped("llava")
    options = DatasetOptions(kind=DatasetKind.text, path=str(chats(tmp_path)), seed=0, chat_template=True)
    encoder, counts = Encoder(model, options), CorpusCounts()
    sequences = encoder.encode(list(open_corpus(options).examples()), counts)
    assert [each.own is None for each in sequences] == [False, False, True]
    assert not counts.remarks
    assert encoder.batching.name == "SINGLE"
    image = list(encoder.categories.names).index("image")
    assert [(each.inherited == image).sum() for each in sequences] == [16, 16, 0]
    (kinds,) = collate([sequences[1]], encoder).by_sequence()
    again = unpacked(torch.as_tensor(kinds), model.image_texts)
    assert torch.equal(again.own.arguments["pixel_values"], sequences[1].own.arguments["pixel_values"])
    assert again.key == sequences[1].key
    assert unpacked(torch.as_tensor(collate([sequences[2]], encoder).by_sequence()[0]), model.image_texts).own is None


def test_analyses_count_what_is_taken_from_images(wrapped):
    """The share of the weight on image tokens is the mean over texts of what their maps have."""
    model, _, _ = wrapped("llava")
    texts = [(picture(1), "What is it?"), (picture(2), "And what, pray, is that?")]
    table = normscope.run("norms", model=model, texts=texts).tables["norms_by_layer"]
    options = DatasetOptions(kind=DatasetKind.text, seed=0, chat_template=True)
    encoder, shares = Encoder(model, options), []
    for text in texts:
        batch = collate(encoder.encode([example_of(model, text)], CorpusCounts()), encoder)
        is_image = np.isin(batch.unit_texts(model.tokenizer), IMAGES["llava"])
        weights = [block.weights[0].mean(dim=0).numpy() for block in normscope.observe(model, batch)]
        shares.append([each[:, is_image].sum(axis=1).mean() for each in weights])
    of_image = table[(table["category"] == "image") & (table["measure"] == "alpha")]
    np.testing.assert_allclose(of_image["sequence_mean"], np.mean(shares, axis=0), rtol=0, atol=1e-10)
    with pytest.raises(InputError, match="expected an image with every text or with none"):
        normscope.run("norms", model=model, texts=[*texts, "No image."])


def test_fewer_texts_with_images_are_read_ahead():
    def example(*parts):
        return Example("a", messages=(Message("user", "a", (), parts),))

    given = [*[example("a", "x.png")] * 3, *[example("a", Path("x.png"))] * 40]
    assert [len(window) for window in windows(given)] == [3 + 16, 16, 8]


@pytest.mark.slow
def test_tokens_are_not_removed_where_the_model_is_given_something_for_each(wrapped):
    model, _, _ = wrapped("gemma3")
    batch = batch_from_texts(model, (picture(), QUESTION))
    kinds = torch.as_tensor(batch.by_sequence()[0])
    assert unpacked(kinds, model.image_texts).own is not None
    with pytest.raises(InputError, match="tokens of a text with images cannot be removed, because the model is given"):
        unpacked(kinds[:, :-1], model.image_texts)


BAD = {
    "no file": (lambda folder: (folder / "none.png", "What?"), "none.png: expected an image file; there is none"),
    "corrupt": (lambda folder: (folder / "bad.png", "What?"), r"bad.png: cannot read this image"),
    "a video": (
        lambda _folder: [{"role": "user", "content": [{"type": "video", "path": "a"}, {"type": "text", "text": "a"}]}],
        "messages with the parts of type video, but only text and images are read",
    ),
    "an address": (
        lambda _folder: [
            {"role": "user", "content": [{"type": "image", "url": "http://a/b.png"}, {"type": "text", "text": "What?"}]}
        ],
        "expected an image: a file, a PIL.Image, .* got None",
    ),
    "no text": (
        lambda _folder: picture(),
        r"reads an image with a text: expected \(image, text\), got only the image",
    ),
    "no image": (
        lambda _folder: "See <image> there.",
        "the text has <image>, which stands for an image, but there is no image",
    ),
    "one too many": (
        lambda _folder: (picture(), "See <image> there."),
        "LlavaProcessor fails on a text with 1 image|Image features and image tokens do not match",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_in_a_line(wrapped, case, tmp_path):
    model, _, _ = wrapped("llava")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nno image")
    make, expected = BAD[case]
    given = make(tmp_path)
    with pytest.raises(InputError, match=expected) as error:
        normscope.decompose(model, given)
    assert "\n" not in str(error.value)


def test_regions_of_a_text_with_an_image_are_its_images(wrapped):
    model, _, _ = wrapped("idefics3")
    asked_for = (picture(), QUESTION)
    with pytest.raises(InputError, match="the spans of a text with images are its images and its text"):
        normscope.attribute(model, asked_for, normscope.NextToken(), spans="sentences")
    regions = normscope.attention(model, asked_for, queries="last", keys="images").maps[0]
    every = normscope.decompose(model, asked_for).maps[0]
    places = batch_from_texts(model, asked_for).own.images
    assert regions.keys[:5] == tuple(f"image {number}" for number in range(1, 6))
    expected = [every.maps["attn_w"][0][-1, [*image.places]].sum() for image in places]
    np.testing.assert_allclose(regions.maps["attn_w"][0][0][:5], expected, rtol=0, atol=1e-10)


def test_an_image_is_refused_by_a_model_of_texts(wrapped):
    _, whole, processor = wrapped("llava")
    plain = normscope.wrap(whole, processor.tokenizer)
    with pytest.raises(InputError, match="reads texts, not images; wrap a vision–language model with its processor"):
        normscope.decompose(plain, (picture(), QUESTION))


def test_several_texts_with_images_are_read_one_by_one(wrapped):
    model, _, _ = wrapped("llava")
    with pytest.raises(InputError, match="expected a single text in a batch"):
        normscope.decompose(model, [(picture(1), "What?"), (picture(2), "Why?")])


def test_a_model_whose_images_enter_elsewhere_is_refused(tokenizer):
    model, processor = made("llava", tokenizer)
    model.model.multi_modal_projector.linear_2.weight.zero_()
    with pytest.raises(InputError, match="expected some tokens of LlavaModel to stand for an image"):
        normscope.wrap(model, processor)


@pytest.mark.slow
def test_a_folder_with_a_processor_reads_images(tokenizer, tmp_path):
    model, processor = made("llava", tokenizer)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = normscope.load(tmp_path, device="cpu", dtype="float64")
    wrapped = normscope.wrap(model, processor)
    assert loaded.image_texts is not None
    one, other = (
        normscope.attribute(each, (picture(), QUESTION), normscope.NextToken()).tables["scores"]["value"]
        for each in (loaded, wrapped)
    )
    np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.slow
def test_without_what_its_processor_needs_a_folder_reads_texts(tokenizer, tmp_path, caplog, monkeypatch):
    model, processor = made("llava", tokenizer)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)

    def missing(_folder):
        raise ImportError("it needs torchvision")

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", missing)
    loaded = normscope.load(tmp_path, device="cpu")
    assert loaded.image_texts is None
    assert "reads only texts, because its processor cannot be loaded: it needs torchvision" in caplog.text


@pytest.mark.slow
def test_a_question_about_an_image_is_explained_from_the_command_line(tokenizer, tmp_path, capsys, monkeypatch):
    model, processor = made("llava", tokenizer)
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    picture(0, (40, 30)).save(tmp_path / "photo.png")
    photo, own = str(tmp_path / "photo.png"), f"model.name={tmp_path / 'model'}"
    told = run_here(capsys, monkeypatch, "explain", photo, "Is 1 + 1 = 2?", own, f"output_dir={tmp_path / 'page'}")
    assert told.status == 0, told.err
    assert "by span: text" in " ".join(told.out.split())
    page = (tmp_path / "page" / "explain.html").read_text()
    assert "photo.png: Is 1 + 1 = 2?" in page
    assert '"places"' in page
    for words, expected in (
        ((photo,), "reads images with a text"),
        (("A text.", "Another."), "expected key=value"),
    ):
        refused = run_here(capsys, monkeypatch, "explain", *words, own)
        assert refused.status == 2
        assert expected in refused.err
