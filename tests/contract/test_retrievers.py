"""Retrievers that compare the image of a page with a query by late interaction, and PaliGemma, which the first was made of."""

import functools

import numpy as np
import pytest
import torch
from PIL import Image

import normscope
from normscope.api.arguments import single_text
from normscope.attribution.similarities import Scored, embedded_parts, late_parts, met
from normscope.attribution.vectors import pooled_vectors
from normscope.data.conversations import messages_of
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.results.figures import PatchMaps
from tests.end_to_end.shell import run_here
from tests.image_text_models import RETRIEVERS, made, picture

QUERY = "How many cats?"
ROUNDED = {"colmodernvbert": 1e-8}
"""ModernBERT's own attention rounds softmaxes to float32, as its vision tower does."""

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name != "colpali")) for name in RETRIEVERS]


def page(name: str, seed: int = 0) -> Image.Image:
    return picture(seed, (32, 24) if name == "colqwen2" else (32, 32))


@pytest.fixture(scope="module")
def whole(tokenizer):
    return functools.cache(lambda name: made(name, tokenizer))


@pytest.fixture(scope="module")
def wrapped(whole):
    return functools.cache(lambda name: normscope.wrap(*whole(name)))


@pytest.fixture(scope="module")
def compared(wrapped):
    return functools.cache(lambda name: normscope.similarity(wrapped(name), page(name), QUERY))


def embedded(model, made):
    """The vectors that an untouched model makes of what its processor has made."""
    given = {name: each.double() if each.is_floating_point() else each for name, each in made.items()}
    given.pop("labels", None)
    return model(**given).embeddings


def scored(model, processor, query, image):
    """The vectors of a query and of a page, and the score of the untouched model and its processor."""
    vectors = [
        embedded(model, processor.process_queries(text=[query])),
        embedded(model, processor.process_images(images=[image])),
    ]
    return vectors, float(processor.score_retrieval(*vectors))


@pytest.mark.parametrize("name", NAMES)
def test_pairs_and_matches_add_up_to_the_score_of_the_untouched_model(compared, whole, name):
    result, bound = compared(name), ROUNDED.get(name, 1e-10)
    (queries, pages), score = scored(*whole(name), QUERY, page(name))
    products = (queries @ pages.mT)[0]
    best = products.max(dim=-1)
    matches, vectors = result.tables["matches"], result.tables["vectors"]
    for total in (result.metrics["value"], result.tables["pairs"]["value"].sum(), vectors["value"].sum()):
        assert total == pytest.approx(score, abs=bound)
    assert matches["b"].tolist() == best.indices.tolist()
    np.testing.assert_allclose(matches["value"], best.values, rtol=0, atol=bound)
    found = vectors.pivot(index="a", columns="b", values="product").to_numpy()
    np.testing.assert_allclose(found[:, :-1], products, rtol=0, atol=bound)
    np.testing.assert_allclose(vectors.groupby("a")["value"].sum(), best.values, rtol=0, atol=bound)


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_those_of_vectors_that_are_carried(compared, wrapped, whole, name):
    """Of the language model's vectors, then projected and divided by their lengths here; and through the head."""
    model, (plain, _) = wrapped(name), whole(name)
    sides, explicit = [], []
    for given in (QUERY, page(name)):
        inputs = single_text(model, given, "similarity").model_inputs()
        parts, vectors = pooled_vectors(model.model, model.facts, inputs, lambda *_: None, ValueBias.token)
        layer = plain.embedding_proj_layer
        projected = parts @ layer.weight.T
        projected[:, -1] += layer.bias
        length = (vectors @ layer.weight.T + layer.bias).norm(dim=-1)[..., None]
        explicit.append(projected / length[:, None])
        carried = embedded_parts(model.model, model.facts, inputs, embedder=model.any_embedder)
        sides.append(Scored(*carried, inputs["attention_mask"].bool()))
    np.testing.assert_allclose(explicit[1], sides[1].parts, rtol=0, atol=1e-10)
    places = met(*sides)
    expected = late_parts(*sides, places, mean=False).matrix[0]
    tables = compared(name).tables
    found = tables["pairs"].pivot(index="a", columns="b", values="value").to_numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    matched = torch.einsum("qd,lqd->ql", sides[0].whole[0], explicit[1][0][:, places[0]])
    found = tables["vectors"].pivot(index="a", columns="b", values="value").to_numpy()
    np.testing.assert_allclose(found, matched, rtol=0, atol=1e-10)
    own = matched[torch.arange(len(matched)), places[0]].sum()
    assert compared(name).metrics["matched"] == pytest.approx(float(own), abs=1e-10)


def test_matches_and_their_reasons_are_laid_on_the_page(compared):
    result = compared("colpali")
    vectors, (found,) = result.tables["vectors"], result.maps
    patches = vectors[vectors["b"] < 16]
    assert patches["token_b"].iloc[:16].tolist() == [f"{row},{column}" for row in range(1, 5) for column in range(1, 5)]
    for name, column, whole in (("pair", "value", True), ("matches", "product", False)):
        figure = result.figures[name]
        assert isinstance(figure, PatchMaps)
        panels = [rows[column].to_numpy() for _, rows in patches.groupby("a")]
        panels = [np.sum(panels, axis=0), *panels] if whole else panels
        for panel, expected in zip(figure.panel_titles, panels, strict=True):
            np.testing.assert_allclose(figure.values_of(panel).to_numpy().ravel(), expected, rtol=0, atol=1e-12)
    titles = [*result.figures["matches"].panel_titles.values()]
    of_words = result.tables["matches"].set_index("token_a")
    assert titles[4].startswith("“many” with “.”: ")
    match, value = of_words.loc["cats", ["token_b", "value"]]
    assert titles[5] == f"“cats” with patch {match}: {value:.3f}"
    assert [*found.queries[1:]] == [*result.figures["pair"].panel_titles.values()][1:] == titles
    rows = vectors.pivot(index="a", columns="b", values="product").to_numpy()[:, :-1]
    np.testing.assert_allclose(found.maps["product"][0], [rows.sum(axis=0), *rows], rtol=0, atol=1e-6)
    assert "comes from the matched tokens of the page themselves" in result.sentences[0]


def test_pages_are_ranked_for_a_query_and_either_may_come_first(wrapped, whole, compared):
    model, pages = wrapped("colpali"), [page("colpali", seed) for seed in (0, 1)]
    scores = [scored(*whole("colpali"), QUERY, each)[1] for each in pages]
    result = normscope.similarity(model, QUERY, pages)
    np.testing.assert_allclose(result.tables["ranking"].sort_values("number")["value"], scores, rtol=0, atol=1e-10)
    first = result.tables["pairs"].query("number == 1")["value"]
    np.testing.assert_allclose(first, compared("colpali").tables["pairs"]["value"], rtol=0, atol=1e-12)
    assert {"pair_1", "matches_1", "pair_2", "matches_2"} <= {*result.figures}


PAGE, OTHER = page("colpali"), page("colpali", 1)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda model: normscope.similarity(model, QUERY, QUERY), r"expected a page \(an image\), got a text"),
        (lambda model: normscope.similarity(model, PAGE, OTHER), r"expected a query \(a text\), got an image"),
        (
            lambda model: normscope.decompose(model, (PAGE, QUERY)),
            "reads a page .* or a query .* by itself, got a tuple",
        ),
        (lambda model: normscope.similarity(model, [{"role": "user", "content": "a"}], PAGE), "by itself, got a list"),
        (lambda model: normscope.attribute(model, PAGE, normscope.NextToken()), "has no weights of a causal language"),
        (
            lambda model: normscope.similarity(model, PAGE, " "),
            "expected a query with at least one word, got an empty text",
        ),
        (lambda model: normscope.similarity(model, {}.get("query"), PAGE), "text_a: expected"),
        (lambda model: model.embedder, "compare them with normscope.similarity"),
    ],
)
def test_what_is_no_page_with_a_query_is_refused_in_a_line(wrapped, ask, expected):
    with pytest.raises(InputError, match=expected) as error:
        ask(wrapped("colpali"))
    assert "\n" not in str(error.value)


def test_a_page_is_refused_by_a_model_of_texts(saved_model):
    with pytest.raises(InputError, match=r"expected a str, a pair .* got Image"):
        normscope.similarity(normscope.load(saved_model, device="cpu"), QUERY, PAGE, pooling="mean")


def conversation(*parts):
    said = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    return Example("", messages=messages_of([{"role": "user", "content": said}], "a row"))


def test_pages_and_queries_of_a_file_are_read_as_single_ones_are(wrapped):
    model, counts = wrapped("colpali"), CorpusCounts()
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0, chat_template=True))
    sequences = encoder.encode([conversation(PAGE), conversation(QUERY)], counts)
    assert not counts.skipped
    for sequence, given in zip(sequences, (PAGE, QUERY), strict=True):
        expected = single_text(model, given, "similarity")
        assert sequence.input_ids.tolist() == expected.input_ids[0].tolist()
        assert torch.equal(sequence.own.arguments["token_type_ids"], expected.own.arguments["token_type_ids"])
    for parts, expected in (((PAGE, QUERY), "got an image and a text"), ((PAGE, OTHER), "got 2 images")):
        with pytest.raises(InputError, match=f"the image of a page or a query by itself, {expected}"):
            encoder.encode([conversation(*parts)], counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_page_is_compared_from_the_command_line(whole, tmp_path, capsys, monkeypatch, name):
    model, processor = whole(name)
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    page(name).save(tmp_path / "page.png")
    given, own = str(tmp_path / "page.png"), f"model.name={tmp_path / 'model'}"
    _, score = scored(model, processor, QUERY, page(name))
    options = ("device=cpu", "device.dtype=float64", f"output_dir={tmp_path / 'page'}")
    told = run_here(capsys, monkeypatch, "explain", given, QUERY, own, *options)
    assert told.status == 0, told.err
    assert f"Late-interaction score {score:.1f}: " in told.out
    content = (tmp_path / "page" / "explain.html").read_text()
    assert '"product"' in content
    for words in ((given,), (QUERY,)):
        refused = run_here(capsys, monkeypatch, "explain", *words, own)
        assert refused.status == 2
        assert "compares a page with a query: normscope explain page.png" in refused.err


@pytest.fixture(scope="module")
def paligemma(whole):
    model, processor = whole("paligemma")
    return normscope.wrap(model, processor), model, processor


def test_a_prefix_whose_tokens_see_one_another_predicts_the_next_one(paligemma):
    loaded, model, processor = paligemma
    made = processor(text=["<image>Is there a dog?"], images=[PAGE], return_tensors="pt")
    made.pop("labels")
    logits = model(**{name: each.double() if each.is_floating_point() else each for name, each in made.items()}).logits
    parts = normscope.attribute(loaded, (PAGE, "Is there a dog?"), normscope.NextToken()).metrics
    assert parts["target"] == pytest.approx(float(logits[0, -1].max()), abs=1e-10)
    assert parts["tokens"] + parts["bias"] == pytest.approx(parts["target"], abs=1e-10)
    weights = normscope.decompose(loaded, (PAGE, "Is there a dog?")).maps[0].maps["attn_w"]
    assert (weights > 0).all()
    ids = torch.tensor([processor.tokenizer("Is there a dog?")["input_ids"]])
    parts = normscope.attribute(loaded, "Is there a dog?", normscope.NextToken()).metrics
    assert parts["target"] == pytest.approx(float(model(input_ids=ids).logits[0, -1].max()), abs=1e-10)


def test_what_would_see_an_answer_that_it_predicts_is_refused(paligemma):
    loaded, model, processor = paligemma
    with pytest.raises(InputError, match="target=Answer: the tokens that PaliGemma.* reads see later ones"):
        normscope.attribute(loaded, (PAGE, "Is there a dog?"), normscope.Answer(" no"))
    with pytest.raises(InputError, match="use_bidirectional_attention=True: transformers applies it to some batches"):
        normscope.wrap(model, processor.tokenizer)
    assert getattr(model.config.text_config, "is_causal", True)  # what was wrapped stays as it was
