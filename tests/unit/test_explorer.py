"""The explorer of a report: its numbers against vectors that are built one by one, and what is too much for it."""

import base64
import dataclasses
import json
import math
import zlib

import numpy as np
import pytest

from normscope.api import load
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, Example
from normscope.data.options import DatasetKind, DatasetOptions, Segmentation
from normscope.data.words import words_of_tokens
from normscope.errors import InputError
from normscope.maths.layer_composition import LAYER_STAGES
from normscope.models.observe.observer import Observer
from normscope.reporting.options import ReportOptions
from normscope.reporting.page.explorer import payload, view_of
from normscope.results.findings import Sentence
from normscope.results.maps import MEASURES, TARGET_MEASURES, TokenMap, pairs_table
from normscope.running import token_maps as exploration
from normscope.running.token_maps import select_examples, token_maps


class Texts(Corpus):
    def __init__(self, *texts):
        self._texts = texts

    @property
    def total(self):
        return len(self._texts)

    def examples(self):
        return iter([Example(text) if isinstance(text, str) else text for text in self._texts])


def words(count: int) -> str:
    return " ".join(["word"] * count)


@pytest.fixture(scope="module")
def model(saved_model):
    return load(str(saved_model), device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def encoder(model):
    return Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0))


def chosen(encoder, *texts, layers=3, **options):
    return select_examples(Texts(*texts), encoder, ReportOptions(**options), layers)


def shape(texts):
    return [(len(text.sequence.input_ids), text.cut) for text in texts]


def test_short_texts_come_first_and_long_ones_are_cut(encoder):
    texts = chosen(encoder, words(100), words(3), words(90), words(9), words(8), examples=4, tokens=10)
    assert shape(texts) == [(5, False), (10, False), (10, True), (10, True)]
    special = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    for text in texts:  # what is cut is a whole input all the same
        assert (text.sequence.input_ids[0], text.sequence.input_ids[-1]) == special
    assert shape(chosen(encoder, words(100), words(3), words(4), words(5), examples=2, tokens=10)) == [
        (5, False),
        (6, False),
    ]


def test_a_pair_is_cut_to_the_window_too(encoder):
    (text,) = chosen(encoder, Example(words(50), words(40)), examples=1, tokens=12)
    assert shape([text]) == [(12, True)]


def test_windows_with_a_stride_are_cut_as_texts_are(model):
    options = DatasetOptions(kind=DatasetKind.text, segmentation=Segmentation.window, stride=40, max_length=60, seed=0)
    assert shape(chosen(Encoder(model, options), words(500), examples=1, tokens=16)) == [(16, True)]


def test_the_users_text_is_truncated_as_well(encoder):
    assert shape(chosen(encoder, text=words(9), tokens=20)) == [(11, False)]
    assert shape(chosen(encoder, text=words(90), tokens=20)) == [(20, True)]
    with pytest.raises(InputError, match=r"report\.text"):
        chosen(encoder, text=words(900), tokens=20)


def test_the_window_is_what_the_explorer_can_hold_of_so_many_layers(encoder, monkeypatch):
    monkeypatch.setattr(exploration, "_BUDGET", exploration._MAPS * 3 * 30**2)
    assert shape(chosen(encoder, words(100), examples=1, tokens=512, layers=3)) == [(30, True)]


def test_what_does_not_fit_loses_its_heads_or_is_left_out(model, encoder, monkeypatch):
    texts = chosen(encoder, words(8), words(8), words(8), words(1), words(90), examples=5, tokens=10)
    layers, heads, pairs, maps = [1, 2, 3], 4, 100, exploration._MAPS
    monkeypatch.setattr(
        exploration, "_BUDGET", len(layers) * pairs * (maps + heads) + len(layers) * (pairs * maps + 9 * maps) + 1
    )
    sentences, notes = token_maps(model, encoder, texts, layers)
    assert [sentence.heads for sentence in sentences] == [heads, 0, 0]
    assert [len(sentence.queries) for sentence in sentences] == [10, 10, 3]
    assert notes == [
        "2 examples are shown without individual heads",
        "2 more examples are left out because the report would be too large (report.examples)",
    ]
    monkeypatch.undo()
    sentences, notes = token_maps(model, encoder, texts, layers)
    assert len(sentences) == 5
    assert notes == ["1 text is truncated to at most 10 tokens (report.tokens)"]
    assert [sentence.title.endswith(" …") for sentence in sentences] == [False, False, False, False, True]


@pytest.mark.parametrize(("layers", "heads", "single_heads"), [(1, 100, True), (6, 12, False)])
@pytest.mark.slow
def test_the_table_is_within_its_bound_even_if_nothing_can_be_compressed(tmp_path, layers, heads, single_heads):
    """As many random numbers as the explorer may hold take less than twenty megabytes."""
    numbers = layers * (exploration._MAPS + heads * single_heads)
    length = math.isqrt(exploration._BUDGET // numbers)
    sentence = random_sentence(np.random.default_rng(0), layers, heads, length, single_heads)
    pairs_table([sentence]).to_parquet(tmp_path / "pairs.parquet", index=False)
    assert (tmp_path / "pairs.parquet").stat().st_size < 20_000_000
    assert len(json.dumps(payload([sentence]))) < 2_600_000


def unpacked(packed, shape):
    """What the page's script decodes."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["codes"])), dtype=np.uint8).astype(float)
    codes = 256 * planes[: len(planes) // 2] + planes[len(planes) // 2 :]
    sign, codes = np.where(codes >= 2**15, -1, 1), codes % 2**15
    codes = np.where(codes == 2**15 - 1, np.nan, codes)  # what a query cannot see
    sizes = sign * np.minimum(codes, 1000) / 65535 * 1.001 ** np.maximum(codes - 1000, 0)
    return sizes.reshape(shape) * np.reshape(packed["largest"], (-1, *(1 for _ in shape[1:])))


def test_the_page_keeps_three_digits_of_every_map():
    generator = np.random.default_rng(3)
    # Over six orders of magnitude, which differ between layers; zeros, and a layer of nothing else.
    scales = np.float32([9, 1, 1e-3, 0]).reshape(4, 1, 1, 1)
    values = (10 ** generator.uniform(-6, 0, size=(4, 3, 20, 20))).astype(np.float32) * scales
    values[0, 0, 0] = 0
    sentence = dataclasses.replace(random_sentence(generator, 4, 3, 20), head_maps={"attn_w": values})
    (packed,) = payload([sentence])["sentences"]
    largest = values.reshape(4, -1).max(axis=1).reshape(4, 1, 1, 1).astype(float)
    weights = unpacked(packed["head_maps"]["attn_w"], values.shape)
    error = np.abs(weights - values)
    assert (error <= np.maximum(0.5005e-3 * values, 0.501 / 65535 * largest)).all()
    assert weights[0, 0, 0].tolist() == [0] * 20
    for name, expected in sentence.maps.items():
        np.testing.assert_allclose(unpacked(packed["maps"][name], expected.shape), expected, rtol=6e-4, atol=8e-6)
    np.testing.assert_allclose(unpacked(packed["norms"], sentence.norms.shape), sentence.norms, rtol=6e-4, atol=8e-6)


def test_it_opens_where_weights_and_norms_differ_most():
    """In the map of one head: all weight is on the first token, and its vector is null."""
    generator = np.random.default_rng(6)
    sentence = random_sentence(generator, 2, 3, 5)
    weights, norms = np.full((2, 3, 5, 5), 0.2, dtype=np.float32), np.ones((2, 3, 5), dtype=np.float32)
    weights[1, 2] = [1, 0, 0, 0, 0]
    weights[1, 1] = [0.6, 0.1, 0.1, 0.1, 0.1]
    norms[1, 1, 0] = 0
    sentence = dataclasses.replace(sentence, head_maps={"attn_w": weights}, norms=norms)
    longer = random_sentence(generator, 2, 3, 9)
    beside = {"beside": "attn_w", "measure": "attn_n", "scale": "map"}
    assert payload([longer, sentence])["start"] == {"sentence": 2, "layer": 3, "head": 2, "token": 0, **beside}
    blocks = dataclasses.replace(
        sentence,
        head_maps={},
        norms=None,
        maps={"attn_w": weights.mean(axis=1), "attn_n": np.stack([np.full((5, 5), 0.2), np.eye(5)]).astype(np.float32)},
    )
    # Vectors come from each token itself; weights give 0.6 to the first one, so all rows but its own differ most.
    assert payload([blocks])["start"] == {"sentence": 1, "layer": 3, "head": 0, "token": 1, **beside}
    only = dataclasses.replace(blocks, maps={"share": blocks.maps["attn_n"]})
    assert payload([only])["start"] == {"sentence": 1, "layer": 3, "measure": "share", "scale": "map"}


def test_it_opens_at_the_place_of_a_finding():
    """Head 2 of the first layer differs most for the keys of one category, head 1 of the second for those of another."""
    tokens = ("[CLS]", "a", "b", "[SEP]")
    norms = np.ones((2, 3, 4), dtype=np.float32)
    norms[0, 1, 0] = 0  # [CLS] is null
    norms[1, 0, 3] = 9  # [SEP] is long
    shown = TokenMap(
        "text",
        tokens,
        tokens,
        (2, 3),
        {"attn_w": np.full((2, 4, 4), 0.25), "attn_n": np.ones((2, 4, 4)), "atbff_n": np.ones((2, 4, 4))},
        {"attn_w": np.full((2, 3, 4, 4), 0.25, dtype=np.float32)},
        norms,
        categories=("cls", "other", "other", "sep"),
    )
    shorter = dataclasses.replace(random_sentence(np.random.default_rng(0), 2, 3, 2), categories=("other", "other"))
    texts = [shorter, shown]

    def place(texts=texts, measure="", **place):
        view = view_of(Sentence("", measure=measure, place=place), texts)
        return [view["sentence"], view["layer"], view.get("head"), view.get("token"), view["measure"]]

    assert place(category="cls") == [2, 2, 2, 0, "attn_n"]
    assert place(category="sep") == [2, 3, 1, 3, "attn_n"]
    assert place(category="sep", layer=2, head=3)[:3] == [2, 2, 3]
    assert place(category="mask")[0] == 1, "no text has a mask: the shortest"
    assert place(text=2, layer=3, token=1) == [2, 3, 1, 1, "attn_n"]
    assert place(text=2, layer=2, measure="atbff_n") == [2, 2, None, None, "atbff_n"]
    assert place(text=9, layer=9)[0] == 1, "of a page that leaves texts out"
    assert payload(texts, Sentence("", place={"category": "sep"}))["start"]["layer"] == 3


def test_the_page_keeps_signs():
    values = np.random.default_rng(5).normal(size=(2, 9, 9)).astype(np.float32)
    values[1] = -np.abs(values[1])
    sentence = dataclasses.replace(random_sentence(np.random.default_rng(4), 2, 3, 9), maps={"share": values})
    (packed,) = payload([sentence])["sentences"]
    np.testing.assert_allclose(unpacked(packed["maps"]["share"], values.shape), values, rtol=6e-4, atol=3e-5)
    assert set(payload([sentence])["signed_measures"]) <= (MEASURES | TARGET_MEASURES).keys()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("[CLS] un ##believ ##able . [SEP]", (0, 1, 1, 1, 2, 3)),
        ("<s> un believ able Ġthing . </s>", (0, 1, 1, 1, 2, 3, 4)),
        ("▁The ▁th ing </s>", (0, 1, 1, 2)),
        ("[CLS] no marks here [SEP]", None),
        ("▁every ▁token ▁is ▁one </s>", None),
    ],
)
def test_words_are_read_off_the_marks_of_the_tokenizer(tokens, words):
    assert words_of_tokens(tokens.split(), {"[CLS]", "[SEP]", "<s>", "</s>"}) == words


def random_sentence(generator, layers, heads, length, single_heads=True):
    def draw(*axes):
        return generator.random(axes, dtype=np.float32)

    tokens = tuple(f"token{position}" for position in range(length))
    weights = draw(layers, heads, length, length)
    norms = draw(layers, heads, length)
    maps = {name: draw(layers, length, length) for name in ("attn_n", "attnres_n", "attnresln_n")}
    return TokenMap(
        title="random",
        queries=tokens,
        keys=tokens,
        layers=tuple(range(2, layers + 2)),
        maps={"attn_w": weights.mean(axis=1), **maps},
        head_maps={"attn_w": weights} if single_heads else {},
        norms=norms if single_heads else None,
    )


def test_maps_through_the_whole_layer_are_those_of_the_observed_networks(model, encoder):
    (text,) = chosen(encoder, words(6), examples=1)
    (sentence,), _ = token_maps(model, encoder, [text], [1, 3], feed_forward=True)
    alone = token_maps(model, encoder, [text], [1, 3])[0][0]
    assert list(sentence.maps) == [*alone.maps, "atbff_n", "atbffres_n", "atbffresln_n"]
    assert set(sentence.maps) < set(MEASURES)
    observed = []
    with Observer(model.model, model.facts, [1, 3], feed_forward=True) as observer:
        inputs = exploration.collate([text.sequence], encoder).model_inputs()
        observer.run(inputs, lambda _: None, visit_feed_forward=lambda block: observed.append(block.pair_maps()))
    for stage in LAYER_STAGES["post"][1:]:
        expected = np.stack([maps[stage][0].numpy() for maps in observed])
        np.testing.assert_allclose(sentence.maps[f"{stage}_n"], expected, rtol=1e-6)
