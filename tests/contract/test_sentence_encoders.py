"""The parts of a similarity add up to what sentence-transformers computes, whatever modules an encoder has."""

import contextlib
import itertools
import json

import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    CrossEncoder,
    MultiVectorEncoder,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.models import Dense, LayerNorm, Normalize, Pooling, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

import normscope
from normscope.attribution.embeddings import embedding, parts_of_embedding
from normscope.errors import InputError
from normscope.maths import choices
from normscope.maths.embedder import Embedder
from normscope.models.stored.embedder_files import _Module, _parts
from normscope.rounding import number
from tests.one_text import attribute, similarity
from tests.tiny import FAMILY_CONFIGS, tiny_model

A, B = "the old bridge was closed for repairs", "a crossing that nobody could use in spring"

PLACE = "sentence_embedding"

ENCODERS = {
    "mean": ({"pooling_mode": "mean"}, [], {}),
    "mean, dot": ({"pooling_mode": "mean"}, [], {"similarity_fn_name": "dot"}),
    "root": ({"pooling_mode": "mean_sqrt_len_tokens"}, [], {"similarity_fn_name": "dot"}),
    "weighted": ({"pooling_mode": "weightedmean"}, [], {}),
    "max": ({"pooling_mode": "max"}, [], {"similarity_fn_name": "dot"}),
    "cls, tanh": ({"pooling_mode": "cls"}, [("dense", nn.Tanh(), False)], {"similarity_fn_name": "dot"}),
    "cls, tanh of GELU": (
        {"pooling_mode": "cls"},
        [("dense", nn.GELU(approximate="tanh"), False)],
        {"similarity_fn_name": "dot"},
    ),
    "mean, no activation of ours": (
        {"pooling_mode": "mean"},
        [("dense", nn.Softplus(beta=0.7), True), ("dense", nn.PReLU(init=0.3), False), ("dense", nn.Sigmoid(), False)],
        {"similarity_fn_name": "dot"},
    ),
    "last, norm": ({"pooling_mode": "lasttoken"}, [("norm",), ("unit",)], {"similarity_fn_name": "dot"}),
    "two projections": (
        {"pooling_mode": "mean"},
        [("dense", nn.GELU(), True), ("dense", nn.Identity(), False), ("norm",), ("unit",)],
        {},
    ),
    "truncated": ({"pooling_mode": "mean"}, [("unit",)], {"truncate_dim": 7}),
    "prompt": ({"pooling_mode": "mean"}, [], {"prompts": {"query": "search query: "}, "default_prompt_name": "query"}),
    "prompt not pooled": (
        {"pooling_mode": "mean", "include_prompt": False},
        [],
        {"prompts": {"query": "search query: "}, "default_prompt_name": "query"},
    ),
    "prompt before the first": (
        {"pooling_mode": "cls", "include_prompt": False},
        [],
        {"prompts": {"query": "search query: "}, "default_prompt_name": "query"},
    ),
    "prompt of weights": (
        {"pooling_mode": "weightedmean", "include_prompt": False},
        [("dense", nn.Tanh(), False)],
        {"prompts": {"query": "search query: "}, "default_prompt_name": "query", "similarity_fn_name": "dot"},
    ),
}
"""Pooling, the modules behind it, and what the whole has besides."""


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory):
    """Tiny models with a tokenizer, on disk: one that reads both directions, and one that is causal with a last norm."""
    places = {}
    for family in ("bert", "llama"):
        places[family] = tmp_path_factory.mktemp(family)
        settings = FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer), "pad_token_id": 0}
        tiny_model(settings, torch.float32).save_pretrained(places[family])
        tokenizer.save_pretrained(places[family])
    return places


@pytest.fixture(scope="module")
def folder(folders):
    return folders["bert"]


def encoder_of(folder, kind: str) -> SentenceTransformer:
    pooling, behind, settings = ENCODERS[kind]
    torch.manual_seed(0)
    transformer = Transformer(str(folder))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), **pooling)]
    for name, *rest in behind:
        size = modules[-1].get_embedding_dimension() if name != "unit" else None
        match name:
            case "dense":
                activation, residual = rest
                made = size if residual else size - 5
                modules.append(Dense(size, made, activation_function=activation, use_residual=residual))
            case "norm":
                modules.append(LayerNorm(size))
                nn.init.normal_(modules[-1].norm.weight)
                nn.init.normal_(modules[-1].norm.bias)
            case "unit":
                modules.append(Normalize())
    return SentenceTransformer(modules=modules, device="cpu", **settings).eval()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("family", "kind"),
    [*(("bert", kind) for kind in ENCODERS), ("llama", "last, norm"), ("llama", "two projections")],
)
def test_the_parts_add_up_to_the_similarity_of_the_library(folders, family, kind):
    """To a millionth in float64, because dot products of these random models are in the hundreds, and by tokens as by pairs.

    Projections, their activations and biases, norms and lengths: all of it comes from tokens or biases, so that attribution
    leaves no remainder. Llama's own norms compute in float32.
    """
    encoder = encoder_of(folders[family], kind).double()
    expected = float(encoder.similarity(*encoder.encode([A, B], convert_to_tensor=True))[0, 0])
    model = normscope.wrap(encoder)
    found = similarity(model, A, B)
    assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    tokens, constant = found.matrix[:-1, :-1].sum(), found.matrix[-1].sum() + found.matrix[:-1, -1].sum()
    assert tokens + constant == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found.function == str(encoder.similarity_fn_name)
    attributed = attribute(model, A, normscope.SimilarityTo(B), by="layer")
    cosine = torch.nn.functional.cosine_similarity(*encoder.encode([A, B], convert_to_tensor=True), dim=0)
    assert attributed.target == pytest.approx(float(cosine), rel=1e-6, abs=1e-6)
    assert abs(attributed.remainder) < 1e-6 * (abs(attributed.scores).sum() + abs(attributed.bias))


@pytest.fixture(scope="module")
def wide_folder(tokenizer, tmp_path_factory):
    """A tiny BERT with vectors as wide as published ones."""
    place = tmp_path_factory.mktemp("wide")
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": 0, "hidden_size": 384}
    tiny_model(FAMILY_CONFIGS["bert"] | sizes, torch.float32).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dense"), [(128, False), (99, False), (100, True), (256, True), (384, False), (1, True)]
)
def test_embeddings_are_truncated_to_any_size(wide_folder, size, dense):
    torch.manual_seed(0)
    transformer = Transformer(str(wide_folder))
    modules = [transformer, Pooling(384, pooling_mode="mean")]
    modules += [Dense(384, 300, activation_function=nn.Tanh())] if dense else []
    settings = {"similarity_fn_name": "dot"} if size == 1 else {}
    encoder = SentenceTransformer(modules=modules, device="cpu", truncate_dim=size, **settings).eval().double()
    expected = float(encoder.similarity(*encoder.encode([A, B], convert_to_tensor=True))[0, 0])
    found = similarity(normscope.wrap(encoder), A, B)
    assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found.matrix.sum() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def _behind(module):
    """An embedder with a module after pooling."""
    parts = _parts(_Module(type(module).__name__, {}, module.state_dict, module), "x", PLACE)
    return Embedder(choices.Pooling.mean, [*parts])


@pytest.mark.parametrize(
    "activation", [nn.GELU(approximate="tanh"), nn.GELU(), nn.Softplus(beta=0.7), nn.Sigmoid(), nn.PReLU(11)]
)
def test_an_activation_is_what_the_module_computes(activation):
    """The two GELUs differ by 5e-6 in this similarity: a class says nothing of what its arguments change."""
    torch.manual_seed(0)
    dense = Dense(7, 11, activation_function=activation).double()
    if isinstance(activation, nn.PReLU):
        nn.init.uniform_(activation.weight)
    vectors = torch.randn(5, 1, 7, dtype=torch.float64)
    expected = dense({PLACE: vectors[:, 0]})[PLACE].detach()
    made = embedding(_behind(dense), vectors, torch.ones(5, 1).bool())
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-14)
    pieces = torch.randn(5, 3, 7, dtype=torch.float64)
    parts, whole = parts_of_embedding(_behind(dense), pieces, pieces.sum(dim=1))
    torch.testing.assert_close(whole, dense({PLACE: pieces.sum(dim=1)})[PLACE].detach(), rtol=0, atol=1e-14)
    torch.testing.assert_close(parts.sum(dim=1), whole, rtol=0, atol=1e-13)
    # What a vector contributes is linear in it, and the bias is that of a part that is zero.
    halves = torch.cat([pieces[:, :1] / 2, pieces[:, :1] / 2, pieces[:, 1:]], dim=1)
    again, _ = parts_of_embedding(_behind(dense), halves, pieces.sum(dim=1))
    torch.testing.assert_close(again[:, 0] + again[:, 1], parts[:, 0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("activation", [nn.Softmax(dim=-1), nn.GLU(), nn.LogSoftmax(dim=-1)])
def test_an_activation_that_mixes_dimensions_is_refused(activation):
    dense = Dense(7, 12, activation_function=activation)
    with pytest.raises(InputError, match="pooling: Dense, which follows the pooling, computes no affine map"):
        embedding(_behind(dense), torch.randn(5, 1, 7), torch.ones(5, 1).bool())


class Whitening(nn.Module):
    """A module that nobody has listed."""

    def __init__(self):
        super().__init__()
        self.mean, self.matrix = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(7, 4))

    def forward(self, features):
        return features | {PLACE: torch.nn.functional.layer_norm((features[PLACE] - self.mean) @ self.matrix, [4])}


def test_any_module_in_memory_may_follow_the_pooling():
    torch.manual_seed(0)
    module, pieces = Whitening().double(), torch.randn(5, 3, 7, dtype=torch.float64)
    parts, whole = parts_of_embedding(_behind(module), pieces, pieces.sum(dim=1))
    torch.testing.assert_close(whole, module({PLACE: pieces.sum(dim=1)})[PLACE].detach(), rtol=0, atol=1e-14)
    torch.testing.assert_close(parts.sum(dim=1), whole, rtol=0, atol=1e-13)


class OfTokens(nn.Module):
    """A module that reads what a pooling does not leave."""

    def forward(self, features):
        return features | {PLACE: features["token_embeddings"].sum(dim=1)}


def test_a_module_that_reads_another_feature_is_named():
    with pytest.raises(
        InputError, match="OfTokens, which follows the pooling, reads .* another feature .*'token_embed"
    ):
        embedding(_behind(OfTokens()), torch.randn(5, 1, 7), torch.ones(5, 1).bool())


def test_an_activation_of_files_is_made_of_the_class_that_they_name():
    dense = Dense(7, 11, activation_function=nn.PReLU(11, init=0.4))
    (part,) = _parts(_Module("Dense", dense.get_config_dict(), dense.state_dict), "x", PLACE)
    vectors = torch.randn(5, 7)
    torch.testing.assert_close(part(vectors), dense({PLACE: vectors})[PLACE])
    foreign = dense.get_config_dict() | {"activation_function": "os.system"}
    with pytest.raises(InputError, match="the activation os.system, expected an activation of torch.nn"):
        list(_parts(_Module("Dense", foreign, dense.state_dict), "x", PLACE))


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "change",
    [
        lambda linear: linear.weight.detach().numpy().__imul__(1 + torch.rand(linear.weight.shape).numpy()),
        lambda linear: linear.load_state_dict(
            {name: torch.randn_like(each) for name, each in linear.state_dict().items()}, assign=True
        ),
        lambda linear: setattr(linear.half().float().bias, "data", torch.randn_like(linear.bias)),
    ],
    ids=["numpy", "assigned", "data"],
)
def test_a_changed_projection_is_seen_or_refused(folder, change):
    library = encoder_of(folder, "cls, tanh")
    model = normscope.wrap(library)
    before = similarity(model, A, B).value
    with torch.no_grad():
        change(library[2].linear)
    expected = float(library.similarity(library.encode([A]), library.encode([B])))
    assert abs(expected - before) > 1e-3 * abs(before)
    with contextlib.suppress(InputError):
        assert similarity(model, A, B).value == pytest.approx(expected, rel=1e-4)


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", ["two projections", "last, norm", "prompt not pooled"])
def test_an_encoder_on_disk_is_the_same(folder, kind, tmp_path):
    encoder = encoder_of(folder, kind)
    encoder.save_pretrained(str(tmp_path))
    found = similarity(normscope.load(str(tmp_path)), A, B)
    torch.testing.assert_close(found.matrix, similarity(normscope.wrap(encoder), A, B).matrix)


@pytest.mark.slow
def test_prompts_are_chosen_by_name_or_text(folder):
    encoder = encoder_of(folder, "prompt not pooled")
    model = normscope.wrap(encoder)
    found = similarity(model, A, B, prompts=("query", ""))
    embeddings = [encoder.encode(A, prompt_name="query"), encoder.encode(B, prompt="")]
    assert found.value == pytest.approx(float(encoder.similarity(*embeddings)[0, 0]), rel=1e-5)
    found = similarity(model, A, B, prompts="passage: ")
    embeddings = encoder.encode([A, B], prompt="passage: ")
    assert found.value == pytest.approx(float(encoder.similarity(*embeddings)[0, 0]), rel=1e-5)
    assert len(found.tokens_a) == len(model.tokenizer("passage: " + A)["input_ids"])
    # As in encode_document, "document" stands for whichever prompt of documents the model has.
    encoder.prompts = {"query": "search query: ", "passage": "text: "}
    found = similarity(normscope.wrap(encoder), A, B, prompts=("query", "document"))
    embeddings = [encoder.encode_query(A), encoder.encode_document(B)]
    assert found.value == pytest.approx(float(encoder.similarity(*embeddings)[0, 0]), rel=1e-5)


def test_attribution_to_a_similarity_follows_the_projections(folder):
    encoder = encoder_of(folder, "two projections")
    model = normscope.wrap(encoder)
    found = attribute(model, A, normscope.SimilarityTo(B))
    assert found.target == pytest.approx(float(encoder.similarity(*encoder.encode([A, B]))[0, 0]), rel=1e-4, abs=1e-5)
    by_pairs = similarity(model, A, B).matrix.sum(axis=1)
    # The second projection has constants of its own, which belong to no token.
    assert found.scores == pytest.approx(by_pairs[:-1], rel=1e-3, abs=1e-5)
    assert found.bias == pytest.approx(by_pairs[-1], rel=1e-3, abs=1e-5)
    assert found.remainder == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_what_cannot_be_split_is_one_line(folder):
    encoder = encoder_of(folder, "mean")
    encoder.similarity_fn_name = "euclidean"
    model = normscope.wrap
    with pytest.raises(InputError, match="compares embeddings by euclidean distance, which is not a sum over pairs"):
        model(encoder)
    encoder = encoder_of(folder, "cls, tanh")
    encoder[2].activation_function = nn.Softmax(dim=-1)
    with pytest.raises(InputError, match="pooling: Dense, which follows the pooling, computes no affine map"):
        similarity(model(encoder), A, B)
    with pytest.raises(
        InputError, match=r"prompts: expected a str or a pair \(a tuple of two str\), or None, got a tuple of 3"
    ):
        similarity(normscope.load(), A, B, prompts=("a", "b", "c"))
    with pytest.raises(InputError, match="prompts: expected none before a tuple of 2"):
        similarity(normscope.load(), (A, B), B, prompts="query: ")
    with pytest.raises(InputError, match=r"one of the model's prompts \(document, query\), or .* got 'passage'"):
        similarity(normscope.load(), A, B, prompts="passage")


DOCUMENTS = ["The bridge is closed.", "Nobody crossed.", "Spring came to the valley, and the river rose.", "A bridge."]


@pytest.mark.slow
def test_documents_are_ranked_for_a_query(model):
    found = similarity(model, A, DOCUMENTS)
    singles = [similarity(model, A, document) for document in DOCUMENTS]
    assert [each.value for each in found] == pytest.approx([each.value for each in singles], rel=1e-6)
    for one, other in zip(found, singles, strict=True):
        assert one.matrix == pytest.approx(other.matrix, abs=1e-6)
    order = sorted(range(len(singles)), key=lambda number: -singles[number].value)
    ranking = found.ranking
    assert ranking["number"].tolist() == [place + 1 for place in order]  # as documents are counted everywhere
    assert ranking["rank"].tolist() == [1, 2, 3, 4]
    tokens = [singles[number].matrix[:-1, :-1].sum() for number in order]
    assert ranking["tokens"].tolist() == pytest.approx(tokens, abs=1e-6)
    assert (ranking["tokens"] + ranking["biases"]).tolist() == pytest.approx(ranking["value"].tolist())
    best = found[order[0]]
    assert found.result.sentences == [
        f"Of 4 pairs of texts, number {order[0] + 1} (“{' '.join(best.tokens_b)}”) has the largest cosine similarity: "
        f"{number(best.value)}."
    ]
    assert sorted(found.result.table["number"].unique()) == [1, 2, 3, 4]
    assert len(found.result.table) == sum(each.matrix.size for each in singles)


@pytest.mark.slow
def test_words_of_the_documents_add_up(model):
    found = similarity(model, A, DOCUMENTS)
    words = found.words.set_index("token")
    for word in ("bridge", "[SEP]"):
        parts = [
            each.matrix[:-1, place].sum()
            for each in found
            for place, token in enumerate(each.tokens_b)
            if token == word
        ]
        assert words.loc[word, "occurrences"] == len(parts)
        assert words.loc[word, "total"] == pytest.approx(sum(parts), abs=1e-6)
        assert words.loc[word, "mean"] == pytest.approx(sum(parts) / len(parts), abs=1e-6)
    assert words["total"].sum() == pytest.approx(found.ranking["tokens"].sum(), abs=1e-5)
    assert words["total"].is_monotonic_decreasing


@pytest.mark.slow
def test_texts_in_the_same_places_are_compared(model):
    found = similarity(model, DOCUMENTS[:2], DOCUMENTS[2:])
    for place, each in enumerate(found):
        assert each.value == pytest.approx(similarity(model, *DOCUMENTS[place::2]).value, rel=1e-6)
    turned = similarity(model, DOCUMENTS, A)
    assert [each.value for each in turned] == pytest.approx(
        [each.value for each in similarity(model, A, DOCUMENTS)], rel=1e-6
    )


@pytest.mark.slow
def test_a_ranking_is_drawn_and_explored(model, tmp_path):
    found = similarity(model, A, DOCUMENTS)
    best = found.ranking.iloc[0]
    caption = found.result.figure().description.caption
    assert caption.startswith("What each token of a text adds to its cosine similarity with the other text of its pair")
    explorer = found.result.explorer()
    explorer.save(tmp_path / "ranking.html")
    page = (tmp_path / "ranking.html").read_text()
    assert f"1. {best['value']:.3f}" in page
    assert repr(explorer) == "4 pairs of texts; .save('map.html') makes a page to open in a browser"
    many = similarity(model, A, [f"Number {number}." for number in range(11)])
    assert "The 10 most similar of 11 are shown." in many.result.figure().description.caption


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (A, [], "expected at least one text, got none"),
        ([A], DOCUMENTS, "expected as many texts on both sides, got 1 and 4"),
        (A, ["", B], "the text is empty after tokenisation"),
    ],
)
def test_lists_that_cannot_be_compared_are_one_line(model, a, b, message):
    with pytest.raises(InputError, match=message):
        similarity(model, a, b)


@pytest.fixture(scope="module")
def model():
    return normscope.load()


@pytest.fixture(scope="module", params=["bert", "llama"])
def cross_encoder(request, tokenizer, tmp_path_factory):
    """A tiny cross-encoder, and the folder it is saved in."""
    place = tmp_path_factory.mktemp("cross")
    torch.manual_seed(0)
    settings = dict(FAMILY_CONFIGS[request.param]) | {"vocab_size": len(tokenizer), "num_labels": 1, "pad_token_id": 0}
    settings.pop("model_type", None)
    classifier = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(request.param, **settings))
    for parameter in classifier.parameters():
        nn.init.normal_(parameter, std=0.4)
    classifier.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return CrossEncoder(str(place), device="cpu"), place


@pytest.mark.spread(1)
def test_a_cross_encoder_says_which_words_of_query_and_document_made_its_score(cross_encoder):
    encoder, place = cross_encoder
    scores = encoder.predict([(A, document) for document in DOCUMENTS[:2]], activation_fn=nn.Identity())
    for model in (normscope.wrap(encoder), normscope.load(str(place))):
        found = attribute(model, [(A, document) for document in DOCUMENTS[:2]], normscope.Label(0))
        for one, score in zip(found, scores, strict=True):
            assert one.target == pytest.approx(float(score), rel=1e-4)
            parts = sum(one.spans.values()) + one.bias + one.remainder
            assert parts == pytest.approx(one.target, rel=1e-4, abs=1e-5)
            ends = [position for position, token in enumerate(one.tokens) if token == "[SEP]"]
            assert one.spans["first text"] == pytest.approx(one.scores[1 : ends[0]].sum(), rel=1e-5, abs=1e-7)
            assert one.spans["second text"] == pytest.approx(
                one.scores[ends[0] + 1 : ends[1]].sum(), rel=1e-5, abs=1e-7
            )
            assert [*one.spans] == ["first text", "second text", "rest"]


def late_encoder(folder, *, words=(), tasks=("document",), activation=None, **settings) -> MultiVectorEncoder:
    """A vector for each token, projected and normalised."""
    torch.manual_seed(0)
    transformer = Transformer(str(folder), **settings.pop("transformer", {}))
    size, places = transformer.get_embedding_dimension(), {}
    places = {f"module_{side}_name": "token_embeddings" for side in ("input", "output")}
    dense = Dense(size, size - 5, activation_function=activation or nn.Identity(), **places)
    mask = MultiVectorMask(skiplist_words=list(words), skiplist_tasks=list(tasks))
    modules = [transformer, dense, Normalize(module_input_name="token_embeddings"), mask]
    return MultiVectorEncoder(modules=modules, device="cpu", **settings).eval()


LATE = {
    "plain": {},
    "skipped words": {"words": ["the", "closed", "a"]},
    "skipped in both": {"words": ["the", "a"], "tasks": ["query", "document"]},
    "prompts, tanh": {"prompts": {"query": "search query: ", "document": "text: "}, "activation": nn.Tanh()},
    "mean": {"similarity_fn_name": "meanmaxsim"},
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", LATE)
def test_the_parts_of_late_interaction_add_up_to_the_score_of_the_library(folder, kind, tmp_path):
    encoder = late_encoder(folder, **LATE[kind])
    encoder.save_pretrained(str(tmp_path))
    query, document = encoder.encode_query(A), encoder.encode_document(B)
    expected = float(encoder.similarity(query, document)[0, 0])
    products = torch.as_tensor(query) @ torch.as_tensor(document).T
    for model in (normscope.wrap(encoder), normscope.load(str(tmp_path))):
        found = similarity(model, A, B)
        assert found.value == pytest.approx(expected, abs=1e-5)
        assert found.matrix.sum() == pytest.approx(found.value, rel=1e-5, abs=1e-6)
        assert found.function == str(encoder.similarity_fn_name)
        scale = len(query) if kind == "mean" else 1
        assert found.matches["value"].tolist() == pytest.approx((products.max(dim=1).values / scale).tolist(), abs=1e-5)
        assert found.matches["value"].sum() == pytest.approx(expected, abs=1e-5)
        names = [found.tokens_b[place] for place in found.matches["b"]]
        assert names == found.matches["token_b"].tolist()
        assert not {*names} & {*LATE[kind].get("words", ())}


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_late_interaction_is_exact_in_float64(folders, family):
    encoder = late_encoder(folders[family], words=["the"]).double()
    expected = float(torch.as_tensor(encoder.encode_query(A) @ encoder.encode_document(B).T).max(dim=1).values.sum())
    found = similarity(normscope.wrap(encoder), A, B)
    assert found.value == pytest.approx(expected, abs=1e-6)  # Llama's own norms compute in float32
    assert found.matrix.sum() == pytest.approx(found.value, abs=1e-9)


@pytest.mark.slow
def test_documents_are_ranked_by_late_interaction(folder):
    encoder = late_encoder(folder)
    scores = encoder.similarity(encoder.encode_query(A), encoder.encode_document(DOCUMENTS))[0]
    found = similarity(normscope.wrap(encoder), A, DOCUMENTS)
    assert found.ranking["value"].tolist() == pytest.approx(sorted(scores.tolist(), reverse=True), abs=1e-4)


@pytest.mark.slow
def test_late_interaction_that_cannot_be_split_is_one_line(folder, tokenizer):
    expansion = {"query_expansion": {"strategy": "fixed", "attend": True, "length": 16, "token": "[MASK]"}}
    with pytest.raises(
        InputError, match="sets query_expansion, expected late interaction between the tokens of the texts"
    ):
        normscope.wrap(late_encoder(folder, transformer=expansion))
    model = normscope.wrap(late_encoder(folder, transformer={"query_length": 4}))
    with pytest.raises(InputError, match="expected a query of at most 4 tokens, the limit of .*, got"):
        similarity(model, A, B)
    model = normscope.wrap(late_encoder(folder, words=tokenizer.get_vocab()))
    with pytest.raises(InputError, match="expected a document with at least one token that .* compares, got none"):
        similarity(model, A, B)
    with pytest.raises(InputError, match="keeps a vector for each token .late interaction., expected one embedding"):
        attribute(model, A, normscope.SimilarityTo(B))
    with pytest.raises(InputError, match="keeps a vector for each token"):
        normscope.run("similarity", model=model, texts=[(A, B)])
    assert similarity(model, A, B, pooling="mean").function == "cosine"


@pytest.mark.slow
def test_a_folder_says_where_its_texts_end(folder, tmp_path):
    encoder = encoder_of(folder, "mean")
    encoder.save_pretrained(str(tmp_path))
    path = tmp_path / "sentence_bert_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"max_seq_length": 7}))
    model = normscope.load(str(tmp_path))
    assert model.max_length == 7
    with pytest.raises(InputError, match="1 text is longer than 7 tokens"):
        similarity(model, A, B)
    path.write_text(json.dumps(settings | {"max_seq_length": "long"}))
    with pytest.raises(InputError, match="expected max_seq_length to be a number of tokens, got 'long'"):
        normscope.load(str(tmp_path))


@pytest.mark.slow
def test_a_callback_logs_the_constant_part_and_special_tokens_of_an_encoder_in_training(folder, tmp_path):
    encoder = encoder_of(folder, "two projections")
    pairs = list(itertools.pairwise(DOCUMENTS))
    callback = normscope.Callback("similarity", texts=pairs, tokenizer=encoder.tokenizer, every=1, sums=True)
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=2, learning_rate=0.1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    data = Dataset.from_dict({"anchor": DOCUMENTS, "positive": DOCUMENTS[::-1]})
    loss = MultipleNegativesRankingLoss(encoder)
    SentenceTransformerTrainer(encoder, arguments, data, loss=loss, callbacks=[callback]).train()
    history = callback.history.pivot(index="step", columns="metric", values="value")
    assert history.index.tolist() == [0, 1, 2]
    last = history.iloc[-1]
    found = similarity(normscope.wrap(encoder.eval()), *map(list, zip(*pairs, strict=True)))
    cosine = sum(each.value for each in found) / len(found)
    assert last["similarity/cosine"] == pytest.approx(cosine, abs=1e-4)
    constant = sum(each.value - each.matrix[:-1, :-1].sum() for each in found) / len(found)
    assert last["similarity/with_bias"] == pytest.approx(constant, abs=1e-4)
    assert last["similarity/with_bias_share"] == pytest.approx(constant / cosine, rel=1e-3)
    special = {*encoder.tokenizer.all_special_tokens}
    added = [
        sums[place] / 2
        for each in found
        for tokens, sums in ((each.tokens_a, each.matrix.sum(axis=1)), (each.tokens_b, each.matrix.sum(axis=0)))
        for place, token in enumerate(tokens)
        if token in special
    ]
    assert last.get("similarity/span/special", 0.0) == pytest.approx(sum(added) / len(found), abs=1e-4)
    assert history["similarity/cosine"].nunique() == 3


@pytest.mark.spread(1)
def test_a_cross_encoder_says_why_a_document_is_ranked_over_another(cross_encoder):
    encoder, place = cross_encoder
    over, under = DOCUMENTS[2], DOCUMENTS[0]
    high, low = encoder.predict([(A, over), (A, under)], activation_fn=nn.Identity())
    model = normscope.load(str(place))
    found = attribute(model, (A, over), normscope.Label(), against=(A, under))
    assert found.target == pytest.approx(float(high - low), rel=1e-4, abs=1e-5)
    assert found.scores.sum() + found.bias + found.remainder == pytest.approx(found.target, abs=1e-5)
    lengths = [len(model.tokenizer(A, document)["input_ids"]) for document in (over, under)]
    assert dict(found.sides) == {"pair": lengths[0], "against": lengths[1]}
    first, second = (attribute(model, (A, document), 0) for document in (over, under))
    assert [*found.scores] == pytest.approx([*first.scores, *-second.scores], abs=1e-6)
    assert found.spans == pytest.approx(
        {
            "first text": first.spans["first text"] - second.spans["first text"],
            "second text": first.spans["second text"],
            "second text of the other": -second.spans["second text"],
            "rest": first.spans["rest"] - second.spans["rest"],
        },
        abs=1e-6,
    )
    assert set(found.table["side"]) == {"pair", "against"}
    assert found.result.figure().description is not None
    found.result.explorer()
    assert "minus that of the other pair" in found.what
    other_query = attribute(model, (A, over), normscope.Label(0), against=("other", over))
    assert {*other_query.spans} == {"rest", "first text", "second text", "first text of the other"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("cross_encoder", ["bert"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": A}, "against: to compare with another pair, expected a class of a pair .tuple. of texts, got str"),
        ({"target": normscope.SimilarityTo(B)}, "expected a class of a pair .tuple. of texts, got SimilarityTo"),
        ({"spans": {"all": (0, 3)}}, "spans: not defined for the difference between two pairs of texts; leave it out"),
        ({"by": "layer"}, "by: not defined for the difference between two pairs of texts; leave it out"),
        ({"against": ("a", "b", "c")}, "against: expected"),
    ],
)
def test_a_difference_of_pairs_that_is_not_defined_is_one_line(cross_encoder, arguments, message):
    given = {"text": (A, B), "target": normscope.Label(0), "against": (A, A)} | arguments
    with pytest.raises(InputError, match=message):
        attribute(normscope.load(str(cross_encoder[1])), **given)
