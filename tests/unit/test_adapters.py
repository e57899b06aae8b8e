"""PEFT adapters are merged before observation."""

import builtins
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from peft import (
    AdaptionPromptConfig,
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import normscope
from normscope.errors import InputError
from normscope.live.predictions import prediction_of
from normscope.models.load.loading import load
from normscope.models.options import DeviceOptions, DType, ModelOptions, ModelStack
from tests.one_text import attribute
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model

# peft uses a deprecated attribute of transformers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`"),
]

EXACTLY = DeviceOptions(name="cpu", dtype=DType.float64)

TEXT = "The old bridge was closed for repairs."


class Trained(NamedTuple):
    """An adapter on disk, its base model's folder, and the PeftModel before it is merged, in float64."""

    folder: Path
    base: Path
    model: Any


def trained(
    place: Path, tokenizer, kind: Any, family: str, config: Any, of_base: Any = None, **changes: Any
) -> Trained:
    """Random weights of a base model and of an adapter, whose PeftModel peft itself has loaded.

    Args:
        kind: The class that the adapter is trained on.
        of_base: The class whose weights the base model's folder has; by default the same.
        changes: Of the base model's config, `num_labels` only for the adapter.
    """
    labels = {key: changes.pop(key) for key in ("num_labels",) if key in changes}
    settings = (FAMILY_CONFIGS | STACK_CONFIGS)[family] | {"vocab_size": len(tokenizer), "pad_token_id": 0} | changes
    torch.manual_seed(0)
    untrained = (of_base or kind).from_config(AutoConfig.for_model(**settings))
    for parameter in untrained.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    base, folder = place / "base", place / "adapter"
    untrained.save_pretrained(base)
    tokenizer.save_pretrained(base)
    adapted = get_peft_model(kind.from_pretrained(base, **labels), config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(folder)
    again = kind.from_pretrained(base, dtype=torch.float64, **labels)
    return Trained(folder, base, PeftModel.from_pretrained(again, folder).eval())


def opened(folder: Path):
    return load(ModelOptions(name=str(folder), seed=0), EXACTLY)


def assert_same_vectors(loaded, adapter: Trained) -> None:
    inputs = dict(loaded.tokenizer(TEXT, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    if loaded.model.config.is_encoder_decoder:
        inputs |= {f"decoder_{name}": tensor for name, tensor in inputs.items()}
    expected = adapter.model.get_base_model().base_model(**inputs)[0]
    assert torch.linalg.vector_norm(expected) > 0
    torch.testing.assert_close(loaded.model(**inputs)[0], expected, rtol=1e-9, atol=1e-9)
    head = loaded.classifier or loaded.next_token_head or loaded.masked_language_head or loaded.translator
    if head is not None:
        torch.testing.assert_close(head(**inputs).logits, adapter.model(**inputs).logits, rtol=1e-9, atol=1e-9)


BERT = {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}
LLAMA = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}

ADAPTERS = {
    "biases": ("bert", LoraConfig(r=2, bias="all", **BERT)),
    "biases of adapted layers": ("bert", LoraConfig(r=2, bias="lora_only", **BERT)),
    "saved embeddings": ("bert", LoraConfig(r=2, modules_to_save=["word_embeddings", "classifier"], **BERT)),
    "rank-stabilised, of patterns": (
        "bert",
        LoraConfig(r=4, use_rslora=True, rank_pattern={"layer.0.*query": 2}, alpha_pattern={"value": 3}, **BERT),
    ),
    "DoRA": ("bert", LoraConfig(r=2, use_dora=True, **BERT)),
    "IA3": ("bert", IA3Config(feedforward_modules=[], **BERT)),
    "VeRA": ("bert", VeraConfig(r=8, **BERT)),
    "LoHa": ("bert", LoHaConfig(r=2, **BERT)),
    "tied, saved embeddings": ("llama", LoraConfig(r=2, modules_to_save=["embed_tokens"], **LLAMA)),
    "tied, adapted embeddings": ("llama", LoraConfig(r=2, **LLAMA | {"target_modules": ["q_proj", "embed_tokens"]})),
    "tied, some tokens": ("llama", LoraConfig(r=2, trainable_token_indices=[1996, 2214], **LLAMA)),
    "tied, the head alone": ("llama", LoraConfig(r=2, **LLAMA | {"target_modules": ["lm_head"]})),
    "some tokens": ("llama", LoraConfig(r=2, trainable_token_indices=[1996, 2214], **LLAMA)),
}


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.spread(1)
def test_an_adapter_gives_what_its_unmerged_model_gives(kind, tokenizer, tmp_path):
    family, config = ADAPTERS[kind]
    of_task = AutoModelForCausalLM if family == "llama" else AutoModelForSequenceClassification
    adapter = trained(tmp_path, tokenizer, of_task, family, config, tie_word_embeddings=kind.startswith("tied"))
    loaded = opened(adapter.folder)
    assert (loaded.next_token_head if family == "llama" else loaded.classifier) is not None
    assert_same_vectors(loaded, adapter)
    assert_same_vectors(normscope.wrap(adapter.model, tokenizer), adapter)
    base = opened(adapter.base)
    assert (base.next_token_head if family == "llama" else base.classifier) is not None
    before, after = base.weights(), loaded.weights()
    assert before.keys() == after.keys()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"next_token_head"} if kind == "tied, the head alone" else "model" in changed


@pytest.mark.slow
def test_an_adapter_of_an_encoder_decoder_translates(tokenizer, tmp_path):
    config = LoraConfig(r=2, task_type="SEQ_2_SEQ_LM", target_modules=["q_proj", "v_proj"])
    adapter = trained(tmp_path, tokenizer, AutoModelForSeq2SeqLM, "bart", config, decoder_start_token_id=2)
    loaded = load(ModelOptions(name=str(adapter.folder), stack=ModelStack.decoder, seed=0), EXACTLY)
    assert loaded.translator is not None
    assert_same_vectors(loaded, adapter)


@pytest.mark.slow
def test_the_classifier_of_an_adapter_is_explained(tokenizer, tmp_path):
    """Its base has no classifier, and nothing but the shape of the saved one says how many classes there are."""
    config = LoraConfig(r=2, **BERT)
    adapter = trained(tmp_path, tokenizer, AutoModelForSequenceClassification, "bert", config, AutoModel, num_labels=5)
    loaded = opened(adapter.folder)
    found = prediction_of(loaded, TEXT)
    assert found.what == "class"
    expected = adapter.model(**tokenizer(TEXT, return_tensors="pt")).logits[0].softmax(-1)
    assert dict(found.choices) == pytest.approx(
        {f"LABEL_{number}": each for number, each in enumerate(expected.tolist())}, abs=1e-9
    )
    score = attribute(loaded, TEXT, found.target)
    logits = adapter.model(**tokenizer(TEXT, return_tensors="pt")).logits[0]
    assert score.target == pytest.approx(float(logits.max()), abs=1e-6)


@pytest.mark.slow
def test_a_classifier_whose_pooler_nobody_has_trained_is_no_classifier(tokenizer, tmp_path):
    """peft fills it with random numbers, others whenever it loads the adapter."""
    config = LoraConfig(r=2, **BERT)
    kinds = AutoModelForSequenceClassification, AutoModelForMaskedLM
    adapter = trained(tmp_path, tokenizer, kinds[0], "bert", config, kinds[1])
    assert opened(adapter.folder).classifier is None


@pytest.mark.spread(1)
@pytest.mark.parametrize("task", [None, "FEATURE_EXTRACTION"])
def test_an_adapter_that_names_no_task_fits_the_model_with_its_modules(task, tokenizer, tmp_path):
    config = LoraConfig(r=2, target_modules=["query"], task_type=task)
    kind = AutoModel if task else AutoModelForMaskedLM
    adapter = trained(tmp_path, tokenizer, kind, "bert", config)
    path = adapter.folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_mapping": None}))
    loaded = opened(adapter.folder)
    assert (loaded.masked_language_head is None) == (task is not None)
    assert_same_vectors(loaded, adapter)


@pytest.mark.slow
def test_the_tokenizer_of_an_adapter_is_read_with_its_new_tokens(tokenizer, tmp_path):
    config = LoraConfig(r=2, modules_to_save=["embed_tokens", "lm_head"], **LLAMA)
    adapter = trained(tmp_path, tokenizer, AutoModelForCausalLM, "llama", config)
    own = AutoTokenizer.from_pretrained(adapter.base)
    own.add_tokens(["<bridge>"])
    own.save_pretrained(adapter.folder)
    with pytest.raises(InputError, match="has 30523 tokens, but the model has only 30522 embeddings"):
        opened(adapter.folder)
    weights = load_file(adapter.folder / "adapter_model.safetensors")
    for key in [key for key in weights if "embed_tokens" in key or "lm_head" in key]:
        weights[key] = torch.cat([weights[key], torch.ones(1, weights[key].shape[1])])
    save_file(weights, adapter.folder / "adapter_model.safetensors")
    loaded = opened(adapter.folder)
    assert loaded.tokenizer("<bridge>")["input_ids"][1] == 30522
    assert loaded.model.get_input_embeddings().weight[30522].tolist() == [1] * loaded.model.config.hidden_size
    assert_same_vectors(loaded, adapter._replace(model=widened(adapter)))


def widened(adapter: Trained) -> Any:
    model = AutoModelForCausalLM.from_pretrained(adapter.base, dtype=torch.float64)
    model.resize_token_embeddings(30523)
    return PeftModel.from_pretrained(model, adapter.folder).eval()


@pytest.mark.slow
def test_an_adapter_that_transformers_has_saved(tokenizer, tmp_path):
    adapter = trained(tmp_path, tokenizer, AutoModelForCausalLM, "llama", LoraConfig(r=2, **LLAMA))
    shutil.rmtree(adapter.folder)
    model = AutoModelForCausalLM.from_pretrained(adapter.base, dtype=torch.float64)
    model.add_adapter(LoraConfig(r=2, target_modules=["o_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(adapter.folder)
    loaded = opened(adapter.folder)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    torch.testing.assert_close(loaded.next_token_head(ids).logits, model(ids).logits, rtol=1e-9, atol=1e-9)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
            "got PROMPT_TUNING, which adds to every input",
        ),
        (AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=2, adapter_layers=2), "got ADAPTION_PROMPT: "),
    ],
)
def test_an_adapter_that_no_weights_can_stand_for_is_refused(config, reason, tokenizer, tmp_path):
    adapter = trained(tmp_path, tokenizer, AutoModelForCausalLM, "llama", config)
    with pytest.raises(
        InputError, match=f"expected an adapter that can be merged into weights, such as LoRA, {reason}"
    ):
        opened(adapter.folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory, tokenizer) -> Trained:
    """An adapter of a masked language model, to damage copies of it."""
    config = LoraConfig(r=2, target_modules=["query"], bias="all")
    return trained(tmp_path_factory.mktemp("small"), tokenizer, AutoModelForMaskedLM, "bert", config)


@pytest.fixture
def damaged(small, tmp_path) -> Path:
    return Path(shutil.copytree(small.folder, tmp_path / "adapter"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.update({"base_model.model.bert.extra": torch.ones(2)}),
            "tensor .*bert.extra is missing or",
        ),
        (
            lambda weights: weights.pop(next(key for key in weights if "lora_A" in key)),
            "lora_A.* is missing or unknown",
        ),
        (
            lambda weights: weights.update(
                {
                    key.replace(".bias", ".modules_to_save.bias"): tensor + 1
                    for key, tensor in weights.items()
                    if ".bias" in key
                }
            ),
            "modules_to_save.bias is missing or unknown",
        ),
    ],
)
def test_every_tensor_of_an_adapter_has_its_place(damaged, change, message):
    weights = load_file(damaged / "adapter_model.safetensors")
    change(weights)
    save_file(weights, damaged / "adapter_model.safetensors")
    with pytest.raises(InputError, match=f"the adapter does not fit its model: .*{message}"):
        opened(damaged)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"layer_replication": [[0, 2], [1, 3]]},
            "expected no layer_replication in its adapter_config.json, which gives",
        ),
        (
            {"megatron_config": {}, "megatron_core": "os"},
            "expected no megatron_config .* imports code that the file names",
        ),
        ({"peft_type": "NONSENSE"}, "its adapter_config.json cannot be used"),
        ({"base_model_name_or_path": None}, "expected base_model_name_or_path in its adapter_config.json, got None"),
    ],
)
def test_settings_of_adapters_that_are_refused(damaged, settings, message):
    path = damaged / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(InputError, match=message):
        opened(damaged)


def test_an_adapter_of_an_adapter_and_one_beside_a_whole_model_are_refused(small, damaged):
    path = damaged / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(small.folder)}))
    with pytest.raises(InputError, match="which is an adapter itself; merge that one into its model first"):
        opened(damaged)
    shutil.copytree(small.base, damaged, dirs_exist_ok=True)
    with pytest.raises(InputError, match="expected the weights of a whole model or an adapter, got both in"):
        opened(damaged)
    (damaged / "model.safetensors").unlink()  # some trainers save the model's config beside an adapter
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(small.base)}))
    assert_same_vectors(opened(damaged), small)


def test_a_missing_peft_is_one_line(small, monkeypatch):
    real = builtins.__import__

    def without_peft(name: str, *rest: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with pytest.raises(InputError, match=r"is a PEFT adapter, which needs peft; run `pip install peft`"):
        opened(small.folder)


def test_a_merge_that_loses_a_part_is_refused(small, monkeypatch):
    monkeypatch.setattr("peft.tuners.lora.layer.Linear.merge", lambda *_, **__: None)
    with pytest.raises(InputError, match="with its adapter merged into its weights, its output differs by"):
        opened(small.folder)


def test_an_adapter_of_another_model_is_refused(damaged, tokenizer, tmp_path):
    other, path = tmp_path / "llama", damaged / "adapter_config.json"
    tiny_model(FAMILY_CONFIGS["llama"] | {"vocab_size": len(tokenizer)}, torch.float32).save_pretrained(other)
    tokenizer.save_pretrained(other)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(other)}))
    with pytest.raises(InputError, match="the adapter does not fit its model"):
        opened(damaged)
    (damaged / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="read from safetensors only"):
        opened(damaged)
