"""The weights of a model that are kept elsewhere while their module does not run.

Weights are read through this module. Only loading needs `offloading`, which offloads them.
"""

import concurrent.futures
import contextlib
import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel


def number_format(model: PreTrainedModel) -> str:
    """The dtype of a model in words."""
    return str(model.dtype).removeprefix("torch.")


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights of a model are kept elsewhere while it does not run."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


@contextlib.contextmanager
def weights_present(module: nn.Module) -> Iterator[None]:
    """While the context is open, the weights of a module and its submodules are on the device on which it runs.

    Tensors that were read inside stay valid; the module's own attributes are `meta` tensors again afterwards.
    """
    with contextlib.ExitStack() as loaded:
        if is_offloaded(module):
            for part in module.modules():
                for hook in _offloading_hooks(part):
                    loaded.callback(hook.post_forward, part, None)
                    hook.pre_forward(part)
            if is_offloaded(module):
                raise RuntimeError(f"{type(module).__name__} has weights on the meta device that nothing loads")
        yield


def _offloading_hooks(module: nn.Module) -> list[Any]:
    """Hooks of accelerate that load a module's weights before it runs; `align_module_device` misses hooks in a sequence."""
    hook: Any = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]


def offloaded_to(model: nn.Module) -> list[str]:
    """Where weights of a model are kept while it does not run, in words: CPU memory, disk, or names of accelerators."""
    places = [
        "disk" if tensor is None else "CPU memory" if tensor.device.type == "cpu" else str(tensor.device)
        for _, _, tensor in kept_elsewhere(model)
    ]
    return sorted(set(places), reverse=True)


def weights_digest(model: nn.Module, without: Collection[nn.Module] = ()) -> str:
    """SHA-256 of the weights that a model computes with: names, number formats, shapes and bytes, wherever they are kept.

    Args:
        model: What names begin in, whichever way it was loaded.
        without: Modules whose weights do not count.
    """
    found: dict[str, concurrent.futures.Future[str]] = {}
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for path, module in model.named_modules():
            own = [*dict(module.named_parameters(recurse=False)), *dict(module.named_buffers(recurse=False))]
            kept = [name for name in own if name not in module._non_persistent_buffers_set]
            if not kept or module in without:
                continue
            offloaded = is_offloaded(module)
            with weights_present(module):
                new = {f"{path}.{name}": pool.submit(_digest, getattr(module, name).detach()) for name in kept}
            found |= new
            if offloaded:  # no more than a module at a time is in memory
                concurrent.futures.wait(new.values())
        lines = [f"{name} {digest.result()}\n" for name, digest in sorted(found.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


_THREADS = 8


def _digest(tensor: Tensor) -> str:
    content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}"


def execution_device(model: nn.Module) -> torch.device:
    """The device on which a model runs, wherever its weights are."""
    for parameter in model.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next(device for device in devices if device is not None))


def kept_elsewhere(model: nn.Module) -> Iterator[tuple[dict[str, Tensor], str, Tensor | None]]:
    """The weights that are loaded when their module runs: dictionary, key, and the weight (None if it is on disk)."""
    for module in model.modules():
        for hook in _offloading_hooks(module):
            # A hook put on a single module by hand keeps its weights in a plain dictionary, without a prefix.
            weights = getattr(hook.weights_map, "dataset", hook.weights_map)
            prefix = getattr(hook.weights_map, "prefix", "")
            in_memory = getattr(weights, "state_dict", weights)  # those on disk are in no dictionary
            for name, _ in module.named_parameters(recurse=False):
                key = f"{prefix}{name}"
                yield in_memory, key, in_memory.get(key)
