"""Several texts, several targets, conversations, files and figures of attributions."""

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import normscope
from normscope.errors import InputError
from normscope.untrusted.tensor_files import checksum
from tests.contract.test_answers import PROMPT, causal
from tests.one_text import decompose

EXACT = {"rtol": 0, "atol": 1e-10}
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture
def model(tokenizer):
    return causal("llama", tokenizer)


@pytest.fixture
def chat(model):
    model.tokenizer.chat_template = TEMPLATE
    yield model
    model.tokenizer.chat_template = None


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mixtral"])
@pytest.mark.parametrize("bias", ["token", "decompx"])
def test_targets_that_share_a_pass(model_type, bias, tokenizer):
    model = causal(model_type, tokenizer)
    targets = [normscope.NextToken("film"), normscope.NextToken(), normscope.NextToken(position=1)]
    together = normscope.attribute(model, PROMPT, targets, bias=bias, by=["layer", "head"], level="word")
    for target, found in zip(targets, together, strict=True):
        alone = normscope.attribute(model, PROMPT, target, bias=bias, by=["layer", "head"], level="word")
        assert found.what == alone.what
        for part in ("scores", "bias", "remainder", "target"):
            np.testing.assert_allclose(getattr(found, part), getattr(alone, part), **EXACT)
        pd.testing.assert_frame_equal(found.effects, alone.effects)
    assert together.table["number"].unique().tolist() == [0, 1, 2]
    assert [each.what for each in together[1:]] == [each.what for each in list(together)[1:]]


@pytest.mark.slow
def test_several_texts(model):
    texts = [PROMPT, "onions"]
    found = normscope.attribute(model, texts, normscope.NextToken("film"))
    for text, each in zip(texts, found, strict=True):
        np.testing.assert_allclose(each.scores, normscope.attribute(model, text, normscope.NextToken("film")).scores)
    pd.testing.assert_frame_equal(
        found.table[found.table["number"] == 1].reset_index(drop=True).drop(columns=["number", "what"]), found[1].table
    )
    assert repr(found).count("\n") == 1


@pytest.mark.slow
def test_the_roles_of_a_conversation_are_its_spans(chat):
    messages = [{"role": "system", "content": "the film"}, {"role": "user", "content": "the lady cracked eggs"}]
    found = normscope.attribute(chat, messages, normscope.NextToken("film"))
    written = "<system> the film <user> the lady cracked eggs <assistant> "
    ids = chat.tokenizer(written, add_special_tokens=False)
    plain = normscope.attribute(chat, ids, normscope.NextToken("film"))
    assert found.tokens == plain.tokens
    np.testing.assert_allclose(found.scores, plain.scores, **EXACT)
    starts = {name: found.tokens.index(name) for name in ("film", "lady")}
    assert found.spans["system"] == pytest.approx(found.scores[starts["film"] - 1 : starts["film"] + 1].sum())
    assert found.spans["user"] == pytest.approx(found.scores[starts["lady"] - 1 : starts["lady"] + 3].sum())
    assert sum(found.spans.values()) == pytest.approx(found.scores.sum())
    answered = [*messages, {"role": "assistant", "content": "onions"}]
    assert decompose(chat, answered).tokens[-1] == "onions"
    assert len(decompose(chat, [messages, answered])) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([{"role": "user"}], "messages: expected text in each of them, got: not text"),
        ([{"role": "user", "content": " "}], "messages: expected text in each of them, got: empty"),
        (
            [{"role": "boss", "content": "a"}],
            "messages: a conversation: expected a list of messages with a role of system",
        ),
        (["a", [{"role": "user", "content": "a"}]], "expected all of them to be conversations, or none; got both"),
    ],
)
def test_conversations_that_cannot_be_read(chat, texts, message):
    with pytest.raises(InputError, match=message):
        decompose(chat, texts)


def test_analyses_take_no_conversations(chat):
    message = {"role": "user", "content": "a"}
    for texts in ([message], [[message], "b"]):
        with pytest.raises(InputError, match="texts: analyses read conversations from a file; .* chat_template"):
            normscope.run("mixing", texts=texts, model=chat)


def test_a_conversation_needs_a_template_and_has_no_other_spans(model, chat):
    messages = [{"role": "user", "content": "the film"}]
    with pytest.raises(InputError, match="a conversation's spans are its roles; leave out spans"):
        normscope.attribute(chat, messages, normscope.NextToken(), spans={"a": (0, 3)})
    model.tokenizer.chat_template = None
    with pytest.raises(InputError, match="messages: the tokenizer of tiny has no chat template"):
        normscope.attribute(model, messages, normscope.NextToken())


@pytest.mark.parametrize(
    ("text", "target", "others", "message"),
    [
        (PROMPT, [], {}, "expected at least one target, got an empty list"),
        ([], normscope.NextToken(), {}, "expected at least one text, got none"),
        ([PROMPT, PROMPT], [normscope.NextToken()], {}, "a single target for a list of texts"),
        ([PROMPT], normscope.NextToken(), {"spans": {"a": (0, 3)}}, "spans: expected a single text"),
        (PROMPT, [normscope.Answer(), normscope.Answer()], {}, "expected an Answer by itself, got a list of 2"),
        (PROMPT, [normscope.NextToken(), lambda hidden: hidden[0, 0]], {}, "targets of one kind"),
    ],
)
def test_lists_that_cannot_be_combined(model, text, target, others, message):
    with pytest.raises(InputError, match=message):
        normscope.attribute(model, text, target, **others)


@pytest.mark.slow
def test_what_is_saved_is_read_back_exactly(model, tmp_path):
    path = tmp_path / "found.safetensors"
    answer = normscope.Answer("onions the", matrix=True)
    for by in (["layer", "head", "token"], ["layer"], None):
        found = normscope.attribute(model, PROMPT, answer, spans={"a": (0, 8)}, by=by)
        found.save(path)
        read = normscope.load_attribution(path)
        for name in ("tokens", "what", "target", "bias", "remainder", "error", "sides", "spans", "direct"):
            assert getattr(read, name) == getattr(found, name)
        np.testing.assert_array_equal(read.scores, found.scores)
        pd.testing.assert_frame_equal(read.matrix, found.matrix)
        if by is None:
            assert read.effects is None
        else:
            pd.testing.assert_frame_equal(read.effects, found.effects)
        assert repr(read) == repr(found)
    for of_method in normscope.attribution_maps(model, PROMPT, level="word").values():
        of_method.save(path)
        read = normscope.load_attribution(path)
        assert repr(read) == repr(of_method)
        assert read.level is of_method.level
        for name in ("total", "layers", "cumulative", "shares"):
            np.testing.assert_array_equal(getattr(read, name), getattr(of_method, name))


def test_other_files_are_refused(model, tmp_path):
    import safetensors.numpy

    path = tmp_path / "other"
    with pytest.raises(InputError, match="No such file"):
        normscope.load_attribution(path)
    path.write_text("no tensors")
    with pytest.raises(InputError, match="expected a file that .save"):
        normscope.load_attribution(path)
    safetensors.numpy.save_file({"a": np.zeros(2)}, path)
    with pytest.raises(InputError, match="expected a file that .save.* it was not written by normscope"):
        normscope.load_attribution(path)
    tensors = {"a": torch.zeros(2)}
    for metadata, message in (
        ('{"kind": "Attribution", "version": 3, "fields": {}}', "another version"),
        ('{"kind": "Attribution", "version": 4, "fields": {"tokens": []}}', "has been changed"),
        ("[1]", "expected a mapping"),
        ("[" * 100_000, "nested at most"),
    ):
        save_file(tensors, path, {"normscope": metadata, "sha256": checksum(metadata, tensors)})
        with pytest.raises(InputError, match=message):
            normscope.load_attribution(path)
    with pytest.raises(InputError, match="expected a file, or nothing, got a folder"):
        normscope.attribute(model, PROMPT, normscope.NextToken()).save(tmp_path)


@pytest.mark.slow
def test_saved_results_that_are_damaged_or_forged_are_refused(model, tmp_path):
    """Every bit that is flipped, and every value of another kind, even under a digest that fits."""
    import json
    import random

    from safetensors import safe_open

    path, damaged = tmp_path / "whole", tmp_path / "damaged"
    normscope.attribute(model, PROMPT, normscope.Answer("onions", matrix=True), by=["layer"]).save(path)
    content, chance = path.read_bytes(), random.Random(0)
    for _ in range(100):
        place = chance.randrange(len(content))
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
        with pytest.raises(InputError):
            normscope.load_attribution(damaged)
    for length in (0, 7, 100, len(content) - 1):
        damaged.write_bytes(content[:length])
        with pytest.raises(InputError):
            normscope.load_attribution(damaged)
    with safe_open(path, "pt") as file:
        described = json.loads(file.metadata()["normscope"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    forged = [("fields", name, value) for name in described["fields"] for value in (5, "x", [1], {"a": []}, [[]], True)]
    forged += [
        ("tensors", name, array)
        for name in tensors
        for array in (torch.zeros(1), torch.zeros(1, 2, 3), torch.zeros(2, dtype=torch.int64))
    ]
    accepted = []
    for kind, name, value in forged:
        fields, arrays = dict(described["fields"]), dict(tensors)
        (fields if kind == "fields" else arrays)[name] = value
        text = json.dumps(described | {"fields": fields})
        save_file(arrays, damaged, {"normscope": text, "sha256": checksum(text, arrays)})
        try:
            found = normscope.load_attribution(damaged)
        except InputError:
            continue
        repr(found), found._repr_html_(), found.table
        accepted.append((name, value))
    # Values of the right kind: another text, another number, whether effects are direct.
    assert {name for name, _ in accepted} <= {"what", "bias", "remainder", "target", "error", "direct"}
    with pytest.raises(InputError, match="got a device or pipe"):
        normscope.load_attribution("/dev/zero")


@pytest.mark.slow
def test_figures_of_tokens_and_answers(model):
    answer = normscope.attribute(model, PROMPT, normscope.Answer(" onions the", matrix=True))
    coloured = answer.figure("tokens").description
    assert coloured.table["value"].tolist() == answer.scores.tolist()
    assert f"With the biases ({answer.bias:#.3g}), they add up to it." in coloured.caption
    assert coloured.caption.startswith("Logit of 'onions the': ")
    matrix = answer.figure().description
    shown = matrix.table.pivot(index="query", columns="key", values="value").to_numpy()
    np.testing.assert_allclose(shown, answer.matrix.to_numpy(), rtol=1e-6, atol=1e-7)  # maps hold float32
    both = normscope.attribute(model, PROMPT, [normscope.NextToken("film"), normscope.NextToken("onions")])
    drawn = both.figure().description
    assert drawn.table["text"].nunique() == 2
    assert drawn.table["value"].tolist() == [*both[0].scores, *both[1].scores]
    assert both.figure()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(
        InputError, match=r"expected the scores for each token of an answer; pass Answer\(…, matrix=True\)"
    ):
        both[0].figure("matrix")
    with pytest.raises(InputError, match="of='rows': expected one of tokens, heads, matrix"):
        answer.figure("rows")


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "target", [normscope.NextToken("film"), normscope.Answer(" film"), lambda hidden: hidden[-1, 0]]
)
def test_attention_weights_are_followed_where_that_is_asked_for(model, target):
    held = normscope.attribute(model, PROMPT, target)
    found = normscope.attribute(model, PROMPT, target, attention="through")
    assert found.target == pytest.approx(held.target, rel=1e-12)
    assert found.scores.sum() + found.bias + found.remainder == pytest.approx(found.target, rel=1e-9)
    assert abs(found.scores - held.scores).max() > 1e-3 * abs(held.scores).max()
    assert abs(found.remainder) > 1e-6


@pytest.mark.parametrize("options", [{"by": "layer"}, {"bias": "decompx"}])
def test_what_is_not_defined_through_attention_weights(model, options):
    with pytest.raises(InputError, match="not defined with attention=through; leave one of them out"):
        normscope.attribute(model, PROMPT, normscope.NextToken("film"), attention="through", **options)
