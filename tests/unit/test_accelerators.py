"""What is computed on an accelerator is what is computed on the CPU, in float64 and within rounding; and nothing waits for it.

Each test runs on a GPU, where there is one (`pytest -m cuda -k gpu`, or `benchmarks/gpu.sh`), and on a simulated device.
"""

import copy
import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import normscope
from benchmarks.commands import ANALYSES
from benchmarks.scenarios import analyses_of, random_batch
from normscope.maths import attention as maths
from normscope.maths import kernels, weight_tiles
from normscope.maths.masks import Mask
from normscope.maths.tensors import to_device
from normscope.models.load import loading
from normscope.models.observe.observer import Observer, _Pass
from normscope.running.memory import run_batch
from tests import accelerator
from tests.accelerator import no_waiting, simulated
from tests.end_to_end.shell import run_once
from tests.one_text import attention, attribute, attribution_maps, decompose, similarity
from tests.tiny import FAMILY_CONFIGS
from tests.unit.test_attention import MASKS, REAL, SCALE, explicit
from tests.whole_commands import commands, differences

pytestmark = pytest.mark.cuda

F64 = torch.float64
HALVES = (torch.bfloat16, torch.float16)
ROUNDINGS = {F64: 1e6, torch.float32: 64, torch.float16: 16, torch.bfloat16: 16}
"""Roundings of the largest value of a tensor by which a device may differ from the CPU in float64, after three layers. Some of
what is computed in float64 passes through numbers near zero, hence so many."""


@pytest.fixture(params=["simulated", "gpu"])
def device(request, monkeypatch):
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("there is no GPU")
        return torch.device("cuda", 0)
    monkeypatch.setitem(kernels._KERNELS, accelerator.NAME, kernels._cuda)
    return simulated()


def on(value, device, dtype=None):
    """Tensors, records of tensors, and models on a device."""
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else None)
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device=device, dtype=dtype)
    if isinstance(value, Mask):
        named = (field.name for field in dataclasses.fields(value) if field.init)
        return dataclasses.replace(value, **{name: on(getattr(value, name), device, dtype) for name in named})
    return value


def close(found, expected, dtype):
    """Whether a tensor on a device is what the CPU found in float64, up to a device's order of summation and rounding."""
    tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps
    expected = expected.double()
    finite = expected[expected.isfinite()].abs()
    largest = float(finite.max()) if len(finite) else 1.0
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0, atol=tolerance * largest, equal_nan=True)


def test_tensors_of_any_layout_reach_a_gpu(monkeypatch):
    """From pinned memory, to which torch copies a tensor in its own facts: rows that are the same memory cannot be written."""

    def pinned(tensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)

    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    monkeypatch.setattr(Tensor, "to", lambda tensor, _device, non_blocking: tensor if non_blocking else None)
    numbers = torch.arange(6).view(2, 3)
    for given in (numbers, numbers.T, numbers[:, :1].expand(2, 3), numbers[:, 0]):
        assert torch.equal(to_device(given, torch.device("cuda")), given)


def vectors(dtype, number=3, width=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 11, width, dtype=F64, generator=generator).to(dtype) for _ in range(number)]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("width", [4, 12])
def test_the_fused_kernel_is_trusted_and_gives_its_normaliser(device, dtype, width):
    query, key, value = vectors(dtype, width=width)
    kernel = kernels.kernel_for(on(query, device), on(value, device))
    assert kernel is kernels._cuda
    for added in (None, torch.randn(2, 1, 1, 11, generator=torch.Generator().manual_seed(1)).to(dtype)):
        output, normaliser = kernel(*(on(each, device) for each in (query, key, value, added)), False, SCALE)
        scores = query.double() @ key.double().mT * SCALE + (0.0 if added is None else added.double())
        close(output, scores.softmax(-1) @ value.double(), dtype)
        close(normaliser, scores.logsumexp(-1), torch.float32)


@pytest.mark.spread(18)
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("name", MASKS)
def test_attention_and_its_tiles_are_those_of_the_whole_matrix(device, name, dtype):
    mask, (query, key, value) = MASKS[name], vectors(dtype)
    scores = query.double() @ key.double().mT * SCALE + explicit(mask)
    alpha, there = scores.softmax(-1), REAL[:, None].expand(-1, 3, -1)
    own = on(mask, device, dtype)
    q, k, v, real = (on(each, device) for each in (query, key, value, REAL))
    output, normaliser = maths.attention(q, k, v, own, SCALE)
    close(output.cpu()[there], (alpha @ value.double())[there], dtype)
    close(normaliser.cpu()[there], scores.logsumexp(-1)[there], dtype)
    received = weight_tiles.weight_received(q, k, normaliser, real, own, SCALE)
    seen = there if mask is None or mask.keys is None else there & mask.keys[:, None]
    close(received.cpu()[seen], torch.einsum("bhqk,bq->bhk", alpha, REAL.double())[seen], torch.float32)
    whole = torch.zeros_like(alpha)
    for some, rows, columns, weights in weight_tiles.weight_tiles(q, k, normaliser, real, own, SCALE):
        whole[some, :, rows, columns] = weights.cpu().double()
    close(whole, alpha * REAL[:, None, :, None], dtype)


def tiny(family, auto=AutoModel):
    """A model whose every parameter is random, in float64."""
    torch.manual_seed(0)
    model = auto.from_config(AutoConfig.for_model(**FAMILY_CONFIGS[family])).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def both(model, device, dtype):
    """A model on the device, and one on the CPU with the same weights in float64."""
    rounded = on(model, "cpu", dtype)
    return normscope.wrap(on(rounded, device)), normscope.wrap(on(rounded, "cpu", F64))


def values_of(block):
    """Everything that analyses read of a block."""
    yield "weights", block.weights
    yield "received", block.received
    yield "norms", block.transformed_norms
    yield "mixing vector", block.mixing
    yield "received shares", block.received_shares()
    for method, ratios in block.mixing_ratios.items():
        yield method.value, ratios


PADDED = [[5, 6, 7, 8, 9], [9, 5, 6]]


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [F64, torch.float32, *HALVES])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_blocks_of_padded_batches_are_those_of_the_cpu(device, family, dtype):
    if device.type == accelerator.NAME and dtype is torch.float16:
        pytest.skip("a CPU multiplies float16 in float16, which overflows")
    there, here = both(tiny(family), device, dtype)
    observed = ([dict(values_of(block)) for block in normscope.observe(model, PADDED)] for model in (there, here))
    for found, expected in zip(*observed, strict=True):
        for name, value in found.items():
            close(value, expected[name], dtype)


def analysed(model, device, names, begin=lambda _observer: None):
    """Analyses that have seen two batches. `begin` is called between them: the first shows a model what it keeps."""
    measured = analyses_of(model.model, names)
    layers, needs = range(model.layers + 1), [each.requirements(each.options, model.facts) for each in measured]
    observer = Observer(model.model, model.facts, layers[1:], layers, feed_forward=any(n.feed_forward for n in needs))
    with observer:
        for seed in range(2):
            torch.manual_seed(seed)
            batch = random_batch((3, 6), 99)
            if seed:
                begin(observer)
            run_batch(observer, batch.to(device), measured)
    return measured


EVERY = [name for name in ANALYSES if name != "attribution"]  # which makes passes of its own


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_analyses_find_what_they_find_on_the_cpu(device, family):
    models = zip(both(tiny(family), device, F64), (device, torch.device("cpu")), strict=True)
    found, expected = (
        {
            (type(each).__name__, name): table
            for each in analysed(*model, EVERY)
            for name, table in each.result().tables.items()
        }
        for model in models
    )
    assert found.keys() == expected.keys()
    for name, table in found.items():
        pd.testing.assert_frame_equal(table, expected[name], rtol=1e-6, atol=1e-9, obj=str(name))


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["bert", "llama", "mistral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_waits_between_the_first_and_the_last_layer(device, family, dtype, monkeypatch):
    """Nor does the comparison of parts with what the model computes, which `meta` leaves out (test_waiting.py)."""
    passes = []

    def begin(_observer):
        run = _Pass.run

        def without_waiting(*arguments):
            passes.append(device)
            with no_waiting(device):
                return run(*arguments)

        monkeypatch.setattr(_Pass, "run", without_waiting)

    analysed(normscope.wrap(on(tiny(family), device, dtype)), device, EVERY, begin)
    assert passes


IDS = [5, 6, 7, 8, 9, 10, 11, 12]
REGIONS = [slice(0, 3), slice(3, 8)]


def scored(model, _dtype):
    for weights in ("held", "through"):
        for target in (normscope.NextToken(7), normscope.Answer([7, 8, 9])):
            attribution = attribute(model, IDS, target, attention=weights)
            yield attribution.scores
            yield [attribution.target]


def attended(model, _dtype):
    yield attention(model, IDS, queries="last").values
    yield attention(model, IDS, queries="last", measure="norm").values
    yield attention(model, IDS, queries=REGIONS, keys=REGIONS).values
    yield attention(model, IDS, queries=REGIONS, keys=REGIONS, measure="share").values


def ranked(model, _dtype):
    strongest = attention(model, IDS, queries="last", top=3)
    yield strongest.values
    yield attention(model, IDS, queries=REGIONS, keys=REGIONS, measure="score").values


def compared(model, _dtype):
    yield similarity(model, IDS, [9, 8, 7, 12], pooling="mean").matrix


def chained(model, _dtype):
    for method in attribution_maps(model, IDS).values():
        yield method.total


def decomposed(model, _dtype):
    found = decompose(model, IDS)
    yield found.ratios
    yield found.output_shares[["share", "own", "residual", "bias"]].to_numpy()


CALLS = {call.__name__: call for call in (scored, attended, ranked, compared, chained, decomposed)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_calls_return_what_they_return_on_the_cpu(device, name, dtype):
    there, here = both(tiny("llama", AutoModelForCausalLM), device, dtype)
    for found, expected in zip(CALLS[name](there, dtype), CALLS[name](here, dtype), strict=True):
        close(torch.tensor(np.asarray(found)), torch.tensor(np.asarray(expected)), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bert", "bert_pairs", "bert_treebank", "bert_words", "llama", "marian", "t5", "t5_cross"]
)
def test_commands_measure_what_they_measure_on_the_cpu(device, name, tmp_path, tokenizer, monkeypatch):
    arguments = commands(tmp_path, tokenizer)[name]
    expected = run_once(*arguments, f"output_dir={tmp_path / 'expected'}")
    if device.type == accelerator.NAME:
        known = loading.torch_device
        monkeypatch.setattr(loading, "torch_device", lambda name: device if name == "cuda" else known(name))
    arguments = ["device=cuda" if given == "device=cpu" else given for given in arguments]
    found = run_once(*arguments, f"output_dir={tmp_path / 'found'}")
    assert (expected.status, found.status) == (0, 0), expected.err + found.err
    assert differences(tmp_path / "expected", tmp_path / "found") == []
