"""Several texts, several targets, conversations, files and figures of attributions."""

import numpy as np
import pandas as pd
import pytest

import normscope
from normscope.errors import InputError
from normscope.rounding import number
from tests.contract.test_answers import PROMPT, causal
from tests.one_text import attribute, decompose

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
    together = attribute(model, PROMPT, targets, bias=bias, by=["layer", "head"], level="word")
    for target, found in zip(targets, together, strict=True):
        alone = attribute(model, PROMPT, target, bias=bias, by=["layer", "head"], level="word")
        assert found.what == alone.what
        for part in ("scores", "bias", "remainder", "target"):
            np.testing.assert_allclose(getattr(found, part), getattr(alone, part), **EXACT)
        pd.testing.assert_frame_equal(found.effects, alone.effects)
    assert together[0].result.table["number"].unique().tolist() == [0, 1, 2]


@pytest.mark.slow
def test_several_texts(model):
    texts = [PROMPT, "onions"]
    found = attribute(model, texts, normscope.NextToken("film"))
    for text, each in zip(texts, found, strict=True):
        np.testing.assert_allclose(each.scores, attribute(model, text, normscope.NextToken("film")).scores)
    result = found[0].result
    assert [str(each) for each in result.sentences] == [each.sentence for each in found]
    for each, said in zip(found, result.sentences, strict=True):
        assert f"tokens {number(each.scores.sum())} + biases {number(each.bias)}" in said


@pytest.mark.slow
def test_the_roles_of_a_conversation_are_its_spans(chat):
    messages = [{"role": "system", "content": "the film"}, {"role": "user", "content": "the lady cracked eggs"}]
    found = attribute(chat, messages, normscope.NextToken("film"))
    written = "<system> the film <user> the lady cracked eggs <assistant> "
    ids = chat.tokenizer(written, add_special_tokens=False)
    plain = attribute(chat, ids, normscope.NextToken("film"))
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
        attribute(chat, messages, normscope.NextToken(), spans={"a": (0, 3)})
    model.tokenizer.chat_template = None
    with pytest.raises(InputError, match="messages: the tokenizer of tiny has no chat template"):
        attribute(model, messages, normscope.NextToken())


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
        attribute(model, text, target, **others)


@pytest.mark.spread(1)
@pytest.mark.parametrize("by", [["layer", "head", "token"], ["layer"], None])
def test_what_is_saved_is_read_back_exactly(model, tmp_path, by):
    answer = normscope.Answer("onions the", matrix=True)
    found = normscope.attribute(model, PROMPT, answer, spans={"a": (0, 8)}, by=by)
    maps = normscope.attribution_maps(model, PROMPT, level="word")
    for place, result in enumerate((found, maps)):
        result.save(tmp_path / str(place))
        read = normscope.read(tmp_path / str(place))
        assert repr(read) == repr(result)
        assert read.metrics == result.metrics
        for name, rows in result.tables.items():
            pd.testing.assert_frame_equal(read.tables[name], rows, check_dtype=False)
        for one, other in zip(read.maps, result.maps, strict=True):
            for name, values in other.maps.items():
                np.testing.assert_array_equal(one.maps[name], values, strict=True)
        assert normscope.page(read) == normscope.page(result)


@pytest.mark.slow
def test_figures_of_tokens_and_answers(model):
    answer = attribute(model, PROMPT, normscope.Answer(" onions the", matrix=True))
    coloured = answer.result.figure("tokens").description
    assert coloured.table["value"].tolist() == answer.scores.tolist()
    assert f"With the biases ({answer.bias:#.3g}), they add up to it." in coloured.caption
    assert coloured.caption.startswith("Logit of 'onions the': ")
    matrix = answer.result.figure().description
    shown = matrix.table.pivot(index=matrix.row, columns=matrix.column, values="value").to_numpy()
    np.testing.assert_array_equal(shown, answer.matrix.to_numpy())
    both = attribute(model, PROMPT, [normscope.NextToken("film"), normscope.NextToken("onions")])
    drawn = both[0].result.figure().description
    assert drawn.table["text"].nunique() == 2
    assert drawn.table["value"].tolist() == [*both[0].scores, *both[1].scores]
    assert both[0].result.figure()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="figure: expected one of matrix, tokens, got 'rows'"):
        answer.result.figure("rows")


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "target", [normscope.NextToken("film"), normscope.Answer(" film"), lambda hidden: hidden[-1, 0]]
)
def test_attention_weights_are_followed_where_that_is_asked_for(model, target):
    held = attribute(model, PROMPT, target)
    found = attribute(model, PROMPT, target, attention="through")
    assert found.target == pytest.approx(held.target, rel=1e-12)
    assert found.scores.sum() + found.bias + found.remainder == pytest.approx(found.target, rel=1e-9)
    assert abs(found.scores - held.scores).max() > 1e-3 * abs(held.scores).max()
    assert abs(found.remainder) > 1e-6


@pytest.mark.parametrize("options", [{"by": "layer"}, {"bias": "decompx"}])
def test_what_is_not_defined_through_attention_weights(model, options):
    with pytest.raises(InputError, match="not defined with attention=through; leave one of them out"):
        attribute(model, PROMPT, normscope.NextToken("film"), attention="through", **options)
