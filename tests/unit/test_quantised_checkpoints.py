"""Checkpoints that were saved with quantised weights."""

import json
import logging
import re
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import normscope
from normscope.errors import InputError
from normscope.models import quantised_checkpoints
from normscope.models.config_checks import check_supported
from normscope.models.loading import load, open_model
from normscope.models.options import DeviceMap, DeviceOptions, DType, ModelOptions
from normscope.models.quantised_checkpoints import stored_quantization
from normscope.models.stored_weights import is_quantised, number_format, rounds_activations
from normscope.models.task_heads import Head
from normscope.models.verification import verify
from tests.tiny import FAMILY_CONFIGS, tiny_model
from tests.unit.test_quantisation import INT8, Linear8bit, observed, replaced

ON_CPU = DeviceOptions(name="cpu")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


@pytest.fixture(scope="module")
def save(saved_model, tokenizer, tmp_path_factory):
    """Saves a model of a family as transformers does, with its linear layers quantised by torchao, beside a tokenizer."""
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    def saved(family: str, kind: type = AutoModel, dtype: torch.dtype = torch.float32) -> Path:
        folder = tmp_path_factory.mktemp("quantised")
        torch.manual_seed(0)
        config = AutoConfig.for_model(**FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer)})
        model = kind.from_config(config, dtype=dtype)
        for name, parameter in model.named_parameters():
            nn.init.normal_(parameter, 1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
        model.save_pretrained(folder / "plain")
        settings = TorchAoConfig(torchao.Int8WeightOnlyConfig())
        whole = kind.from_pretrained(folder / "plain", quantization_config=settings, dtype=dtype)
        whole.save_pretrained(folder / "model")
        for path in Path(saved_model).iterdir():
            if path.name in TOKENIZER_FILES:
                shutil.copy(path, folder / "model")
        return folder / "model"

    return saved


def in_float64(folder: Path, kind: type):
    """The model that the integers and scales in a file stand for, read without torchao."""
    config = AutoConfig.from_pretrained(folder)
    vars(config).pop("quantization_config")
    stored = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    weights = {name: tensor for name, tensor in stored.items() if "._weight_" not in name}
    for name, integers in stored.items():
        if name.endswith("._weight_qdata"):
            module = name.removesuffix("._weight_qdata")
            weights[f"{module}.weight"] = integers * stored[f"{module}._weight_scale"]
    model = kind.from_config(config, dtype=torch.float64)
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False).base_model


@pytest.mark.parametrize(
    ("family", "kind", "dtype"),
    [
        ("llama", AutoModelForCausalLM, torch.bfloat16),
        ("bert", AutoModel, torch.float32),
    ],
)
@pytest.mark.spread(1)
def test_checkpoints_are_decomposed_like_their_dequantised_weights(family, kind, dtype, save):
    """In float32, also if the weights were in bfloat16 before they were quantised."""
    folder = save(family, kind, dtype)
    model = load(ModelOptions(name=str(folder)), ON_CPU)
    assert is_quantised(model.model)
    assert number_format(model.model) == "float32 with quantised weights"
    wanted = observed(in_float64(folder, kind), model.layout, explicit=True)
    for got, exact in zip(observed(model.model, model.layout), wanted, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-5)  # float32 beside float64
    assert 0 < verify(model.model, model.layout, family, feed_forward=True).error < 3e-6
    head = model.load_head(Head.NEXT_TOKEN)
    assert (head is not None) == (kind is AutoModelForCausalLM)
    assert head is None or head.base_model is model.model
    whole = kind.from_pretrained(folder)
    wrapped = normscope.wrap(whole, model.tokenizer)
    if dtype is torch.float32:
        tables = [normscope.decompose(each, "A lovely film.").table for each in (model, wrapped)]
        assert tables[0].equals(tables[1])


def test_what_cannot_be_combined_with_quantised_weights(save, monkeypatch, tmp_path):
    folder = str(save("bert"))
    with pytest.raises(
        InputError, match=r"^model\.quantization=torchao_int8: the weights of .* are already quantised \(tor"
    ):
        open_model(ModelOptions(name=folder, quantization=INT8))
    opened = open_model(ModelOptions(name=folder))
    with pytest.raises(
        InputError, match=r"^device\.dtype=float64: expected bfloat16, float16 or float32 with model\.name="
    ):
        opened.load(DeviceOptions(name="cpu", dtype=DType.float64))
    with pytest.raises(
        InputError, match=r"^device\.map=auto: .* got those of .* \(torchao_int8\); leave out device\.map$"
    ):
        opened.load(DeviceOptions(name="cpu", map=DeviceMap.auto))
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(InputError, match=r"^model\.name=.* \(weights saved as .*\) needs torchao: pip inst"):
        opened.load(ON_CPU)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": folder, "peft_type": "LORA"}))
    with pytest.raises(
        InputError, match=r"expected an adapter for a checkpoint in float32, .* got one for quantised weights"
    ):
        open_model(ModelOptions(name=str(adapter)))


def test_random_weights_of_a_quantised_checkpoint_are_not_quantised(save):
    model = load(ModelOptions(name=str(save("bert")), random_init=True, seed=0), ON_CPU)
    assert not is_quantised(model.model)
    assert number_format(model.model) == "float32"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        *(({"quant_method": method}, method) for method in ("gptq", "awq", "fp8", "mxfp4", "compressed-tensors")),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "torchao's int8_weight_only"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "torchao's Int4"),
        ({"quant_method": "torchao"}, "torchao's None"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({}, "{}"),
        ("four bits", "four bits"),
        (4, "4"),
    ],
)
def test_schemes_that_cannot_be_read(settings, name):
    config = AutoConfig.for_model("bert", quantization_config=settings)
    with pytest.raises(
        InputError, match=r"^quantization_config in the model's config: expected bitsandbytes, or"
    ) as caught:
        stored_quantization(config)
    text = str(caught.value)
    assert f"torchao's Int8WeightOnlyConfig, got {name}" in text
    assert "\n" not in text
    if "torchao" not in name and name != "bitsandbytes":
        with pytest.raises(InputError, match=re.escape(text)):
            check_supported(config)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes_8bit"),
        ({"load_in_8bit": True, "load_in_4bit": False}, "bitsandbytes_8bit"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_compute_dtype": "float16"},
            "bitsandbytes_4bit",
        ),
    ],
)
def test_checkpoints_of_bitsandbytes(settings, name, saved_model, tmp_path, monkeypatch, tokenizer):
    """With stand-ins for its layers and for CUDA."""
    folder = Path(shutil.copytree(saved_model, tmp_path / "model"))
    config = FAMILY_CONFIGS["llama"] | {"vocab_size": len(tokenizer)}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    opened = open_model(ModelOptions(name=str(folder)))
    assert opened.quantization == name
    with pytest.raises(
        InputError, match=rf"^model\.name=.*\(weights saved as {name}\): expected a CUDA device, got cpu$"
    ):
        opened.load(ON_CPU)
    asked = {}

    def from_pretrained(_folder, *, config, device_map, **more):
        asked.update(more, device_map=device_map, stored=config.quantization_config)
        plain = tiny_model(FAMILY_CONFIGS["llama"] | {"vocab_size": len(tokenizer)}, torch.float32).requires_grad_(
            False
        )
        loading = {"mismatched_keys": [], "missing_keys": [], "unexpected_keys": []}
        return (replaced(plain, Linear8bit) if "8" in name else plain), loading

    monkeypatch.setattr(quantised_checkpoints, "check_bitsandbytes", lambda *_: None)
    monkeypatch.setattr(quantised_checkpoints, "AutoModel", types.SimpleNamespace(from_pretrained=from_pretrained))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    model = opened.load(ON_CPU)
    assert asked["device_map"] == {"": torch.device("cpu")}
    assert "quantization_config" not in asked, "the checkpoint's own counts"
    if "4" in name:
        assert asked["stored"]["bnb_4bit_compute_dtype"] == "float32", "the dtype of this run"
    else:
        assert rounds_activations(model.model)
        assert 1e-4 < verify(model.model, model.layout, "tiny").error < 0.05


def test_integers_of_other_tensors_are_still_refused(save, caplog):
    folder = save("bert")
    file = folder / "model.safetensors"
    with safe_open(file, framework="pt") as content:
        metadata = content.metadata()
    tensors = load_file(file)
    key = "embeddings.word_embeddings.weight"
    save_file(tensors | {key: tensors[key].to(torch.int8)}, file, metadata=metadata)
    with caplog.at_level(logging.ERROR), pytest.raises(InputError, match=rf"got I8 for {key} in model\.safetensors"):
        load(ModelOptions(name=str(folder)), ON_CPU)
