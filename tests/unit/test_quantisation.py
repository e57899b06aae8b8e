"""Models whose weights are integers with scales."""

import sys
import types

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaModel

import normscope
from normscope.errors import InputError
from normscope.models.linear_layers import weight_and_bias
from normscope.models.loading import load, open_model
from normscope.models.observer import Observer
from normscope.models.options import DeviceMap, DeviceOptions, ModelOptions, Quantization
from normscope.models.quantisation import bitsandbytes_config, quantise_to_int8
from normscope.models.stored_weights import is_quantised, number_format, rounds_activations, weight_values
from normscope.models.verification import verify
from normscope.models.weight_checks import check_finite
from normscope.models.wrapping import wrap_model
from tests.tiny import FAMILY_CONFIGS, INPUTS, layout_of, tiny_model

CPU = torch.device("cpu")
INT8, EIGHT, FOUR = Quantization


def quantised(family: str, dtype: torch.dtype = torch.float32):
    model = tiny_model(FAMILY_CONFIGS[family], dtype)
    quantise_to_int8(model, CPU)
    return model


def observed(model, layout, *, explicit: bool = False) -> list[torch.Tensor]:
    """‖αf‖ and others; `explicit`: from vectors f(x) that are built one by one."""
    values: list[torch.Tensor] = []

    def visit(block):
        norms = torch.linalg.vector_norm(block.transformed(), dim=-1) if explicit else block.transformed_norms
        values.extend([block.weights * norms.unsqueeze(-2), block.received, *block.mixing_ratios.values()])

    with Observer(model, layout, feed_forward=True) as observer:
        observer.run(INPUTS, visit, None, lambda network: values.append(network.parameters.output_weight))
    return values


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_quantised_models_are_decomposed_like_their_dequantised_weights(family):
    pytest.importorskip("torchao")
    model, layout = quantised(family), layout_of(family)
    plain = tiny_model(FAMILY_CONFIGS[family], torch.float32).double()
    rounded = 0
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            integers, scales = module.weight.qdata, module.weight.scale
            assert integers.dtype is torch.int8
            exact = integers.double() * scales.double()
            twin = plain.get_submodule(path)
            rounded += int(not torch.equal(exact, twin.weight))
            assert (exact - twin.weight).abs().max() <= scales.max() * 0.51
            twin.weight = nn.Parameter(exact, requires_grad=False)
    assert rounded
    for got, wanted in zip(observed(model, layout), observed(plain, layout, explicit=True), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)  # float32 beside float64
    assert 0 < verify(model, layout, family, feed_forward=True).error < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_dequantised_one_layer_at_a_time(dtype):
    pytest.importorskip("torchao")
    model = quantised("llama", dtype)
    weights = Observer(model, layout_of("llama")).parameters
    assert not weights._read
    assert weights[1].query_weight.dtype is torch.float32
    assert weights[2] is not weights[1]
    assert list(weights._read) == [1]


def test_quantised_models_are_loaded_and_wrapped(saved_model):
    pytest.importorskip("torchao")
    plain = load(ModelOptions(name=saved_model), DeviceOptions(name="cpu"))
    model = normscope.load(saved_model, quantization="torchao_int8", device="cpu")
    assert is_quantised(model.model)
    assert not is_quantised(plain.model)
    assert (number_format(model.model), number_format(plain.model)) == ("float32 with quantised weights", "float32")
    assert not rounds_activations(model.model)
    wrapped = normscope.wrap(model.model, model.tokenizer)
    projection = "encoder.layer.1.attention.self.value.weight"
    original, shared = (each.model.get_parameter(projection) for each in (model, wrapped))
    assert shared.qdata.data_ptr() == original.qdata.data_ptr()
    text = "A lovely film."
    table, other = (normscope.decompose(each, text).table for each in (model, wrapped))
    assert table.equals(other)
    assert not table.equals(normscope.decompose(plain, text).table)
    wrapped.require_current()
    model.model.get_parameter(projection).qdata.data = original.qdata.clone()
    with pytest.raises(InputError, match="has changed since it was wrapped"):
        wrapped.require_current()


def test_nan_in_scales_is_found():
    pytest.importorskip("torchao")
    model = quantised("bert")
    model.encoder.layer[1].output.dense.weight.scale[3] = torch.nan
    with pytest.raises(InputError, match=r"NaN or infinity in the weight encoder\.layer\.1\.output\.dense\.weight"):
        check_finite(model, "tiny")


def test_what_torchao_cannot_quantise(monkeypatch):
    pytest.importorskip("torchao")
    with pytest.raises(
        InputError, match=r"^model\.quantization=torchao_int8: expected a model with linear layers, got gpt2"
    ):
        quantised("gpt2")
    with pytest.raises(
        InputError, match=r"^device\.dtype=float64: expected bfloat16, float16 or float32 with model\.quant"
    ):
        quantised("bert", torch.float64)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(InputError, match=r"^model\.quantization=torchao_int8 needs torchao: pip install torchao$"):
        quantised("bert")


def test_options_that_do_not_fit(saved_model, monkeypatch):
    opened = open_model(ModelOptions(name=saved_model, quantization=EIGHT))
    with pytest.raises(
        InputError, match=r"^device\.map=auto: expected weights that are not quantised, got model\.quant"
    ):
        opened.load(DeviceOptions(name="cpu", map=DeviceMap.auto))
    with pytest.raises(
        InputError, match=r"^model\.quantization=bitsandbytes_8bit: expected a CUDA device, got cpu; set "
    ):
        opened.load(DeviceOptions(name="cpu"))
    with pytest.raises(
        InputError, match=r"^model\.quantization=bitsandbytes_8bit: expected a checkpoint, got random wei"
    ):
        load(ModelOptions(name=saved_model, quantization=EIGHT, random_init=True), DeviceOptions(name="cpu"))
    with pytest.raises(InputError, match=r"^quantization='int4': expected one of torchao_int8, bitsandbytes_8bit, "):
        normscope.load(saved_model, quantization="int4")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(InputError, match=r"^model\.quantization=bitsandbytes_4bit needs bitsandbytes: pip install "):
        bitsandbytes_config(FOUR, torch.bfloat16, torch.device("cuda"))


def test_transformers_is_asked_for_bitsandbytes(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", types.ModuleType("bitsandbytes"))
    cuda = torch.device("cuda")
    assert bitsandbytes_config(EIGHT, torch.float16, cuda).load_in_8bit
    four = bitsandbytes_config(FOUR, torch.bfloat16, cuda)
    assert (four.load_in_4bit, four.bnb_4bit_quant_type) == (True, "nf4")
    assert four.bnb_4bit_compute_dtype is torch.bfloat16


class Int8Params(nn.Parameter):
    """As bitsandbytes' class of this name: integers, with scales as attributes until the layer first runs."""


class State:
    SCB = None


class Linear8bit(nn.Linear):
    """As bitsandbytes' 8-bit layer: it takes the scales from its weight, and rounds the rows that it multiplies."""

    def __init__(self, layer: nn.Linear):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        scales = layer.weight.abs().amax(dim=1)
        self.weight = torch.Tensor._make_subclass(
            Int8Params, (layer.weight / scales[:, None] * 127).round().to(torch.int8), False
        )
        self.weight.SCB = scales
        self.bias, self.state = layer.bias, State()

    def forward(self, vectors):
        if self.weight.SCB is not None:
            self.state.SCB, self.weight.SCB = self.weight.SCB, None
        largest = vectors.abs().amax(dim=-1, keepdim=True) / 127
        product = (vectors / largest).round() @ self.weight.float().T
        return product * largest * self.state.SCB / 127 + (0 if self.bias is None else self.bias)


def replaced(model: LlamaModel, kind: type[nn.Linear]) -> LlamaModel:
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, kind(module))
    return model


def test_eight_bits_of_bitsandbytes_are_read_before_and_after_the_first_pass(tokenizer):
    model = replaced(
        tiny_model(FAMILY_CONFIGS["llama"] | {"vocab_size": len(tokenizer)}, torch.float32).requires_grad_(False),
        Linear8bit,
    )
    layer = model.layers[0].self_attn.v_proj
    expected = layer.weight.float() * layer.weight.SCB[:, None] / 127
    torch.testing.assert_close(weight_values(layer), expected)
    wrapped = wrap_model(model, tokenizer)
    assert rounds_activations(wrapped.model)
    assert 1e-4 < verify(wrapped.model, wrapped.layout, "tiny", feed_forward=True).error < 0.05
    copied = wrapped.model.layers[0].self_attn.v_proj
    assert copied.weight.SCB is None
    assert layer.weight.SCB is not None, "the model itself is left as it is"
    assert copied.weight.data_ptr() == layer.weight.data_ptr()
    for each in (layer, copied):
        torch.testing.assert_close(weight_and_bias(each)[0], expected.T)
    model(**INPUTS)
    again = wrap_model(model, tokenizer).model.layers[0].self_attn.v_proj
    assert again.state.SCB is layer.state.SCB
    torch.testing.assert_close(weight_values(again), expected)


class Params4bit(nn.Parameter):
    """As bitsandbytes' class of this name: its shape is not the weight's."""


class Linear4bit(nn.Linear):
    def __init__(self, layer: nn.Linear):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        codes = (layer.weight / layer.weight.abs().max() * 7).round().to(torch.int8).view(torch.uint8).reshape(-1, 1)
        self.weight = torch.Tensor._make_subclass(Params4bit, codes, False)
        self.weight.quant_state = layer.weight.abs().max() / 7, layer.weight.shape
        self.quant_state, self.bias = self.weight.quant_state, layer.bias

    def forward(self, vectors):
        return nn.functional.linear(vectors, dequantize_4bit(self.weight.data, self.weight.quant_state), self.bias)


def dequantize_4bit(codes, state):
    scale, shape = state
    return codes.view(torch.int8).reshape(shape) * scale


def test_four_bits_of_bitsandbytes_are_read(tokenizer, monkeypatch):
    module = types.ModuleType("bitsandbytes.functional")
    module.dequantize_4bit = dequantize_4bit
    monkeypatch.setitem(sys.modules, "bitsandbytes", types.ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", module)
    config = FAMILY_CONFIGS["llama"] | {"vocab_size": len(tokenizer)}
    model = replaced(tiny_model(config, torch.float32).requires_grad_(False), Linear4bit)
    wrapped = wrap_model(model, tokenizer)
    assert not rounds_activations(wrapped.model)
    assert verify(wrapped.model, wrapped.layout, "tiny", feed_forward=True).error < 2e-6
    layer = wrapped.model.layers[1].mlp.up_proj
    assert weight_values(layer).shape == (layer.out_features, layer.in_features)
