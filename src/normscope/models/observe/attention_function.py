"""The attention and mask functions that transformers calls while a model is observed."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.linear.provenance import known
from normscope.maths.attention import AttentionCall, attention
from normscope.maths.masks import STRIP, Allowed, Mask, mask_of
from normscope.models.stored.model_code import model_code

IMPLEMENTATION = "normscope"
"""The name of our attention and mask functions in transformers' registries."""

# Keyword arguments of attention functions that do not change the result; sliding windows are in the mask.
_HARMLESS_KEYWORDS = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "use_cache",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "sliding_window",
        "deterministic",
    }
)


@runtime_checkable
class Attends(Protocol):
    """Computes attention in place of the model."""

    def attend(self, module: nn.Module, call: AttentionCall) -> Tensor | None:
        """The attention of an observed module, or None for any other."""
        ...

    @property
    def masks_on_host(self) -> Sequence[Tensor]:
        """Token masks of the pass that can be read without waiting for a device, as far as they are known."""
        ...


class MaskTensor(Tensor):
    """A mask as the tensor that transformers' eager attention adds to the scores.

    Our attention function reads the rule. Model code of its own may read or change the tensor like any other: its elements, 0
    where visible and the lowest number of its dtype elsewhere, are computed by the first operation that needs them.

    Args:
        rule: The mask.
        lengths: Numbers of sequences, queries and keys.
    """

    rule: Mask

    @staticmethod
    def __new__(
        cls, rule: Mask, lengths: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> "MaskTensor":
        """A tensor of shape (sequence, 1, query, key)."""
        batch, queries, keys = lengths
        shape = (batch, 1, queries, keys)
        made: MaskTensor = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.rule = rule
        return known(made)

    @cached_property
    def elements(self) -> Tensor:
        """The same as an ordinary tensor."""
        batch, _, queries, keys = self.shape
        sequence, query, key = (torch.arange(size, device=self.device) for size in (batch, queries, keys))
        term = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        seen = self.rule.visible(query, key, sequence)
        return term if seen is None else term.masked_fill(~seen, torch.finfo(self.dtype).min)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function on the elements; the shape, the dtype and the device are known without them."""
        if function in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        args, kwargs = tree_map(_elements, (args, dict(kwargs or {})))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Callable[..., Any], _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation that passes over `__torch_function__` on the elements."""
        args, kwargs = tree_map(_elements, (args, dict(kwargs or {})))
        return function(*args, **kwargs)


_METADATA = frozenset(
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "is_sparse", "layout", "requires_grad")
) | {Tensor.size, Tensor.dim, Tensor.is_floating_point, torch.is_floating_point}


def _elements(value: object) -> object:
    return value.elements if isinstance(value, MaskTensor) else value


active: ContextVar[Attends | None] = ContextVar("normscope_observer", default=None)
"""The observer of the current forward pass."""


@contextlib.contextmanager
def unobserved(masks_on_host: Sequence[Tensor] = ()) -> Iterator[None]:
    """Context in which a model that calls our function attends without being observed, as an encoder before its decoder does.

    Args:
        masks_on_host: See `Attends`.
    """
    token = active.set(_Unobserved(masks_on_host))
    try:
        yield
    finally:
        active.reset(token)


class _Unobserved(NamedTuple):
    """Leaves all attention to the model."""

    masks_on_host: Sequence[Tensor]

    def attend(self, _module: nn.Module, _call: AttentionCall) -> None:
        """No module is observed."""


@contextlib.contextmanager
def attention_by(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Context in which a model computes attention by a function of transformers' registry."""
    previous = model.config._attn_implementation
    try:
        with model_code(model):
            model.set_attn_implementation(implementation)
        yield
    finally:
        with model_code(model):
            model.set_attn_implementation(previous)


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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: observed modules call the observer, others the usual fused attention.

    transformers' names for a soft cap and for sinks are `softcap` and `s_aux`.
    """
    observer = active.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if observer is not None:
        unknown = [name for name, value in keywords.items() if value is not None and name not in _HARMLESS_KEYWORDS]
        if unknown:
            raise InputError(
                f"model: {type(module).__name__} passes {', '.join(unknown)} to attention, which changes what it computes in a "
                "way that is not known"
            )
        if dropout:
            raise InputError("model: expected a model in evaluation mode, got dropout; call model.eval()")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = _as_mask(attention_mask, (query.shape[2], key.shape[2]), causal=causal and query.shape[2] > 1)
        if position_bias is not None:
            mask = (mask or Mask()).with_bias(position_bias)
        call = AttentionCall(query, key, value, mask, scale, softcap, s_aux)
        output = observer.attend(module, call)
        if output is not None:
            return output, None
        if isinstance(attention_mask, MaskTensor) or softcap is not None or s_aux is not None:
            query, key, value, *_ = call.repeated()
            output = attention(query, key, value, mask, scale, cap=softcap, sinks=s_aux).output
            return output.transpose(1, 2).contiguous(), None
    # The observer restores the model's own attention when it leaves, which alone knows caps and sinks.
    if isinstance(attention_mask, MaskTensor):  # a thread does not know the observer
        raise InputError(f"model: {type(module).__name__} attends in a thread of its own, which cannot be observed")
    assert softcap is None
    assert s_aux is None
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


def _as_mask(mask: Tensor | None, lengths: tuple[int, int], *, causal: bool) -> Mask | None:
    """A mask as a `Mask`; without one, `causal` decides."""
    if isinstance(mask, MaskTensor):
        return mask.rule
    if mask is not None:
        return mask_of(mask, lengths)
    return Mask(causal=True) if causal else None


def _mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **keywords: Any,
) -> Tensor | None:
    """transformers' mask interface: a `MaskTensor`, which holds the rule, if the rule is all that matters; else a matrix."""
    observer = active.get()
    if observer is None or q_offset or kv_offset or use_vmap:
        matrix: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            use_vmap=use_vmap,
            device=device,
            **keywords,
        )
        return matrix
    known = [] if attention_mask is None else _on_host(attention_mask, observer.masks_on_host)
    token_mask = None if attention_mask is None or all(mask.all() for mask in known) else attention_mask.bool()
    lengths = (batch_size, q_length, kv_length)
    rule = _rule(mask_function, lengths, local_size, torch.device(device))
    if rule is _EVERYTHING and token_mask is None and keywords.get("allow_is_bidirectional_skip"):
        return None
    if rule is _EVERYTHING:
        mask = Mask(keys=token_mask)
    elif rule is _CAUSAL:
        # Padding at the end comes after every token, so a causal mask hides it.
        padded_at_the_end = token_mask is None or all((mask[:, 1:] <= mask[:, :-1]).all() for mask in known)
        mask = Mask(causal=True) if padded_at_the_end else Mask(causal=True, keys=token_mask, queries=token_mask)
    else:
        queries = token_mask if q_length == kv_length else None
        mask = Mask(keys=token_mask, allowed=rule, reach=local_size, queries=queries)
    return MaskTensor(mask, lengths, dtype, torch.device(device))


def _on_host(mask: Tensor, masks: Sequence[Tensor]) -> list[Tensor]:
    """The known masks of this shape, one of which equals this one; without any, the mask itself, for which the host waits."""
    return [known for known in masks if known.shape == mask.shape] or [mask]


# transformers annotates mask functions with ints, but calls them with tensors.
_EVERYTHING: Allowed = cast(Allowed, bidirectional_mask_function)
_CAUSAL: Allowed = cast(Allowed, causal_mask_function)


def _rule(function: Allowed, lengths: tuple[int, int, int], reach: int | None, device: torch.device) -> Allowed:
    """The simplest equivalent rule: a window as long as the text, for example, allows everything."""
    if function in (_EVERYTHING, _CAUSAL):
        return function
    sequences, queries, keys = lengths
    if reach is not None and reach < max(queries, keys) - 1:
        return function
    everything = causal = True
    sequence = torch.arange(sequences, device=device)[:, None, None, None]
    key = torch.arange(keys, device=device)[None, None, None]
    for query in torch.arange(queries, device=device)[None, None, :, None].split(STRIP, dim=2):
        seen = function(sequence, torch.zeros_like(sequence), query, key)
        everything = everything and bool(seen.all())
        causal = causal and queries == keys and bool((seen == (key <= query)).all())
    if everything:
        return _EVERYTHING
    return _CAUSAL if causal else function


# The name needs a mask function too: without one, transformers may leave padding visible.
AttentionInterface.register(IMPLEMENTATION, _attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, _mask_function)
