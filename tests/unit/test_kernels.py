"""Fused kernels: what is asked of one before it is used, and what the one for CUDA is given."""

import pytest
import torch

from normscope.maths import kernels
from tests.accelerator import explicit, memory_efficient

F64 = torch.float64
SCALE = 0.3


def as_if_contiguous(mask):
    """What torch 2.6 makes of a mask whose rows are not contiguous."""
    return mask.as_strided(mask.shape, torch.empty(mask.shape).stride())


WRONG = {
    "output": lambda q, k, v, m, c, s: (explicit(q, k, v, m, c, s)[0] * 1.001, explicit(q, k, v, m, c, s)[1]),
    "normaliser": lambda q, k, v, m, c, s: (explicit(q, k, v, m, c, s)[0], explicit(q, k, v, m, c, s)[1] + 1e-3),
    "mask": lambda q, k, v, _, c, s: explicit(q, k, v, None, c, s),
    "layout": lambda q, k, v, m, c, s: explicit(q, k, v, None if m is None else as_if_contiguous(m), c, s),
    "mask if causal": lambda q, k, v, m, c, s: explicit(q, k, v, None if c else m, c, s),
    "causal": lambda q, k, v, m, _, s: explicit(q, k, v, m, False, s),
    "causal if masked": lambda q, k, v, m, c, s: explicit(q, k, v, m, c and m is None, s),
    "scale": lambda q, k, v, m, c, _: explicit(q, k, v, m, c, q.shape[-1] ** -0.5),
    "missing": lambda *_: torch.ops.aten.no_such_operator(),
    "shape": lambda q, k, v, m, c, s: tuple(part.unsqueeze(-1) for part in explicit(q, k, v, m, c, s)),
}


@pytest.fixture
def kernel_of_cpu(monkeypatch):
    def use(kernel):
        kernels._is_right.cache_clear()
        monkeypatch.setitem(kernels._KERNELS, "cpu", kernel)

    yield use
    kernels._is_right.cache_clear()


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_a_kernel_is_trusted_if_everything_is_right(kernel_of_cpu, dtype):
    heads = torch.zeros(1, 1, 1, 4, dtype=dtype)
    kernel_of_cpu(explicit)
    assert kernels.kernel_for(heads, heads) is explicit
    assert kernels.kernel_for(heads, heads[..., :3]) is None, "values are as wide as queries"
    kernel_of_cpu(kernels._cpu)
    assert kernels.kernel_for(heads, heads) is kernels._cpu


@pytest.mark.parametrize("wrong", WRONG)
def test_a_kernel_is_not_trusted_if_anything_is_wrong(kernel_of_cpu, wrong):
    heads = torch.zeros(1, 1, 1, 4, dtype=torch.float32)
    kernel_of_cpu(WRONG[wrong])
    assert kernels.kernel_for(heads, heads) is None


@pytest.mark.parametrize("width", [8, 12])
@pytest.mark.parametrize("masked", ["no mask", "keys", "keys of an even number", "keys from the third on", "pairs"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_of_cuda_is_given_aligned_heads_and_masks(monkeypatch, width, masked, causal):
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", memory_efficient)
    keys = 48 if "even" in masked or "third" in masked else 41
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, width, dtype=F64, generator=generator) for n in (37, keys, keys))
    mask = None
    if masked != "no mask":
        mask = torch.randn(2, 1, 37 if masked == "pairs" else 1, keys + 8, dtype=F64, generator=generator)
        mask = mask[..., 2:-6] if "third" in masked else mask[..., :keys].contiguous()
    output, normaliser = kernels._cuda(query, key, value, mask, causal, SCALE)
    for found, expected in zip((output, normaliser), explicit(query, key, value, mask, causal, SCALE), strict=True):
        torch.testing.assert_close(found, expected)
