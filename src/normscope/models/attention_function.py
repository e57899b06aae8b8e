"""What transformers calls instead of its own fused attention while a model is observed."""

from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

IMPLEMENTATION = "normscope"
"""The name under which our attention function stands in transformers' registry."""

# What transformers may pass to an attention function without changing what it computes; windows are in the mask.
_HARMLESS_KEYWORDS = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "use_cache",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "sliding_window",
        "deterministic",
    }
)


@runtime_checkable
class Attends(Protocol):
    """Who computes attention in the place of the model."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        visible: Tensor | None,
        bias: Tensor | None,
        scale: float,
    ) -> Tensor | None:
        """Attention for a module that is observed, or None for any other."""
        ...


active: ContextVar[Attends | None] = ContextVar("normscope_observer", default=None)
"""The observer of the forward pass that is running."""


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """What transformers calls instead of its own fused attention while a model is observed."""
    observer = active.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if observer is not None:
        unknown = [name for name, given in keywords.items() if given is not None and name not in _HARMLESS_KEYWORDS]
        if unknown:
            raise NotImplementedError(f"{type(module).__name__} passes {unknown} to attention, which is not understood")
        if dropout:
            raise ValueError("a model must be in evaluation mode to be observed: call model.eval()")
        visible = attention_mask
        if (
            visible is None
            and query.shape[2] > 1
            and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
        ):
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
        output = observer.attend(module, query, key, value, visible, position_bias, scale)
        if output is not None:
            return output, None
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scale,
        is_causal=is_causal,
        position_bias=position_bias,
        **keywords,
    )


# A new name needs a mask function of its own as well, or transformers may leave padding visible without a word.
AttentionInterface.register(IMPLEMENTATION, _attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
