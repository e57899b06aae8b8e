"""Infers where a model keeps its parts, from a recorded pass of the model or of one without weights built from its config."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModel, PretrainedConfig
from transformers.initialization import no_init_weights
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.maths.attention import attention_weights
from normscope.models.infer.graph import NotInferredError
from normscope.models.infer.inferred import layout_from
from normscope.models.infer.pointwise import replace_pointwise
from normscope.models.infer.trace import Trace, trace
from normscope.models.observe.attention_function import (
    IMPLEMENTATION,
    AttentionCall,
    active,
    attention_by,
    own_attention_by,
)
from normscope.models.sites.layout import ModelLayout, Stack, embeddings_of
from normscope.models.sites.positions import random_tokens
from normscope.models.sites.site import Site
from normscope.models.stored.config_checks import bounded_modules
from normscope.models.stored.random_state import drawing
from normscope.models.stored.stored_weights import execution_device

_SMALL = 500_000_000
"""The largest number of parameters for which a model with random weights is built to infer its layout."""

_SOURCE, _TARGET = 11, 7
"""Lengths of the recorded texts. They differ, so that cross-attention can be recognised."""


class _Attention:
    """Attention in simple operations. It replaces transformers' function, which may be a single fused operation."""

    masks_on_host: Sequence[Tensor] = ()

    def __init__(self) -> None:
        self.modules: set[nn.Module] = set()
        """The modules that have called this attention."""
        self.additive = True
        """Whether every score was q·k plus other terms, and the weights of every query added up to one."""

    def attend(self, module: nn.Module, call: AttentionCall) -> Tensor:
        """Compute the attention of any module."""
        self.modules.add(module)
        query, key, value, mask, scale, cap, sinks = call.repeated()
        self.additive = self.additive and cap is None and sinks is None
        lengths = len(query), query.shape[2], key.shape[2]
        every = slice(None), slice(0, lengths[1]), slice(0, lengths[2])
        term = None if mask is None else mask.chosen_term(*every, lengths, query)
        weights = attention_weights(query, key, term, scale, cap=cap, sinks=sinks)
        return torch.matmul(weights, value.to(weights.dtype)).to(value.dtype).transpose(1, 2).contiguous()


def layout_of_model(model: nn.Module, stack: Stack | None = None) -> ModelLayout:
    """The layout of a model, inferred from one pass over a small batch.

    Args:
        model: A base model in evaluation mode; if the stack is the encoder, the encoder alone.
        stack: The stack of an encoder–decoder.

    Raises:
        NotInferredError: If no rule covers something that the model computes.
    """
    return _layout(model, stack, *_recorded(model, stack))


def _layout(model: nn.Module, stack: Stack | None, recorded: Trace, attention: _Attention) -> ModelLayout:
    kind = getattr(getattr(model, "config", None), "model_type", None) or type(model).__name__
    source = _source_length(model)
    layout = layout_from(recorded, kind, source, _TARGET if stack in ("decoder", "cross") else source, stack)
    registry = _calls_function(layout, model, attention)
    if not registry:
        for site in layout.sites:
            _check_own(site)
    return dataclasses.replace(
        layout,
        registry=registry,
        fused_reference=attention.additive,
        float32_inside=layout.float32_inside or not attention.additive,
        source=_where(model),
    )


def _check_own(site: Site) -> None:
    """Check that attention which does not call transformers' function can be rebuilt from its weights."""
    if site.attention.scale is None:
        raise NotInferredError("scores are not a multiple of q·k plus other terms")
    for what, heads in zip(("queries", "keys", "values"), site.attention.projections, strict=True):
        if heads is None:
            raise NotInferredError(
                f"no single linear layer maps what attention reads to the {what}, and attention does not call transformers' "
                "function"
            )


def _calls_function(layout: ModelLayout, model: nn.Module, attention: _Attention) -> bool:
    """Whether the observed attention modules call transformers' attention function."""
    calling = {model.get_submodule(site.attention.module) in attention.modules for site in layout.sites}
    if len(calling) > 1:
        raise NotInferredError("some layers call transformers' attention function and others do not")
    return calling.pop()


def _recorded(model: nn.Module, stack: Stack | None) -> tuple[Trace, _Attention]:
    attention = _Attention()
    with plain_attention(model, attention):
        return trace(model, _inputs(model, stack)), attention


@contextlib.contextmanager
def plain_attention(model: nn.Module, attention: _Attention | None = None) -> Iterator[None]:
    """Context in which a model's attention is not a single fused operation."""
    if not isinstance(model, PreTrainedModel):
        yield
    elif model._can_set_attn_implementation():
        token = active.set(attention or _Attention())
        try:
            with attention_by(model, IMPLEMENTATION):
                yield
        finally:
            active.reset(token)
    else:
        with own_attention_by(model, "eager"):
            yield


def _inputs(model: nn.Module, stack: Stack | None) -> dict[str, Any]:
    """Random token ids without padding: two texts of the same length."""
    targets = 2 * [_TARGET] if stack in ("decoder", "cross") else None
    inputs: dict[str, Any] = {**random_batch(model, 2 * [_source_length(model)], targets)}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    return inputs


def random_batch(model: Any, lengths: Sequence[int], targets: Sequence[int] | None = None) -> dict[str, Tensor]:
    """A batch of random token ids; see `random_tokens`.

    Args:
        lengths: Number of tokens of each text.
        targets: The same of the texts that the decoder reads; None for a model that reads none.

    Raises:
        NotInferredError: If the model has no token embeddings.
    """
    try:  # a Marian model may have two vocabularies
        readers = [model] if targets is None else [model, model.get_decoder()]
        vocabularies = [embeddings_of(reader).num_embeddings for reader in readers]
    except (AssertionError, AttributeError, NotImplementedError) as error:
        raise NotInferredError("the model has no token embeddings") from error
    device = execution_device(model)
    inputs = random_tokens(model, vocabularies[0], lengths, device)
    if targets is not None:
        target = random_tokens(model, vocabularies[1], targets, device)
        inputs |= {f"decoder_{name}": tensor for name, tensor in target.items()}
    return inputs


def _source_length(model: nn.Module) -> int:
    """Number of tokens of the recorded texts."""
    return min(_SOURCE, getattr(model, "longest_probe", None) or _SOURCE)


def _where(model: nn.Module) -> str:
    """Where the model's code is, for error messages."""
    module = type(model).__module__
    if module.startswith("transformers."):
        return f"https://github.com/huggingface/transformers/blob/main/src/{module.replace('.', '/')}.py"
    return module


def layout_of(config: PretrainedConfig, stack: Stack | None = None) -> ModelLayout:
    """The layout of the model that a config describes.

    Args:
        config: The config of a transformers model.
        stack: The stack of an encoder–decoder; by default the encoder.

    Raises:
        InputError: If the model cannot be observed exactly, or has no such stack; the message gives the reason.
    """
    stack = observed_stack(config, stack)
    with inference_explained(config.model_type):
        return layout_of_config(config, stack)


def observed_stack(config: PretrainedConfig, stack: Stack | None) -> Stack | None:
    """The stack to observe: for an encoder–decoder, by default the encoder; for other models, None.

    Raises:
        InputError: If a stack is given for a model that has only one.
    """
    if config.is_encoder_decoder:
        return stack or "encoder"
    if stack is not None:
        raise InputError(
            f"model.stack={stack}: {config.model_type} has only one stack and no cross-attention; leave it out or, for "
            "analysis=alignment, set model.name to an encoder–decoder, such as a Marian model"
        )
    return None


@contextlib.contextmanager
def inference_explained(name: str, advice: str = "") -> Iterator[None]:
    """Turn a failed inference into an error message for the user.

    Args:
        name: The model's name or family.
        advice: What to do about it; by default, choose another model.

    Raises:
        InputError: In place of `NotInferredError`.
    """
    try:
        yield
    except NotInferredError as error:
        advice = advice or (
            "set model.name to another model (the documentation's list of models says what can be observed of which)"
        )
        raise InputError(f"model: {name} cannot be observed exactly: {error}; {advice}") from error


def layout_of_config(config: PretrainedConfig, stack: Stack | None = None) -> ModelLayout:
    """The layout of the model that a config describes, inferred from a model without weights. The result is cached.

    Raises:
        NotInferredError: If no rule covers something that the model computes.
    """
    return _layout_of_config(config.to_json_string(use_diff=False), _Config(config), stack)


def completed_layout(layout: ModelLayout, model: nn.Module) -> ModelLayout:
    """Complete a layout that was inferred from a model without weights with what only the weights show.

    Args:
        model: The model with its weights, in evaluation mode.
    """
    if layout.registry:
        return layout
    try:
        return layout_of_model(model, layout.stack)
    except RuntimeError:  # the model does not run in its dtype; verification explains that
        return layout


@dataclasses.dataclass(frozen=True)
class _Config:
    """A config that the cache ignores: the text of the config is the key."""

    config: PretrainedConfig

    def __eq__(self, _other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _layout_of_config(_text: str, given: _Config, stack: Stack | None) -> ModelLayout:
    failures: list[InputError | NotInferredError] = []
    # Some experts run only in bfloat16, and some models need real data: None stands for a model with random weights.
    for dtype in (torch.float64, torch.float32, torch.bfloat16, None):
        try:
            with drawing(), contextlib.nullcontext() if dtype is None else _without_numbers():
                model = _built(given.config, dtype or torch.float64, stack)
                recorded, attention = _recorded(model, stack)
        except (InputError, NotInferredError) as error:
            failures.append(error)
        except Exception as error:
            if dtype is None:
                raise
            # Our own code cannot do everything without numbers either.
            failures.append(NotInferredError(f"a forward pass over two texts fails without weights: {one_line(error)}"))
        else:
            return _layout(model, stack, recorded, attention)
    raise failures[0]


@contextlib.contextmanager
def _without_numbers() -> Iterator[None]:
    """Context in which tensors have shapes, but neither memory nor data."""
    log = logging.getLogger(fake_tensor.__name__)  # it logs failing operations before they raise
    silent = log.disabled
    log.disabled = True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), no_init_weights(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = silent


def _built(given: PretrainedConfig, dtype: torch.dtype, stack: Stack | None) -> nn.Module:
    """A model built from this config. Outside fake mode, only small models are built."""
    config = copy.deepcopy(given)
    config._experts_implementation_internal = None
    try:
        if detect_fake_mode() is None:
            with torch.device("meta"), bounded_modules():
                shape = AutoModel.from_config(config)
            if sum(parameter.numel() for parameter in shape.parameters()) > _SMALL:
                raise NotInferredError(
                    "it cannot run without weights, and is too large to be built with random weights"
                )
        with bounded_modules():
            model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype).eval()
        replace_pointwise(model)
    except NotInferredError:
        raise
    except Exception as error:  # each architecture fails on an invalid config in its own way
        raise InputError(f"model.name: cannot build the model from its config: {one_line(error)}") from error
    return model.get_encoder() if stack == "encoder" else model
