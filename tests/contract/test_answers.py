"""Whole answers: sums over their tokens against single targets and the untouched model, in float64 on tiny random models."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BatchEncoding

import normscope
from normscope.api.arguments import single_text
from normscope.errors import InputError
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import run_experts_in_float64
from normscope.models.load.task_heads import Head
from tests.contract.test_attribution_targets import with_head
from tests.one_text import attribute
from tests.tiny import facts_for

PROMPT = "the lady cracked three eggs"
ANSWER = " onions the film"
EXACT = {"rtol": 0, "atol": 1e-10}


def causal(model_type, tokenizer):
    head = with_head(AutoModelForCausalLM, model_type, vocab_size=len(tokenizer))
    run_experts_in_float64(head)
    facts = facts_for(model_type, config=head.config)
    return LoadedModel(
        head.base_model, tokenizer, facts, "tiny", None, 30,
        load_head=lambda kind: head if kind is Head.NEXT_TOKEN else None,
    )  # fmt: skip


@pytest.fixture
def model(tokenizer):
    return causal("llama", tokenizer)


def ids_of(model, answer=ANSWER):
    """Those of the text and the answer together, before the [SEP] behind them."""
    prompt = model.tokenizer(PROMPT)["input_ids"][:-1]
    return prompt, model.tokenizer(PROMPT + answer)["input_ids"][len(prompt) : -1]


def encoding_of(model, ids):
    """Tokens with the segment ids that the tokenizer gives."""
    segments = {"token_type_ids": [[0] * len(ids)]} if model.takes_segments else {}
    return BatchEncoding({"input_ids": [ids], "attention_mask": [[1] * len(ids)], **segments})


def logits_of(model, ids):
    inputs = single_text(model, encoding_of(model, ids), "a test").model_inputs()
    with torch.inference_mode():
        return model.next_token_head(**inputs).logits[0]


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "gpt_neox", "opt", "qwen3", "mixtral", "qwen2_moe"])
def test_an_answer_is_the_sum_of_its_tokens(model_type, tokenizer):
    """One target at a time, each after the prompt and the answer so far, gives the rows of the matrix and their sum."""
    model = causal(model_type, tokenizer)
    prompt, answer = ids_of(model)
    whole = attribute(model, PROMPT, normscope.Answer(ANSWER))
    each = attribute(model, PROMPT, normscope.Answer(answer, matrix=True))
    assert whole.tokens == tuple(tokenizer.convert_ids_to_tokens([*prompt, *answer[:-1]]))
    assert dict(whole.sides) == {"prompt": len(prompt), "answer": len(answer) - 1}
    text = encoding_of(model, [*prompt, *answer[:-1]])
    logits = logits_of(model, [*prompt, *answer[:-1]])
    scores, values = [], []
    for number, token in enumerate(answer):
        position = len(prompt) - 1 + number
        one = attribute(model, text, normscope.NextToken(token, position=position))
        scores.append(one.scores)
        values.append(float(logits[position, token]))
        assert one.target == pytest.approx(values[-1], rel=1e-5)  # Qwen's norms round to float32
    np.testing.assert_allclose(each.matrix.to_numpy(), scores, **EXACT)
    for found in (whole, each):
        np.testing.assert_allclose(found.scores, np.sum(scores, axis=0), **EXACT)
        assert found.target == pytest.approx(sum(values), rel=1e-5)
        assert abs(found.remainder) < 1e-10
        assert found.error < 1e-12
    assert list(each.matrix.index) == tokenizer.convert_ids_to_tokens(answer)
    assert list(each.table["side"]) == ["prompt"] * len(prompt) + ["answer"] * (len(answer) - 1)


def test_logits_of_the_prompt_are_not_computed(model):
    """They would be the largest tensors of a pass."""
    rows = []
    hook = model.next_token_head.lm_head.register_forward_pre_hook(
        lambda _module, given: rows.append(given[0].shape[1])
    )
    attribute(model, PROMPT, normscope.Answer(ANSWER))
    hook.remove()
    assert {*rows} == {len(ids_of(model)[1])}


def test_what_a_log_probability_leaves_over_is_the_entropy(model):
    prompt, answer = ids_of(model)
    found = attribute(model, PROMPT, normscope.Answer(ANSWER, measure="log_probability"))
    logits = logits_of(model, [*prompt, *answer[:-1]])[len(prompt) - 1 :]
    logarithms = logits.log_softmax(dim=-1)
    assert found.target == pytest.approx(float(logarithms.gather(1, torch.tensor(answer)[:, None]).sum()))
    assert found.remainder == pytest.approx(float((logarithms.exp() * logarithms).sum()))
    means = (logarithms.exp() * logits).sum(dim=-1)
    rest = float((logits.gather(1, torch.tensor(answer)[:, None])[:, 0] - means).sum())
    assert found.scores.sum() + found.bias == pytest.approx(rest)
    assert "minus the entropy" in found.sentence


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["bloom", "gemma2", "gpt2", "llama", "mixtral", "opt"])
def test_the_models_own_answer_is_its_most_likely_continuation(model_type, tokenizer):
    """Read token by token with the keys and values of those before, or as a whole."""
    model = causal(model_type, tokenizer)
    lengths = []
    hook = model.next_token_head.register_forward_pre_hook(
        lambda _module, _args, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    found = attribute(model, PROMPT, normscope.Answer(tokens=4))
    hook.remove()
    ids, answer = list(ids_of(model)[0]), []
    assert lengths[:4] == [len(ids), 1, 1, 1]
    for _ in range(4):
        answer.append(int(logits_of(model, ids)[-1].argmax()))
        ids.append(answer[-1])
    given = attribute(model, PROMPT, normscope.Answer(answer))
    assert found.tokens == given.tokens
    assert found.target == pytest.approx(given.target)


def test_an_answer_ends_where_the_text_does(model):
    ids, answer = list(ids_of(model)[0]), []
    for _ in range(2):
        answer.append(int(logits_of(model, ids)[-1].argmax()))
        ids.append(answer[-1])
    model.next_token_head.generation_config.eos_token_id = answer[1]
    end = answer.index(answer[1])  # the answer may have begun with this token
    ended = attribute(model, PROMPT, normscope.Answer(tokens=4))
    assert ended.sides["answer"] == end
    long = attribute(model, PROMPT, normscope.Answer(answer[:1] * 20))
    assert len(long.tokens) <= model.max_length


def test_why_this_and_not_that(model):
    """Differences of targets are differences of everything that is published about them."""
    this, that = (attribute(model, PROMPT, normscope.NextToken(token)) for token in ("film", "onions"))
    found = attribute(model, PROMPT, normscope.NextToken("film"), against="onions")
    np.testing.assert_allclose(found.scores, this.scores - that.scores, **EXACT)
    assert found.target == pytest.approx(this.target - that.target)
    assert found.what == "logit of 'film' minus that of 'onions' as the next token"
    answers = (" onions film", " the lady film")
    this, that = (attribute(model, PROMPT, normscope.Answer(answer)) for answer in answers)
    found = attribute(model, PROMPT, normscope.Answer(answers[0]), against=answers[1])
    length = this.sides["prompt"]
    assert dict(found.sides) == {"prompt": length, "answer": 1, "against": 2}
    expected = [*(this.scores[:length] - that.scores[:length]), *this.scores[length:], *-that.scores[length:]]
    np.testing.assert_allclose(found.scores, expected, **EXACT)
    assert found.target == pytest.approx(this.target - that.target)
    assert found.error < 1e-12


@pytest.mark.slow
def test_spans_add_up_their_tokens(model):
    spans = {"eggs": (23, 27), "lady": (4, 16)}  # the lady cracked three eggs
    found = attribute(model, PROMPT, normscope.Answer(ANSWER), spans=spans)
    words = ["rest", "rest", "lady", "lady", "rest", "eggs"]
    assert found.tokens[: len(words)] == ("[CLS]", "the", "lady", "cracked", "three", "eggs")
    assert list(found.spans) == ["lady", "eggs", "rest"]
    for name, value in found.spans.items():
        members = [at for at, word in enumerate(words) if word == name]
        assert value == pytest.approx(found.scores[members].sum())
    one = attribute(model, PROMPT, normscope.NextToken("film"), spans=spans)
    assert sum(one.spans.values()) == pytest.approx(one.scores.sum())
    assert "by span: lady" in one.sentence
    by_word = attribute(model, PROMPT, normscope.NextToken("film"), spans=spans, level="word")
    assert by_word.spans == pytest.approx(one.spans)


@pytest.mark.parametrize("target", [normscope.NextToken("film"), normscope.Answer(" the film")])
def test_sentences_are_spans_even_if_one_repeats_another(model, target):
    text, cracked = "The lady cracked. The lady cracked. The film.", "The lady cracked."
    found = attribute(model, text, target, spans="sentences")
    places = {f"1. {cracked}": (0, 17), f"2. {cracked}": (18, 35), "3. The film.": (36, 45)}
    assert found.spans == attribute(model, text, target, spans=places).spans
    assert list(found.spans) == [*places, "rest"]
    with pytest.raises(InputError, match="^spans='sentences': expected a text given as characters, not as token ids"):
        attribute(model, [3, 4], target, spans="sentences")
    with pytest.raises(InputError, match="^spans: expected 'sentences', or a dict"):
        attribute(model, text, target, spans="words")


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("target", "others", "message"),
    [
        (normscope.Answer(""), {}, "answer: expected at least one token, got none"),
        (normscope.Answer([3, 10**6]), {}, "answer: expected token ids from 0 to"),
        (normscope.Answer(tokens=0), {}, "tokens=0: expected at least 1"),
        (normscope.Answer([5] * 40), {}, "the text \\(6 tokens\\) and the answer \\(40\\) exceed 30 tokens"),
        (normscope.Answer("film"), {"against": 3}, "against=3: expected another answer"),
        (normscope.NextToken("film"), {"against": [3]}, "expected a class or a token"),
        (
            normscope.NextToken("film"),
            {"against": "extraordinary onions"},
            "against='extraordinary onions': expected a single",
        ),
        (normscope.NextToken("film", position=7), {}, "expected a position from 0 to 6"),
        (lambda hidden: hidden.sum(), {"against": "film"}, "against='film': expected a target that is a class"),
        (
            normscope.Answer("film"),
            {"spans": {"a": (0, 99)}},
            "spans: expected 'a' to lie between 0 and 27, got 0 to 99",
        ),
        (
            normscope.Answer("film"),
            {"spans": {"a": (0, 9), "b": (4, 12)}},
            "'a' and 'b' overlap at token 2; expected regions",
        ),
        (normscope.Answer("film"), {"spans": {"a": (1, 2)}}, "no token has at least half of its characters in 'a'"),
        (normscope.Answer("film"), {"spans": {"rest": (0, 3)}}, "'rest' is the name for tokens outside"),
    ],
)
def test_invalid_answers_and_spans_are_refused(model, target, others, message):
    with pytest.raises(InputError, match=message):
        attribute(model, PROMPT, target, **others)
