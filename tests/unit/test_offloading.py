"""Models whose weights are in CPU memory or on disk while their modules do not run."""

import functools
import gc

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from normscope.attribution.passes import held_pass
from normscope.config.rules import size_in_bytes
from normscope.data.encoding import Encoder
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.errors import InputError
from normscope.models.load.interventions import InterventionRunner
from normscope.models.load.loading import load
from normscope.models.observe.observer import Observer
from normscope.models.options import DeviceMap, DeviceOptions, MaxMemory, ModelOptions
from normscope.models.prove.verification import verify
from normscope.models.stored.offloading import keep_on, memory_by_device, spare_memory
from normscope.models.stored.stored_weights import execution_device, is_offloaded, offloaded_to, weights_present
from normscope.models.stored.weight_checks import check_finite
from normscope.running.options import RunOptions, check
from normscope.running.ranks import ProcessGroup, device_share
from tests.tiny import FAMILY_CONFIGS, INPUTS, facts_for, tiny_model

CPU = torch.device("cpu")


def observed(model, facts) -> list[torch.Tensor]:
    """What analyses read of every block and network."""
    values: list[torch.Tensor] = []
    tokens = INPUTS["attention_mask"].bool()  # what stands at padding is undefined
    observer = Observer(model, facts, hidden=range(facts.layers + 1), feed_forward=True)

    def visit(block):
        values.extend(each.transpose(1, 2)[tokens] for each in (block.received, block.transformed_norms))
        values.extend(each[tokens] for each in block.mixing_ratios.values())

    def visit_feed_forward(block):
        values.extend(each[tokens] for each in block.composition().parts(block.stages[-1]) if each.ndim == 3)

    with observer:
        for _ in range(2):  # weights are loaded again for every batch
            observer.run(INPUTS, visit, lambda _layer, vectors: values.append(vectors[tokens]), visit_feed_forward)
    return [value.clone() for value in values]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.spread(1)
def test_offloaded_models_are_observed_bit_for_bit(family, place, tmp_path):
    facts = facts_for(family)
    model = tiny_model(FAMILY_CONFIGS[family], torch.float32)
    expected, error = observed(model, facts), verify(model, facts, family, feed_forward=True).error
    if place == "cpu":
        cpu_offload(model, CPU)
    else:
        disk_offload(model, str(tmp_path), CPU)
    assert is_offloaded(model)
    assert offloaded_to(model) == ["CPU memory" if place == "cpu" else "disk"]
    assert execution_device(model) == CPU
    check_finite(model, family)
    for got, wanted in zip(observed(model, facts), expected, strict=True):
        assert torch.equal(got, wanted)
    assert verify(model, facts, family, feed_forward=True).error == error
    assert is_offloaded(model), "weights are let go again"
    with pytest.raises(InputError, match=r"^device\.map=auto: attribution through all layers needs"):
        held_pass(model, facts, INPUTS)


@pytest.mark.spread(1)
@pytest.mark.parametrize("size", [0, 10**4, 10**9])
def test_weights_on_other_devices_are_used(size, monkeypatch):
    moved: list[torch.Tensor] = []

    facts = facts_for("llama")
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float32)
    expected = observed(model, facts)
    cpu_offload(model, CPU)
    to = torch.Tensor.to

    @functools.wraps(to)  # rules go by names
    def counted(tensor, *args, **kwargs):
        if args == (torch.device("cuda", 1),):
            moved.append(tensor)
            return tensor.clone()
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", counted)
    keep_on(model, {torch.device("cuda", 1): size})
    assert sum(tensor.nbytes for tensor in moved) <= size
    assert bool(moved) == (size > 0)
    if size == 10**9:
        assert len(moved) == len(list(model.parameters()))
    for got, wanted in zip(observed(model, facts), expected, strict=True):
        assert torch.equal(got, wanted)


def test_processes_share_the_devices_of_a_machine(monkeypatch):
    assert [list(device_share(rank, 2, 4)) for rank in range(2)] == [[0, 1], [2, 3]]
    assert [list(device_share(rank, 3, 3)) for rank in range(3)] == [[0], [1], [2]]
    assert list(device_share(0, 1, 8)) == list(range(8))
    for processes, devices in ((2, 3), (2, 1), (4, 6)):
        with pytest.raises(
            InputError, match=rf"^device\.map=auto: expected a number of GPUs that {processes} proc.* got {devices};"
        ):
            device_share(0, processes, devices)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (100 * (index + 1), 1000))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    group, spread = ProcessGroup(rank=1, size=2), DeviceOptions(map=DeviceMap.auto)
    assert group.local_device(spread).name == "cuda:2"
    assert list(group.local_devices(spread)) == [2, 3]
    assert spare_memory(range(2, 4), MaxMemory()) == {torch.device("cuda", 3): 360}
    assert spare_memory(range(2, 4), MaxMemory(accelerator="1KB")) == {torch.device("cuda", 3): 1000}
    assert list(ProcessGroup().local_devices(spread)) == [0, 1, 2, 3]
    assert list(group.local_devices(DeviceOptions(name="cuda:1", map=DeviceMap.auto))) == []
    plain = DeviceOptions()
    assert (group.local_device(plain).name, list(group.local_devices(plain))) == ("cuda:1", [])


def test_weights_of_one_layer_at_a_time_are_kept():
    model, facts = tiny_model(FAMILY_CONFIGS["llama"], torch.float32), facts_for("llama")
    cpu_offload(model, CPU)
    weights = Observer(model, facts).parameters
    factors = weights[1].norm_factors
    assert weights[1] is weights[1]
    first = weights[1]
    assert weights[2] is not first
    assert weights[1] is not first
    assert weights[1].norm_factors is factors, "a decomposition is made once"
    assert list(weights) == [1, 2, 3]
    assert len(weights) == 3


def test_half_precision_is_not_copied_for_all_layers():
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.bfloat16)
    weights = Observer(model, facts_for("llama")).parameters
    assert weights[1].query.weight.dtype is torch.float32
    assert weights[2] is not weights[1]
    assert weights[1].output_weight.dtype is torch.float32


def test_a_damaged_weight_on_disk_is_found(tmp_path):
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float32)
    model.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    disk_offload(model, str(tmp_path), CPU)
    with pytest.raises(InputError, match=r"NaN or infinity in the weight encoder\.layer\.1\.output\.dense\.weight"):
        check_finite(model, "tiny")


def test_weights_are_present_inside_and_stay_valid(tmp_path):
    layer = torch.nn.Linear(3, 2)
    expected = layer.weight.detach().clone()
    disk_offload(layer, str(tmp_path), CPU)
    with weights_present(layer):
        weight = layer.weight
    assert torch.equal(weight, expected)
    assert layer.weight.device.type == "meta"


def test_a_hook_on_a_single_module_knows_its_weights():
    layer = torch.nn.Linear(3, 2)
    add_hook_to_module(layer, AlignDevicesHook(execution_device=CPU, offload=True))
    assert is_offloaded(layer)
    assert offloaded_to(layer) == ["CPU memory"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("memory", [None, "100KB"])
def test_a_checkpoint_larger_than_memory(saved_model, memory, caplog):
    plain = load(ModelOptions(name=saved_model), DeviceOptions(name="cpu"))
    spread = load(
        ModelOptions(name=saved_model), DeviceOptions(name="cpu", map=DeviceMap.auto, max_memory=MaxMemory(cpu=memory))
    )
    assert is_offloaded(spread.model) == bool(memory)
    assert offloaded_to(spread.model) == (["disk"] if memory else [])
    assert not caplog.records, "accelerate says so, too"
    assert spread.device == CPU
    for got, wanted in zip(observed(spread.model, spread.facts), observed(plain.model, plain.facts), strict=True):
        assert torch.equal(got, wanted)
    assert (spread.masked_language_head is None) or not memory
    runner = InterventionRunner(spread, Encoder(spread, DatasetOptions(kind=DatasetKind.text, seed=0)), [1], 64)
    reason = "the language-modelling head is not loaded, because device.map=auto" if memory else "the checkpoint has no"
    assert str(runner.without_loss).startswith(reason)
    del spread, runner
    gc.collect()  # the folder for weights that are in no file of safetensors goes with the model


def test_sizes_have_units():
    assert [size_in_bytes("key", size) for size in ("7", "1.5KiB", "2 GB")] == [7, 1536, 2 * 10**9]
    assert memory_by_device(CPU, MaxMemory(cpu="3MB")) == {"cpu": 3 * 10**6}
    limits = MaxMemory(cpu="3MB", accelerator="1GB")
    assert list(memory_by_device(torch.device("cuda:1"), limits).items()) == [(1, 10**9), ("cpu", 3 * 10**6)]
    with pytest.raises(InputError, match=r"^device\.max_memory\.accelerator=1GB: the model runs on the CPU; set "):
        memory_by_device(CPU, limits)


def test_maps_that_cannot_be(saved_model, monkeypatch):
    options = DeviceOptions(name="cpu", map=DeviceMap.auto)
    with pytest.raises(InputError, match=r"^device\.map=auto: expected a checkpoint, got random weights"):
        load(ModelOptions(name=saved_model, random_init=True), options)
    run = RunOptions()
    run.analysis.mixing.enabled = True
    run.device.max_memory.cpu = "1GB"
    with pytest.raises(InputError, match=r"^device\.max_memory\.cpu=1GB is only used with device\.map=auto"):
        check(run)
    monkeypatch.setitem(__import__("sys").modules, "accelerate.utils", None)
    with pytest.raises(InputError, match=r"^device\.map=auto needs accelerate: pip install accelerate$"):
        memory_by_device(CPU, MaxMemory())
