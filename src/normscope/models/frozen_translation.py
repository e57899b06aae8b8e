"""An encoder–decoder with attention weights, deviations, slopes and gates held fixed, recorded by autograd.

Cross-attention is linear in the encoder's vectors once α is fixed, so the whole model is affine in the vectors that enter the
first layers of both stacks. Texts to translate are short: the recording of every layer is kept, unlike in `frozen_pass.py`.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.models.attention_function import attention_by
from normscope.models.feed_forward_modules import FeedForwardModules, bind_feed_forward
from normscope.models.frozen_functions import frozen_functions, recorded_biases
from normscope.models.layer_hooks import vectors_in, with_vectors
from normscope.models.layouts import layout_of


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenTranslation:
    """A pass of an encoder–decoder that autograd has recorded."""

    source: Float[Tensor, "batch source model"]
    """The vectors that enter the encoder's first layer."""
    target: Float[Tensor, "batch target model"]
    """The vectors that enter the decoder's first layer."""
    logits: Float[Tensor, "batch target vocabulary"]
    biases: Sequence[Tensor]


@contextlib.contextmanager
def frozen_translation(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Iterator[FrozenTranslation]:
    """Run an encoder–decoder once; while the context is open, autograd can go back through it.

    Args:
        model: The encoder–decoder with its head, in evaluation mode.

    Raises:
        InputError: If a layer has no feed-forward network whose slopes are known, or has a mixture of experts.
    """
    encoder, decoder = layout_of(model.config, "encoder"), layout_of(model.config, "cross")
    networks = [*bind_feed_forward(model.get_encoder(), encoder), *bind_feed_forward(model.base_model, decoder)]
    if any(network.routed for network in networks):
        raise InputError(
            f"attribution through an encoder–decoder needs dense feed-forward networks, but {model.config.model_type} has a "
            "mixture of experts; set another model.name"
        )
    first = [encoder.parts(model.get_encoder())[0].entry, decoder.parts(model.base_model)[0].entry]
    with contextlib.ExitStack() as exit_:
        exit_.enter_context(attention_by(model, "eager"))
        for network in networks:
            for handle in _frozen_gates(network) if network.gated else ():
                exit_.callback(handle.remove)
        leaves = [exit_.enter_context(_leaf(layer)) for layer in first]
        biases = exit_.enter_context(recorded_biases(model))
        exit_.enter_context(torch.inference_mode(False))
        exit_.enter_context(torch.enable_grad())
        with frozen_functions(attention=True):
            output = model(**{name: tensor.clone() for name, tensor in inputs.items()})
        (source,), (target,) = leaves
        yield FrozenTranslation(source, target, output.logits, biases)


@contextlib.contextmanager
def _leaf(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Make what enters a layer a leaf from which autograd records; it is put into the list."""
    vectors: list[Tensor] = []

    def enter(_module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = vectors_in(args, keywords)
        vectors.append(given.detach().clone().requires_grad_())
        return with_vectors(args, keywords, vectors[0])

    handle = layer.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield vectors
    finally:
        handle.remove()


def _frozen_gates(network: FeedForwardModules) -> Iterator[torch.utils.hooks.RemovableHandle]:
    """Replace g(u) ⊙ w of a gated network by u ⊙ A + w ⊙ B with A and B held fixed; see `maths/frozen.py`."""
    inner: dict[nn.Module, Tensor] = {}
    gate = network.multiplier
    assert gate is not None

    def keep(module: nn.Module, _args: Any, output: Tensor) -> None:
        inner[module] = output

    def freeze(_module: nn.Module, _args: Any) -> tuple[Tensor]:
        u, multipliers = inner[network.input], inner[gate]
        with torch.no_grad():
            slopes = network.parameters().slopes(u.detach(), multipliers.detach())
        assert slopes.multiplier is not None
        return (u * slopes.input + multipliers * slopes.multiplier,)

    yield network.input.register_forward_hook(keep)
    yield gate.register_forward_hook(keep)
    yield network.output.register_forward_pre_hook(freeze)
