"""Scores that follow attention weights, by plain autograd: whatever is held is detached, and of a product of two vectors of the
model each factor is followed with the other one held, at half weight."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "through_by_hand"


def halved(one: Tensor, other: Tensor) -> Tensor:
    """A product, half of which belongs to each of the two."""
    return (one @ other.detach() + one.detach() @ other) / 2


def attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention in transformers' registry."""
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    scores = halved(query, key.transpose(-1, -2)) * scaling
    scores = scores if mask is None else scores + mask
    return halved(scores.softmax(dim=-1), value).transpose(1, 2), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, eager_mask)


@contextlib.contextmanager
def following(base: Any, *, is_bert: bool) -> Iterator[list[Tensor]]:
    """Context in which gradients of a model say what belongs to the vectors that enter its first layer, which are yielded."""
    leaves: list[Tensor] = []
    handles = []
    for module in base.modules():
        if isinstance(module, nn.LayerNorm):
            handles.append(module.register_forward_hook(_normed))
        elif type(module).__name__.endswith("RMSNorm"):
            handles.append(module.register_forward_hook(_scaled))
        elif type(module).__name__ == "GELUActivation":
            handles.append(
                module.register_forward_hook(lambda _module, args, made: args[0] * (made / args[0]).detach())
            )
        elif hasattr(module, "gate_proj"):
            handles.append(module.register_forward_hook(_gated))

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves.append(args[0].detach().requires_grad_())
        return (leaves[0], *args[1:]), kwargs

    first = base.encoder.layer[0] if is_bert else base.layers[0]
    handles.append(first.register_forward_pre_hook(enter, with_kwargs=True))
    before = base.config._attn_implementation
    base.config._attn_implementation = NAME
    try:
        yield leaves
    finally:
        base.config._attn_implementation = before
        for handle in handles:
            handle.remove()


def _normed(module: Any, args: tuple[Tensor], _made: Tensor) -> Tensor:
    centred = args[0] - args[0].mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + module.eps).sqrt()
    return centred / deviation.detach() * module.weight + module.bias


def _scaled(module: Any, args: tuple[Tensor], _made: Tensor) -> Tensor:
    deviation = (args[0].square().mean(dim=-1, keepdim=True) + module.variance_epsilon).sqrt()
    return args[0] / deviation.detach() * module.weight


def _sloped(_module: Any, args: tuple[Tensor], made: Tensor) -> Tensor:
    return args[0] * (made / args[0]).detach()


def _gated(module: Any, args: tuple[Tensor], _made: Tensor) -> Tensor:
    """g(u) ⊙ w by its integrated gradients from zero, by quadrature."""
    u, w = module.gate_proj(args[0]), module.up_proj(args[0])
    nodes, weights = np.polynomial.legendre.leggauss(60)
    mean = sum(
        float(weight) / 2 * module.act_fn((float(node) + 1) / 2 * u)
        for node, weight in zip(nodes, weights, strict=True)
    )
    of_u = w * (module.act_fn(u) - mean) / u
    return module.down_proj(u * of_u.detach() + w * mean.detach())


def scores(base: Any, inputs: Any, gradient: np.ndarray, *, is_bert: bool) -> np.ndarray:
    """The score of each token.

    Args:
        gradient: Of what is attributed, at each last hidden vector.
    """
    with following(base, is_bert=is_bert) as leaves, torch.enable_grad():
        hidden = base(**inputs).last_hidden_state[0]
        (found,) = torch.autograd.grad((hidden * torch.tensor(gradient)).sum(), leaves)
    return (found * leaves[0].detach())[0].sum(dim=-1).numpy()
