"""The only access to torch's fused attention kernels, which compute the log-normaliser and return it.

These operators are private to torch. Each is tested on a small problem, on the device and in the dtype in use, before it is
trusted. If it fails, attention is computed exactly without it.
"""

import functools
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], tuple[Tensor, Tensor]]


def kernel_for(
    query: Float[Tensor, "batch head query head_dim"], value: Float[Tensor, "batch head key value_dim"]
) -> Kernel | None:
    """The fused kernel that returns output and log-normaliser, given query, key, value, mask, is_causal and scale.

    Returns:
        The kernel, or None if there is none for this device, dtype and these shapes.
    """
    if query.shape[-1] != value.shape[-1] or query.device.type not in _KERNELS:
        return None
    return _KERNELS[query.device.type] if _is_right(query.device, query.dtype) else None


def _cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    if mask is not None and mask.stride(-1) != 1:
        # Without the fix of pytorch/pytorch#187506 (June 2026), torch reads the rows of a mask as if each were contiguous.
        mask = mask.contiguous()
    result: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=causal, attn_mask=mask, scale=scale
    )
    return result


_ALIGNMENT = 8
"""Alignment of heads and of mask rows on CUDA, in elements."""


def _cuda(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    queries, keys, width = query.shape[2], key.shape[2], value.shape[-1]
    query, key, value = (_filled_up(tensor) for tensor in (query, key, value))
    if mask is not None:
        mask = _filled_up(mask)[..., :keys].expand(*query.shape[:2], queries, keys)
    output, normaliser, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, True, 0.0, causal, scale=scale
    )
    return output[..., :width], normaliser[..., :queries]


def _filled_up(tensor: Tensor) -> Tensor:
    """The tensor itself if its rows are aligned as the kernel requires, else a padded copy."""
    aligned = (tensor.shape[-1], tensor.storage_offset(), *tensor.stride()[:-1])
    if tensor.stride(-1) == 1 and not any(number % _ALIGNMENT for number in aligned):
        return tensor
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % _ALIGNMENT)).contiguous()


_KERNELS: dict[str, Kernel] = {"cpu": _cpu, "cuda": _cuda}


@functools.cache
def _is_right(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device's kernel is correct: plain, with a mask, causal, both, and with a mask whose rows are not contiguous."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 2, 37, 12, dtype=torch.float64, generator=generator).to(device, dtype) for _ in range(3)
    )
    mask = torch.randn(2, 1, 1, 37, dtype=torch.float64, generator=generator).to(device, dtype)
    strided = torch.randn(1, 37, 37, 2, dtype=torch.float64, generator=generator).to(device, dtype).permute(0, 3, 1, 2)
    for added, causal in ((None, False), (mask, False), (None, True), (mask, True), (strided, False)):
        try:
            output, normaliser = _KERNELS[device.type](query, key, value, added, causal, 0.5)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError):
            return False
        scores = 0.5 * query.double() @ key.double().transpose(-1, -2)
        scores = scores if added is None else scores + added.double()
        if causal:
            scores = scores + torch.full_like(scores[0, 0], float("-inf")).triu(1)
        tolerance = 20 * torch.finfo(dtype).eps
        for got, expected in (
            (output.double(), scores.softmax(dim=-1) @ value.double()),
            (normaliser.double(), scores.logsumexp(dim=-1)),
        ):
            if got.shape != expected.shape or not torch.allclose(got, expected, rtol=tolerance, atol=tolerance):
                return False
    return True
