"""How much memory a model takes on its device while a run observes it, before its weights are loaded.

It is estimated from the config alone: the model is built without memory, and counted. Activations are those of the layer that
runs, in the model's dtype, and those that its block is made of, in float32 or better; analyses differ in what they compute from
them, so they are an upper bound rather than a measurement.
"""

import dataclasses

import psutil
import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.maths.attention_weights import WEIGHTS_AT_ONCE, WEIGHTS_AT_ONCE_ON_ACCELERATORS
from normscope.models.block_modules import BlockModules, bind_blocks
from normscope.models.layout import ModelLayout
from normscope.models.options import Quantization
from normscope.models.quantisation import quantised_bytes

# Vectors of a token that are alive at once in float32: what a block is captured with, and what analyses make of it.
_VECTORS_OF_BLOCK = 12
_VECTORS_PER_HEAD = 6

# Copies of α, or of scores, that are alive at once.
_STRIPS = 3

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a run needs on the device on which the model runs."""

    weights: int
    """The model's own."""
    observed: int
    """Copies of weights in float32: of one layer at a time, or repeated for grouped heads."""
    activations: int
    """Of the largest batch."""

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.observed + self.activations

    def __str__(self) -> str:
        parts = {"weights": self.weights, "copies of weights": self.observed, "activations": self.activations}
        return f"{gib(self.total)} ({', '.join(f'{name} {gib(size)}' for name, size in parts.items() if size)})"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of one device, in bytes."""

    free: int
    total: int

    @classmethod
    def of(cls, device: torch.device, processes: int = 1) -> "Memory | None":
        """Memory of a device for one of the processes that share it; None if the device does not say.

        Args:
            device: CUDA or CPU.
            processes: How many processes of the run are on this machine; those on the CPU share its memory.
        """
        if device.type == "cuda":
            return cls(*torch.cuda.mem_get_info(device))
        if device.type == "cpu":
            memory = psutil.virtual_memory()
            swapped = psutil.swap_memory().total
            return cls(memory.available // processes, (memory.total + swapped) // processes)
        return None


def gib(size: int) -> str:
    """A size of memory for readers."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.1f} MiB"


def estimate(
    config: PretrainedConfig,
    layout: ModelLayout,
    dtype: torch.dtype,
    batch_tokens: int,
    *,
    quantization: Quantization | None = None,
    accelerator: bool = False,
) -> MemoryEstimate:
    """How much memory a run needs on its device.

    Args:
        config: The model's config.
        dtype: Of weights and activations.
        batch_tokens: The largest number of tokens of a batch, padding included.
        quantization: Of the weights of linear layers.
        accelerator: Whether the model runs on one, where larger pieces are computed at once.
    """
    with torch.device("meta"):
        model = AutoModel.from_config(config, dtype=dtype)
    model = model.get_encoder() if layout.stack == "encoder" else model
    layers = bind_blocks(model, layout)
    heads, key_heads = layout.attention.heads, max(layout.attention.key_heads)
    sizes = _Sizes.of(layers[0])
    copies = dtype in (torch.bfloat16, torch.float16) or quantization is not None
    projections = sizes.projections * max(4, dtype.itemsize)
    repeated = 2 * sizes.model * sizes.heads * dtype.itemsize if key_heads < heads else 0
    observed = projections + 4 * sizes.networks if copies else repeated * len(layers)
    length = min(batch_tokens, layout.longest_sequence(model) or batch_tokens)
    strips = WEIGHTS_AT_ONCE_ON_ACCELERATORS if accelerator else WEIGHTS_AT_ONCE["cpu"]
    precise = max(4, dtype.itemsize)
    activations = (
        batch_tokens * dtype.itemsize * (4 * sizes.model + 4 * sizes.heads + 3 * sizes.neurons)
        + batch_tokens
        * precise
        * (_VECTORS_OF_BLOCK * sizes.model + _VECTORS_PER_HEAD * sizes.heads + 3 * sizes.neurons)
        + _STRIPS * precise * min(strips, heads * batch_tokens * length)
    )
    return MemoryEstimate(_bytes(model, quantization), observed, activations)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes of one layer."""

    model: int
    heads: int
    """Dimensions of all heads together."""
    neurons: int
    """The largest output of a module: the network's, if it is dense."""
    projections: int
    """Elements of W_Q, W_K, W_V and W_O, for every head."""
    networks: int
    """Elements of all other weights."""

    @classmethod
    def of(cls, modules: BlockModules) -> "_Sizes":
        weight = modules.output.weight
        assert isinstance(weight, torch.Tensor)
        rows, columns = weight.shape
        heads, model = (columns, rows) if isinstance(modules.output, nn.Linear) else (rows, columns)
        projections = (modules.heads.query, modules.heads.key, modules.heads.value, modules.output)
        attention = {id(part.weight) for part in projections if part is not None}
        others = [weight for weight in modules.whole.parameters() if id(weight) not in attention and weight.ndim == 2]
        neurons = max((max(weight.shape) for weight in others), default=model)
        return cls(model, heads, neurons, 4 * model * heads, sum(weight.numel() for weight in others))


def _bytes(model: PreTrainedModel, quantization: Quantization | None) -> int:
    """What the tensors of a model take."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    saved = 0
    if quantization is not None:
        for module in model.modules():
            quantised = quantised_bytes(module, quantization)
            saved += 0 if quantised is None else module.weight.nbytes - quantised
    return sum(tensor.nbytes for tensor in tensors.values()) - saved


def compare(
    needed: MemoryEstimate, device: torch.device, memory: Memory, advice: list[str], *, name: str, processes: int = 1
) -> str | None:
    """Compare what a run needs with the memory of its device.

    Args:
        needed: The estimate.
        memory: Of this device.
        advice: Settings that need less.
        name: The model's name.
        processes: How many processes share the memory.

    Returns:
        One line if it probably does not fit, otherwise None.

    Raises:
        InputError: If not even the weights can fit.
    """
    if needed.total <= memory.free:
        return None
    shared = f" for each of {processes} processes" if processes > 1 and device.type == "cpu" else ""
    settings = " or ".join([", ".join(advice[:-1]), advice[-1]] if len(advice) > 1 else advice)
    if needed.weights > memory.total:
        raise InputError(
            f"model.name={name}: its weights take {gib(needed.weights)}, but {device} has only {gib(memory.total)}{shared}; "
            f"set {settings}"
        )
    return (
        f"{name} may not fit on {device}: it needs about {needed}, but only {gib(memory.free)} is free{shared}; if memory runs "
        f"out, set {settings}"
    )
