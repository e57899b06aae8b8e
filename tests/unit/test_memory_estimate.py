"""How much memory a run needs, estimated before weights are loaded."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig

from normscope.errors import InputError
from normscope.models.loading import open_model
from normscope.models.memory_estimate import Memory, MemoryEstimate, compare, estimate
from normscope.models.observer import Observer
from normscope.models.options import DeviceMap, DeviceOptions, DType, ModelOptions, Quantization
from normscope.models.quantisation import quantise_to_int8
from normscope.models.stored_weights import stored_tensors
from normscope.running.distributed import ProcessGroup
from normscope.running.inputs import ConfiguredInputs
from normscope.running.options import RunOptions
from tests.tiny import FAMILY_CONFIGS, layout_of, tiny_model

CPU = torch.device("cpu")
GIB = 2**30
INT8, EIGHT, FOUR = Quantization
LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}


class LiveMemory(TorchDispatchMode):
    """The largest sum of bytes of storages that were made inside and were alive together."""

    def __init__(self):
        super().__init__()
        self.alive: list[tuple[StorageWeakRef, int]] = []
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {StorageWeakRef(part.untyped_storage()).cdata for part in tensors((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for part in tensors(result):
            storage = StorageWeakRef(part.untyped_storage())
            if storage.cdata not in known:
                known.add(storage.cdata)
                self.alive.append((storage, part.untyped_storage().nbytes()))
        self.alive = [(storage, size) for storage, size in self.alive if not storage.expired()]
        self.peak = max(self.peak, sum(size for _, size in self.alive))
        return result


def tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(
    ("family", "dtype"), [("bert", DType.float32), ("llama", DType.bfloat16), ("gpt2", DType.float32)]
)
def test_weights_are_those_that_are_loaded(family, dtype, tmp_path, tokenizer):
    tiny_model(FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer)}, torch.float32).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    device = DeviceOptions(name="cpu", dtype=dtype)
    opened = open_model(ModelOptions(name=str(tmp_path)))
    model = opened.load(device).model
    own = [*model.parameters(), *model.buffers()]
    expected = sum({tensor.data_ptr(): tensor.nbytes for tensor in own}.values())
    needed = estimate(opened.config, opened.layout, model.dtype, 4096)
    assert needed.weights == expected
    observed = Observer(model, opened.layout).parameters
    shared = {tensor.untyped_storage().data_ptr() for tensor in own}
    copies = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for layer in range(1, 4 if dtype is DType.float32 else 2)
        for tensor in tensors(vars(observed[layer]))
        if tensor.ndim == 3
    }
    copied = sum(size for pointer, size in copies.items() if pointer not in shared)
    assert copied <= needed.observed <= 4 * copied


def test_quantised_weights_are_counted():
    pytest.importorskip("torchao")
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float32)
    quantise_to_int8(model, CPU)
    stored = [part for tensor in (*model.parameters(), *model.buffers()) for part in stored_tensors(tensor)]
    needed = estimate(model.config, layout_of("llama"), torch.float32, 64, quantization=INT8)
    assert needed.weights == sum(part.nbytes for part in stored)


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.bfloat16), ("bert", torch.float32)])
@pytest.mark.spread(1)
def test_activations_are_an_upper_bound(family, dtype):
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512, "max_position_embeddings": 600}
    config = FAMILY_CONFIGS[family] | sizes | ({"head_dim": 32} if family == "llama" else {})
    model = tiny_model(config, dtype)
    layout = layout_of(family, config=model.config)
    tokens = torch.randint(5, 99, (4, 512), generator=torch.Generator().manual_seed(0))
    needed = estimate(model.config, layout, dtype, tokens.numel())
    observer = Observer(model, layout, feed_forward=True)

    results = []

    def visit(block):
        results.extend([block.transformed_norms.sum(), block.received.sum(), len(block.mixing_ratios)])

    with LiveMemory() as live, observer:
        observer.run(
            {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
            visit,
            None,
            lambda network: network.output.square().sum(),
        )
    assert len(results) == 9
    # 4.08 times with BERT in bfloat16, less otherwise.
    assert live.peak <= needed.activations + needed.observed < 4.5 * live.peak


def test_seven_billion_parameters_fit_in_24_gb():
    needed = estimate(AutoConfig.for_model(**LLAMA_7B), layout_of("llama"), torch.bfloat16, 4096, accelerator=True)
    parameters = 2 * 32000 * 4096 // 2 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096
    assert needed.weights == pytest.approx(2 * parameters, rel=1e-6)
    assert needed.total < 24e9
    four = estimate(AutoConfig.for_model(**LLAMA_7B), layout_of("llama"), torch.bfloat16, 4096, quantization=FOUR)
    assert four.weights < needed.weights / 3
    assert (
        estimate(AutoConfig.for_model(**LLAMA_7B), layout_of("llama"), torch.bfloat16, 2**15, accelerator=True).total
        > 24e9
    )


def test_what_does_not_fit_is_said():
    needed = MemoryEstimate(6 * GIB, GIB, 3 * GIB)
    settings = ["device.dtype=bfloat16", "device.map=auto", "a smaller device.batch_tokens"]

    def said(free: float, total: float, processes: int = 1) -> str | None:
        memory = Memory(int(free * GIB), int(total * GIB))
        return compare(needed, CPU, memory, settings, name="gpt", processes=processes)

    assert said(10, 10) is None
    assert said(9, 12) == (
        "gpt may not fit on cpu: it needs about 10.0 GiB (weights 6.0 GiB, copies of weights 1.0 GiB, activations 3.0 GiB), "
        "but only 9.0 GiB is free; if memory runs out, set device.dtype=bfloat16, device.map=auto or a smaller "
        "device.batch_tokens"
    )
    assert "free for each of 2 processes" in str(said(9, 12, 2))
    with pytest.raises(
        InputError, match=r"^model\.name=gpt: its weights take 6\.0 GiB, but cpu has only 5\.0 GiB; set "
    ):
        said(5, 5)


def test_memory_of_devices(monkeypatch):
    whole, half = Memory.of(CPU), Memory.of(CPU, 2)
    assert whole is not None
    assert half is not None
    assert 0 < whole.free <= whole.total
    assert half.total == whole.total // 2
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (3, 4))
    assert Memory.of(torch.device("cuda", 1), 2) == Memory(3, 4)
    assert Memory.of(torch.device("mps")) is None


def test_runs_warn_before_they_load(saved_model, monkeypatch, capsys):
    options = RunOptions()
    options.model.name, options.model.seed, options.device.name = str(saved_model), 0, "cpu"
    ConfiguredInputs(options.model, options.device, ProcessGroup()).load()
    assert "may not fit" not in capsys.readouterr().err
    monkeypatch.setattr(Memory, "of", lambda *_: Memory(2**16, 2**30))
    ConfiguredInputs(options.model, options.device, ProcessGroup()).load()
    assert f"{saved_model} may not fit on cpu: it needs about " in capsys.readouterr().err
    options.device.map = DeviceMap.auto
    ConfiguredInputs(options.model, options.device, ProcessGroup()).load()
    assert not capsys.readouterr().err


def test_settings_that_are_set_are_not_advised(saved_model, monkeypatch):
    monkeypatch.setattr(Memory, "of", lambda *_: Memory(2**16, 2**30))
    opened = open_model(ModelOptions(name=saved_model))
    assert "set device.dtype=bfloat16, model.quantization=torchao_int8, device.map" in str(
        opened.check_memory(DeviceOptions(name="cpu"))
    )
    assert "set model.quantization=torchao_int8, device.map=auto" in str(
        opened.check_memory(DeviceOptions(name="cpu", dtype=DType.float16))
    )
    opened = open_model(ModelOptions(name=saved_model, quantization=INT8))
    assert "set device.map=auto or a smaller" in str(
        opened.check_memory(DeviceOptions(name="cpu", dtype=DType.float16))
    )
