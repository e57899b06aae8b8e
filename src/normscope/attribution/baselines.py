"""Scores of tokens without a map: gradient × input of the untouched model, and integrated gradients by Captum.

Both attribute to the output of the model's token embedding. Position and segment embeddings are part of the
function, and the baseline of integrated gradients is a text whose token embeddings are zero.
"""

import enum
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.readouts import Readout
from normscope.maths.tensors import wide
from normscope.models.probes import embeddings_of

_ROWS_AT_ONCE = 16
"""Interpolated texts in one pass of integrated gradients."""


class Baseline(enum.StrEnum):
    """A method that gives scores alone, without a map."""

    GRADIENT_X_INPUT = "gradient_x_input"
    """Gradient × input (Shrikumar et al. 2016)."""
    INTEGRATED_GRADIENTS = "integrated_gradients"
    """Gradients along the way from a zero embedding (Sundararajan et al. 2017)."""
    THROUGH_ATTENTION = "through_attention"
    """As `decompx`, but attention weights are followed as well (the rules of Achtibat et al. 2024)."""


def baseline_scores(
    method: Baseline, model: PreTrainedModel, inputs: Mapping[str, Tensor], readout: Readout, steps: int
) -> Float[Tensor, "batch token"]:
    """The score of each token for the readout of its text, in float64; 0 at padding.

    Args:
        method: Which baseline.
        model: The base model, in evaluation mode.
        readout: What is attributed.
        steps: Number of steps of integrated gradients (Gauss–Legendre).

    Raises:
        ImportError: If integrated gradients are asked for and Captum is not installed.
    """
    module = embeddings_of(model)
    names = list(inputs)
    mask = inputs["attention_mask"].bool()
    with torch.inference_mode(False), torch.enable_grad():
        given = {name: tensor.clone() for name, tensor in inputs.items()}
        made_of_inputs = getattr(model, "entering", None)  # in a model of images or audio
        vectors = module(given["input_ids"]) if made_of_inputs is None else made_of_inputs(**given)
        embeddings = vectors.detach().requires_grad_()
        with torch.no_grad():
            untouched = readout.answers(readout.model(**given), given)

        def scalars(vectors: Tensor, answers: Tensor, *tensors: Tensor) -> Tensor:
            replaced = module.register_forward_hook(lambda _module, _args, _output: vectors)
            try:
                arguments = dict(zip(names, tensors, strict=True))
                output = readout.model(**arguments)
            finally:
                replaced.remove()
            return readout.scalars(readout.answers(output, arguments), answers)

        if method is Baseline.GRADIENT_X_INPUT:
            made = scalars(embeddings, untouched, *given.values())
            parts = torch.autograd.grad(made.sum(), embeddings)[0] * embeddings
        else:
            from captum.attr import IntegratedGradients

            parts = IntegratedGradients(scalars).attribute(
                embeddings,
                additional_forward_args=(untouched, *given.values()),
                n_steps=steps,
                internal_batch_size=1 if not readout.takes_padding else max(_ROWS_AT_ONCE, len(embeddings)),
            )
    scores = wide(parts.detach().sum(dim=-1))
    return scores * mask.to(scores)
