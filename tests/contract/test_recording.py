"""`normscope.record_attention`: rows of a generated answer are those of one full pass over it."""

import functools

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CLIPVisionConfig,
    DynamicCache,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import normscope
from normscope.errors import InputError
from normscope.models.load.loading import run_experts_in_float64
from normscope.models.load.wrapping import wrap_model
from tests.one_text import attention
from tests.tiny import DECODERS, FAMILY_CONFIGS, proved_to, tiny_model

PROMPT, NEW = [5, 9, 7, 30, 12, 9, 41], 6
REGIONS = {"first": slice(0, 2), "rest": slice(2, 7), "answer": "answer"}
OWN_CODE = {"bloom", "falcon", "gptj"}


@functools.cache
def generator(family, implementation="sdpa"):
    """A causal language model with random weights."""
    settings = dict(FAMILY_CONFIGS[family])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model = model.double().eval()
    run_experts_in_float64(model.base_model)
    if implementation != "sdpa":
        model.set_attn_implementation(implementation)
    return model


def generated(model, prompt=PROMPT, new=NEW, **options) -> list[int]:
    ids = torch.tensor([prompt])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return made[0].tolist()


def full_pass(model, ids, keys, **asked):
    """The same rows from one pass over the whole text."""
    regions = {name: slice(len(PROMPT), len(ids) - 1) if name == "answer" else part for name, part in keys.items()}
    rows = range(len(PROMPT) - 1, len(ids) - 1)
    return attention(wrap_model(model), ids[:-1], queries=rows, keys=regions, **asked)


@pytest.mark.spread(3)
@pytest.mark.kinds
@pytest.mark.parametrize("family", sorted(DECODERS - OWN_CODE))
def test_a_recording_is_one_full_pass(family):
    model = generator(family)
    plain = generated(model)
    with normscope.record_attention(model, keys=REGIONS) as recorded:
        ids = generated(model)
    assert ids == plain
    (values,) = recorded
    expected = full_pass(model, ids, REGIONS)
    assert values.axes["query"] == tuple(map(str, ids[len(PROMPT) - 1 : -1]))
    assert values.axes["key"] == ("first", "rest", "answer")
    assert values.positions == expected.positions
    close = max(1e-12, proved_to(wrap_model(model).model, wrap_model(model).layout))
    np.testing.assert_allclose(values.values, expected.values, rtol=0, atol=close)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("measure", "family"),
    [
        *(("norm", family) for family in ("gpt2", "gpt_oss", "granite")),
        *(("share", family) for family in ("gpt_oss", "mistral", "qwen3")),
        *(("score", family) for family in ("gemma2", "granite", "mistral")),
    ],
)
def test_what_is_carried_is_recorded_too(measure, family):
    model = generator(family)
    with normscope.record_attention(model, keys=REGIONS, measure=measure) as recorded:
        ids = generated(model)
    expected = full_pass(model, ids, REGIONS, measure=measure)
    np.testing.assert_allclose(recorded[0].values, expected.values, rtol=1e-5, atol=1e-6)
    assert recorded[0].measure == measure


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "options",
    [{"cache_implementation": "static"}, {"use_cache": False}, {"prefill_chunk_size": 3}, {"num_beams": 1}],
)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_any_cache(family, options):
    model = generator(family)
    with normscope.record_attention(model, keys=REGIONS, measure="norm") as recorded:
        ids = generated(model, **options)
    expected = full_pass(model, ids, REGIONS, measure="norm")
    np.testing.assert_allclose(recorded[0].values, expected.values, rtol=1e-5, atol=1e-6)


def test_eager_attention_is_recorded_beside_itself():
    model = generator("mistral", "eager")
    with normscope.record_attention(model, keys=REGIONS) as recorded:
        ids = generated(model)
    np.testing.assert_allclose(recorded[0].values, full_pass(model, ids, REGIONS).values, rtol=1e-5, atol=1e-6)
    assert "eager" not in ALL_ATTENTION_FUNCTIONS


def test_tokens_heads_layers_and_the_strongest():
    model = generator("llama")
    with normscope.record_attention(
        model, keys="tokens", layers=[2, 3], heads=[3, 1], reduce="mean", top=3
    ) as recorded:
        ids = generated(model)
    whole = attention(
        wrap_model(model), ids[:-1], queries=range(6, 12), layers=[2, 3], heads=[3, 1], reduce="mean", top=3
    )
    assert recorded[0].axes == whole.axes
    np.testing.assert_allclose(recorded[0].values, whole.values, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(recorded[0].strongest, whole.strongest)


def test_several_answers_and_a_loop_of_ones_own():
    model = generator("llama")
    with normscope.record_attention(model, keys="prompt") as recorded:
        first, second = generated(model), generated(model, [8, 3, 6])
        cache, ids, new = DynamicCache(), [*PROMPT], [*PROMPT]
        for _ in range(3):
            with torch.no_grad():
                logits = model(torch.tensor([new]), past_key_values=cache).logits
            new = [int(logits[0, -1].argmax())]
            ids += new
    assert [len(values.axes["query"]) for values in recorded] == [6, 6, 3]
    assert ids == first[: len(ids)]
    np.testing.assert_array_equal(recorded[2].values, recorded[0].values[:, :, :3])
    assert recorded[1].positions["query"] == tuple(range(2, len(second) - 1))


def test_a_cache_that_holds_the_beginning_of_the_text():
    model = generator("llama")
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.tensor([PROMPT[:4]]), past_key_values=cache)
    with normscope.record_attention(model, keys=REGIONS, measure="norm") as recorded:
        ids = generated(model, past_key_values=cache)
    expected = full_pass(model, ids, REGIONS, measure="norm")
    np.testing.assert_allclose(recorded[0].values, expected.values, rtol=0, atol=1e-6)


def test_the_model_is_left_as_it_was():
    model = generator("llama")
    before = dict(ALL_ATTENTION_FUNCTIONS)
    with pytest.raises(TypeError), normscope.record_attention(model, measure="share"):
        generated(model, num_beams="many")
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    assert "generate" not in vars(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def other_cache():
    other = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    ).double()
    cache = DynamicCache()
    other(torch.tensor([PROMPT[:4]]), past_key_values=cache)
    return cache


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        (
            REGIONS,
            {"num_beams": 2},
            "input_ids: expected one text at a time, got 2; generate one answer to one text",
        ),
        ([slice(0, 3), 2], {}, "keys: '0:3' and '7' overlap at token 2; expected regions that share no token"),
        (slice(3, 99), {}, "keys=3:99: expected tokens within a text of 7; choose a part of 0:7"),
        ([], {}, "keys: expected at least one token or region, got none"),
        ("images", {}, "keys='images': expected a text that contains image tokens"),
        (
            "prompt",
            {"past_key_values": other_cache},
            "2 layers with 2 heads and 4 tokens; pass a cache that this model has",
        ),
    ],
)
def test_bad_input_of_a_generation_is_one_line(keys, options, message):
    model = generator("llama")
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(InputError) as error, normscope.record_attention(model, keys=keys):
        generated(model, **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("model", "asked", "message"),
    [
        (
            lambda: torch.compile(generator("llama")),
            {},
            "model: expected a module that runs its own code, got a compiled one",
        ),
        (
            lambda: tiny_model(FAMILY_CONFIGS["bert"], torch.float64),
            {},
            "expected a causal language model, which can generate",
        ),
        (
            lambda: generator("bloom"),
            {},
            "model: bloom computes attention in its own code, which cannot be recorded",
        ),
        (lambda: generator("llama"), {"layers": [4]}, "layers: expected whole numbers from 1 to 3, got 4"),
        (
            lambda: generator("llama"),
            {"measure": "alpha"},
            "measure='alpha': expected one of weight, norm, share, score",
        ),
    ],
)
def test_a_model_that_cannot_be_recorded_is_refused(model, asked, message):
    with pytest.raises(InputError) as error, normscope.record_attention(model(), **asked):
        pass
    assert message in str(error.value)


@pytest.mark.slow
def test_what_new_tokens_receive_from_an_image():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**sizes, image_size=16, patch_size=8),
        text_config=LlamaConfig(**sizes, vocab_size=99),
        image_token_index=90,
        vision_feature_layer=-1,
    )
    model = LlavaForConditionalGeneration(config).eval()
    image = {"pixel_values": torch.randn(1, 3, 16, 16)}
    with normscope.record_attention(model, keys={"image": "images", "question": slice(5, 8)}) as recorded:
        ids = generated(model, [5, 90, 90, 90, 90, 7, 8, 9], **image)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = torch.stack(model(input_ids=torch.tensor([ids[:-1]]), **image, output_attentions=True).attentions)[
            :, 0
        ]
    expected = torch.stack([weights[:, :, 7:, 1:5].sum(-1), weights[:, :, 7:, 5:8].sum(-1)], dim=-1)
    np.testing.assert_allclose(recorded[0].values, expected.numpy(), atol=1e-6)
