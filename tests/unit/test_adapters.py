"""PEFT adapters are merged before observation."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from normscope.errors import InputError
from normscope.models.loading import load
from normscope.models.options import DeviceOptions, ModelOptions
from tests.tiny import FAMILY_CONFIGS

# peft uses a deprecated attribute of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

CPU = DeviceOptions(name="cpu")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, tokenizer):
    """An adapter of a causal language model, the merged weights and the folder of the model."""
    from peft import LoraConfig, PeftModelForCausalLM

    settings = FAMILY_CONFIGS["llama"] | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    base, adapter = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("adapter")
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], base_model_name_or_path=str(base)
    )
    trained = PeftModelForCausalLM(model, config)
    for name, parameter in trained.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    trained.save_pretrained(adapter)
    return adapter, trained.merge_and_unload().model.state_dict(), base


def test_an_adapter_is_merged_into_its_model(adapted):
    adapter, expected, base = adapted
    loaded = load(ModelOptions(name=str(adapter), seed=0), CPU)
    plain = load(ModelOptions(name=str(base), seed=0), CPU)
    merged = loaded.model.state_dict()
    assert merged.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor)
    assert not torch.equal(merged["layers.0.self_attn.q_proj.weight"], plain.model.layers[0].self_attn.q_proj.weight)
    assert loaded.weights_sha256.startswith(plain.weights_sha256 + " + ")


def test_an_adapter_of_another_model_is_refused(adapted, tmp_path, saved_model):
    adapter, _, _ = adapted
    for file in adapter.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((adapter / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(saved_model)}))
    with pytest.raises(InputError, match="the adapter does not fit its model"):
        load(ModelOptions(name=str(tmp_path), seed=0), CPU)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(InputError, match="expected base_model_name_or_path in its adapter_config.json, got None"):
        load(ModelOptions(name=str(tmp_path), seed=0), CPU)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="read from safetensors only"):
        load(ModelOptions(name=str(tmp_path), seed=0), CPU)
