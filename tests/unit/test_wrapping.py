"""A model in memory is observed exactly, and left as it was."""

import copy
import gc
import re
import weakref

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartForCausalLM,
    BitsAndBytesConfig,
    T5EncoderModel,
)

import normscope
from normscope.errors import InputError
from normscope.models.load import adapters
from tests.one_text import attribute, decompose
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model, token_batch

# peft uses a deprecated attribute of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

TEXT, PAIR = "The cat sat on the mat.", ("A dog barked.", "Nobody heard it, of course.")


def in_memory(kind, family, tokenizer, **settings):
    """A tiny model as its user has it: with a head, in training mode, with gradients, and everything random."""
    config = (FAMILY_CONFIGS | STACK_CONFIGS)[family] | {"vocab_size": len(tokenizer)} | settings
    torch.manual_seed(0)
    model = kind.from_config(AutoConfig.for_model(**config))
    for parameter in model.parameters():
        if parameter.requires_grad:  # Marian computes its positions
            nn.init.normal_(parameter, std=0.4)
    return model.train()


def same(left, right):
    """The same decomposition, bit for bit."""
    assert left.tokens == right.tokens
    assert left.maps.keys() == right.maps.keys()
    for name, values in left.maps.items():
        assert torch.equal(values, right.maps[name]), name
    assert torch.equal(left.ratios, right.ratios)


def record(model):
    """Everything about a model that a user could miss."""
    return {
        "weights": {name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
        "objects": [(name, id(parameter), parameter.data_ptr()) for name, parameter in model.named_parameters()],
        "gradients": [(name, parameter.requires_grad, parameter.grad) for name, parameter in model.named_parameters()],
        "modules": [(name, id(module), type(module), module.training) for name, module in model.named_modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [
            {
                key: list(value.items())
                for key, value in vars(module).items()
                if key.endswith("hooks") and isinstance(value, dict)
            }
            for module in model.modules()
        ],
        "configs": [
            (module.config.to_dict(), module.config._attn_implementation)
            for module in model.modules()
            if hasattr(module, "config")
        ],
        "generator": torch.get_rng_state().tolist(),
    }


def assert_same_record(before, after):
    for part in before:
        if part != "weights":
            assert before[part] == after[part], part
    assert before["weights"].keys() == after["weights"].keys()
    for name, tensor in before["weights"].items():
        assert torch.equal(tensor, after["weights"][name]), name


WITH_HEADS = {
    "bert": AutoModelForSequenceClassification,
    "albert": AutoModelForMaskedLM,
    "deberta-v2": AutoModelForMaskedLM,
    "modernbert": AutoModelForMaskedLM,
    "gpt2": AutoModelForCausalLM,
    "llama": AutoModelForCausalLM,
    "olmo2": AutoModel,
}
STACKS = [("t5", stack) for stack in ("encoder", "decoder", "cross")] + [("marian", "encoder"), ("bart", "cross")]


@pytest.mark.parametrize("model_type", WITH_HEADS)
@pytest.mark.spread(1)
def test_a_wrapped_model_is_the_one_that_is_loaded(model_type, tokenizer, tmp_path):
    model = in_memory(WITH_HEADS[model_type], model_type, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    before = record(model)
    wrapped = normscope.wrap(model, tokenizer)
    decomposition = decompose(wrapped, TEXT)
    assert_same_record(before, record(model))
    loaded = normscope.load(tmp_path, device="cpu")
    same(decomposition, decompose(loaded, TEXT))
    assert (wrapped.max_length, wrapped.causal, wrapped.layers) == (loaded.max_length, loaded.causal, loaded.layers)
    head, expected = wrapped.masked_language_head, loaded.masked_language_head
    assert (head is None) == (expected is None) == (WITH_HEADS[model_type] is not AutoModelForMaskedLM)
    if head is not None:
        inputs = token_batch(wrapped.model, (7, 4))
        assert torch.equal(head(**inputs).logits, expected(**inputs).logits)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "stack"), STACKS)
def test_every_stack_of_a_wrapped_encoder_decoder(model_type, stack, tokenizer, tmp_path):
    model = in_memory(AutoModelForSeq2SeqLM, model_type, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    text = TEXT if stack == "encoder" else PAIR
    before = record(model)
    wrapped = normscope.wrap(model, tokenizer, stack=stack)
    ours = [(block.weights.clone(), block.mixing.clone()) for block in normscope.observe(wrapped, text)]
    assert_same_record(before, record(model))
    loaded = normscope.load(tmp_path, stack=stack, device="cpu")
    theirs = [(block.weights, block.mixing) for block in normscope.observe(loaded, text)]
    assert len(ours) == len(theirs) == wrapped.layers
    assert all(
        torch.equal(a, b) for left, right in zip(ours, theirs, strict=True) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.slow
def test_a_model_in_the_middle_of_its_training(tokenizer):
    """Gradients and transformers' hooks are as they were; what training changes is observed without wrapping again."""
    model = in_memory(AutoModelForSequenceClassification, "bert", tokenizer, chunk_size_feed_forward=0)
    # transformers 5.22 or later warns of the old name.
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    model.enable_input_require_grads()
    inputs = dict(tokenizer(TEXT, return_tensors="pt"), labels=torch.tensor([1]))
    model(**inputs, output_hidden_states=True)  # transformers leaves its hooks behind

    def step():
        torch.manual_seed(1)
        model.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        return loss.item(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    loss, gradients = step()
    before = record(model)
    wrapped = normscope.wrap(model, tokenizer)
    first = decompose(wrapped, TEXT)
    assert_same_record(before, record(model))
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in wrapped.model.parameters())
    assert not any(module._forward_hooks or module.training for module in wrapped.model.modules())
    again, gradients_again = step()
    assert loss == again
    assert all(a is b or torch.equal(a, b) for a, b in zip(gradients, gradients_again, strict=True))
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    second = decompose(wrapped, TEXT)
    assert not torch.equal(first.maps["attn_n"], second.maps["attn_n"])
    same(second, decompose(normscope.wrap(model, tokenizer), TEXT))
    model.eval()
    same(second, decompose(wrapped, TEXT))


@pytest.mark.slow
def test_a_chunked_model_takes_texts_of_any_length(tokenizer):
    model = in_memory(AutoModel, "bert", tokenizer, chunk_size_feed_forward=4)
    whole = copy.deepcopy(model)
    for module in whole.modules():
        if hasattr(module, "chunk_size_feed_forward"):
            module.chunk_size_feed_forward = 0
    wrapped = normscope.wrap(model, tokenizer)
    same(decompose(wrapped, TEXT), decompose(normscope.wrap(whole, tokenizer), TEXT))
    assert model.encoder.layer[0].chunk_size_feed_forward == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.spread(1)
def test_any_dtype_and_attention_implementation(tokenizer, dtype, implementation):
    model = in_memory(AutoModel, "bert", tokenizer).to(dtype)
    model.set_attn_implementation(implementation)
    wrapped = normscope.wrap(model, tokenizer)
    assert wrapped.dtype == dtype
    assert model.config._attn_implementation == implementation
    decompose(wrapped, TEXT)
    assert model.config._attn_implementation == implementation


@pytest.mark.slow
def test_a_model_that_was_moved_or_cast_must_be_wrapped_again(tokenizer):
    model = in_memory(AutoModel, "bert", tokenizer)
    wrapped = normscope.wrap(model, tokenizer)
    decompose(wrapped, TEXT)
    model.double()
    with pytest.raises(InputError, match="has changed since it was wrapped.*wrap it again"):
        decompose(wrapped, TEXT)
    with pytest.raises(InputError, match="has changed since it was wrapped"):
        next(normscope.observe(wrapped, TEXT))
    assert normscope.wrap(model, tokenizer).dtype == torch.float64
    wrapped = normscope.wrap(model, tokenizer)
    model.encoder.layer[1].attention.self.query.weight = nn.Parameter(torch.zeros(24, 24).double())
    with pytest.raises(InputError, match="has changed since it was wrapped"):
        decompose(wrapped, TEXT)
    wrapped = normscope.wrap(model, tokenizer)
    del model  # nobody can change it any more
    decompose(wrapped, TEXT)


# Adapters.


def adapted(tokenizer, **settings):
    model = in_memory(AutoModelForSequenceClassification, "bert", tokenizer)
    config = LoraConfig(r=2, task_type="SEQ_CLS", **{"target_modules": ["query", "value", "output.dense"]} | settings)
    peft = get_peft_model(model, config)
    for name, parameter in peft.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, std=0.3)
    return peft.train()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"modules_to_save": ["word_embeddings"]},
        {"target_modules": ["word_embeddings", "query"], "lora_dropout": 0.5},
    ],
    ids=["lora", "dora", "a saved module", "embeddings"],
)
@pytest.mark.slow
def test_active_adapters_are_observed_merged(tokenizer, settings):
    peft = adapted(tokenizer, **settings)
    before = record(peft)
    ours = decompose(normscope.wrap(peft, tokenizer), TEXT)
    assert_same_record(before, record(peft))
    same(ours, decompose(normscope.wrap(peft.get_base_model(), tokenizer), TEXT))
    merged = copy.deepcopy(peft).merge_and_unload()
    same(ours, decompose(normscope.wrap(merged, tokenizer), TEXT))
    with peft.disable_adapter():
        plain = decompose(normscope.wrap(peft, tokenizer), TEXT)
    assert not torch.allclose(plain.maps["attn_n"], ours.maps["attn_n"])
    untouched = in_memory(AutoModelForSequenceClassification, "bert", tokenizer)
    same(plain, decompose(normscope.wrap(untouched, tokenizer), TEXT))


@pytest.mark.slow
def test_merged_adapters_stay_merged(tokenizer):
    peft = adapted(tokenizer)
    expected = decompose(normscope.wrap(peft, tokenizer), TEXT)
    peft.merge_adapter()
    before = record(peft)
    same(decompose(normscope.wrap(peft, tokenizer), TEXT), expected)
    assert_same_record(before, record(peft))


@pytest.mark.slow
def test_an_adapter_that_was_trained_or_switched_off_must_be_wrapped_again(tokenizer):
    peft = adapted(tokenizer)
    wrapped = normscope.wrap(peft, tokenizer)
    decompose(wrapped, TEXT)
    with peft.disable_adapter(), pytest.raises(InputError, match="wrap it again"):
        decompose(wrapped, TEXT)
    decompose(wrapped, TEXT)
    with torch.no_grad():
        next(parameter for name, parameter in peft.named_parameters() if "lora_B" in name).mul_(2)
    with pytest.raises(InputError, match="wrap it again"):
        decompose(wrapped, TEXT)


def test_adapters_that_cannot_be_merged_are_refused(tokenizer, monkeypatch):
    model = in_memory(AutoModelForSequenceClassification, "bert", tokenizer)
    prompt = get_peft_model(model, PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))
    with pytest.raises(InputError, match=r"such as LoRA, got PROMPT_TUNING, which adds to every input"):
        normscope.wrap(prompt, tokenizer)
    peft = adapted(tokenizer)
    true = adapters._merged

    def without_adapter(layer):  # a merge that loses LoRA's part
        return layer.get_base_layer() if hasattr(layer, "base_layer") else true(layer)

    monkeypatch.setattr(adapters, "_merged", without_adapter)
    with pytest.raises(InputError, match="with its adapters merged into its weights, its output differs"):
        normscope.wrap(peft, tokenizer)


# What is refused.


def refused(message, model, tokenizer, **options):
    with pytest.raises(InputError, match=message) as caught:
        normscope.wrap(model, tokenizer, **options)
    assert "\n" not in str(caught.value)
    assert not re.search(r"\b(model|device|dataset)\.(name|dtype|stack|tokenizer)\b", str(caught.value))


@pytest.mark.parametrize("function", ["observe", "decompose", "attribute", "attribution_maps", "similarity"])
def test_a_model_that_is_not_wrapped(function):
    given = {"similarity": ("a", "b"), "attribute": ("a", lambda hidden: hidden[0, 0])}.get(function, ("a",))
    with pytest.raises(
        InputError, match=r"model: expected a model from .* normscope.wrap\(model, tokenizer\), got Linear"
    ):
        getattr(normscope, function)(nn.Linear(2, 2), *given)


def test_tokenizers_of_another_model(tokenizer):
    model = in_memory(AutoModel, "bert", tokenizer, vocab_size=99)
    refused("has 30522 tokens, but the model has only 99 embeddings; set tokenizer to", model, tokenizer)


def test_modules_that_compute_something_else(tokenizer):
    model = in_memory(AutoModel, "bert", tokenizer)
    handle = model.encoder.layer[1].register_forward_hook(lambda _module, _args, output: output)
    refused(r"model: encoder\.layer\.1 has a forward hook, .*lambda.*; remove it first", model, tokenizer)
    handle.remove()
    model.encoder.layer[0].forward = model.encoder.layer[0].forward
    refused(r"model: encoder\.layer\.0 has a custom forward", model, tokenizer)
    del model.encoder.layer[0].forward
    model.requires_grad_(False)
    model.encoder.layer[0].attention.output.dense.weight.data = torch.zeros(24, 24, dtype=torch.int8)
    refused("got int8 for encoder.layer.0.attention.output.dense.weight; load the model without", model, tokenizer)
    model = in_memory(AutoModel, "bert", tokenizer)
    model.pooler.dense.weight = nn.Parameter(TwoTensor(torch.ones(24, 24), torch.ones(24, 24)))
    refused("got TwoTensor for pooler.dense.weight; load the model without quantisation", model, tokenizer)
    model.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    refused("quantization_config in the model's config: .*got bitsandbytes; set model to a model", model, tokenizer)
    model = in_memory(AutoModel, "bert", tokenizer)
    model.encoder.layer[2].to("meta")
    refused("expected all weights on one device, got cpu, meta", model, tokenizer)
    model = in_memory(AutoModel, "bert", tokenizer)
    model.encoder.layer[2].remembered = model.encoder.layer[2].attention.output.dense.weight * 2  # no leaf of a graph
    refused("its modules cannot be copied", model, tokenizer)
    model = in_memory(AutoModel, "bert", tokenizer)
    with torch.no_grad():
        model.encoder.layer[0].attention.output.dense.weight[0, 0] = torch.nan
    refused("NaN or infinity in the weight encoder.layer.0.attention.output.dense.weight", model, tokenizer)


@pytest.mark.slow
def test_stacks_that_a_model_does_not_have(tokenizer):
    bert = in_memory(AutoModel, "bert", tokenizer)
    refused("stack=cross: bert has only one stack", bert, tokenizer, stack="cross")
    refused("stack='middle': expected one of encoder, decoder, cross", bert, tokenizer, stack="middle")
    encoder = T5EncoderModel(AutoConfig.for_model(**STACK_CONFIGS["t5"] | {"vocab_size": len(tokenizer)}))
    assert normscope.wrap(encoder, tokenizer).layers == 3
    refused("stack=cross: t5 has only one stack", encoder, tokenizer, stack="cross")
    config = AutoConfig.for_model(**STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)})
    whole = AutoModel.from_config(copy.deepcopy(config))
    # A decoder with a head of its own is a model with one stack: its config says so once it is built.
    causal = BartForCausalLM(config)
    assert normscope.wrap(causal, tokenizer).causal
    refused("stack=cross: bart has only one stack", causal, tokenizer, stack="cross")
    refused("got only a part of one, BartDecoder", whole.decoder, tokenizer, stack="decoder")
    refused("got only a decoder, BartDecoder", whole.decoder, tokenizer)
    assert normscope.wrap(whole.encoder, tokenizer).layers == 3


@pytest.mark.parametrize("bidirectional", [True, False])
def test_gemma_that_sees_later_tokens(tokenizer, bidirectional):
    """EmbeddingGemma, whose masks show later tokens whether there is padding or not."""
    changes = {"use_bidirectional_attention": bidirectional, "vocab_size": len(tokenizer)}
    model = tiny_model(FAMILY_CONFIGS["gemma3_text"] | changes, torch.float32)
    assert normscope.wrap(model, tokenizer).causal is not bidirectional


# Options of `load`.


@pytest.mark.slow
def test_another_tokenizer_by_name_or_in_memory(saved_model, tokenizer, tmp_path):
    in_memory(AutoModel, "bert", tokenizer).save_pretrained(tmp_path)
    expected = decompose(normscope.load(tmp_path, tokenizer=saved_model, device="cpu"), TEXT)
    same(decompose(normscope.load(tmp_path, tokenizer=tokenizer, device="cpu"), TEXT), expected)
    with pytest.raises(InputError, match=r"^tokenizer=nowhere/none: "):
        normscope.load(tmp_path, tokenizer="nowhere/none")


@pytest.mark.slow
def test_random_weights_leave_the_generator_as_it_was(saved_model):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = (normscope.load(saved_model, random_init=True, seed=seed, device="cpu") for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [model.model.encoder.layer[0].output.dense.weight for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.drawn == again.drawn != other.drawn


@pytest.mark.slow
def test_a_device_map_must_put_the_model_on_one_device(saved_model):
    expected = decompose(normscope.load(saved_model, device="cpu"), TEXT)
    for device_map in ("cpu", {"": "cpu"}):
        same(decompose(normscope.load(saved_model, device_map=device_map), TEXT), expected)
    with pytest.raises(InputError, match="expected all weights on one device, got offloaded; set device=cpu"):
        normscope.load(saved_model, device_map={"embeddings": "cpu", "encoder": "meta", "pooler": "cpu"})
    with pytest.raises(InputError, match=r"device_map='cpu': cannot be combined with device='cpu'; leave one out"):
        normscope.load(saved_model, device_map="cpu", device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "nowhere/none"}, r"^name=nowhere/none: "),
        ({"stack": "cross"}, r"^stack=cross: bert has only one stack"),
        ({"dtype": "float8"}, r"^dtype='float8': expected one of "),
        ({"device": "tpu"}, r"^device=tpu: expected auto, cpu, "),
        ({"source_language": "de"}, r"^source_language=de: the model's tokenizer has no languages"),
    ],
)
def test_errors_speak_of_arguments(saved_model, options, message):
    with pytest.raises(InputError, match=message) as caught:
        normscope.load(**{"name": saved_model} | options)
    assert not re.search(r"\b(model|device|dataset)\.(name|dtype|stack|tokenizer)\b", str(caught.value))


def test_nothing_keeps_a_model_that_is_no_longer_used():
    """Neither the pass that was recorded of it, nor what was computed with it."""
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float32)
    wrapped = normscope.wrap(model)
    decompose(wrapped, [5, 6, 7])
    attribute(wrapped, [5, 6, 7], lambda hidden: hidden[0, 0])
    kept = [weakref.ref(model), weakref.ref(wrapped.model)]
    del model, wrapped
    gc.collect()
    assert [each() for each in kept] == [None, None]
