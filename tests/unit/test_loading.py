"""A loaded model is exactly what its files describe; anything else is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from normscope.errors import InputError
from normscope.models.load.loading import load
from normscope.models.load.tokenizer_loading import check_vocabulary
from normscope.models.options import DeviceOptions, DType, ModelOptions, ModelStack
from normscope.models.prove.verification import verify
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, facts_for, proved_to, saved_config, tiny_model, token_batch

EXACTLY = DeviceOptions(name="cpu", dtype=DType.float64)


@pytest.fixture
def folder(saved_model, tmp_path) -> Path:
    """A model of three layers and its tokenizer, for tests to damage."""
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


@pytest.fixture
def from_config(minilm_folder, tmp_path):
    """Options of a model of a family with random weights and MiniLM's tokenizer."""

    def options(family: str, stack: str | None = None, **changes: Any) -> ModelOptions:
        config = (FAMILY_CONFIGS | STACK_CONFIGS)[family] | {"vocab_size": 30522} | changes
        folder = saved_config(config, tmp_path / "config")
        chosen = None if stack is None else ModelStack(stack)
        return ModelOptions(name=str(folder), random_init=True, tokenizer=str(minilm_folder), stack=chosen, seed=0)

    return options


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, changes: Any) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    changes(weights)
    save_file(weights, path, metadata={"format": "pt"})


def assert_refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(ModelOptions(name=str(folder), seed=0, **options), DeviceOptions(name="cpu"))
    assert "\n" not in str(caught.value)


# Weights.


def test_fewer_layers_in_the_config_than_in_the_weights(folder):
    change_config(folder, num_hidden_layers=2)
    assert_refused(
        folder,
        r"16 tensors that the model does not use, for example encoder\.layer\.2\.attention\.output\.LayerNorm\.bias",
    )


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "extra", ["encoder.layer.0.attention.self.gate", "bert.encoder.layer.0.extra.weight", "embeddings.b"]
)
def test_extra_tensors_of_a_block(folder, extra):
    change_weights(folder, lambda weights: weights.update({extra: torch.ones(2)}))
    assert_refused(folder, rf"1 tensors that the model does not use, for example {extra.replace('bert.', '(bert.)?')}")


def test_weights_of_another_family(folder):
    change_config(folder, model_type="roberta")
    assert_refused(folder, "model_type roberta and architectures BertModel, of the family bert")
    change_config(folder, model_type="roberta", architectures=None)
    prefixed = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(prefixed, folder / "model.safetensors", metadata={"format": "pt"})
    assert_refused(folder, "its weights lack .* of the model's tensors")


WRAPPERS = {
    "_orig_mod.": "_orig_mod. before or in the model's own names, which torch.compile adds",
    "module.": "module. before or in the model's own names, which DataParallel or DistributedDataParallel adds",
    "module._orig_mod.": "module._orig_mod. before or in the model's own names",
    "_forward_module.": "_forward_module. before or in the model's own names, which Lightning adds",
    "model.": r"its own have model\. before these names",
    "encoder.wrapped.": r"its own have encoder\.wrapped\. before these names",
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("prefix", WRAPPERS)
def test_what_a_wrapper_puts_before_names_is_named(prefix, folder):
    def rename(weights):
        for key in [*weights]:
            weights[prefix + key] = weights.pop(key)

    change_weights(folder, rename)
    assert_refused(folder, WRAPPERS[prefix])


def test_what_wrappers_put_into_names_is_named(folder):
    """Fully sharded models have a wrapper around every layer."""

    def rename(weights):
        for key in [*weights]:
            name = f"_fsdp_wrapped_module.{key}".replace("attention.", "_fsdp_wrapped_module.attention.", 1)
            weights[name] = weights.pop(key)

    change_weights(folder, rename)
    assert_refused(
        folder, "_fsdp_wrapped_module[.] before or in .*, which FullyShardedDataParallel adds; save the model"
    )


@pytest.mark.spread(1)
@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
@pytest.mark.parametrize("kind", ["flash_attention_2", "flash_attention_3", "kernels-community/flash-attn"])
def test_the_attention_that_a_config_asks_for_need_not_be_installed(key, kind, folder):
    """Our own attention runs."""
    inputs = token_batch(tiny_model(FAMILY_CONFIGS["bert"], torch.float32), (7,))
    expected = load(ModelOptions(name=str(folder), seed=0), EXACTLY).model(**inputs).last_hidden_state
    change_config(folder, **{key: kind})
    loaded = load(ModelOptions(name=str(folder), seed=0), EXACTLY)
    assert torch.equal(loaded.model(**inputs).last_hidden_state, expected)
    assert verify(loaded.model, loaded.facts, "flash").error < 1e-12


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.complex64, "C64"), (torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.int64, "I64")],
)
def test_weights_of_unsupported_dtypes(folder, dtype, name):
    key = "encoder.layer.1.attention.self.query.weight"
    change_weights(folder, lambda weights: weights.update({key: weights[key].to(dtype)}))
    assert_refused(folder, rf"got {name} for {key.replace('.', '[.]')} in model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: torch.ones(2, 3), r"has the shape \(2, 3\), but its config.json describes \(24, 24\)"),
        (lambda weight: weight.fill_(float("nan")), r"^model.name=.*: NaN or infinity in the weight "),
    ],
)
def test_damaged_weights(folder, damage, message):
    key = "encoder.layer.1.attention.self.key.weight"
    change_weights(folder, lambda weights: weights.update({key: damage(weights[key])}))
    assert_refused(folder, message)
    assert_refused(folder, f"the weight {key}")


def test_pickled_weights_need_consent_and_a_supported_dtype(folder):
    weights = load_file(folder / "model.safetensors")
    key = "encoder.layer.1.attention.self.query.weight"
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert_refused(folder, "model.allow_pickle=true")
    load(ModelOptions(name=str(folder), allow_pickle=True, seed=0), DeviceOptions(name="cpu"))
    torch.save(weights | {key: weights[key].to(torch.int8)}, folder / "pytorch_model.bin")
    assert_refused(folder, rf"got int8 for {key} in pytorch_model.bin", allow_pickle=True)


def test_quantised_checkpoints(folder):
    change_config(folder, quantization_config={"quant_method": "fp8"})
    assert_refused(folder, "expected weights that are not quantised, got fp8; set model.name to a model in float32")
    change_config(folder, quantization_config={"load_in_4bit": True})
    assert_refused(folder, "expected weights that are not quantised, got quantised ones; set model.name")
    random = load(ModelOptions(name=str(folder), random_init=True, seed=0), DeviceOptions(name="cpu"))
    assert random.model.dtype is torch.float32


def test_heads_poolers_and_buffers_of_older_versions_are_accepted(folder):
    harmless = {
        "cls.predictions.bias": torch.ones(3),
        "classifier.weight": torch.ones(3).to(torch.int8),
        "bert.pooler.dense.bias": torch.ones(24),
        "embeddings.position_ids": torch.arange(160)[None],
    }
    change_weights(folder, lambda weights: weights.update(harmless))
    assert load(ModelOptions(name=str(folder), seed=0), DeviceOptions(name="cpu")).layers == 3


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "electra", "distilbert", "albert", "modernbert", "deberta-v2", "mpnet"]
)
@pytest.mark.spread(1)
def test_checkpoints_with_a_head_are_accepted(family, tmp_path, tokenizer):
    settings = FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer)}
    whole = AutoModelForMaskedLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load(ModelOptions(name=str(tmp_path), seed=0), DeviceOptions(name="cpu"))
    for name, parameter in model.model.named_parameters():
        if not name.startswith("pooler."):
            assert torch.equal(parameter, whole.get_parameter(f"{whole.base_model_prefix}.{name}")), name


@pytest.mark.slow
def test_outputs_are_read_by_name_whatever_the_config_says(folder):
    change_config(folder, return_dict=False)
    loaded = load(ModelOptions(name=str(folder), seed=0), EXACTLY)
    assert verify(loaded.model, loaded.facts, "named").error < 1e-12


# Configs.


@pytest.mark.parametrize("text", [3, {"model_type": "bert"}, [], "bert"])
def test_a_text_config_of_another_type(folder, text):
    change_config(folder, text_config=text)
    assert_refused(folder, "its config.json cannot be used: expected a config of a known model in text_config, got ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size=0 in the model's config: expected from 1 to"),
        ({"num_hidden_layers": 10**9}, "from 0 to 10,000 for num_hidden_layers, got 1000000000"),
        ({"hidden_size": 100, "num_attention_heads": 12}, "cannot build the model from its config"),
        ({"model_type": "nope"}, "its config.json cannot be used"),
    ],
)
def test_configs_of_no_model_are_refused(folder, changes, message):
    change_config(folder, **changes)
    assert_refused(folder, message, random_init=True)


@pytest.mark.parametrize(
    ("family", "changes", "causal"),
    [
        ("llama", {}, True),
        ("llama", {"is_causal": False}, False),
        ("gpt2", {"is_causal": False}, False),
        ("mistral", {}, True),
        ("gemma", {"is_causal": False}, False),
        ("gemma", {"is_causal": False, "use_bidirectional_attention": True}, False),
        ("gemma2", {"use_bidirectional_attention": True}, True),  # transformers 5.23 no longer reads the key there
        ("bert", {}, False),
        ("bert", {"is_decoder": True}, True),
        ("bert", {"is_decoder": True, "is_causal": False}, False),
        ("bert", {"is_causal": True}, True),
        ("eurobert", {}, False),
        ("mpnet", {}, False),
        ("albert", {}, False),
    ],
)
@pytest.mark.spread(1)
def test_causal_models_are_recognised(from_config, family, changes, causal):
    model = load(from_config(family, **changes), EXACTLY)
    assert model.causal == causal
    inputs = token_batch(model.model, (6,))
    last = inputs["input_ids"].clone()
    last[0, -1] += 1
    outputs = [
        model.model(**inputs | {"input_ids": ids}).last_hidden_state[0, 0] for ids in (inputs["input_ids"], last)
    ]
    assert torch.allclose(*outputs, rtol=0, atol=1e-12) == causal  # whether a later token changes the model's output
    assert verify(model.model, model.facts, family).error < proved_to(model.model)


@pytest.mark.parametrize(
    ("family", "stack", "causal"),
    [
        ("t5", "encoder", False),
        ("t5", "decoder", True),
        ("t5", "cross", False),
        ("bart", "decoder", True),
        ("bart", "cross", False),
    ],
)
@pytest.mark.spread(1)
def test_only_decoder_self_attention_is_causal(from_config, family, stack, causal):
    assert load(from_config(family, stack), EXACTLY).causal == causal


def test_attention_that_depends_on_the_padding_of_the_batch_is_refused(from_config):
    with pytest.raises(InputError, match="use_bidirectional_attention=true: .* set is_causal=false"):
        load(from_config("gemma", use_bidirectional_attention=True), EXACTLY)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, "several linear layers read what its heads return"),
        ("deberta", {"talking_head": True}, "attention weights multiply no values as the softmax gave them"),
    ],
)
def test_configs_of_known_families_that_cannot_be_exact_are_refused(from_config, family, changes, reason):
    with pytest.raises(InputError, match=reason):
        _ = load(from_config(family, **changes), EXACTLY).verification


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("family", "changes", "has_weights"),
    [
        ("olmo", {"clip_qkv": 0.5}, False),  # queries, keys and values within limits are no linear maps
        ("falcon", {"alibi": True, "new_decoder_architecture": False}, True),
    ],
)
def test_configs_that_change_attention_are_exact(from_config, family, changes, has_weights):
    model = load(from_config(family, **changes), EXACTLY)
    assert verify(model.model, model.facts, family).error < proved_to(model.model)
    assert (model.facts.has_score_weights, model.facts.has_value_weights) == (has_weights, has_weights)


# Vocabularies.


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_a_decoder_with_a_smaller_vocabulary(stack, from_config, tokenizer):
    apart = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    config = STACK_CONFIGS["marian"] | apart
    model = tiny_model(config | {"vocab_size": 99, "decoder_vocab_size": 7}, torch.float64)
    assert verify(model, facts_for("marian", stack), "marian").error < 1e-12
    size = len(tokenizer)
    loaded = load(from_config("marian", stack, **apart, vocab_size=size + 9, decoder_vocab_size=size), EXACTLY)
    assert loaded.vocabulary == size + 9
    options = from_config("marian", stack, **apart, decoder_vocab_size=900)
    with pytest.raises(InputError, match=f"has 900 embeddings, but the tokenizer has {size} tokens"):
        load(options, EXACTLY)
    options = from_config("marian", stack, **apart, decoder_start_token_id=size)
    with pytest.raises(InputError, match=f"but its decoder_start_token_id is {size}"):
        load(options, EXACTLY)


# Tokenizers.


def test_a_folder_without_tokenizer_files(folder):
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    assert_refused(
        folder,
        r"the tokenizer of '.*', with 5 tokens, knows no text; check that its files .* exist, or set model.tokenizer",
    )


@pytest.mark.parametrize(
    "family", ["roberta", "gpt2", "t5", "deberta-v2", "albert", "qwen2", "mbart", "xlm-roberta", "gemma", "mpnet"]
)
def test_empty_tokenizers_of_every_kind(family, tmp_path):
    settings = dict((FAMILY_CONFIGS | STACK_CONFIGS)[family])
    AutoConfig.for_model(settings.pop("model_type"), **settings).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="knows no text|cannot read text"):
        check_vocabulary(AutoTokenizer.from_pretrained(tmp_path), "it", None)


@pytest.mark.slow
def test_tokens_whose_numbers_have_gaps(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["the"] = 10**6
    path.write_text(json.dumps(content))
    assert_refused(folder, "has 1000001 tokens, but the model has only 30522 embeddings; set model.tokenizer")


@pytest.mark.slow
def test_a_tokenizer_far_smaller_than_the_embedding(tmp_path, tokenizer):
    tiny_model(FAMILY_CONFIGS["bert"] | {"vocab_size": 2 * len(tokenizer) + 1}, torch.float32).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert_refused(tmp_path, f"has {len(tokenizer)} tokens, but the model has {2 * len(tokenizer) + 1} embeddings")
    assert load(ModelOptions(name=str(tmp_path), random_init=True, seed=0), DeviceOptions(name="cpu")).layers == 3


def test_vocabularies_of_other_scripts_are_accepted():
    from normscope.translation.vocabulary import joint_vocabulary

    check_vocabulary(joint_vocabulary(["⠓⠑⠇⠇⠕ ⠺⠕⠗⠇⠙", "⠃⠽⠑ ⠝⠕⠺"] * 3, 60, 100), "it", 40)
