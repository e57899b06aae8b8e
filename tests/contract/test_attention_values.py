"""`normscope.attention` against the attention that transformers returns in eager mode, and against sums by hand."""

import functools
import gc
import itertools
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, BatchEncoding

import normscope
from normscope.api import attention_values
from normscope.data.token_sequence import Batching
from normscope.errors import InputError
from normscope.maths import attention_weights
from normscope.maths.choices import PairMeasure
from normscope.models.blocks import region_sums
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.tokenizer_loading import TokenNames
from normscope.models.observe.observer import Observer
from normscope.rounding import number
from tests.one_text import attention
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, facts_for, rounds_inside, tiny_model, tiny_stack, token_batch

LENGTHS = (9, 6, 3)
EXACT = {"rtol": 0, "atol": 1e-12}  # float64
CLOSE = {"rtol": 1e-6, "atol": 1e-9}  # norms and shares of families that round to float32 inside

_softmax = torch.nn.functional.softmax


def in_float64(values, dim=None, _stacklevel=3, dtype=None):
    """The softmax of attention in float64, which many families compute in float32 whatever their dtype."""
    return _softmax(values, dim=dim, dtype=torch.float64 if values.ndim > 2 else dtype)


@functools.cache
def model_of(family):
    if family in STACK_CONFIGS:
        return tiny_stack(family, "encoder", torch.float64)
    return tiny_model(FAMILY_CONFIGS[family], torch.float64)


saved = functools.cache(normscope.load)


def loaded(model, family, stack=None) -> LoadedModel:
    names = TokenNames.of([str(number) for number in range(99)])
    return LoadedModel(model, names, facts_for(family, stack), family, None, None)


def eager(model, facts, inputs, field="attentions") -> torch.Tensor:
    """What `output_attentions=True` returns, by layer."""
    own = model.config._attn_implementation
    try:
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            model.config._attn_implementation = "eager"
            if facts.calls_function:  # other families run the same softmax while they are observed
                patch.setattr(torch.nn.functional, "softmax", in_float64)
            return torch.stack(model(**inputs, output_attentions=True)[field])
    finally:
        model.config._attn_implementation = own


@pytest.mark.spread(4)
def test_weights_are_those_of_eager_attention(family, family_model):
    """With grouped queries, windows, sinks, soft caps, ALiBi and padding, whichever the family has."""
    inputs = token_batch(family_model, LENGTHS)
    model = loaded(family_model, family)
    if model.batching is not Batching.PADDED:
        inputs = {name: tensor[:1] for name, tensor in inputs.items()}
    weights = eager(family_model, model.facts, inputs)
    found = attention(model, BatchEncoding(inputs))
    for row, values in enumerate(found if isinstance(found, list) else [found]):
        expected = weights[:, row, :, : LENGTHS[row], : LENGTHS[row]]
        assert [*values.axes] == ["layer", "head", "query", "key"]
        # GPT-J's scores are float32, and are rounded in another way in a batch with padding.
        exact = CLOSE if rounds_inside(family_model) else EXACT
        torch.testing.assert_close(torch.from_numpy(values.values), expected, **exact)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("family", "stack"), itertools.product(["bart", "m2m_100", "marian"], ["decoder", "cross"]))
def test_weights_of_decoders_are_those_of_eager_attention(family, stack):
    model = tiny_stack(family, stack, torch.float64)
    found = attention(loaded(model, family, stack), ("5 6 7 8 9 10", "11 12 13 14"))
    source, target = (found.axes[name] for name in ("key", "query")) if stack == "cross" else (["5"] * 6, found.keys)
    assert (len(source), len(target)) == (6, 4)
    start = model.config.decoder_start_token_id
    inputs = {
        "input_ids": torch.arange(5, 11)[None],
        "decoder_input_ids": torch.tensor([[start, 11, 12, 13]]),
    }
    field = "cross_attentions" if stack == "cross" else "decoder_attentions"
    torch.testing.assert_close(
        torch.from_numpy(found.values), eager(model, facts_for(family, stack), inputs, field)[:, 0], **EXACT
    )


REGIONS = {
    "tokens": ([7, 0, 3], [8, 2, 5, 0]),
    "rows of tokens": ([7, 0, 3], [slice(1, 4), 0, slice(6, 9)]),
    "few rows": ([slice(7, 9), 0], [slice(0, 4), slice(6, 8)]),
    "blocks": ([slice(0, 3), slice(5, 9), 4], [slice(2, 3), slice(4, 9)]),
    "everything": (None, None),
}


def members(asked) -> list[list[int]]:
    if asked is None:
        return [[place] for place in range(9)]
    return [[each] if isinstance(each, int) else list(range(9))[each] for each in asked]


def by_hand(model, family, ids, measure) -> torch.Tensor:
    """Every pair: layer, head, query, key."""
    found = []

    def visit(block):
        match measure:
            case "weight":
                found.append(block.weights[0])
            case "norm":
                vectors = torch.einsum("hqk,hkm->hqkm", block.weights[0], block.transformed()[0])
                found.append(vectors.norm(dim=-1))
            case "share":
                vectors = torch.einsum("hqk,hkm->hqkm", block.weights[0], block.transformed()[0])
                output = block.attention_output[0]
                found.append(torch.einsum("hqkm,qm->hqk", vectors, output / output.square().sum(-1, keepdim=True)))
            case "score":
                scores = block.alpha.scale * block.query[0] @ block.key[0].mT
                if block.alpha.cap is not None:
                    scores = block.alpha.cap * (scores / block.alpha.cap).tanh()
                if block.mask is not None and block.mask.bias is not None:
                    scores = scores + block.mask.bias[0]
                found.append(scores.masked_fill(block.weights[0] == 0, -torch.inf))

    with Observer(model, facts_for(family)) as observer:
        observer.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, visit)
    return torch.stack(found)


def summed(pairs, queries, keys, measure) -> torch.Tensor:
    """Sums over the tokens of regions; of scores, means over visible pairs."""
    result = torch.empty(*pairs.shape[:2], len(queries), len(keys), dtype=torch.float64)
    for (row, some), (column, others) in itertools.product(enumerate(queries), enumerate(keys)):
        part = pairs[:, :, some][..., others]
        if measure == "score":
            seen = part.isfinite()
            means = part.masked_fill(~seen, 0).sum((-1, -2)) / seen.sum((-1, -2))
            result[:, :, row, column] = means.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        else:
            result[:, :, row, column] = part.sum((-1, -2))
    return result


FAMILIES = ["bert", "gemma2", "gpt_oss", "llama", "mistral", "mpnet", "t5"]
VALUES = [
    (measures[(number + place) % len(measures)], regions, family)
    for number, family in enumerate(FAMILIES)
    for measures in [[each for each in PairMeasure if (each, family) != ("score", "mpnet")]]  # it computes them itself
    for place, regions in enumerate(REGIONS)
]
"""Every measure with all regions, every measure with all families, and every family with all regions."""


@pytest.mark.spread(6)
@pytest.mark.parametrize(("measure", "regions", "family"), VALUES)
def test_values_of_regions_are_sums_over_their_pairs(family, regions, measure, monkeypatch):
    family_model = model_of(family)
    monkeypatch.setattr(attention_weights, "WEIGHTS_AT_ONCE", {"cpu": 40})
    monkeypatch.setattr(region_sums, "_AT_ONCE", 2)
    monkeypatch.setattr(region_sums, "_TILE_AT_ONCE", 5)
    ids = token_batch(family_model, (9,))["input_ids"]
    queries, keys = REGIONS[regions]
    found = attention(loaded(family_model, family), ids[0].tolist(), queries=queries, keys=keys, measure=str(measure))
    expected = summed(by_hand(family_model, family, ids, measure), members(queries), members(keys), measure)
    close = EXACT if measure in ("weight", "score") else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(torch.from_numpy(found.values), expected, **close)


@pytest.mark.parametrize("regions", ["tokens", "blocks"])
def test_heads_layers_and_the_strongest_keys(regions):
    model = loaded(model_of("llama"), "llama")
    queries, keys = REGIONS[regions]
    asked = {"queries": queries, "keys": keys}
    ids = list(range(5, 14))
    every = attention(model, ids, **asked)
    some = attention(model, ids, **asked, layers=[3, 1], heads=[4, 2])
    assert (some.axes["layer"], some.axes["head"]) == ((1, 3), (4, 2))
    np.testing.assert_allclose(some.values, every.values[[0, 2]][:, [3, 1]], atol=1e-15)
    mean = attention(model, ids, **asked, reduce="mean")
    assert [*mean.axes] == ["layer", "query", "key"]
    np.testing.assert_allclose(mean.values, every.values.mean(axis=1), atol=1e-15)
    largest = attention(model, ids, **asked, reduce="max")
    np.testing.assert_allclose(largest.values, every.values.max(axis=1), atol=1e-15)
    strongest = attention(model, ids, **asked, top=2)
    assert [*strongest.axes] == ["layer", "head", "query", "rank"]
    np.testing.assert_allclose(strongest.values, -np.sort(-every.values, axis=-1)[..., :2], atol=1e-15)
    picked = np.take_along_axis(every.values, strongest.strongest, axis=-1)
    np.testing.assert_allclose(picked, strongest.values, atol=1e-15)
    table = strongest.table
    assert table.columns.tolist() == ["layer", "head", "query", "query_token", "rank", "key", "key_token", "weight"]
    row = table[(table["layer"] == 2) & (table["head"] == 3) & (table["query"] == 0) & (table["rank"] == 1)]
    assert len(row) == 1
    assert row["key_token"].item() == every.keys[strongest.strongest[1, 2, list(every.positions["query"]).index(0), 0]]


def test_a_text_its_words_and_spans(saved_model, tmp_path):
    model = saved(str(saved_model))
    text = "The unbelievable bridge was closed."
    words = attention(model, text, queries="last", keys="words", reduce="mean")
    every = attention(model, text, queries=-1, reduce="mean")
    assert words.keys == ("[CLS]", "the", "unbelievable", "bridge", "was", "closed", ".", "[SEP]")
    of_word = [place for place, token in enumerate(every.keys) if token in ("bridge",)]
    np.testing.assert_allclose(words.values[:, 0, 3], every.values[:, 0, of_word[0]], rtol=1e-6)
    np.testing.assert_allclose(words.values.sum(axis=-1), 1, rtol=1e-5)
    spans = attention(model, text, queries=[-1], keys={"noun": (4, 23), "end": slice(-2, None)}, reduce="mean")
    assert spans.axes["key"] == ("noun", "end")
    np.testing.assert_allclose(spans.values[:, 0, 0], words.values[:, 0, 2:4].sum(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(spans.values[:, 0, 1], words.values[:, 0, -2:].sum(axis=-1), rtol=1e-5)
    gaps = attention(model, text, queries=-1, keys={"ends": [0, slice(-2, None)]}, reduce="mean")
    np.testing.assert_allclose(gaps.values[:, 0, 0], words.values[:, 0, [0, -2, -1]].sum(axis=-1), rtol=1e-5)
    spans.result.save(tmp_path)
    read = normscope.read(tmp_path)
    pd.testing.assert_frame_equal(read.table, spans.table, check_dtype=False)  # float32
    np.testing.assert_array_equal(read.maps[0].maps["attn_w"], spans.values, strict=True)
    assert repr(read) == repr(spans.result)
    pair = attention(model, (text, "Why?"), queries="answer", keys=["prompt", "answer"])
    texts = attention(model, (text, "Why?"), queries="texts", keys="texts")
    np.testing.assert_allclose(pair.values[:, :, 0], texts.values[:, :, 1], rtol=1e-5)
    several = attention(model, [text, "Why?"], queries="last", keys="last")
    assert [values.values.shape for values in several] == [(3, 4, 1, 1)] * 2


FIRST, SECOND = ("Dr. Smith closed the bridge.", "Why?"), ("It is old!\n\nWe crossed the river…",)
"""Texts of sentences; a blank line ends one."""
CHAT = "{% for each in messages %}{{ each['role'] + ': ' + each['content'] + ' ' }}{% endfor %}"


@pytest.mark.parametrize("measure", list(PairMeasure))
@pytest.mark.parametrize("kind", ["text", "pair", "conversation"])
def test_sentences_are_sums_over_their_tokens(saved_model, measure, kind, monkeypatch):
    model = saved(str(saved_model))
    first, second = " ".join(FIRST), SECOND[0]
    sentences = [*FIRST, *second.split("\n\n")]
    match kind:
        case "text":
            text, written = f"{first}  {second}", [f"{first}  {second}"]
        case "pair":
            text, written = (first, second), [first, second]
        case "conversation":
            monkeypatch.setattr(model.tokenizer, "chat_template", CHAT)
            text = [{"role": "user", "content": first}, {"role": "assistant", "content": second}]
            written = [f"user: {first} assistant: {second} "]
    encoding = model.tokenizer(*written, add_special_tokens=kind != "conversation")
    places = zip(encoding.encodings[0].sequence_ids, encoding.encodings[0].offsets, strict=True)
    places = [None if side is None else written[side][slice(*span)] and (side, *span) for side, span in places]
    spans = [
        (side, part.index(sentence), part.index(sentence) + len(sentence))
        for sentence in sentences
        for side, part in enumerate(written)
        if sentence in part
    ]
    members = [
        [at for at, place in enumerate(places) if place and place[0] == side and start <= place[1] < end]
        for side, start, end in spans
    ]
    assert all(members)
    assert sum(map(len, members)) < len(places), "special tokens or the template's are in none"
    pairs = attention(model, text, measure=str(measure))
    found = attention(model, text, queries="sentences", keys="sentences", measure=str(measure))
    assert found.keys == found.axes["query"] == tuple(sentences)
    assert found.positions["key"] == tuple(tokens[0] for tokens in members)
    expected = summed(torch.from_numpy(pairs.values), members, members, measure).numpy()
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-7)
    last = attention(model, text, queries={"end": [-1]}, keys=["sentences"], measure=str(measure))
    expected = summed(torch.from_numpy(pairs.values), [[-1]], members, measure).numpy()
    np.testing.assert_allclose(last.values, expected, rtol=1e-5, atol=1e-7)


def test_names_of_long_sentences_are_cut(saved_model):
    found = attention(saved(str(saved_model)), "We crossed the unbelievably cold river. Why?", queries="sentences")
    assert found.axes["query"] == ("We crossed the …ly cold river.", "Why?")


@pytest.mark.parametrize("measure", ["weight", "share"])
def test_maps_and_words_follow_from_the_values(saved_model, measure):
    """What all heads pass, what single heads pass, and the strongest keys, from the array."""
    model, text = saved(str(saved_model)), "The old bridge was closed."
    found = attention(model, text, queries=[-1, 2], measure=measure)
    (name,) = found.map.maps
    over = np.sum if measure == "share" else np.mean
    np.testing.assert_allclose(found.map.maps[name], over(found.values, axis=1), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(found.map.head_maps[name], found.values)
    assert found.map.query_places == (len(found.keys) - 1, 2)
    strongest = found.result.tables["strongest"]
    for query, (place, rows) in enumerate(strongest.groupby("query", sort=False)):
        means = found.values[:, :, query].mean(axis=(0, 1))
        order = np.argsort(-np.abs(means), kind="stable")[:12]
        assert place == found.map.query_places[query]
        assert rows["key"].tolist() == order.tolist()
        np.testing.assert_allclose(rows["mean"], means[order], rtol=1e-6)
        for row in rows.itertuples():
            assert abs(row.largest) == np.abs(found.values[:, :, query, row.key]).max()
            assert row.largest == found.values[row.layer - 1, row.head - 1, query, row.key]
    (sentence,) = found.result.sentences
    first = strongest.iloc[0]
    said = f"[SEP] ({len(found.keys) - 1}) receives the most from {first['key_token']} ({first['key']}): "
    assert sentence == f"{said}{number(float(first['mean']))} on average."
    part = attention(model, text, heads=[2, 1], measure=measure)
    assert part.map.heads == 0, "the page counts heads from 1"


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"queries": [3, slice(2, 5)]},
            "queries: 'text' and '2:5' overlap at token 3; expected regions that share no token",
        ),
        (
            {"keys": {"a": (0, 5), "b": (0, 9)}},
            "keys: 'a' and 'b' overlap at token 1; expected regions that share no token",
        ),
        ({"keys": slice(3, 3)}, "keys=3:3: expected at least one token, got an empty region"),
        ({"keys": slice(0, 99)}, "keys=0:99: expected tokens within a text of 6; choose a part of 0:6"),
        ({"keys": [6]}, "keys: expected tokens from 0 to 5, or from −6 to −1, got 6"),
        ({"keys": (0, 99)}, "keys: expected '0:99' to lie between 0 and 13, got 0 to 99"),
        ({"keys": []}, "keys: expected at least one token or region, got none"),
        ({"keys": {}}, "keys: expected at least one token or region, got none"),
        (
            {"keys": "verbs"},
            "keys='verbs': expected one of last, tokens, words, sentences, texts, messages, prompt, answer, images",
        ),
        ({"keys": ["sentences", (0, 3)]}, "keys: 'A short text.' and '0:3' overlap at token 1; expected regions"),
        ({"keys": "images"}, "keys='images': expected a text that contains image tokens; choose other tokens or spans"),
        ({"keys": "answer"}, "keys='answer': expected a conversation, as a list of messages, or a pair"),
        ({"keys": 1.5}, "keys: expected token positions, spans (start, end), slices of tokens"),
        ({"layers": [9]}, "layers: expected whole numbers from 1 to 3, got 9"),
        ({"heads": [5]}, "heads: expected whole numbers from 1 to 4, got 5"),
        ({"measure": "alpha"}, "measure='alpha': expected one of weight, norm, share, score"),
        ({"reduce": "sum"}, "reduce='sum': expected one of mean, max"),
        ({"top": 0}, "top=0: expected a number of keys, 1 or more"),
    ],
)
def test_bad_input_is_one_line(saved_model, asked, message):
    model = saved(str(saved_model))
    with pytest.raises(InputError) as error:
        attention(model, "A short text.", **asked)
    assert message in str(error.value)


def test_ids_have_no_sentences():
    with pytest.raises(InputError, match="queries='sentences': expected a text given as characters, not as token ids"):
        attention(loaded(model_of("llama"), "llama"), [5, 6, 7], queries="sentences")


def test_messages_without_tokens_have_no_sentences(saved_model, monkeypatch):
    model = saved(str(saved_model))
    monkeypatch.setattr(model.tokenizer, "chat_template", CHAT)
    with pytest.raises(InputError, match="keys='sentences': expected a text with at least one sentence"):
        attention(model, [{"role": "user", "content": "\U000f0000"}], keys="sentences")


def test_an_answer_that_does_not_fit_is_refused_before_the_pass(saved_model, monkeypatch):
    model = saved(str(saved_model))
    assert not model.causal  # which is looked up once
    monkeypatch.setattr(attention_values, "_free_memory", lambda: 4 * 3 * 4 * 6 * 6)
    monkeypatch.setattr(Observer, "run", lambda *_args, **_more: pytest.fail("the model has run"))
    with pytest.raises(
        InputError, match=r"3 layers × 4 heads × 6 queries × 6 keys.*or set regions, reduce='mean' or top=K"
    ):
        attention(model, "A short text.")


def test_what_the_model_does_with_a_text_is_compared_at_the_rows():
    """The attention output of a model whose code changes it where no function can be followed."""
    model = loaded(model_of("llama"), "llama")

    def changed(_module, _args, made):
        made.numpy()[:] *= 1.01

    model.model.layers[1].self_attn.o_proj.register_forward_hook(changed)
    with pytest.raises(InputError, match=r"the sum of αf\(x\) of layer 2 differs"):
        attention(model, [5, 6, 7], queries="last")


def test_blocks_leave_nothing_in_memory():
    model, left = model_of("llama"), []

    def visit(block):
        left.append(weakref.ref(block.parameters.projections))
        return block.query, block.key_map, block.value

    with Observer(model, facts_for("llama")) as observer:
        observer.run(token_batch(model, (5, 3)), visit)
    gc.collect()
    assert {each() for each in left} == {None}


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made, in bytes."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_a_generated_text_has_the_weights_it_was_generated_with(family):
    """Those that eager attention returned beside the cache, for two prompts that are padded together."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**FAMILY_CONFIGS[family] | {"pad_token_id": 0, "eos_token_id": 1})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    prompts = torch.tensor([[0, 0, 5, 9, 7], [30, 12, 9, 41, 8]])
    generated = model.generate(
        prompts,
        attention_mask=(prompts != 0).long(),
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    wrapped = normscope.wrap(model)
    for text, padding in enumerate([2, 0]):
        ids = generated.sequences[text, padding:]
        begins = prompts.shape[1] - padding
        found = attention(
            wrapped,
            ids,
            queries=range(begins - 1, len(ids) - 1),
            keys={"question": slice(0, 2), "answer": slice(begins, None)},
        )
        for step, of_layers in enumerate(generated.attentions):
            weights = torch.stack(of_layers)[:, text, :, -1]
            dropped = prompts.shape[1] + step - weights.shape[-1]  # by the cache of a sliding window
            weights = torch.nn.functional.pad(weights, (dropped, 0))[..., padding:]
            expected = torch.stack([weights[..., :2].sum(-1), weights[..., begins:].sum(-1)], dim=-1)
            np.testing.assert_allclose(found.values[:, :, step], expected.numpy(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("measure", "family"), [("weight", "llama"), ("norm", "llama"), ("share", "mistral")])
def test_no_tensor_grows_with_the_square_of_the_length(measure, family, monkeypatch):
    """Neither for rows nor for blocks: the largest is smaller than a mask of one byte a pair."""
    length = 2048
    monkeypatch.setitem(attention_weights.WEIGHTS_AT_ONCE, "cpu", 2**16)
    monkeypatch.setattr("normscope.maths.masks.STRIP", 32)
    model = loaded(tiny_model(FAMILY_CONFIGS[family] | {"max_position_embeddings": length}, torch.float32), family)
    regions = [slice(start, start + 64) for start in range(0, length, 64)]
    text = token_batch(model.model, (length,))["input_ids"][0].tolist()
    for queries, keys in (("last", None), (None, regions[:4]), (regions, regions)):
        with Largest() as largest:
            attention(model, text, queries=queries, keys=keys, measure=measure, reduce="mean")
        assert 0 < largest.size < length**2
