"""Of images, norms says which side of the last norm vectors are on, and sinks measures whole images in their own words."""

import numpy as np
import pandas as pd
import pytest
import torch

import normscope
from normscope.analyses import returned_norms
from normscope.errors import InputError
from normscope.running.options import check
from tests.contract.test_configs import composed
from tests.contract.test_images import PATCHES, dinov2, pixels, processor, siglip
from tests.contract.test_vectors import layers_of, made

BUILDS = {"dinov2": dinov2, "siglip": siglip}
SINKS = {"ablation": False, "sequences": 4, "epsilon": 0.1, "precision": None}


@pytest.fixture(scope="module")
def images():
    return [pixels(seed) for seed in (1, 2)]


def measured():
    """Everything that `norms` publishes of images."""
    return normscope.run("norms", model=normscope.wrap(made(dinov2)[0], processor()), texts=[pixels(1), pixels(2)])


def vectors_of(model, images):
    """What leaves the last layer, and what the model returns, of the untouched model."""
    left = []
    handle = layers_of(model)[-1].register_forward_hook(lambda _module, _args, output: left.append(output))
    with torch.no_grad():
        given = torch.cat([processor()(images=each, return_tensors="pt")["pixel_values"] for each in images])
        returned = model(pixel_values=given.double()).last_hidden_state
    handle.remove()
    before = left[0] if isinstance(left[0], torch.Tensor) else left[0][0]
    return {"before": before.numpy(), "after": returned.numpy()}


@pytest.mark.parametrize("name", ["dinov2", pytest.param("siglip", marks=pytest.mark.slow)])
def test_lengths_before_and_after_the_last_norm(monkeypatch, images, name):
    monkeypatch.setattr(returned_norms, "HIGH", 1.05)
    model, _ = made(BUILDS[name])
    result = normscope.run("norms", model=normscope.wrap(model, processor()), texts=images)
    inner = {"2,2", "2,3", "3,2", "3,3"}
    kinds = {"dinov2": ["cls", "register", "register"], "siglip": []}[name]
    kinds = np.array(kinds + ["patch" if each in inner else "border" for each in PATCHES])
    rows = []
    for place, vectors in vectors_of(model, images).items():
        norms = np.linalg.norm(vectors, axis=-1)
        middle = np.sort(norms, axis=1)[:, (norms.shape[1] - 1) // 2]
        high = norms > 1.05 * middle[:, None]
        for kind in dict.fromkeys([*kinds, "all"]):
            of = norms[:, (kinds == kind) | (kind == "all")]
            among = high[:, (kinds == kind) | (kind == "all")]
            rows.append((place, kind, of.mean(), of.max(), among.mean(), of.size))
    expected = pd.DataFrame(rows, columns=["place", "category", "mean", "max", "high", "count"])
    order = ["place", "category"]
    found = result.tables["norms_returned"]
    found = found[found["category"].isin(expected["category"])].astype({"category": str})
    pd.testing.assert_frame_equal(
        found.sort_values(order, ignore_index=True), expected.sort_values(order, ignore_index=True), check_dtype=False
    )
    said = next(each for each in result.sentences if "last layer" in each)
    assert said.startswith("The vectors of all tokens have a mean norm of ")


def test_a_sentence_on_either_side_of_the_last_norm():
    table = pd.DataFrame(
        [
            ("before", "cls", 10.0, 10.0, 0.0, 2),
            ("before", "patch", 43.0, 300.0, 0.02, 98),
            ("before", "all", 42.0, 300.0, 0.0196, 100),
            ("after", "cls", 5.0, 5.0, 0.0, 2),
            ("after", "patch", 9.0, 12.0, 0.0, 98),
            ("after", "all", 8.9, 12.0, 0.0, 100),
        ],
        columns=["place", "category", "mean", "max", "high", "count"],
    )
    (sentence,) = returned_norms.sentences(table)
    assert sentence == (
        "The vectors of all tokens have a mean norm of 42 after the last layer, and of 8.9 after the model's last "
        "norm; after the last layer, 2.0% of patch tokens are longer than twice the median of the image."
    )
    same = table.assign(high=0.0, mean=[42.0] * 6)
    (sentence,) = returned_norms.sentences(same)
    assert sentence == (
        "The vectors of all tokens have a mean norm of 42 after the last layer, and are returned without a last "
        "norm; after the last layer, no token is longer than twice the median of the image."
    )
    assert returned_norms.sentences(table.head(0)) == []


def test_sinks_are_measured_on_whole_images(images):
    model, _ = made(dinov2)
    wrapped = normscope.wrap(model, processor())
    result = normscope.run("sinks", model=wrapped, texts=images, **SINKS)
    table = result.tables["sinks_by_head"]
    own = table[(table["inputs"] == "text") & table["bos"]]
    values = np.zeros((2, 4, 19))
    for image in images:
        for block in normscope.observe(wrapped, image):
            values[block.layer - 1] += block.weights[0].mean(dim=1).double().numpy() / 2
    for position, places in {"first": [0], "cls": [0], "register": [1, 2], "patch": [8, 9, 12, 13]}.items():
        rows = own[own["position"] == position].sort_values(["layer", "head"])
        np.testing.assert_allclose(rows["received"], values[..., places].mean(axis=-1).ravel(), rtol=1e-9)
    without = table[~table["bos"]]
    assert {"register", "border", "patch"} <= set(without["position"])
    assert without[without["position"] == "border"]["count"].unique().tolist() == [24]  # no patch is cut
    said = [*result.sentences, *result.summaries["sinks"].table.index]
    assert any(each.startswith("On images with [CLS], ") for each in said)
    assert not any("text" in each or "random tokens" in each for each in said)


@pytest.mark.slow
def test_registers_stay_where_patches_are_replaced(images):
    """Random patches stand in for patches alone."""
    seen = []
    model, _ = made(dinov2)
    wrapped = normscope.wrap(model, processor())
    forward = wrapped.model.forward

    def watching(input_ids, **inputs):
        seen.append(input_ids.clone())
        return forward(input_ids, **inputs)

    wrapped.model.forward = watching
    try:
        normscope.run("sinks", model=wrapped, texts=images, inputs=["repeat"], **SINKS)
    finally:
        del wrapped.model.forward
    ids = seen[-1][0].tolist()
    assert ids[:2] == [1, 2]  # without [CLS], registers come first
    assert len(set(ids[2:])) == 1
    assert ids[2] > 2


def test_a_patch_may_stand_in_for_others(images):
    """Its vector enters the first layer in their places."""
    model, _ = made(dinov2)
    wrapped = normscope.wrap(model, processor())
    ids = torch.tensor([[0, 1, 2, *([5] * 8), *range(11, 19)]])
    own = {"pixel_values": processor()(images=images[0], return_tensors="pt")["pixel_values"].double()}
    first = layers_of(model)[0]
    handle = first.register_forward_pre_hook(lambda _layer, args: (args[0][:, ids[0]], *args[1:]))
    with torch.no_grad():
        expected = model(**own).last_hidden_state
    handle.remove()
    found = wrapped.model(ids, **own).last_hidden_state
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-12)
    result = normscope.run("sinks", model=wrapped, texts=images, **SINKS)
    table = result.tables["sinks_by_head"].query("bos and position == 'first'")
    by_input = {name: rows["received"].to_numpy() for name, rows in table.groupby("inputs", observed=True)}
    assert not np.allclose(by_input["text"], by_input["random"])
    assert not np.allclose(by_input["random"], by_input["repeat"])


def test_the_length_of_images_is_not_chosen():
    with pytest.raises(InputError, match="analysis.sinks.length=32: expected none with dataset=images"):
        check(composed("analysis=sinks", "analysis.sinks.length=32", "dataset=images", "dataset.path=x"))
